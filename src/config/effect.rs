//! Keys that can have no effect where others stand as they do: refused, or where only the command
//! line has made one so, said. What does nothing is a slip or a misunderstanding, and the run would
//! not be the one that was meant. A key at its default is never refused: a run's own configuration
//! has them all.

use toml::{Table, Value};

use super::error::ConfigError;
use super::{
    BadImage, CacheSize, Config, DataFormat, DeviceKind, Every, ExchangeKind, Interval, MemoryMode,
    OptimizerKind, Resident, Rung, ScheduleKind, StagingMode, WarmUp, WithinBundle, resolve_owners,
    scales,
};

/// A key, and settings in which it can have no effect.
struct Rule {
    key: &'static str,
    idles: fn(&Config) -> bool,
    /// Why, and what to write instead.
    reason: &'static str,
}

const fn rule(key: &'static str, idles: fn(&Config) -> bool, reason: &'static str) -> Rule {
    Rule { key, idles, reason }
}

const BY_TIME: &str = "it follows the run's length in steps, and only train.max_seconds ends this \
                       run (a rate that followed the clock would give other bits after a failure): \
                       set train.steps or train.epochs";
const OF_STEPS: &str = "it is of steps: write schedule.kind = \"step\" too";
const ONE_SAMPLE: &str = "an owner has one sample of a step: raise train.global_batch, or lower \
                          train.owners";
const SET_IS_THERE: &str = "it is of a set that is made, and data.train names one that is there";
const IN_MEMORY: &str = "a synthetic set is made in memory: write another data.format too";
const NOT_STAGED: &str = "nothing is staged: write staging.mode = \"before\" or \"during\" too";
const NOTHING_MOVES: &str = "nothing is swapped: write memory.mode = \"swap\" or \"planned\" too";
const OF_CARD: &str = "a card's far tier is memory of the host, as far away as it is: leave it out";
const DRIVERS: &str = "on a card unified memory is the driver's own, within what is free there: \
                       leave it out";
const OF_UNIFIED: &str = "it is of memory.mode = \"unified\": leave it out";
const ALL_STAYS: &str = "nothing leaves without a budget: set device.memory_budget too, or leave \
                         it out";
const NEVER_EVALUATED: &str = "it is of evaluations, and evaluation.every = \"never\" makes none: \
                               leave one of them out";
const FREE: &str = "the asynchronous exchange does nothing with it: set train.exchange = \
                    \"synchronous\"";

const RULES: &[Rule] = &[
    rule("model.folder", |c| !c.model.has_relative_path(), "no path of the model is relative"),
    rule("model.width", |c| !scales(&c.model.name), "only mlp and cnn11 have one: leave it out"),
    rule("model.freeze", asynchronous, FREE),
    rule("data.train", synthetic, IN_MEMORY),
    rule("data.validation", synthetic, IN_MEMORY),
    rule("data.synthetic_samples", set_is_there, SET_IS_THERE),
    rule("data.synthetic_classes", set_is_there, SET_IS_THERE),
    rule("data.mixup_alpha", one_sample_an_owner, ONE_SAMPLE),
    rule("data.cutmix_alpha", one_sample_an_owner, ONE_SAMPLE),
    rule("data.bad_image", synthetic, IN_MEMORY),
    rule("data.bad_images_max", synthetic, IN_MEMORY),
    rule(
        "data.bad_images_max",
        |c| c.data.bad_image == BadImage::Fatal,
        "data.bad_image = \"fatal\" ends the run with the first: leave one of them out",
    ),
    rule("data.patience", synthetic, IN_MEMORY),
    rule(
        "data.alternating",
        |c| c.data.bundle_ratio == 1.0,
        "there is one bundle: set data.bundle_ratio below 1",
    ),
    rule(
        "data.alternating",
        |c| c.data.within_bundle == WithinBundle::Reverse,
        "data.within_bundle = \"reverse\" turns the order of bundles too: leave one of them out",
    ),
    rule("data.cache", synthetic, IN_MEMORY),
    rule(
        "data.cache_policy",
        |c| c.data.cache == CacheSize::Off,
        "there is no cache: set data.cache to a size",
    ),
    rule("data.throttle", synthetic, IN_MEMORY),
    rule("staging.mode", synthetic, IN_MEMORY),
    rule("staging.folder", not_staged, NOT_STAGED),
    rule("staging.workers", not_staged, NOT_STAGED),
    rule("staging.processes", not_staged, NOT_STAGED),
    rule("staging.rate", not_staged, NOT_STAGED),
    rule("staging.keep", not_staged, NOT_STAGED),
    rule("train.patience", never_evaluated, NEVER_EVALUATED),
    rule("train.bucket", asynchronous, FREE),
    rule("train.accumulate", |c| c.train.pieces() > 1 && one_sample_an_owner(c), ONE_SAMPLE),
    rule(
        "optimizer.momentum",
        |c| c.optimizer.name == OptimizerKind::AdamW,
        "it is of sgd and lars; adamw has optimizer.betas: leave it out",
    ),
    rule(
        "optimizer.decay_norms_and_biases",
        |c| c.optimizer.weight_decay == 0.0,
        "nothing is decayed: set optimizer.weight_decay above 0",
    ),
    rule("schedule.kind", no_length, BY_TIME),
    rule(
        "schedule.kind",
        |c| warms_up_throughout(c) && c.schedule.kind != ScheduleKind::OneCycle,
        "schedule.warm_up leaves no step for it: write a shorter one",
    ),
    rule("schedule.warm_up", |c| no_length(c) && c.schedule.warm_up.scales(), BY_TIME),
    rule("schedule.milestones", |c| c.schedule.kind != ScheduleKind::Step, OF_STEPS),
    rule("schedule.factor", |c| c.schedule.kind != ScheduleKind::Step, OF_STEPS),
    rule(
        "recovery.min_ranks",
        |c| !c.recovery.rungs().contains(&Rung::Shrink),
        "only a shrink leaves fewer ranks, and recovery.ladder has no \"shrink\": leave one out",
    ),
    rule(
        "recovery.resident_dir",
        |c| c.recovery.resident == Resident::Off,
        "recovery.resident = \"off\" keeps no state there: leave one of them out",
    ),
    rule("recovery.regrow", |c| asynchronous(c) && c.recovery.regrow != Every::Never, FREE),
    rule("recovery.replace_slow", asynchronous, FREE),
    rule(
        "recovery.integrity_every",
        |c| asynchronous(c) && c.recovery.integrity_every != Interval::Off,
        FREE,
    ),
    rule("checkpoint.keep_best", never_evaluated, NEVER_EVALUATED),
    rule(
        "checkpoint.keep_best",
        |c| c.checkpoint.every == Every::Never,
        "checkpoint.every = \"never\" keeps nothing of an evaluation: leave one of them out",
    ),
    rule(
        "checkpoint.mtbf",
        |c| c.checkpoint.every != Every::Auto,
        "it is of checkpoint.every = \"auto\": leave one of them out",
    ),
    rule("memory.far", |c| !c.memory.mode.swaps(), NOTHING_MOVES),
    rule("memory.link", |c| !c.memory.mode.swaps(), NOTHING_MOVES),
    rule("memory.far", on_a_card, OF_CARD),
    rule("memory.link", on_a_card, OF_CARD),
    rule("device.memory_budget", managed, DRIVERS),
    rule("memory.design", managed, DRIVERS),
    rule("memory.policy", managed, DRIVERS),
    rule(
        "memory.granularity",
        |c| !matches!(c.memory.mode, MemoryMode::SwapSync | MemoryMode::Swap),
        "it is of memory.mode = \"swap_sync\" and \"swap\": leave it out",
    ),
    rule(
        "memory.window",
        |c| c.memory.mode != MemoryMode::Swap,
        "it is of memory.mode = \"swap\": leave it out",
    ),
    rule("memory.design", |c| c.memory.mode != MemoryMode::Unified, OF_UNIFIED),
    rule("memory.policy", |c| c.memory.mode != MemoryMode::Unified, OF_UNIFIED),
    rule("memory.far", all_stays, ALL_STAYS),
    rule("memory.link", all_stays, ALL_STAYS),
    rule("memory.design", all_stays, ALL_STAYS),
    rule("memory.policy", all_stays, ALL_STAYS),
    rule(
        "faults.seed",
        |c| c.faults.mtbf_seconds.is_none(),
        "it is of random kills: set faults.mtbf_seconds too",
    ),
];

fn asynchronous(config: &Config) -> bool {
    config.train.exchange == ExchangeKind::Asynchronous
}

fn never_evaluated(config: &Config) -> bool {
    config.evaluation.every == Every::Never
}

fn on_a_card(config: &Config) -> bool {
    config.device.kind == DeviceKind::Cuda
}

/// Whether the card's driver moves what does not fit.
fn managed(config: &Config) -> bool {
    on_a_card(config) && config.memory.mode == MemoryMode::Unified
}

/// Whether nothing has to leave, in modes in which nothing else does.
fn all_stays(config: &Config) -> bool {
    let by_budget = matches!(config.memory.mode, MemoryMode::Planned | MemoryMode::Unified);
    by_budget && config.device.memory_budget.is_none()
}

fn synthetic(config: &Config) -> bool {
    config.data.format == DataFormat::Synthetic
}

/// The set is read, not made.
fn set_is_there(config: &Config) -> bool {
    let data = &config.data;
    let named =
        data.train.is_some() || data.validation.as_ref().is_some_and(|v| v.place().is_some());
    match data.format {
        DataFormat::Synthetic => false,
        DataFormat::ImageFolder => named,
        DataFormat::Cifar10 | DataFormat::Cifar100 | DataFormat::Mnist | DataFormat::Tar => true,
    }
}

fn one_sample_an_owner(config: &Config) -> bool {
    config.train.global_batch <= u64::from(resolve_owners(config))
}

fn not_staged(config: &Config) -> bool {
    config.staging.mode == StagingMode::None
}

/// Whether no step of the run follows the warm-up, as far as that shows without the set.
fn warms_up_throughout(config: &Config) -> bool {
    match config.schedule.warm_up {
        WarmUp::Share(share) => share == 1.0,
        WarmUp::Epochs(epochs) => config.train.epochs.is_some_and(|all| epochs >= all as f64),
        WarmUp::Steps(steps) => config.train.steps.is_some_and(|all| steps >= all),
    }
}

fn no_length(config: &Config) -> bool {
    config.train.steps.is_none() && config.train.epochs.is_none()
}

/// A key that stands where it can have no effect.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Idle {
    pub section: &'static str,
    pub name: &'static str,
    value: Value,
    reason: &'static str,
}

impl Idle {
    pub(super) fn refusal(&self) -> ConfigError {
        let Self { section, name, value, reason } = self;
        let (key, value) = (format!("{section}.{name}"), value.to_string());
        ConfigError::Refused { key, value, reason: (*reason).into() }
    }

    /// What is said where the command line has made it so.
    pub(super) fn remark(&self) -> String {
        let Self { section, name, value, reason } = self;
        format!(
            "`{section}.{name} = {value}` of the file has no effect with what the command line \
                 says: {reason}"
        )
    }
}

/// All of them, each once.
pub(super) fn idle(config: &Config) -> Vec<Idle> {
    let table = |config: &Config| Table::try_from(config).expect("every field has a TOML form");
    let (written, defaults) = (table(config), table(&Config::default()));
    let mut found: Vec<Idle> = Vec::new();
    for Rule { key, idles, reason } in RULES {
        let (section, name) = key.split_once('.').expect("a rule names a section and a key");
        let of = |table: &Table| table.get(section)?.get(name).cloned();
        if of(&written) == of(&defaults) || !idles(config) {
            continue;
        }
        let known = found.iter().any(|idle| (idle.section, idle.name) == (section, name));
        if let Some(value) = of(&written).filter(|_| !known) {
            found.push(Idle { section, name, value, reason });
        }
    }
    found
}
