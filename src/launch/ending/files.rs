//! What an attempt leaves of its end, `result.json` and `failure.txt`, as the loop reads and writes
//! it: the files of a real run or of a simulated one.

use std::path::Path;

use crate::launch::{LaunchError, io_error};
use crate::observe::refusal::insist;
use crate::observe::result::RunResult;
use crate::observe::storage::Storage;
use crate::run_folder::{CONFIGURATION, FAILURE, RESULT};

/// Those files of one run.
#[derive(Clone, Copy)]
pub struct EndingFiles<'a> {
    storage: &'a dyn Storage,
}

impl<'a> EndingFiles<'a> {
    /// In the run's folder.
    pub fn of(storage: &'a dyn Storage) -> Self {
        Self { storage }
    }

    /// How the run, or its last attempt, ended; `None` where no complete record exists.
    pub fn result(&self) -> Option<RunResult> {
        let bytes = insist(|| self.storage.read(Path::new(RESULT))).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    /// A result that is there while an attempt runs is that attempt's own.
    ///
    /// # Errors
    /// The old one cannot be renamed.
    pub fn put_result_aside(&self, attempt: u32) -> Result<(), LaunchError> {
        let there = self.storage.read(Path::new(RESULT));
        if there.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            return Ok(());
        }
        let aside = format!("logs/result-before-{attempt}.json");
        self.storage
            .rename(Path::new(RESULT), Path::new(&aside))
            .map_err(io_error("moving the old result.json aside"))
    }

    /// Forgets what ranks of an earlier attempt refused.
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn forget_refusal(&self) -> Result<(), LaunchError> {
        self.storage.remove(Path::new(FAILURE)).map_err(io_error("removing an old failure.txt"))
    }

    /// Why the ranks refused the configuration, where only the data set or a checkpoint could show
    /// that it is wrong.
    pub fn refusal(&self) -> Option<String> {
        let text = String::from_utf8(self.storage.read(Path::new(FAILURE)).ok()?).ok()?;
        let reason = text.strip_prefix(CONFIGURATION)?.strip_prefix('\n')?;
        Some(reason.trim().to_owned())
    }

    /// Written by the supervisor when no rank could.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_result(&self, result: &RunResult) -> Result<(), LaunchError> {
        let text = serde_json::to_string_pretty(result).expect("a result has a JSON form");
        self.storage
            .write_whole(Path::new(RESULT), &[text.as_bytes(), b"\n"])
            .map_err(io_error("writing result.json"))
    }
}
