//! What was typed -> what it means. The schema lives here; `parse` reads TOML and overrides and
//! refuses with the key, the value and what to write instead (`keys`: which exist,
//! `foreign`: what they are called elsewhere, `manual`: what is told of each, `check`: which values
//! make sense, `effect`: which can do something, `pictures`: those of how
//! pictures are looked at); `identity` says when two configurations are the same run; `units` reads
//! durations and sizes; `seed` says what `run.seed` means, `variates` draws from it with the
//! functions of `exact`; `shown` makes names fit for a terminal; `paths` makes them absolute;
//! `point` says where a rank is; `data` has the schema of the data plane, `update` that of
//! optimizers and schedules.

use std::path::PathBuf;
use std::time::Duration;

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};

mod check;
mod data;
mod device;
mod effect;
#[cfg(test)]
mod effect_tests;
mod error;
pub mod exact;
mod faults;
mod foreign;
pub mod identity;
pub mod keys;
mod look;
pub mod manual;
mod memory;
pub mod parse;
pub mod paths;
mod pictures;
mod point;
pub mod seed;
mod shown;
pub mod units;
mod update;
mod validation;
pub mod variates;
mod warm_up;

pub use check::{check_measured, check_owners};
pub use data::{
    BadImage, CachePolicy, Data, DataFormat, Staging, StagingMode, Throttle, WithinBundle,
};
pub use device::{Device, DeviceKind, Precision};
pub use error::ConfigError;
pub use faults::{FaultKind, Faults, PlannedFault, Who};
pub use look::{ColorJitter, Crop, CropKind, Look};
pub use memory::{Granularity, Memory, MemoryDesign, MemoryMode, MemoryPolicy};
pub use point::Point;
pub use shown::Shown;
pub use units::{Bytes, CacheSize, Every, Interval, Limit, Pace, Rate, Span};
pub use update::{Optimizer, OptimizerKind, Schedule, ScheduleKind};
pub use validation::{Group, Share, Validation};
pub use warm_up::{WarmUp, first_step};

/// One run, whole: every key has a value. Written to `RUN/config.toml`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    /// Who and how many.
    pub run: Run,
    /// What is trained.
    pub model: Model,
    /// What it is trained on.
    pub data: Data,
    /// Run-time file staging (Higuchi et al.).
    pub staging: Staging,
    /// The loop.
    pub train: Train,
    /// The update rule.
    pub optimizer: Optimizer,
    /// The learning rate over time.
    pub schedule: Schedule,
    /// When and how the validation error is measured.
    pub evaluation: Evaluation,
    /// What happens when something dies.
    #[serde(deserialize_with = "recovery_of_any_release")]
    pub recovery: Recovery,
    /// What is written to disk, and when.
    pub checkpoint: Checkpoint,
    /// Where the arithmetic runs.
    pub device: Device,
    /// Where activations live.
    pub memory: Memory,
    /// What the run leaves for people to look at.
    pub observe: Observe,
    /// What is broken on purpose.
    pub faults: Faults,
}

/// `[run]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Run {
    /// Names the run directory together with a hash of the configuration.
    pub name: String,
    /// Everything random follows from it.
    pub seed: u64,
    /// MPI ranks to start (`launch -n` overrides).
    pub ranks: u32,
    /// What starts the ranks over several nodes: the prefix of a newer PRRTE, or `"auto"`: the one
    /// that `KINTSUGI_RUNTIME` names, else mpirun.
    pub runtime: String,
    /// Whether ranks are bound to processors of their own under `launch`; unset: `"auto"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bind: Option<Bind>,
}

/// `run.bind`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bind {
    /// Where each rank gets more processors than it has computing threads; where it gets as many,
    /// to a node of memory.
    #[default]
    Auto,
    /// Where each gets as many.
    Always,
    /// Never.
    None,
}

impl Default for Run {
    fn default() -> Self {
        Self { name: "run".into(), seed: 1, ranks: 1, runtime: "auto".into(), bind: None }
    }
}

/// `[model]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Model {
    /// A catalogue name or the path of a model file (`*.toml`).
    pub name: String,
    /// Of the model file. A run that begins writes it into its own configuration: it goes on with
    /// this model, whatever becomes of the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Where relative paths of `name` and `init` start; unset = where the command is given. A
    /// run's own configuration has it.
    pub folder: Option<PathBuf>,
    /// A file of weights or a checkpoint to take the first weights from.
    pub init: Option<PathBuf>,
    /// Of the bytes of `init`, XXH3-128 in hexadecimal digits: no other weights are taken. A run
    /// that begins writes it into its own configuration.
    pub init_hash: Option<String>,
    /// Tensor name prefixes that are not trained.
    pub freeze: Vec<String>,
    /// Multiplies the layer widths of catalogue models that scale (mlp, cnn11).
    pub width: f64,
}

/// Whether `model.width` applies to a model.
pub fn scales(name: &str) -> bool {
    matches!(name, "mlp" | "cnn11")
}

impl Default for Model {
    fn default() -> Self {
        Self {
            name: "cnn11".into(),
            text: None,
            folder: None,
            init: None,
            init_hash: None,
            freeze: Vec::new(),
            width: 1.0,
        }
    }
}

impl Model {
    /// Takes over which model and which weights a run has begun with, where nothing else is asked
    /// for.
    pub fn go_on_from(&mut self, begun: &Self) {
        if self.text.is_none() && self.name == begun.name {
            self.text.clone_from(&begun.text);
        }
        if self.init_hash.is_none() && self.init == begun.init {
            self.init_hash.clone_from(&begun.init_hash);
        }
    }
}

/// How gradients meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExchangeKind {
    /// One all-reduce of gradients and one vote a step.
    Synchronous,
    /// Algorithm 1 of Tsuji et al.
    Asynchronous,
}

/// `[train]`. The first limit that is reached ends the run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Train {
    /// Passes over the training set.
    pub epochs: Option<u64>,
    /// Committed steps.
    pub steps: Option<u64>,
    /// Seconds of running, repairs included: between two launches none count.
    pub max_seconds: Option<f64>,
    /// Evaluations in a row without a better error that end the run; unset: none do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience: Option<u32>,
    /// Samples per step over all ranks.
    pub global_batch: u64,
    /// Worker threads per rank.
    pub workers: u32,
    /// OpenMP threads per worker: part of the arithmetic, so a constant of the run.
    pub threads: u32,
    /// Virtual owners; unset = initial ranks x workers.
    pub owners: Option<u32>,
    /// How gradients meet.
    pub exchange: ExchangeKind,
    /// Whether sums have the same bits for any number of ranks: always in the synchronous
    /// exchange, never in the other. Written into `RUN/config.toml` (`identity`): some of an
    /// earlier release said otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reproducible: Option<bool>,
    /// Gradient bucket size.
    pub bucket: Bytes,
    /// Pieces that each owner's micro-batch is computed in, one after another; unset: 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accumulate: Option<u32>,
    /// What each label gives away, in equal shares to all classes, from 0 to below 1; unset: 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_smoothing: Option<f64>,
}

impl Train {
    /// `accumulate` in force.
    pub fn pieces(&self) -> u32 {
        self.accumulate.unwrap_or(1).max(1)
    }
}

impl Default for Train {
    fn default() -> Self {
        Self {
            epochs: None,
            steps: None,
            max_seconds: None,
            patience: None,
            global_batch: 96,
            workers: 1,
            threads: 1,
            owners: None,
            exchange: ExchangeKind::Synchronous,
            reproducible: None,
            bucket: Bytes(4 << 20),
            accumulate: None,
            label_smoothing: None,
        }
    }
}

/// `[evaluation]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Evaluation {
    /// `"epoch"`, `"never"`, `"100steps"` or a duration.
    pub every: Every,
    /// Validation samples per forward pass of one worker.
    pub batch: u32,
}

impl Default for Evaluation {
    fn default() -> Self {
        Self { every: Every::Epoch, batch: 64 }
    }
}

/// A rung of the recovery ladder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Rung {
    /// Promote a waiting process.
    Spare,
    /// Start a new process and merge it.
    Respawn,
    /// Go on with fewer.
    Shrink,
    /// End the world; the supervisor starts it again.
    Restart,
}

/// `recovery.resident`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Resident {
    On,
    Off,
}

/// `[recovery]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Recovery {
    /// Tried in order; unset = by the number of nodes.
    pub ladder: Option<Vec<Rung>>,
    /// Spares per node; unset = by the number of nodes.
    pub spares: Option<u32>,
    /// Spares keep model and data ready.
    pub warm_spares: bool,
    /// When ranks that were lost come back, and over several nodes when ranks go back to a node
    /// that is back: `"epoch"`, `"never"`, a duration or steps.
    pub regrow: Every,
    /// Longest time from start to the first committed step.
    pub start_limit: Span,
    /// Longest step; `"auto"` = learned, `"off"` = none.
    pub step_timeout: Limit,
    /// Silence after which a node counts as dead.
    pub node_timeout: Span,
    /// Longest time without a committed step before the supervisor starts the world again.
    pub time_limit: Span,
    /// Tries per rung.
    pub tries: u32,
    /// A shrink never leaves fewer ranks than this: the next rung is taken.
    pub min_ranks: u32,
    /// Whether state outlives the processes.
    pub resident: Resident,
    /// Where it lives.
    pub resident_dir: PathBuf,
    /// Treats a persistently slow rank as dead.
    pub replace_slow: bool,
    /// How often all ranks compare a hash of their state; `"off"` = never (synchronous only).
    pub integrity_every: Interval,
}

impl Default for Recovery {
    fn default() -> Self {
        Self {
            ladder: None,
            spares: None,
            warm_spares: false,
            regrow: Every::Epoch,
            start_limit: Span(Duration::from_secs(120)),
            step_timeout: Limit::Auto,
            node_timeout: Span(Duration::from_secs(5)),
            time_limit: Span(Duration::from_secs(60)),
            tries: 3,
            min_ranks: 1,
            resident: Resident::On,
            resident_dir: "/dev/shm".into(),
            replace_slow: false,
            integrity_every: Interval::Steps(100),
        }
    }
}

/// Keys of `[recovery]` that are gone, and that every run of an earlier release has in its file,
/// with what asked for nothing else.
const GONE: [(&str, toml::Value); 2] =
    [("refill_spares", toml::Value::Boolean(false)), ("resident_every", toml::Value::Integer(1))];

/// `[recovery]` as this release or an earlier one wrote it: finished runs are read whatever they
/// asked for. Who asks for it now is refused (`parse`).
fn recovery_of_any_release<'de, D: Deserializer<'de>>(from: D) -> Result<Recovery, D::Error> {
    let mut table = toml::Table::deserialize(from)?;
    for (key, _) in &GONE {
        table.remove(*key);
    }
    table.try_into().map_err(|error: toml::de::Error| D::Error::custom(error.message()))
}

impl Recovery {
    /// The ladder in force on one node when none is configured.
    pub fn rungs(&self) -> Vec<Rung> {
        self.ladder
            .clone()
            .unwrap_or_else(|| vec![Rung::Spare, Rung::Respawn, Rung::Shrink, Rung::Restart])
    }
}

/// `[checkpoint]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Checkpoint {
    /// `"auto"` (Young/Daly), `"epoch"`, `"never"`, `"100steps"` or a duration.
    pub every: Every,
    /// How many verified checkpoints stay.
    pub keep: u32,
    /// 1: the checkpoint of the best evaluation stays too; 0: it does not.
    pub keep_best: u32,
    /// Mean time between failures that `"auto"` assumes until failures are seen.
    pub mtbf: Span,
}

impl Default for Checkpoint {
    fn default() -> Self {
        Self {
            every: Every::Auto,
            keep: 2,
            keep_best: 1,
            mtbf: Span(Duration::from_secs(4 * 3600)),
        }
    }
}

/// `[observe]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Observe {
    /// Writes `RUN/tensorboard/`.
    pub tensorboard: bool,
}

impl Default for Observe {
    fn default() -> Self {
        Self { tensorboard: true }
    }
}

/// `train.owners` in force: as written, else initial ranks x workers.
pub fn resolve_owners(config: &Config) -> u32 {
    let default = config.run.ranks.saturating_mul(config.train.workers);
    config.train.owners.unwrap_or(default)
}
