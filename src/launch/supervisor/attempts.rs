//! The loop over the attempts of one launch: begins one, reads how it ended, and either the run is
//! over or the next one begins. What an attempt is made of, processes or simulated ranks, is known
//! to who implements `Attempts`; `verdict` decides.

use crate::config::{Config, ExchangeKind};
use crate::launch::LaunchError;
use crate::launch::ending::files::EndingFiles;
use crate::launch::ending::verdict::{self, Ending, History, Next};
use crate::observe::account::{self, from_nothing, told};
use crate::observe::ledger::{self, LEDGER_FILE};
use crate::observe::log::EVENTS_FILE;
use crate::observe::result::{RunResult, Status};
use crate::observe::storage::Storage;

/// The run whose attempts these are.
pub struct Run<'a> {
    /// In force.
    pub config: &'a Config,
    /// Its folder.
    pub storage: &'a dyn Storage,
    /// What people call it.
    pub name: String,
    /// Limits that are too low for it.
    pub scarce: &'a [String],
}

/// What became of an attempt.
#[derive(Debug)]
pub enum Tried {
    /// It ended so.
    Ended(Ending),
    /// It was not begun: the run ends.
    Not(Status, String),
}

/// Where attempts take place.
pub trait Attempts {
    /// Why a launch gives the run away.
    type Error: From<LaunchError>;

    /// The run.
    fn run(&self) -> Run<'_>;

    /// How far the run has come. An attempt takes the events of its ranks into it.
    fn history(&mut self) -> &mut History;

    /// Begins the next attempt: earlier ones are cut off. Its number.
    ///
    /// # Errors
    /// The run is not ours any more.
    fn raise(&mut self) -> Result<u32, Self::Error>;

    /// The attempt from its start to the last of its processes.
    ///
    /// # Errors
    /// The supervisor itself cannot go on.
    fn attempt(&mut self) -> Result<Tried, Self::Error>;

    /// What follows from how it ended.
    fn decided(&mut self, next: &Next);

    /// The result was written because no rank could.
    ///
    /// # Errors
    /// That cannot be told.
    fn concluded(&mut self, result: &RunResult) -> Result<(), Self::Error>;
}

/// Attempts until the run has a result. Bounded by `verdict::STALLED_ATTEMPTS_MAX`: all but so many
/// attempts bring the run forward.
///
/// # Errors
/// The ranks refused the configuration, or what the world says.
pub fn run<A: Attempts>(attempts: &mut A) -> Result<RunResult, A::Error> {
    loop {
        let attempt = attempts.raise()?;
        let files = EndingFiles::of(attempts.run().storage);
        files.put_result_aside(attempt)?;
        files.forget_refusal()?;
        let before = newest_step(attempts);
        attempts.history().attempt_begins(before.unwrap_or(0));
        let ending = match attempts.attempt()? {
            Tried::Ended(ending) => ending,
            Tried::Not(status, reason) => return conclude(attempts, attempt, status, &reason),
        };
        let committed = before.and(newest_step(attempts)).unwrap_or(0);
        let stalled = attempts.history().attempt_ends(&ending, committed);
        let files = EndingFiles::of(attempts.run().storage);
        let result = files.result().filter(|result| result.attempt == attempt);
        if result.is_none()
            && let Some(reason) = files.refusal()
        {
            return Err(LaunchError::Refused { reason }.into());
        }
        let rungs = attempts.run().config.recovery.rungs();
        let next = verdict::next(&ending, result, stalled, &rungs);
        attempts.decided(&next);
        match next {
            Next::Accept(result) => return Ok(*result),
            Next::Conclude(status, reason) => return conclude(attempts, attempt, status, &reason),
            Next::Restart(_) => {}
        }
    }
}

/// The newest step that the ledger counts. `None`: it cannot be read, and events alone tell.
pub(super) fn newest_step<A: Attempts>(attempts: &A) -> Option<u64> {
    let newest = ledger::newest(attempts.run().storage).ok()?;
    Some(newest.map_or(0, |line| line.step))
}

/// The result when no rank could write one.
fn conclude<A: Attempts>(
    attempts: &mut A,
    attempt: u32,
    status: Status,
    reason: &str,
) -> Result<RunResult, A::Error> {
    let Run { config, storage, name, scarce } = attempts.run();
    let mut reason = reason.to_owned();
    if status == Status::NoProgress {
        scarce.iter().for_each(|line| reason.push_str(&format!("; {line}")));
    }
    let (events, ledger) =
        (account::lines(storage, EVENTS_FILE), account::lines(storage, LEDGER_FILE));
    let nothing = from_nothing(&name, attempt, status, &reason);
    let mut result = told(nothing, &events, &ledger);
    result.exact &= config.train.exchange == ExchangeKind::Synchronous;
    EndingFiles::of(storage).write_result(&result)?;
    attempts.concluded(&result)?;
    Ok(result)
}
