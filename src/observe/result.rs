//! `RUN/result.json`: the only truth about how a run ended (README, "Exit codes").

use serde::{Deserialize, Serialize};

use super::data_use::DataUse;
use super::event::{Event, Kind, Lost, RecoveryRecord, ResizeRecord};
use super::ledger::{self, Entry};
use super::standing::standing;

/// What the reason of a run begins with whose ranks were told to stop.
pub const ASKED_TO_STOP: &str = "asked to stop";
/// The same where nobody asked: they were ended because their launch was.
pub const LAUNCHER_GONE: &str = "the launcher is gone";

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
    /// The smallest one measured, of weights or running average.
    pub best: f64,
}

/// An evaluation that none before it was as good as.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// The step behind which it was made.
    pub step: u64,
    /// A fraction, 0 to 1: the smaller one of weights and running average.
    pub error: f64,
    /// It is that of the running average (`optimizer.ema_decay`).
    pub averaged: bool,
}

/// Samples whose images could not be decoded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BadImages {
    /// Of the committed training samples: one that is bad counts in every epoch.
    pub train: u64,
    /// Of the last evaluation.
    pub validation: u64,
}

impl BadImages {
    /// What a run's ledger and events add up to.
    pub fn of(events: &[Event], ledger: &[Entry]) -> Self {
        let train = ledger::effective(ledger).iter().map(|line| line.skipped).sum();
        let mut validation = 0;
        for event in standing(events) {
            match &event.kind {
                Kind::Evaluation { .. } => validation = 0,
                Kind::BadImages { set, skipped, .. } if set == "validation" => {
                    validation = *skipped;
                }
                _ => {}
            }
        }
        Self { train, validation }
    }
}

/// One start of mpirun after the first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Restart {
    /// Its attempt number.
    pub attempt: u32,
    /// resident | checkpoint | scratch | weights
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
    /// The best evaluation whose checkpoint stays (`checkpoint.keep_best`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<Best>,
    pub state_sha256: Option<String>,
    /// Whether the bits are those of a run without failures: false in the asynchronous exchange,
    /// and once ranks computed with other instructions.
    pub exact: bool,
    pub recoveries: Vec<RecoveryRecord>,
    pub restarts: Vec<Restart>,
    /// Changes of the number of ranks on purpose.
    #[serde(default)]
    pub resizes: Vec<ResizeRecord>,
    /// Committed steps that a rollback threw away.
    pub lost_steps: u64,
    /// What was skipped.
    #[serde(default)]
    pub bad_images: BadImages,
    /// Committed steps that changed no weight, since their sums were not finite or none of their
    /// samples could be decoded.
    #[serde(default)]
    pub zero_updates: u64,
    /// What reading the training set took.
    #[serde(default)]
    pub data: DataUse,
    /// Another start of the ranks now would end alike: launch leaves it to its user.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub conclusive: bool,
    /// Fraction of the run's seconds spent in steps that counted.
    pub goodput: f64,
}
