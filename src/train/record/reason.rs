//! Why a rank cannot go on: a vote carries bits, not reasons, so the reason lies in a file for
//! whoever writes the result.

use std::path::Path;

use crate::observe::notice::act_on;
use crate::observe::storage::Storage;
use crate::run_folder::{CONFIGURATION, FAILURE};
use crate::train::TrainError;
use crate::train::record::outcome;

/// The kind of failure that is the data set's storage's.
const STORAGE_LOST: &str = "storage_lost";

/// Leaves the reason why this rank cannot go on, for whoever writes the result.
pub fn leave_reason(storage: &dyn Storage, error: &TrainError) {
    let code = match error {
        TrainError::Configuration(_) => CONFIGURATION,
        TrainError::StorageLost(_) => STORAGE_LOST,
        other => outcome::status_name(other.status()),
    };
    let text = format!("{code}\n{error}\n");
    if let Err(error) = storage.write_whole(Path::new(FAILURE), &[text.as_bytes()]) {
        act_on(&format!("cannot write {FAILURE}: {error}"));
    }
}

/// What another rank left.
pub fn read_reason(storage: &dyn Storage) -> TrainError {
    let text = storage.read(Path::new(FAILURE)).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let (code, reason) = text.split_once('\n').unwrap_or(("", &text));
    let reason = reason.trim().to_string();
    match code {
        CONFIGURATION => TrainError::Configuration(reason),
        STORAGE_LOST => TrainError::StorageLost(reason),
        "data_error" => TrainError::Data(reason),
        "interrupted" => TrainError::Interrupted(reason),
        "job_lost" => TrainError::JobLost(reason),
        _ => TrainError::Internal(format!("another rank could not go on: {reason}")),
    }
}
