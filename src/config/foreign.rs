//! What settings are called elsewhere: in PyTorch's examples, timm, Keras, Lightning. Pure.

/// Names by which people look for a key.
const KEYS: &[(&str, &[&str])] = &[
    ("checkpoint.every", &["save_every", "save_freq", "save_interval", "save_steps"]),
    ("checkpoint.keep", &["save_total_limit", "save_top_k", "keep_last"]),
    ("checkpoint.keep_best", &["save_best", "save_best_only", "best_checkpoint"]),
    ("data.color_jitter", &["jitter", "colour_jitter"]),
    ("data.cutmix_alpha", &["cutmix"]),
    ("data.decode_threads", &["num_workers", "dataloader_workers", "loader_workers", "j"]),
    ("data.deviation", &["std"]),
    ("data.flip", &["hflip", "horizontal_flip"]),
    ("data.format", &["dataset", "dataset_type"]),
    ("data.image_size", &["img_size", "input_size", "imgsz", "crop_size", "resolution"]),
    ("data.mixup_alpha", &["mixup"]),
    ("data.prefetch", &["prefetch_factor"]),
    ("data.train", &["data_dir", "data_path", "dataset_dir", "train_dir", "root", "train_data"]),
    (
        "data.validation",
        &[
            "val",
            "val_dir",
            "valid_dir",
            "validation_dir",
            "val_data",
            "test_dir",
            "val_split",
            "validation_split",
        ],
    ),
    ("device.kind", &["gpu", "gpus", "cuda", "accelerator", "use_cuda"]),
    ("device.precision", &["amp", "fp16", "bf16", "half", "mixed_precision", "dtype"]),
    ("evaluation.batch", &["eval_batch_size", "val_batch_size", "test_batch_size"]),
    ("evaluation.every", &["eval_every", "eval_freq", "eval_interval", "val_interval", "val_freq"]),
    ("model.freeze", &["frozen", "freeze_layers"]),
    ("model.init", &["pretrained", "weights", "checkpoint_path", "init_checkpoint", "finetune"]),
    ("model.name", &["arch", "architecture", "net", "network", "backbone"]),
    ("observe.tensorboard", &["tb", "log", "logging"]),
    ("optimizer.betas", &["beta", "beta1", "beta2"]),
    ("optimizer.clip_norm", &["clip_grad", "clip_grad_norm", "grad_clip", "max_grad_norm"]),
    ("optimizer.ema_decay", &["ema", "model_ema", "model_ema_decay"]),
    ("optimizer.epsilon", &["eps", "adam_epsilon"]),
    ("optimizer.learning_rate", &["lr", "base_lr", "init_lr", "initial_lr", "max_lr", "eta"]),
    ("optimizer.name", &["opt", "optim"]),
    ("optimizer.weight_decay", &["wd", "decay", "l2"]),
    ("recovery.time_limit", &["timeout"]),
    ("run.name", &["run_name", "exp_name", "experiment", "experiment_name", "project"]),
    ("run.ranks", &["world_size", "nproc", "nproc_per_node", "np", "num_processes", "n_gpus"]),
    ("run.seed", &["seed", "random_seed", "manual_seed", "random_state"]),
    ("schedule.factor", &["gamma", "lr_decay", "decay_rate", "lr_gamma"]),
    ("schedule.kind", &["scheduler", "lr_scheduler", "lr_schedule", "sched", "lr_policy"]),
    ("schedule.milestones", &["step_size", "lr_steps", "decay_epochs", "lr_step_size"]),
    (
        "schedule.warm_up",
        &["warmup", "warmup_epochs", "warmup_steps", "warmup_ratio", "num_warmup_steps"],
    ),
    ("train.accumulate", &["grad_accum", "gradient_accumulation_steps", "accumulate_grad_batches"]),
    ("train.epochs", &["num_epochs", "max_epochs", "n_epochs", "num_train_epochs"]),
    ("train.global_batch", &["batch", "batch_size", "bs", "train_batch_size", "global_batch_size"]),
    ("train.label_smoothing", &["smoothing"]),
    ("train.max_seconds", &["max_time", "time_limit_seconds", "walltime"]),
    ("train.steps", &["max_steps", "num_steps", "iterations", "max_iter", "total_steps"]),
    ("train.patience", &["early_stopping", "early_stopping_patience", "early_stop"]),
    ("train.threads", &["omp_num_threads", "num_threads", "intra_op_threads"]),
];

/// Names that are no key here, or none any more, and what does it instead.
const INSTEAD: &[(&[&str], &str)] = &[
    (
        &["resume", "resume_from", "auto_resume", "resume_from_checkpoint", "load"],
        "nothing has to be set: the same `kintsugi launch` goes on with its run; to begin from \
         other weights set `model.init`",
    ),
    (
        &[
            "output",
            "output_dir",
            "out_dir",
            "work_dir",
            "log_dir",
            "save_dir",
            "run_dir",
            "logdir",
        ],
        "`kintsugi launch --run-dir DIR` says where a run lives",
    ),
    (&["shuffle"], "nothing has to be set: each epoch has an order of its own, from `run.seed`"),
    (
        &["drop_last"],
        "there is none: every sample counts once in each epoch, the last step being smaller",
    ),
    (
        &["loss", "criterion", "loss_fn"],
        "there is none: the loss is cross entropy; see `train.label_smoothing`",
    ),
    (&["num_classes", "classes"], "nothing has to be set: the data set says how many there are"),
    (
        &["backend", "dist_backend", "dist_url", "master_addr", "master_port", "local_rank"],
        "there is none: `kintsugi launch -n RANKS` starts the ranks under MPI",
    ),
    (
        &["nnodes", "num_nodes", "n_nodes", "nodes"],
        "nothing has to be set: SLURM's allocation says which nodes, and `run.ranks`, or -n of \
         `kintsugi launch`, how many ranks there are on all of them",
    ),
    (
        &["devices", "num_devices", "gpus_per_node"],
        "there is none: with `device.kind` = \"cuda\" each of the `train.workers` of each of the \
         `run.ranks` computes on a card",
    ),
    (
        &["deterministic", "benchmark", "cudnn_benchmark"],
        "there is none: with the synchronous exchange a run always has the same bits",
    ),
    (
        &["refill_spares"],
        "it was not dependable and is gone: behind the last spare the next rung of \
         `recovery.ladder` is taken, or the run is renewed (\"restart\" without \"respawn\"); \
         leave the key out",
    ),
    (&["resident_every"], "there is none: the state in memory is that of the last step, always"),
];

/// A name as it is compared: `--Batch-Size` is `batch_size`.
fn plain(name: &str) -> String {
    name.trim_start_matches('-').to_lowercase().replace(['-', ' '], "_")
}

/// The key for which this is another name.
pub fn key(name: &str) -> Option<&'static str> {
    let name = plain(name);
    let of = KEYS.iter().find(|(_, others)| others.contains(&name.as_str()));
    of.map(|(key, _)| *key)
}

/// Choices by the names that other programs have for them.
const CHOICES: &[(&str, &[&str])] = &[
    ("cuda", &["gpu", "gpus", "nvidia"]),
    ("bf16", &["fp16", "f16", "half", "float16", "bfloat16", "mixed"]),
    ("f32", &["fp32", "float32", "float", "full"]),
    ("tar", &["webdataset", "wds"]),
    ("image_folder", &["folder", "imagefolder", "imagenet"]),
];

/// The choice for which this is another name.
pub fn choice(name: &str) -> Option<&'static str> {
    let name = plain(name);
    let of = CHOICES.iter().find(|(_, others)| others.contains(&name.as_str()));
    of.map(|(choice, _)| *choice)
}

/// What does it where there is no such key.
pub fn instead(name: &str) -> Option<&'static str> {
    let name = plain(name);
    let of = INSTEAD.iter().find(|(others, _)| others.contains(&name.as_str()));
    of.map(|(_, words)| *words)
}

/// Other names of a key.
pub fn names_of(key: &str) -> &'static [&'static str] {
    KEYS.iter().find(|(known, _)| *known == key).map_or(&[], |(_, others)| others)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::keys;

    #[test]
    fn every_name_leads_to_one_key_that_exists() {
        let mut seen = std::collections::BTreeSet::new();
        for (key, others) in KEYS {
            let (section, name) = key.split_once('.').unwrap();
            assert!(keys::keys_of(section).contains(&name), "{key}");
            assert!(others.iter().all(|other| seen.insert(*other)), "{key}: {others:?}");
        }
        for (others, words) in INSTEAD {
            assert!(others.iter().all(|other| seen.insert(*other)), "{others:?}");
            for key in words.split('`').filter(|word| word.contains('.') && !word.contains(' ')) {
                let (section, name) = key.split_once('.').unwrap();
                assert!(keys::keys_of(section).contains(&name), "{key}");
            }
        }
        // What a key is called here is no other name for another, but where several are called so.
        let own = || keys::sections().iter().flat_map(|section| keys::keys_of(section));
        let is_one = |name: &&&str| own().filter(|other| other == name).count() == 1;
        let taken: Vec<_> = own().filter(|name| seen.contains(*name)).filter(is_one).collect();
        // `evaluation.batch` is, but who types it without a section means the step's.
        assert_eq!(taken, [&"batch"]);
    }

    #[test]
    fn a_flag_is_read_as_a_name() {
        assert_eq!(key("--Batch-Size"), Some("train.global_batch"));
        assert!(instead("resume").unwrap().contains("kintsugi launch"));
        assert_eq!((choice("GPU"), choice("webdataset")), (Some("cuda"), Some("tar")));
        assert_eq!(key("val_split"), Some("data.validation"));
        assert!(instead("nnodes").unwrap().contains("SLURM"));
        assert!(instead("devices").unwrap().contains("`train.workers`"));
        assert_eq!((key("seeds"), instead("seeds")), (None, None));
    }
}
