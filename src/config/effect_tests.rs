//! Every key of the schema: it always has an effect, or here are settings in which it can have
//! none, the words that refuse it there, and settings in which it has one.

use std::collections::BTreeSet;

use toml::Table;

use super::parse::{Loaded, loaded};
use super::{Config, ConfigError, WarmUp, keys};

/// Settings in which a key can have no effect.
struct Case {
    key: &'static str,
    value: &'static str,
    idle: &'static [&'static str],
    words: &'static str,
    lives: &'static [&'static str],
    rule: Rule,
}

#[derive(Clone, Copy, PartialEq)]
enum Rule {
    /// Of `effect`: the default passes, and so does what only the command line has made idle.
    Effect,
    /// Of `check`: refused wherever it stands.
    Check,
}

const fn effect(
    (key, value): (&'static str, &'static str),
    idle: &'static [&'static str],
    words: &'static str,
    lives: &'static [&'static str],
) -> Case {
    Case { key, value, idle, words, lives, rule: Rule::Effect }
}

const fn check(
    (key, value): (&'static str, &'static str),
    idle: &'static [&'static str],
    words: &'static str,
    lives: &'static [&'static str],
) -> Case {
    Case { key, value, idle, words, lives, rule: Rule::Check }
}

/// In no settings that a configuration shows could these do nothing. What a model makes of
/// `model.freeze` and `optimizer.body_factor` its builder says, and
/// `train/start/refusals.rs`.
const ALWAYS: &[&str] = &[
    "run.name",
    "run.seed",
    "run.ranks",
    "run.runtime",
    "run.bind",
    "model.name",
    "model.init",
    "memory.mode",
    "data.format",
    "data.image_size",
    "data.augment",
    "data.resize",
    "data.mean",
    "data.deviation",
    "data.decode_threads",
    "data.prefetch",
    "data.bundle_ratio",
    "data.within_bundle",
    "train.epochs",
    "train.steps",
    "train.max_seconds",
    "train.global_batch",
    "train.workers",
    "train.threads",
    "train.owners",
    "train.exchange",
    "train.label_smoothing",
    "optimizer.learning_rate",
    "optimizer.weight_decay",
    "schedule.reference_batch",
    // `evaluate RUN` takes the run's batch.
    "evaluation.every",
    "evaluation.batch",
    "recovery.ladder",
    // Over several nodes, of which a configuration knows nothing.
    "recovery.node_timeout",
    "recovery.start_limit",
    "recovery.step_timeout",
    "recovery.time_limit",
    "recovery.tries",
    "recovery.resident",
    "checkpoint.every",
    // A run that is stopped writes checkpoints with `every = "never"`, too.
    "checkpoint.keep",
    "device.kind",
    "device.precision",
    "observe.tensorboard",
    "faults.mtbf_seconds",
    "faults.plan",
];

const SYNTHETIC: &[&str] = &["data.format=\"synthetic\""];
const ASYNCHRONOUS: &[&str] = &["train.exchange=\"asynchronous\""];
const ONE_EACH: &[&str] = &["train.owners=24", "train.global_batch=24"];
const TWO_EACH: &[&str] = &["train.owners=24", "train.global_batch=48"];
const CLOCK: &[&str] = &["train.max_seconds=5.0"];
const PLANNED: &[&str] = &["memory.mode=\"planned\""];
const UNIFIED: &[&str] = &["memory.mode=\"unified\""];
const PAGED: &[&str] = &["memory.mode=\"unified\"", "device.memory_budget=\"1GiB\""];
const ON_A_CARD: &[&str] = &["device.kind=\"cuda\"", "memory.mode=\"swap\""];
const MANAGED: &[&str] = &["device.kind=\"cuda\"", "memory.mode=\"unified\""];
const SWAPPED: &[&str] = &["memory.mode=\"swap\""];
const STAGED: &[&str] = &["staging.mode=\"during\""];
const STEPWISE: &[&str] = &["schedule.kind=\"step\""];
const ADAMW: &[&str] = &["optimizer.name=\"adamw\""];
const LARS: &[&str] = &["optimizer.name=\"lars\""];
const SPARE: &[&str] = &["recovery.spares=2"];
const MNIST: &[&str] = &["data.format=\"mnist\""];
const NAMED: &[&str] = &["data.train=\"pictures\""];
/// No settings of this version let it do something.
const OF_SGD: &str = "the asynchronous exchange has only SGD with momentum";
const OTHER_RULE: &str = "it is of another rule";

const CASES: &[Case] = &[
    effect(("model.folder", "\"/w\""), &[], "no path", &["model.init=\"w.pth\""]),
    check(("model.text", "\"[[layer]]\""), &[], "leave it out", &["model.name=\"mine.toml\""]),
    check(
        ("model.init_hash", "\"00112233445566778899aabbccddeeff\""),
        &[],
        "leave it out",
        &["model.init=\"w.pth\""],
    ),
    effect(("model.width", "0.5"), &["model.name=\"resnet20\""], "only mlp and cnn11", &[]),
    effect(("model.freeze", "[\"conv1.\"]"), ASYNCHRONOUS, "synchronous", &[]),
    effect(("data.train", "\"p\""), SYNTHETIC, "made in memory", &[]),
    effect(("data.validation", "\"p\""), SYNTHETIC, "made in memory", NAMED),
    effect(("data.synthetic_samples", "77"), NAMED, "data.train names one", &[]),
    effect(("data.synthetic_samples", "77"), MNIST, "data.train names one", SYNTHETIC),
    effect(("data.synthetic_classes", "7"), NAMED, "data.train names one", &[]),
    check(("data.crop", "\"random\""), &["data.augment=false"], "leave one", &[]),
    check(("data.crop_scale", "[0.5, 1.0]"), &[], "of random crops", &["data.crop=\"random\""]),
    check(("data.crop_ratio", "[0.5, 1.0]"), &[], "of random crops", &["data.crop=\"random\""]),
    check(("data.flip", "0.2"), &["data.augment=false"], "leave one", &[]),
    check(("data.color_jitter", "{ hue = 0.1 }"), &["data.augment=false"], "leave one", &[]),
    check(("data.color_jitter", "{ hue = 0.1 }"), MNIST, "grey", &[]),
    check(("data.scaled_decoding", "true"), MNIST, "of JPEGs", &[]),
    effect(("data.mixup_alpha", "0.4"), ONE_EACH, "one sample", TWO_EACH),
    effect(("data.cutmix_alpha", "1.0"), ONE_EACH, "one sample", TWO_EACH),
    effect(("data.bad_image", "\"fatal\""), SYNTHETIC, "made in memory", &[]),
    effect(("data.bad_images_max", "0.5"), SYNTHETIC, "made in memory", &[]),
    effect(("data.bad_images_max", "0.5"), &["data.bad_image=\"fatal\""], "leave one", &[]),
    effect(("data.patience", "\"5s\""), SYNTHETIC, "made in memory", &[]),
    effect(("data.alternating", "true"), &[], "below 1", &["data.bundle_ratio=0.1"]),
    effect(
        ("data.alternating", "true"),
        &["data.bundle_ratio=0.1", "data.within_bundle=\"reverse\""],
        "leave one",
        &["data.bundle_ratio=0.1"],
    ),
    effect(("data.cache", "\"1MiB\""), SYNTHETIC, "made in memory", &[]),
    effect(("data.cache_policy", "\"lru\""), &[], "no cache", &["data.cache=\"1MiB\""]),
    effect(("data.throttle", "{ rate = \"1MB/s\" }"), SYNTHETIC, "made in memory", &[]),
    effect(("staging.mode", "\"before\""), SYNTHETIC, "made in memory", &[]),
    effect(("staging.folder", "\"/w\""), &[], "nothing is staged", STAGED),
    effect(("staging.workers", "3"), &[], "nothing is staged", STAGED),
    effect(("staging.processes", "true"), &[], "nothing is staged", STAGED),
    effect(("staging.rate", "\"1MB/s\""), &[], "nothing is staged", STAGED),
    effect(("staging.keep", "true"), &[], "nothing is staged", STAGED),
    effect(("train.bucket", "\"1MiB\""), ASYNCHRONOUS, "synchronous", &[]),
    effect(("train.accumulate", "2"), ONE_EACH, "one sample", TWO_EACH),
    check(("train.accumulate", "2"), ASYNCHRONOUS, "after each micro-batch", &[]),
    check(("train.reproducible", "false"), &[], "plain sums", ASYNCHRONOUS),
    check(("optimizer.name", "\"adamw\""), ASYNCHRONOUS, OF_SGD, &[]),
    effect(("optimizer.momentum", "0.5"), ADAMW, "of sgd and lars", LARS),
    check(("optimizer.nesterov", "true"), ADAMW, OTHER_RULE, &[]),
    check(("optimizer.nesterov", "true"), &["optimizer.momentum=0.0"], "no momentum", &[]),
    check(("optimizer.betas", "[0.8, 0.9]"), &[], OTHER_RULE, ADAMW),
    check(("optimizer.epsilon", "1e-6"), LARS, OTHER_RULE, ADAMW),
    check(("optimizer.trust_coefficient", "0.01"), ADAMW, OTHER_RULE, LARS),
    check(("optimizer.clip_norm", "1.0"), ASYNCHRONOUS, OF_SGD, &[]),
    effect(
        ("optimizer.decay_norms_and_biases", "true"),
        &["optimizer.weight_decay=0.0"],
        "nothing is decayed",
        &[],
    ),
    check(("optimizer.ema_decay", "0.9"), ASYNCHRONOUS, OF_SGD, &[]),
    check(("optimizer.body_factor", "0.1"), ASYNCHRONOUS, OF_SGD, &[]),
    effect(("schedule.kind", "\"cosine\""), CLOCK, "set train.steps or train.epochs", &[]),
    effect(("schedule.kind", "\"one_cycle\""), CLOCK, "set train.steps or train.epochs", &[]),
    effect(("schedule.kind", "\"step\""), &["schedule.warm_up=1.0"], "no step", &[]),
    effect(("schedule.kind", "\"step\""), &["schedule.warm_up=\"30steps\""], "no step", &[]),
    effect(("schedule.warm_up", "0.5"), CLOCK, "set train.steps or train.epochs", &[]),
    effect(("schedule.milestones", "[0.3]"), &[], "schedule.kind = \"step\"", STEPWISE),
    effect(
        ("schedule.factor", "0.2"),
        &["schedule.kind=\"cosine\""],
        "schedule.kind = \"step\"",
        STEPWISE,
    ),
    check(("schedule.power", "2"), &[], "polynomial", &["schedule.kind=\"polynomial\""]),
    check(("recovery.spares", "2"), &["recovery.ladder=[\"shrink\"]"], "\"spare\"", &[]),
    check(("recovery.warm_spares", "true"), &[], "no spares", SPARE),
    effect(
        ("recovery.min_ranks", "2"),
        &["recovery.ladder=[\"respawn\", \"restart\"]"],
        "only a shrink",
        &[],
    ),
    effect(("recovery.resident_dir", "\"/w\""), &["recovery.resident=\"off\""], "leave one", &[]),
    effect(("recovery.regrow", "\"2steps\""), ASYNCHRONOUS, "synchronous", &[]),
    effect(("recovery.replace_slow", "true"), ASYNCHRONOUS, "synchronous", &[]),
    effect(("recovery.integrity_every", "\"7steps\""), ASYNCHRONOUS, "synchronous", &[]),
    effect(("checkpoint.keep_best", "0"), &["checkpoint.every=\"never\""], "leave one", &[]),
    effect(("train.patience", "3"), &["evaluation.every=\"never\""], "leave one", &[]),
    effect(("checkpoint.mtbf", "\"1h\""), &["checkpoint.every=\"5steps\""], "leave one", &[]),
    effect(("device.memory_budget", "\"1GiB\""), MANAGED, "the driver's own", &[]),
    effect(("memory.far", "\"/w\""), &[], "nothing is swapped", SWAPPED),
    effect(("memory.link", "\"8GB/s\""), &[], "nothing is swapped", SWAPPED),
    effect(("memory.far", "\"/w\""), ON_A_CARD, "memory of the host", SWAPPED),
    effect(("memory.link", "\"8GB/s\""), ON_A_CARD, "memory of the host", SWAPPED),
    effect(("memory.design", "\"division\""), MANAGED, "the driver's own", PAGED),
    effect(("memory.policy", "\"lru\""), MANAGED, "the driver's own", PAGED),
    effect(("memory.granularity", "\"coarse\""), &[], "\"swap_sync\"", SWAPPED),
    effect(("memory.window", "2"), &[], "\"swap\"", SWAPPED),
    effect(("memory.design", "\"division\""), &[], "\"unified\"", PAGED),
    effect(("memory.policy", "\"lru\""), &[], "\"unified\"", PAGED),
    effect(("memory.far", "\"/w\""), PLANNED, "without a budget", PAGED),
    effect(("memory.link", "\"8GB/s\""), UNIFIED, "without a budget", PAGED),
    effect(("memory.design", "\"division\""), UNIFIED, "without a budget", PAGED),
    effect(("memory.policy", "\"lru\""), UNIFIED, "without a budget", PAGED),
    effect(("faults.seed", "3"), &[], "random kills", &["faults.mtbf_seconds=9.0"]),
];

/// Loads a file of these keys, with these overrides; a run of 30 steps where nothing else ends it.
fn load(file: &[&str], overrides: &[&str]) -> Result<Loaded, ConfigError> {
    let ends = |keys: &[&str]| keys.iter().any(|key| key.starts_with("train.max_seconds"));
    let end = if ends(file) || ends(overrides) { "" } else { "train.steps = 30\n" };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("run.toml");
    std::fs::write(&path, format!("run.ranks = 2\n{end}{}", file.join("\n"))).expect("a file");
    let overrides: Vec<String> = overrides.iter().map(ToString::to_string).collect();
    loaded(&path, &overrides)
}

fn of<'t>(table: &'t Table, key: &str) -> Option<&'t toml::Value> {
    let (section, name) = key.split_once('.').expect("a section and a name");
    table.get(section)?.get(name)
}

fn table(config: &Config) -> Table {
    Table::try_from(config).expect("every field has a TOML form")
}

#[test]
fn every_key_of_the_schema_has_a_row() {
    let sections = keys::sections().iter();
    let all = sections.flat_map(|section| {
        keys::keys_of(section).iter().map(move |key| format!("{section}.{key}"))
    });
    let all: BTreeSet<String> = all.collect();
    let named = ALWAYS.iter().chain(CASES.iter().map(|case| &case.key));
    let named: BTreeSet<String> = named.map(ToString::to_string).collect();
    let lacking: Vec<_> = all.symmetric_difference(&named).collect();
    assert!(lacking.is_empty(), "no row, or no key: {lacking:?}");
    let twice: Vec<_> =
        ALWAYS.iter().filter(|key| CASES.iter().any(|case| case.key == **key)).collect();
    assert!(twice.is_empty(), "{twice:?}");
}

#[test]
fn a_key_that_can_do_nothing_is_refused_by_name_and_passes_where_it_does_something() {
    for Case { key, value, idle, words, lives, .. } in CASES {
        let typed = format!("{key}={value}");
        let with = |settings: &[&'static str]| [settings, &[typed.as_str()]].concat();
        for (file, overrides) in [(with(idle), vec![]), (vec![], with(idle))] {
            let Err(error) = load(&file, &overrides) else {
                panic!("{typed} is accepted with {idle:?}")
            };
            let error = error.to_string();
            assert!(error.contains(key) && error.contains(words), "{typed}, {idle:?}: {error}");
        }
        let passed = load(&with(lives), &[]).unwrap_or_else(|e| panic!("{typed}, {lives:?}: {e}"));
        assert_eq!(passed.remarks, [""; 0], "{typed}, {lives:?}");
        assert_ne!(of(&table(&passed.config), key), of(&table(&Config::default()), key));
    }
}

#[test]
fn a_default_is_never_refused() {
    let defaults = table(&Config::default());
    for Case { key, idle, rule, .. } in CASES {
        let Some(value) = of(&defaults, key).filter(|_| *rule == Rule::Effect) else { continue };
        let written = format!("{key}={value}");
        let passed = load(&[idle, &[written.as_str()][..]].concat(), &[]);
        assert!(passed.is_ok_and(|passed| passed.remarks.is_empty()), "{written}, {idle:?}");
    }
}

#[test]
fn a_key_of_the_file_that_the_command_line_leaves_idle_is_said_and_not_refused() {
    for Case { key, value, idle, rule, .. } in CASES {
        if *rule == Rule::Check || idle.is_empty() || *idle == CLOCK {
            continue;
        }
        let written = format!("{key}={value}");
        // Its other settings may need the key's own file.
        let file: &[&str] = if load(&[&written], &[]).is_ok() { &[&written] } else { continue };
        let Loaded { config, remarks } = load(file, idle).expect("the command line wins");
        assert!(remarks.len() == 1 && remarks[0].contains(key), "{written}: {remarks:?}");
        let without = load(&[], idle).expect("it is good").config;
        assert_eq!(config, without, "{written}: a run without it is the same run");
    }
}

#[test]
fn one_cycle_rises_unless_somebody_says_otherwise() {
    let warm_up = |keys: &[&str]| load(keys, &[]).expect("it is good").config.schedule.warm_up;
    assert_eq!(warm_up(&["schedule.kind=\"one_cycle\""]), WarmUp::Share(0.3));
    assert_eq!(warm_up(&["schedule.kind=\"one_cycle\"", "schedule.warm_up=0.0"]), WarmUp::NONE);
    assert_eq!(warm_up(&["schedule.kind=\"cosine\""]), WarmUp::NONE);
    // A length of its own needs none of the run.
    let clock = load(&["train.max_seconds=5.0", "schedule.warm_up=\"9steps\""], &[]);
    assert_eq!(clock.expect("it is good").config.schedule.warm_up, WarmUp::Steps(9));
}
