//! `RUN/result.json`: the only truth about how a run ended (README, "Exit codes").

use serde::{Deserialize, Serialize};

use super::event::{Lost, RecoveryRecord, ResizeRecord};

/// How a run ends; the number is the exit code of `launch` and of a world of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// All steps committed, or `train.max_seconds` reached.
    Completed,
    /// Data set missing, unreadable or changed.
    DataError,
    /// A bug.
    InternalError,
    /// Ladder exhausted or launcher lost.
    JobLost,
    /// Asked to stop, a checkpoint is written; or all is done but the last checkpoint could not be
    /// written.
    Interrupted,
    /// The same failure again without a committed step between.
    NoProgress,
}

impl Status {
    /// The exit code.
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Completed => 0,
            Self::DataError => 3,
            Self::InternalError => 70,
            Self::JobLost => 75,
            Self::Interrupted => 85,
            Self::NoProgress => 93,
        }
    }
}

/// Validation figures, fractions 0..1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Validation {
    /// The last one measured.
    pub error: f64,
    /// The smallest one measured.
    pub best: f64,
}

/// One start of mpirun after the first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Restart {
    /// Its attempt number.
    pub attempt: u32,
    /// resident | checkpoint | scratch
    pub from: String,
    /// The step it went on from.
    pub step: u64,
    /// Who was lost with the attempt before it, as far as anybody knows.
    #[serde(default)]
    pub lost: Vec<Lost>,
}

/// The file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct RunResult {
    pub run_id: String,
    pub attempt: u32,
    pub status: Status,
    pub reason: String,
    pub steps: u64,
    pub epochs: u64,
    pub samples: u64,
    pub seconds: f64,
    pub validation: Option<Validation>,
    pub state_sha256: Option<String>,
    /// False once plain sums were grouped by another number of ranks (a shrink, a resize, a run
    /// that more or fewer go on with), and in the asynchronous exchange.
    pub exact: bool,
    pub recoveries: Vec<RecoveryRecord>,
    pub restarts: Vec<Restart>,
    /// Changes of the number of ranks on purpose.
    #[serde(default)]
    pub resizes: Vec<ResizeRecord>,
    /// Committed steps that a rollback threw away.
    pub lost_steps: u64,
    /// Fraction of the run's seconds spent in steps that counted.
    pub goodput: f64,
}
