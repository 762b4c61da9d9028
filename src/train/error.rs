//! Why a step, or the run, did not go on.

use thiserror::Error;

use crate::cluster::comm::CommError;
use crate::cluster::recovery::{GaveUp, Leaves};
use crate::data::DataError;
use crate::engine::EngineError;
use crate::observe::result::Status;

/// Why a step, or the run, did not go on.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum TrainError {
    /// A communicator call failed; recovery answers some of these.
    #[error(transparent)]
    Comm(#[from] CommError),
    /// The data set cannot be used: exit code 3.
    #[error("{0}")]
    Data(String),
    /// A configuration that only the data set or a checkpoint could prove wrong: exit code 2.
    #[error("{0}")]
    Configuration(String),
    /// The ladder is exhausted: exit code 75.
    #[error("{0}")]
    JobLost(String),
    /// This rank's state differs from the others': it leaves, they replace it.
    #[error("evicted: {0}")]
    Evicted(String),
    /// Too few nodes are left with this rank: the others may be training on.
    #[error("{0}")]
    Minority(String),
    /// This process cannot become a rank: it leaves, the ranks repair their world without it.
    #[error("{0}")]
    Unready(String),
    /// This rank's device is gone for it: it leaves, they replace it.
    #[error("{0}")]
    DeviceLost(String),
    /// The storage of the data set did not come back: exit code 75, and no start again by launch.
    #[error("{0}")]
    StorageLost(String),
    /// Asked to stop where no step can be committed: exit code 85.
    #[error("{0}")]
    Interrupted(String),
    /// A bug: exit code 70.
    #[error("{0}")]
    Internal(String),
    /// The run is ending while a worker was still computing.
    #[error("the step was closed")]
    Closed,
}

impl TrainError {
    /// Whether only this rank ends by it: the others see a death.
    pub fn leaves_alone(&self) -> bool {
        match self {
            Self::Comm(error) => !error.starts_recovery(),
            Self::Evicted(_) | Self::Minority(_) | Self::Unready(_) | Self::DeviceLost(_) => true,
            _ => false,
        }
    }

    /// How the run ends by it.
    pub fn status(&self) -> Status {
        match self {
            Self::Comm(error) if error.starts_recovery() => Status::JobLost,
            Self::Data(_) => Status::DataError,
            Self::JobLost(_)
            | Self::StorageLost(_)
            | Self::Evicted(_)
            | Self::Minority(_)
            | Self::Unready(_)
            | Self::DeviceLost(_) => Status::JobLost,
            Self::Interrupted(_) => Status::Interrupted,
            Self::Comm(_) | Self::Configuration(_) | Self::Internal(_) | Self::Closed => {
                Status::InternalError
            }
        }
    }
}

impl TrainError {
    /// The exit code of a world of one (README, "Exit codes").
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Configuration(_) => 2,
            other => other.status().exit_code(),
        }
    }

    /// Whether the run pauses by it, with its state whole: it ends as one that was asked to.
    pub fn is_a_pause(&self) -> bool {
        matches!(self, Self::StorageLost(_) | Self::Interrupted(_))
    }

    /// Whether all ranks end by it, since they voted so.
    pub fn is_agreed(&self) -> bool {
        self.is_a_pause() || matches!(self, Self::Data(_))
    }

    /// Whether another start of the ranks now would end alike.
    pub fn is_conclusive(&self) -> bool {
        matches!(self, Self::StorageLost(_))
    }
}

impl From<GaveUp> for TrainError {
    fn from(end: GaveUp) -> Self {
        match end.leaves {
            Leaves::WithAll => Self::JobLost(end.reason),
            Leaves::Outvoted => Self::Minority(end.reason),
            Leaves::Refused => Self::Unready(end.reason),
        }
    }
}

impl From<DataError> for TrainError {
    fn from(error: DataError) -> Self {
        match error {
            DataError::Store(reason) => Self::StorageLost(reason),
            DataError::Place(reason) => Self::Configuration(reason),
            other => Self::Data(other.to_string()),
        }
    }
}

impl From<EngineError> for TrainError {
    fn from(error: EngineError) -> Self {
        match error {
            EngineError::Lost(reason) => Self::DeviceLost(reason),
            refused if refused.is_refusal() => Self::Configuration(refused.to_string()),
            other => Self::Internal(format!("the engine failed: {other}")),
        }
    }
}
