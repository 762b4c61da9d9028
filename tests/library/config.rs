//! The configuration as its user meets it: what is accepted, what is refused, and in which words.

use std::path::{Path, PathBuf};

use kintsugi::config::identity::resolved_text;
use kintsugi::config::parse::{self, Loaded};
use kintsugi::config::{ColorJitter, Config, ConfigError, Crop, check_measured};
use kintsugi::data::Normalization;
use kintsugi::lab::experiment::file::{Changes, Experiment};
use kintsugi::lab::memory::file::Study;

const IMAGENET: Normalization = Normalization::IMAGENET;

mod validation;

/// A file that is removed with its folder.
fn file(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("run.toml");
    std::fs::write(&path, text).expect("a file");
    (folder, path)
}

fn load(text: &str, overrides: &[&str]) -> Result<Config, ConfigError> {
    let (_folder, path) = file(text);
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    parse::load(&path, &overrides)
}

const GOOD: &str = "[train]\nepochs = 3\n[run]\nranks = 4\n";

/// The message names every part of `expected`.
#[track_caller]
fn refused(text: &str, overrides: &[&str], expected: &[&str]) {
    let error = match load(text, overrides) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("accepted: {text} {overrides:?}"),
    };
    for part in expected {
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
}

#[test]
fn defaults_files_and_overrides_stack_in_that_order() {
    let config =
        load(GOOD, &["train.epochs=5", "run.name = probe", "optimizer.momentum=0"]).unwrap();
    assert_eq!(config.train.epochs, Some(5));
    assert_eq!(config.run.ranks, 4);
    assert_eq!(config.run.name, "probe");
    assert_eq!(config.optimizer.momentum, 0.0);
    assert_eq!(config.optimizer.learning_rate, 0.05);
}

#[test]
fn an_override_is_toml_or_else_a_string() {
    let config = load(
        GOOD,
        &[
            "recovery.time_limit=30s",
            "recovery.ladder=[\"respawn\", \"restart\"]",
            "faults.plan=[{kind=\"kill\", rank=2, step=40}]",
            "data.train=/data/with=sign",
        ],
    )
    .unwrap();
    assert_eq!(config.recovery.time_limit.0.as_secs(), 30);
    assert_eq!(config.recovery.rungs().len(), 2);
    assert_eq!(config.faults.plan[0].step, Some(40));
    assert_eq!(config.data.train.as_deref(), Some(Path::new("/data/with=sign")));
}

#[test]
fn a_files_width_does_not_stop_a_model_without_one_from_being_named() {
    let (_folder, path) = file("train.steps = 1\n[model]\nname = \"cnn11\"\nwidth = 0.25\n");
    let typed = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    for (words, name, width, said) in [
        (&["model.name=resnet20"][..], "resnet20", 1.0, true),
        (&["model.name=mine.toml"], "mine.toml", 1.0, true),
        // One of a model that has one stays.
        (&["model.name=mlp"], "mlp", 0.25, false),
        (&["model.name=cnn11"], "cnn11", 0.25, false),
        (&[], "cnn11", 0.25, false),
    ] {
        let Loaded { config, remarks } = parse::loaded(&path, &typed(words)).unwrap();
        assert_eq!((config.model.name.as_str(), config.model.width), (name, width), "{words:?}");
        assert_eq!(remarks.len(), usize::from(said), "{words:?}");
        let told = remarks.iter().all(|remark| remark.contains("`model.width = 0.25` of the file"));
        assert!(told, "{remarks:?}");
    }
    let refused =
        |path: &Path, words: &[&str]| parse::loaded(path, &typed(words)).unwrap_err().to_string();
    // A width that is typed is meant.
    let text = refused(&path, &["model.name=resnet20", "model.width=0.25"]);
    assert!(text.contains("only mlp and cnn11"), "{text}");
    // The file itself contradicts.
    let (_folder, path) = file("train.steps = 1\n[model]\nname = \"resnet20\"\nwidth = 0.25\n");
    let text = refused(&path, &["model.name=resnet20"]);
    assert!(text.contains("only mlp and cnn11"), "{text}");
    let (_folder, path) = file("train.steps = 1\n[model]\nwidth = 1\n");
    let loaded = parse::loaded(&path, &typed(&["model.name=resnet20"])).unwrap();
    assert_eq!(loaded.remarks, Vec::<String>::new());
}

/// As where a run's own file begins another one.
#[test]
fn a_model_that_is_named_has_not_the_text_of_another() {
    let text = "[train]\nepochs = 3\n[model]\nname = \"a.toml\"\ntext = \"[[layer]]\"\n";
    let of = |overrides: &[&str]| load(text, overrides).expect("accepted").model;
    assert_eq!(of(&[]).text.as_deref(), Some("[[layer]]"));
    assert_eq!(of(&["model.name=a.toml"]).text.as_deref(), Some("[[layer]]"));
    assert_eq!(of(&["model.name=b.toml"]).text, None);
    let named = of(&["model.name=resnet18"]);
    assert_eq!((named.name.as_str(), named.text), ("resnet18", None));
}

#[test]
fn owners_default_to_ranks_times_workers() {
    assert_eq!(load(GOOD, &["train.workers=3"]).unwrap().train.owners, Some(12));
    assert_eq!(load(GOOD, &["train.owners=7"]).unwrap().train.owners, Some(7));
}

#[test]
fn a_run_has_as_many_ranks_as_it_needs_at_least() {
    assert_eq!(load(GOOD, &["recovery.min_ranks=4"]).unwrap().recovery.min_ranks, 4);
    refused(GOOD, &["recovery.min_ranks=5"], &["recovery.min_ranks = 5", "4 ranks"]);
    refused(GOOD, &["recovery.min_ranks=0"], &["recovery.min_ranks", "1 or more"]);
}

#[test]
fn unknown_keys_are_refused_with_the_nearest_known_one() {
    refused("[train]\nepoch = 3\n", &[], &["train.epoch`", "did you mean `train.epochs`?"]);
    refused(GOOD, &["train.ranks=3"], &["did you mean `run.ranks`?"]);
    refused("[trian]\nepochs = 3\n", &[], &["trian", "[train]"]);
    refused(GOOD, &["optimizer.qqqq=1"], &["optimizer.qqqq", "learning_rate"]);
    refused(GOOD, &["epochs=3"], &["unknown key `epochs`", "did you mean `train.epochs`?"]);
    refused(GOOD, &["optimizer=adamw"], &["a section", "optimizer.name = \"adamw\""]);
    let plan = "faults.plan=[{kind=\"kill\", stpe=40}]";
    refused(GOOD, &[plan], &["faults.plan[0].stpe", "did you mean `step`?"]);
}

/// Who comes with a file of another program reads once what to change.
#[test]
fn all_unknown_keys_are_told_at_once() {
    let text = "lr = 0.1\nresume = true\n[train]\nbatch_size = 64\n[model]\npretrained = true\n";
    let expected = [
        "`lr`; did you mean `optimizer.learning_rate`?",
        "`resume`; nothing has to be set: the same `kintsugi launch`",
        "`train.batch_size`; did you mean `train.global_batch`?",
        "`model.pretrained`; did you mean `model.init`?",
        "`num_workers`; did you mean `data.decode_threads`?",
    ];
    refused(text, &["num_workers=8"], &expected);
}

#[test]
fn wrong_types_say_key_value_and_what_to_write() {
    refused(
        GOOD,
        &["train.global_batch=many"],
        &["train.global_batch = \"many\"", "whole number", "train.global_batch = 96"],
    );
    refused(GOOD, &["train.epochs=-1"], &["train.epochs", "-1", "write for example"]);
    refused(GOOD, &["recovery.time_limit=30"], &["recovery.time_limit = 30", "\"60s\""]);
    refused(GOOD, &["recovery.time_limit=30x"], &["30x", "\"2h\""]);
    refused(GOOD, &["data.format=jpeg"], &["data.format", "jpeg", "image_folder"]);
    refused(GOOD, &["data.augment=maybe"], &["true or false"]);
    // As somebody calls it elsewhere, or types it.
    for (typed, meant) in [
        ("optimizer.name=adam", "optimizer.name = \"adamw\""),
        ("schedule.kind=cosin", "schedule.kind = \"cosine\""),
    ] {
        refused(GOOD, &[typed], &[&format!("write for example {meant}")]);
    }
    refused("train = 3\n", &[], &["train", "[train]"]);
    let kind = "faults.plan=[{kind=\"explode\", step=4}]";
    refused(GOOD, &[kind], &["faults.plan[0]", "explode", "kill"]);
}

#[test]
fn malformed_files_and_overrides_are_named() {
    refused("[train\n", &[], &["run.toml", "not valid TOML"]);
    for text in ["train.epochs", ".epochs=3", "train.=3"] {
        refused(GOOD, &[text], &[text, "section.key=value"]);
    }
    let error = parse::load(Path::new("/no/such/file.toml"), &[]).unwrap_err().to_string();
    assert!(error.contains("/no/such/file.toml"), "{error}");
}

#[test]
fn crops_keep_to_their_ranges() {
    let random = "data.crop=random";
    for scale in ["[0.0, 1.0]", "[0.5, 1.5]", "[0.6, 0.5]", "[nan, 1.0]"] {
        let asked = format!("data.crop_scale={scale}");
        refused(GOOD, &[random, &asked], &["data.crop_scale", "above 0, to 1"]);
    }
    for ratio in ["[0.0, 1.0]", "[1.0, inf]", "[2.0, 1.0]"] {
        let asked = format!("data.crop_ratio={ratio}");
        refused(GOOD, &[random, &asked], &["data.crop_ratio", "from 0.01 to 100"]);
    }
    refused(GOOD, &["data.crop_scale=[0.5, 1.0]"], &["data.crop_scale", "\"random\""]);
    refused(GOOD, &[random, "data.augment=false"], &["data.crop", "random", "leave one"]);
    refused(GOOD, &["data.crop=middle"], &["data.crop", "middle", "center"]);
    let good = [random, "data.crop_scale=[0.2, 1.0]", "data.crop_ratio=[0.5, 2.0]"];
    let config = load(GOOD, &good).expect("within its ranges");
    assert_eq!(config.data.look().crop, Crop::Random { scale: [0.2, 1.0], ratio: [0.5, 2.0] });
}

#[test]
fn soft_targets_keep_to_their_ranges() {
    for key in ["data.mixup_alpha", "data.cutmix_alpha"] {
        for alpha in ["0", "-1.0", "nan", "1001"] {
            refused(GOOD, &[&format!("{key}={alpha}")], &[key, "from 0.001 to 1000"]);
        }
    }
    for smoothing in ["-0.1", "1.0", "nan"] {
        let asked = format!("train.label_smoothing={smoothing}");
        refused(GOOD, &[&asked], &["train.label_smoothing", "from 0 to below 1"]);
    }
    let good = ["data.mixup_alpha=0.2", "data.cutmix_alpha=1", "train.label_smoothing=0.1"];
    let config = load(GOOD, &good).expect("within their ranges");
    assert_eq!((config.data.mixup_alpha, config.data.cutmix_alpha), (Some(0.2), Some(1.0)));
    assert_eq!(config.train.label_smoothing, Some(0.1));
}

#[test]
fn looks_keep_to_their_ranges() {
    refused(GOOD, &["data.image_size=64", "data.resize=63"], &["data.resize", "64 to 16384"]);
    for flip in ["-0.1", "1.1", "nan"] {
        refused(GOOD, &[&format!("data.flip={flip}")], &["data.flip", "from 0 to 1"]);
    }
    refused(GOOD, &["data.flip=true"], &["data.flip", "number"]);
    for (name, value) in [("brightness", "-0.1"), ("contrast", "inf"), ("hue", "0.51")] {
        let asked = format!("data.color_jitter={{{name}={value}}}");
        refused(GOOD, &[&asked], &[&format!("data.color_jitter.{name}"), "from 0 (no change)"]);
    }
    let slip = "data.color_jitter={brightnes=0.4}";
    refused(GOOD, &[slip], &["brightnes", "brightness"]);
    for key in ["data.flip=0.2", "data.color_jitter={hue=0.1}"] {
        refused(GOOD, &[key, "data.augment=false"], &[&key[..9], "leave one"]);
    }
    let scaled = "data.scaled_decoding=true";
    refused(GOOD, &[scaled, "data.format=cifar10"], &["data.scaled_decoding", "JPEGs"]);
    refused(GOOD, &["data.scaled_decoding=2"], &["data.scaled_decoding", "true or false"]);
    assert!(load(GOOD, &[scaled]).expect("of an image folder").data.look().scaled_decoding);
    let good = ["data.resize=256", "data.flip=0", "data.color_jitter={hue=0.5, contrast=0.4}"];
    let look = load(GOOD, &good).expect("within its ranges").data.look();
    assert_eq!((look.resize, look.flip), (Some(256), 0.0));
    let jitter = ColorJitter { hue: 0.5, contrast: 0.4, ..ColorJitter::default() };
    assert_eq!(look.jitter, jitter);
}

#[test]
fn means_and_deviations_are_of_levels_from_0_to_1() {
    for mean in ["[123.675, 116.28, 103.53]", "[-0.1, 0.5, 0.5]", "[nan, 0.5, 0.5]"] {
        let asked = format!("data.mean={mean}");
        refused(GOOD, &[&asked], &["data.mean", "levels go from 0 to 1", "each from 0 to 1"]);
    }
    for deviation in ["[0.0, 0.5, 0.5]", "[58.395, 57.12, 57.375]"] {
        let asked = format!("data.deviation={deviation}");
        refused(GOOD, &[&asked], &["data.deviation", "each above 0, to 1"]);
    }
    refused(GOOD, &["data.mean=0.5"], &["data.mean = 0.5", "[0.485, 0.456, 0.406]"]);
    refused(GOOD, &["data.mean=[0.5, 0.5]"], &["data.mean"]);
    let grey = ["data.format=mnist", "data.mean=[0.1, 0.2, 0.1]"];
    refused(GOOD, &grey, &["data.mean", "grey", "three times"]);
    let config = load(GOOD, &["data.deviation=[0.5, 0.25, 1]"]).expect("within their ranges");
    let found = Normalization::of(&config.data);
    assert_eq!((found.mean, found.deviation), (IMAGENET.mean, [0.5, 0.25, 1.0]));
}

#[test]
fn impossible_sizes_are_refused() {
    for key in ["run.ranks", "train.global_batch", "train.workers", "train.threads", "train.steps"]
    {
        refused(GOOD, &[&format!("{key}=0")], &[key, "1 or more"]);
    }
    let card = ["device.kind=cuda", "train.threads=2"];
    refused(GOOD, &card, &["train.threads = 2", "all processors of its rank"]);
    // What f32 has no number for, or only 0.
    for (key, value) in
        [("learning_rate", "1e40"), ("weight_decay", "1e39"), ("clip_norm", "1e-50")]
    {
        let text = format!("optimizer.{key}={value}");
        refused(GOOD, &[&text], &[&format!("optimizer.{key}"), "write a number"]);
    }
    for ratio in ["0.0", "1.5", "-1.0", "nan"] {
        let text = format!("data.bundle_ratio={ratio}");
        refused(GOOD, &[&text], &["data.bundle_ratio", "above 0, to 1"]);
    }
    let bundles = ["data.bundle_ratio=0.1", "data.alternating=true"];
    assert!(load(GOOD, &bundles).is_ok());
    refused("", &[], &["nothing would end the run", "train.steps"]);
    refused(GOOD, &["run.name=a/b"], &["run.name", "folder"]);
}

#[test]
fn more_ranks_than_owners_is_refused_by_name() {
    refused(GOOD, &["train.owners=3"], &["train.owners = 3", "more ranks than owners", "4"]);
    refused(GOOD, &["train.owners=6", "train.workers=2"], &["more workers than owners", "8"]);
}

#[test]
fn a_fault_needs_exactly_one_moment_and_a_victim_that_exists() {
    refused(GOOD, &["faults.plan=[{kind=\"kill\"}]"], &["faults.plan[0]", "step = N"]);
    let both = "faults.plan=[{kind=\"kill\", step=4, seconds=2.0}]";
    refused(GOOD, &[both], &["both step and seconds"]);
    let pause = "faults.plan=[{kind=\"kill\", step=4, pause=\"1s\"}]";
    refused(GOOD, &[pause], &["faults.plan[0]", "only kind = \"slow\" has a pause"]);
    let none = "faults.plan=[{kind=\"slow\", step=4, pause=\"0s\"}]";
    refused(GOOD, &[none], &["faults.plan[0]", "slows nobody"]);
    let nobody = "faults.plan=[{kind=\"kill\", step=4, rank=4}]";
    refused(GOOD, &[nobody], &["there is no rank 4"]);
    let both = "faults.plan=[{kind=\"kill\", step=4, rank=2, who=\"leader\"}]";
    refused(GOOD, &[both], &["faults.plan[0]", "only who = \"rank\" names one"]);
    let nan = "faults.plan=[{kind=\"nan\", step=4, phase=\"in_forward\"}]";
    assert!(load(GOOD, &[nan]).is_ok());
    refused(GOOD, &[nan, "train.exchange=asynchronous"], &["faults.plan[0]", "has no nan"]);
    let leader = "faults.plan=[{kind=\"kill\", step=4, who=\"leader\"}]";
    assert!(load(GOOD, &[leader]).is_ok());
}

#[test]
fn a_ladder_ends_with_restart_and_limits_nest() {
    let last = "recovery.ladder=[\"restart\", \"shrink\"]";
    refused(GOOD, &[last], &["recovery.ladder", "put it last"]);
    refused(GOOD, &["recovery.ladder=[]"], &["at least one rung"]);
    refused(GOOD, &["recovery.ladder=[\"shrink\", \"shrink\"]"], &["twice"]);
    refused(GOOD, &["recovery.node_timeout=90s"], &["shorter than recovery.time_limit"]);
    refused(GOOD, &["recovery.step_timeout=60s"], &["shorter than recovery.time_limit"]);
    assert!(load(GOOD, &["recovery.step_timeout=off"]).is_ok());
}

#[test]
fn a_device_there_is_none_of_is_refused_and_says_what_to_write() {
    refused(GOOD, &["device.kind=npu"], &["device.kind", "`auto`, `cpu`, `cuda`"]);
    refused(GOOD, &["device.precision=f8"], &["device.precision", "`f32`, `tf32`, `bf16`"]);
    refused(GOOD, &["device.precision=tf32"], &["device.precision = \"tf32\"", "on \"cuda\""]);
    for text in ["device.memory_budget=8GiB", "memory.mode=swap", "memory.mode=unified"] {
        assert!(load(GOOD, &[text]).is_ok(), "{text}");
        assert!(load(GOOD, &["device.kind=cuda", text]).is_ok(), "{text}");
    }
    let slow = |rate: &str| format!("memory.link={rate}");
    assert!(load(GOOD, &["memory.mode=swap", &slow("1MB/s")]).is_ok());
    refused(GOOD, &["memory.mode=swap", &slow("999kB/s")], &["memory.link", "\"1MB/s\" or more"]);
    refused(GOOD, &["memory.mode=managed"], &["memory.mode", "in_core", "planned", "unified"]);
}

#[test]
fn there_is_one_kind_of_sum_and_it_holds_so_many_owners() {
    let (wanted, plain) = ("train.reproducible=true", "train.reproducible=false");
    assert!(load(GOOD, &[wanted]).is_ok() && load(GOOD, &[]).is_ok());
    refused(GOOD, &[plain], &["train.reproducible", "plain sums", "leave the key out"]);
    let many = ["train.owners=5000", "train.global_batch=5000"];
    refused(GOOD, &many, &["train.owners", "2048 owners at most"]);
    let free = "train.exchange=asynchronous";
    refused(GOOD, &[wanted, free], &["train.reproducible", "depend on timing", "synchronous"]);
    assert!(load(GOOD, &[free, plain]).is_ok() && load(GOOD, &[free, many[0], many[1]]).is_ok());
}

#[test]
fn spares_are_not_refilled_and_a_run_that_never_asked_for_it_goes_on() {
    let with = |value: bool| format!("{GOOD}[recovery]\nrefill_spares = {value}\n");
    let said = ["recovery.refill_spares`", "not dependable", "renewed", "leave the key out"];
    refused(&with(true), &[], &said);
    refused(GOOD, &["recovery.refill_spares=true"], &said);
    let usual = load(GOOD, &[]).unwrap();
    let (_folder, path) = file(&with(false));
    let loaded = parse::loaded(&path, &[]).unwrap();
    assert_eq!(
        loaded.remarks,
        ["`recovery.refill_spares = false` is always so: leave the key out"]
    );
    assert_eq!((&loaded.config, &parse::of_run(&path, &[]).unwrap()), (&usual, &usual));
    assert!(!resolved_text(&usual).contains("refill"));
    // Reports and audits take what was trained as it was.
    for value in [false, true] {
        let read: Config = toml::from_str(&with(value)).unwrap();
        assert_eq!(read.recovery, usual.recovery);
    }
}

#[test]
fn every_configuration_of_the_repository_loads_and_says_why_it_exists() {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("configs")];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            // Experiments have a schema of their own.
            if path.is_dir() && !path.ends_with("experiment") && !path.ends_with("model") {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "toml") {
                let text = std::fs::read_to_string(&path).unwrap();
                assert!(text.starts_with("# "), "{} says nothing of itself", path.display());
                if text.contains("\ntitle = ") {
                    continue;
                }
                seen += 1;
                // Recipes are given their folder.
                let given = path.parent().is_some_and(|folder| folder.ends_with("recipe"));
                let given = given.then(|| "data.train=set".to_owned());
                let given: Vec<String> = given.into_iter().collect();
                let config = parse::load(&path, &given).and_then(|c| check_measured(&c).and(Ok(c)));
                config.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            }
        }
    }
    assert!(seen >= 4, "only {seen} configurations found");
}

/// A rate that only rises tells nothing of a file.
#[test]
fn the_readmes_file_and_its_short_try_are_as_they_are_told() {
    let readme = include_str!("../../README.md");
    let (_, text) = readme.split_once("```toml\n").unwrap();
    let (_folder, path) = file(text.split_once("```").unwrap().0);
    let (_, short) = readme.split_once("A short try: `-s ").unwrap();
    let short = short.split_once('`').unwrap().0.to_owned();
    for keys in [&[][..], &[short]] {
        let loaded = parse::loaded(&path, keys).unwrap();
        assert!(loaded.remarks.is_empty(), "{keys:?}: {:?}", loaded.remarks);
    }
}

#[test]
fn every_run_of_the_repositorys_experiments_has_keys_that_do_something() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/experiment");
    let mut runs = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "toml") {
            continue;
        }
        if Study::load(&path).unwrap().is_some() {
            continue;
        }
        let (experiment, _) = Experiment::load(&path).unwrap();
        let experiment = experiment.with(&Changes::default()).unwrap();
        for run in experiment.plan(&Changes::default()) {
            let loaded = parse::loaded(&experiment.config, &run.overrides());
            let loaded = loaded.unwrap_or_else(|error| panic!("{}: {error}", run.folder));
            assert_eq!(loaded.remarks, [""; 0], "{}", run.folder);
            runs += 1;
        }
    }
    assert!(runs >= 40, "only {runs} runs found");
}

/// Keys of a configuration that its table does not name.
fn unexplained(table: &str) -> Vec<String> {
    let defaults = toml::Table::try_from(Config::default()).unwrap();
    let names = defaults.iter().flat_map(|(section, keys)| {
        keys.as_table().unwrap().keys().map(move |key| format!("{section}.{key}"))
    });
    // `resident` must not be found in `resident_dir`.
    let named = |name: &str| {
        let follows = |at: usize| table[at + name.len()..].chars().next();
        table.match_indices(name).any(|(at, _)| matches!(follows(at), Some('`' | ']')))
    };
    names.filter(|name| !named(name)).collect()
}

#[test]
fn the_table_of_keys_names_every_key() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/README.md");
    let table = std::fs::read_to_string(path).unwrap();
    assert_eq!(unexplained(&table), Vec::<String>::new());
    assert_eq!(unexplained(&table.replace("`train.bucket`", "")), ["train.bucket"]);
}

#[test]
fn what_is_quoted_of_a_file_obeys_no_terminal() {
    for (text, overrides) in [
        ("[run]\n\"na\\u001b[2Jme\" = 1\n", &[][..]),
        ("[\"ru\\u001b[2Jn\"]\n", &[][..]),
        ("[run]\nname = \"\u{1b}[2J\n", &[][..]),
        (GOOD, &["\u{1b}[2J"][..]),
        (GOOD, &["run.name='a\\u001b'"][..]),
        (GOOD, &["run.name=\"a\\u001b\""][..]),
        (GOOD, &["data.format=\"a\\u001b\""][..]),
    ] {
        let Err(error) = load(text, overrides) else {
            assert!(overrides[0].contains("'a\\u001b'"), "{text:?} {overrides:?}");
            continue;
        };
        let line = error.to_string();
        assert!(!line.chars().any(|c| c.is_control() && c != '\n'), "{line:?}");
    }
}
