//! `RUN/result.json`, composed from the run's own events and its final position: recoveries and
//! restarts are what was written when they happened, whoever wrote it. Lost steps are the ledger's:
//! a writer that dies between two lines may leave a rollback without its event.

use std::io;
use std::path::Path;

use crate::observe::account::{self, from_nothing};
use crate::observe::result::{RunResult, Status, Validation};
use crate::observe::storage::Storage;
use crate::run_folder::RESULT;

use crate::train::checkpoint::best;
use crate::train::record::journal::{EVENTS, LEDGER};
use crate::train::state::position::Position;
use crate::train::state::rank::Moment;

/// How a run ended, from the rank that writes it down.
pub struct Ended<'a> {
    /// The run.
    pub run_id: &'a str,
    /// Where it stands.
    pub place: Moment,
    /// How.
    pub status: Status,
    /// Why.
    pub reason: String,
    /// Run seconds.
    pub seconds: f64,
    /// The final position.
    pub position: &'a Position,
    /// Of the training set.
    pub samples_per_epoch: u64,
    /// Of the final state.
    pub state_sha256: Option<String>,
    /// As in `RunResult`.
    pub conclusive: bool,
}

impl Ended<'_> {
    /// Reads the events, writes the result.
    pub fn write(self, storage: &dyn Storage) -> io::Result<()> {
        let (events, ledger) = (account::lines(storage, EVENTS), account::lines(storage, LEDGER));
        let position = self.position;
        let kept = best::read(storage).unwrap_or_else(|error| {
            tracing::warn!("which checkpoint is the best is not in the result: {error}");
            None
        });
        let known = from_nothing(self.run_id, self.place.attempt, self.status, &self.reason);
        let known = RunResult { seconds: self.seconds, ..known };
        let result = RunResult {
            run_id: self.run_id.to_string(),
            steps: position.step,
            epochs: position.cursor / self.samples_per_epoch.max(1),
            samples: position.cursor,
            seconds: self.seconds,
            validation: position
                .last_error
                .map(|error| Validation { error, best: position.best_error.unwrap_or(error) }),
            best: kept.map(|kept| kept.best),
            state_sha256: self.state_sha256,
            exact: position.exact,
            conclusive: self.conclusive,
            ..account::told(known, &events, &ledger)
        };
        let text = serde_json::to_vec_pretty(&result).map_err(io::Error::other)?;
        storage.write_whole(Path::new(RESULT), &[&text, b"\n"])
    }
}
