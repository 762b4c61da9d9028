//! What makes two configurations the same run: the text of a whole configuration, the folder named
//! after it, the fingerprint of what decides the arithmetic, and what may change while a run goes
//! on.

use std::path::PathBuf;

use toml::{Table, Value};
use xxhash_rust::xxh3::xxh3_64;

use super::{Checkpoint, Config, ExchangeKind, GONE, Memory};

/// The resolved configuration as TOML, for `RUN/config.toml`. Reading it gives the same run.
pub fn resolved_text(config: &Config) -> String {
    let body =
        toml::to_string_pretty(&settled(config)).expect("every field of Config has a TOML form");
    format!("# The whole configuration of this run, defaults and overrides included.\n{body}")
}

/// The keys of `[train]` that say how long a run is.
const LENGTH: [&str; 3] = ["epochs", "steps", "max_seconds"];

/// Where runs lie that nobody placed.
pub const RUNS: &str = "runs";

/// `runs/NAME-XXXXXXXX`, from the name and a hash of the whole resolved configuration: the same
/// command finds its run again, another configuration gets another folder. The length of a run
/// whose schedule does not follow it is left out: a longer one is the same run.
pub fn run_directory(config: &Config) -> PathBuf {
    directory(config, if config.schedule.scales() { &[] } else { &LENGTH })
}

/// Where a release lets a run begin that named folders after its length, too.
pub fn earlier_run_directory(config: &Config) -> PathBuf {
    directory(config, &[])
}

/// Named after all but these keys of `[train]`.
fn directory(config: &Config, without: &[&str]) -> PathBuf {
    let mut table = table_of(config);
    if let Some(Value::Table(train)) = table.get_mut("train") {
        train.retain(|key, _| !without.contains(&key));
    }
    // Of a run's own file, where other files have none.
    if let Some(Value::Table(model)) = table.get_mut("model") {
        model.remove("text");
    }
    // Named as by earlier releases: the same command finds its run again.
    let named = match config.train.reproducible {
        None => Some(Value::Boolean(false)),
        Some(false) => Some(Value::String("never".into())),
        Some(true) => None,
    };
    if let (Some(named), Some(Value::Table(train))) = (named, table.get_mut("train")) {
        train.insert("reproducible".into(), named);
    }
    if config.memory == Memory::default() {
        table.insert("memory".into(), in_core());
    } else if let Some(Value::Table(memory)) = table.get_mut("memory") {
        // Earlier releases had no such keys.
        let usual = Memory::default();
        if config.memory.design == usual.design {
            memory.remove("design");
        }
        if config.memory.policy == usual.policy {
            memory.remove("policy");
        }
    }
    if config.checkpoint.keep_best == Checkpoint::default().keep_best
        && let Some(Value::Table(checkpoint)) = table.get_mut("checkpoint")
    {
        checkpoint.remove("keep_best");
    }
    if let Some(Value::Table(recovery)) = table.get_mut("recovery") {
        // Earlier releases had them in every name.
        recovery.extend(GONE.map(|(key, value)| (key.into(), value)));
    }
    let hash = xxh3_64(canonical(&table).as_bytes());
    PathBuf::from(RUNS).join(format!("{}-{:08x}", config.run.name, hash >> 32))
}

/// A hash over what decides the arithmetic. Two runs that differ only in name, number of ranks,
/// faults, recovery, checkpoints, evaluation or where their data lies have the same one.
pub fn fingerprint(config: &Config) -> u64 {
    let mut table = without(table_of(config), &free_keys(config));
    table.insert("memory".into(), in_core());
    xxh3_64(canonical(&table).as_bytes())
}

/// A hash over what the ranks of one world have to agree in, also in what may be another in the
/// next one: all but where things lie on their nodes, and how they bring them.
pub fn of_world(config: &Config) -> u64 {
    let own: [FreeKeys; 10] = [
        ("run", &["name", "runtime", "bind"]),
        ("data", DATA_FREE),
        ("model", &["folder"]),
        ("device", &["memory_budget"]),
        ("memory", &[]),
        ("staging", &[]),
        ("train", &["workers"]),
        ("recovery", &["resident_dir"]),
        ("faults", &[]),
        ("observe", &[]),
    ];
    xxh3_64(canonical(&without(table_of(config), &own)).as_bytes())
}

fn without(mut table: Table, free: &[FreeKeys]) -> Table {
    for (section, keys) in free {
        match keys {
            [] => drop(table.remove(*section)),
            keys => {
                if let Some(Value::Table(content)) = table.get_mut(*section) {
                    content.retain(|key, _| !keys.contains(&key));
                }
            }
        }
    }
    table
}

/// The section of memory as earlier releases wrote it: a run of theirs has the same hashes.
fn in_core() -> Value {
    Value::Table(Table::from_iter([("mode".into(), Value::String("resident".into()))]))
}

/// The keys, sorted, in which two configurations differ although a run that goes on must keep them.
pub fn changed_keys(old: &Config, new: &Config) -> Vec<String> {
    let (free_before, free_after) = (free_keys(old), free_keys(new));
    let is_free = |free: &[FreeKeys], section: &str, key: &str| {
        free.iter().any(|(s, keys)| *s == section && (keys.is_empty() || keys.contains(&key)))
    };
    let mut changed = different_keys(old, new);
    changed.retain(|changed| {
        let (section, key) = changed.split_once('.').unwrap_or((changed, ""));
        !(is_free(&free_before, section, key) && is_free(&free_after, section, key))
    });
    changed
}

/// The keys, sorted, that two configurations have different values of.
pub fn different_keys(one: &Config, other: &Config) -> Vec<String> {
    let (one, other) = (table_of(one), table_of(other));
    let mut different = Vec::new();
    for section in super::keys::sections() {
        for key in super::keys::keys_of(section) {
            let value = |table: &Table| table.get(*section).and_then(|s| s.get(key)).cloned();
            if value(&one) != value(&other) {
                different.push(format!("{section}.{key}"));
            }
        }
    }
    different.sort();
    different
}

/// Whether two configurations differ in what a run that goes on must keep, and only in the run's
/// length, which its schedule follows.
pub fn differ_in_length(changed: &[String]) -> bool {
    let of_length =
        |key: &String| key.strip_prefix("train.").is_some_and(|name| LENGTH.contains(&name));
    !changed.is_empty() && changed.iter().all(of_length)
}

/// Whether a run that wrote this into its `config.toml` sums plain numbers, in another grouping on
/// every number of ranks. No release does so any more; one that wrote nothing did.
pub fn sums_plainly(begun: &Config) -> bool {
    begun.train.exchange == ExchangeKind::Synchronous && begun.train.reproducible != Some(true)
}

/// With `train.reproducible` written out, which earlier releases' hashes cover.
fn settled(config: &Config) -> Config {
    let mut config = config.clone();
    let synchronous = config.train.exchange == ExchangeKind::Synchronous;
    config.train.reproducible.get_or_insert(synchronous);
    config
}

/// A section and those of its keys that may change; none named means all.
type FreeKeys = (&'static str, &'static [&'static str]);

/// Where samples lie, and how they are brought.
const DATA_FREE: &[&str] = &[
    "train",
    "validation",
    "decode_threads",
    "prefetch",
    "bad_images_max",
    "patience",
    "cache",
    "cache_policy",
    "throttle",
];

/// What may change while a run goes on: it decides neither the order of samples nor a sum.
fn free_keys(config: &Config) -> Vec<FreeKeys> {
    // `ranks` and `workers` only group the owners, whose number stays.
    let mut free: Vec<FreeKeys> = vec![
        ("run", &["name", "ranks", "runtime", "bind"]),
        ("data", DATA_FREE),
        ("model", &["folder"]),
        ("device", &["memory_budget"]),
        ("memory", &[]),
        ("staging", &[]),
        ("evaluation", &[]),
        ("recovery", &[]),
        ("checkpoint", &[]),
        ("faults", &[]),
        ("observe", &[]),
    ];
    // A schedule that scales with the run's length makes the length part of the arithmetic.
    free.push(match config.schedule.scales() {
        true => ("train", &["workers", "max_seconds", "patience"]),
        false => ("train", &["workers", "max_seconds", "patience", "epochs", "steps"]),
    });
    free
}

fn table_of(config: &Config) -> Table {
    Table::try_from(settled(config)).expect("every field of Config has a TOML form")
}

/// One text per table, whatever order its keys were inserted in.
fn canonical(table: &Table) -> String {
    let mut lines = Vec::new();
    for (section, content) in table {
        match content {
            Value::Table(content) => {
                lines.extend(content.iter().map(|(key, value)| format!("{section}.{key}={value}")));
            }
            value => lines.push(format!("{section}={value}")),
        }
    }
    lines.sort();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ScheduleKind, WarmUp};

    fn config() -> Config {
        let mut config = Config::default();
        config.train.epochs = Some(3);
        config.train.owners = Some(4);
        config
    }

    #[test]
    fn the_resolved_text_reads_back_as_the_same_configuration() {
        let mut config = config();
        config.faults.mtbf_seconds = Some(20.0);
        config.data.train = Some("/data/train".into());
        config.train.reproducible = Some(true);
        let read: Config = toml::from_str(&resolved_text(&config)).unwrap();
        assert_eq!(read, config);
        assert_eq!(run_directory(&read), run_directory(&config));
    }

    #[test]
    fn sums_are_written_out_and_hashed_as_when_there_was_a_choice() {
        let of = |reproducible, exchange| {
            let mut config = config();
            (config.train.reproducible, config.train.exchange) = (reproducible, exchange);
            config
        };
        let synchronous = |reproducible| of(reproducible, ExchangeKind::Synchronous);
        let [unset, same, plain] = [None, Some(true), Some(false)].map(synchronous);
        assert!(resolved_text(&unset).contains("reproducible = true"));
        assert_eq!(fingerprint(&unset), fingerprint(&same));
        assert_ne!(fingerprint(&unset), fingerprint(&plain), "checkpoints of then are known by it");
        assert_ne!(run_directory(&unset), run_directory(&same), "each has its folder since then");
        assert_eq!([&unset, &same, &plain].map(sums_plainly), [true, false, true]);
        let asynchronous = of(None, ExchangeKind::Asynchronous);
        assert!(resolved_text(&asynchronous).contains("reproducible = false"));
        assert!(!sums_plainly(&asynchronous));
    }

    #[test]
    fn faults_and_names_leave_the_fingerprint_but_move_the_folder() {
        let calm = config();
        let mut struck = config();
        struck.run.name = "struck".into();
        struck.run.ranks = 3;
        struck.faults.mtbf_seconds = Some(20.0);
        struck.train.workers = 2;
        assert_eq!(fingerprint(&calm), fingerprint(&struck));
        assert_ne!(run_directory(&calm), run_directory(&struck));
        assert!(changed_keys(&calm, &struck).is_empty());
    }

    #[test]
    fn whatever_decides_the_arithmetic_is_in_the_fingerprint() {
        let edits: [fn(&mut Config); 8] = [
            |c| c.run.seed = 9,
            |c| c.train.owners = Some(5),
            |c| c.train.global_batch = 7,
            |c| c.train.threads = 2,
            |c| c.optimizer.learning_rate = 0.3,
            |c| c.model.name = "mlp".into(),
            |c| c.data.augment = false,
            |c| c.schedule.kind = ScheduleKind::Cosine,
        ];
        for (index, edit) in edits.iter().enumerate() {
            let mut other = config();
            edit(&mut other);
            assert_ne!(fingerprint(&config()), fingerprint(&other), "edit {index}");
            assert!(!changed_keys(&config(), &other).is_empty(), "edit {index}");
        }
    }

    #[test]
    fn looks_decide_the_arithmetic_and_add_nothing_where_they_are_absent() {
        let text = resolved_text(&config());
        let looks = ["crop", "resize", "flip", "color_jitter", "scaled_decoding"];
        for key in looks.into_iter().chain(["mixup", "cutmix", "smoothing"]) {
            assert!(!text.contains(key), "a run of before has no such key:\n{text}");
        }
        let mut bright = config();
        bright.data.color_jitter =
            Some(crate::config::ColorJitter { brightness: 0.4, ..Default::default() });
        assert_eq!(changed_keys(&config(), &bright), ["data.color_jitter"]);
        let read: Config = toml::from_str(&resolved_text(&bright)).unwrap();
        assert_eq!(read, settled(&bright));
        let mut soft = config();
        soft.data.cutmix_alpha = Some(1.0);
        soft.train.label_smoothing = Some(0.1);
        assert_eq!(changed_keys(&config(), &soft), ["data.cutmix_alpha", "train.label_smoothing"]);
        assert_ne!(fingerprint(&config()), fingerprint(&soft));
        let mut random = config();
        random.data.crop = Some(crate::config::CropKind::Random);
        assert_eq!(changed_keys(&config(), &random), ["data.crop"]);
        let mut scaled = config();
        scaled.data.scaled_decoding = Some(true);
        assert_eq!(changed_keys(&config(), &scaled), ["data.scaled_decoding"]);
        let mut small = random.clone();
        small.data.crop_scale = Some([0.5, 1.0]);
        assert_eq!(changed_keys(&random, &small), ["data.crop_scale"]);
        assert_ne!(fingerprint(&random), fingerprint(&small));
        let read: Config = toml::from_str(&resolved_text(&small)).unwrap();
        assert_eq!(read, settled(&small));
    }

    #[test]
    fn the_length_may_change_only_while_no_schedule_scales_with_it() {
        let (short, mut long) = (config(), config());
        long.train.epochs = Some(30);
        assert!(changed_keys(&short, &long).is_empty());
        assert_eq!(fingerprint(&short), fingerprint(&long));
        let cosine = |mut config: Config| {
            config.schedule.kind = ScheduleKind::Cosine;
            config
        };
        let of = |config: &Config, warm_up| {
            let mut config = config.clone();
            config.schedule.warm_up = warm_up;
            config
        };
        for warm_up in [WarmUp::Epochs(2.0), WarmUp::Steps(40)] {
            let (short, long) = (of(&short, warm_up), of(&long, warm_up));
            assert!(changed_keys(&short, &long).is_empty(), "{warm_up}");
            assert_eq!(run_directory(&short), run_directory(&long), "{warm_up}");
        }
        let (shared, longer) = (of(&short, WarmUp::Share(0.1)), of(&long, WarmUp::Share(0.1)));
        assert_eq!(changed_keys(&shared, &longer), ["train.epochs"]);
        let (short, long) = (cosine(short), cosine(long));
        assert_eq!(changed_keys(&short, &long), ["train.epochs"]);
        assert_ne!(fingerprint(&short), fingerprint(&long));
        assert_ne!(run_directory(&short), run_directory(&long));
    }

    #[test]
    fn a_longer_run_has_the_shorter_ones_folder_and_an_earlier_release_named_each() {
        let (short, mut long, mut timed) = (config(), config(), config());
        long.train.epochs = Some(30);
        timed.train.max_seconds = Some(5.0);
        assert_eq!(run_directory(&short), run_directory(&long));
        assert_eq!(run_directory(&short), run_directory(&timed));
        assert_ne!(earlier_run_directory(&short), earlier_run_directory(&long));
        // As the releases before this one named it.
        let named = "runs/run-d289b81c";
        assert_eq!(earlier_run_directory(&short), PathBuf::from(named));
    }
}
