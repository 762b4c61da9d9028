//! Why a rank cannot go on: a vote carries bits, not reasons, so the reason lies in a file for
//! whoever writes the result.

use std::path::Path;

use crate::observe::event::name_of;
use crate::observe::notice::act_on;
use crate::observe::result::Status;
use crate::observe::storage::Storage;
use crate::run_folder::{CONFIGURATION, FAILURE};
use crate::train::TrainError;

/// What kind of failure ends a run. Votes and gatherings carry it, so that how the run ends does
/// not hang on a file; the words do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Failure {
    Configuration,
    Data,
    JobLost,
    StorageLost,
    Interrupted,
    Internal,
}

impl Failure {
    /// All, the one that counts among several first.
    pub const ALL: [Self; 6] = [
        Self::Configuration,
        Self::Data,
        Self::JobLost,
        Self::StorageLost,
        Self::Interrupted,
        Self::Internal,
    ];

    /// Of an error.
    pub fn of(error: &TrainError) -> Self {
        match error {
            TrainError::Configuration(_) => Self::Configuration,
            TrainError::StorageLost(_) => Self::StorageLost,
            other => match other.status() {
                Status::DataError => Self::Data,
                Status::Interrupted => Self::Interrupted,
                Status::JobLost => Self::JobLost,
                Status::Completed | Status::InternalError | Status::NoProgress => Self::Internal,
            },
        }
    }

    /// Its first line in the file.
    fn name(self) -> String {
        match self {
            Self::Configuration => CONFIGURATION.into(),
            Self::StorageLost => "storage_lost".into(),
            other => name_of(&other.error(String::new()).status()),
        }
    }

    /// What another rank met.
    fn error(self, reason: String) -> TrainError {
        match self {
            Self::Configuration => TrainError::Configuration(reason),
            Self::StorageLost => TrainError::StorageLost(reason),
            Self::Data => TrainError::Data(reason),
            Self::Interrupted => TrainError::Interrupted(reason),
            Self::JobLost => TrainError::JobLost(reason),
            Self::Internal => {
                TrainError::Internal(format!("another rank could not go on: {reason}"))
            }
        }
    }
}

/// Leaves the reason why this rank cannot go on, for whoever writes the result.
pub fn leave_reason(storage: &dyn Storage, error: &TrainError) {
    let text = format!("{}\n{error}\n", Failure::of(error).name());
    if let Err(error) = storage.write_whole(Path::new(FAILURE), &[text.as_bytes()]) {
        act_on(&format!("cannot write {FAILURE}: {error}"));
    }
}

/// What another rank left, where nothing else tells what it met.
pub fn left_reason(storage: &dyn Storage) -> Option<TrainError> {
    let (failure, reason) = read(storage)?;
    Some(failure.error(reason))
}

/// What another rank met, in its own words where it could leave them.
pub fn reason_of(storage: &dyn Storage, failure: Failure) -> TrainError {
    let left = read(storage).filter(|(left, _)| *left == failure);
    failure.error(left.map_or_else(
        || format!("{}: a rank could not say more in {FAILURE}; its log does", failure.name()),
        |(_, reason)| reason,
    ))
}

fn read(storage: &dyn Storage) -> Option<(Failure, String)> {
    let text = storage.read(Path::new(FAILURE)).ok()?;
    let text = String::from_utf8_lossy(&text);
    let (name, reason) = text.split_once('\n')?;
    let failure = Failure::ALL.into_iter().find(|failure| failure.name() == name)?;
    Some((failure, reason.trim().to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::storage::MemoryStorage;

    #[test]
    fn how_a_run_ends_does_not_hang_on_the_file() {
        let errors = [
            TrainError::Configuration("three classes".into()),
            TrainError::Data("none of them".into()),
            TrainError::JobLost("no rung is left".into()),
            TrainError::StorageLost("gone".into()),
            TrainError::Interrupted("asked to stop".into()),
        ];
        for (error, failure) in errors.iter().zip(Failure::ALL) {
            assert_eq!(Failure::of(error), failure);
            let storage = MemoryStorage::default();
            let told = reason_of(&storage, failure);
            assert_eq!(std::mem::discriminant(&told), std::mem::discriminant(error));
            assert!(told.to_string().contains("its log does"), "{told}");
            assert_eq!(left_reason(&storage), None);
            leave_reason(&storage, &TrainError::Closed);
            let other = reason_of(&storage, failure);
            assert_eq!(other, told, "the words of another failure are not its own");
            leave_reason(&storage, error);
            assert_eq!(reason_of(&storage, failure), *error);
            assert_eq!(left_reason(&storage), Some(error.clone()));
        }
    }
}
