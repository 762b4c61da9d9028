//! What follows from how an attempt ended: the run's end, or another start. Pure.

use std::collections::VecDeque;
use std::time::Duration;

use crate::cluster::guard::last_words::is_out_of_memory;
use crate::config::{Config, Rung, Span};
use crate::observe::event::{Event, Kind};
use crate::observe::result::{RunResult, Status};

/// Attempts in a row that may end without having brought the run forward.
pub const STALLED_ATTEMPTS_MAX: u32 = 3;

/// Deaths for want of memory, one after another within `STARVED_WITHIN_SECONDS`, that a run may
/// live through: replacements and attempts take what the dead had, and a step between two of them
/// mends nothing.
pub const STARVED_DEATHS_MAX: usize = 6;
/// See `STARVED_DEATHS_MAX`.
pub const STARVED_WITHIN_SECONDS: f64 = 600.0;

/// Of an attempt that was to end before its first step.
const FORESTALLED: &str = "asked to stop before this start committed a step, with nothing to save";

/// How an attempt ended, as its supervisor saw it.
#[derive(Debug, Clone, PartialEq)]
pub enum Ending {
    /// mpirun ended by itself: its exit code or signal, for people only.
    Exited(String),
    /// It was killed because no step was committed in time.
    Hung(String),
    /// It lost a node, which is known to be gone: which, and how that was seen.
    NodeLost(String),
    /// A process ended before MPI had started, and the others waited there for it: which, and why.
    Unstarted(String),
    /// No rank was left, and mpirun went on without: who was the first to end, and why.
    Deserted(String),
    /// Its ranks died of memory again and again: how often, and of what the last one did.
    Starved(String),
    /// Somebody asked for the end.
    Stopped,
    /// Somebody asked for the end before the attempt had committed anything, and nothing of the run
    /// was to be saved.
    Forestalled,
}

impl Ending {
    /// Why the whole world is killed at once, where it is.
    pub fn killed_for(&self) -> Option<&str> {
        match self {
            Self::Hung(why) | Self::NodeLost(why) | Self::Starved(why) => Some(why),
            Self::Forestalled => Some(FORESTALLED),
            Self::Exited(_) | Self::Unstarted(_) | Self::Deserted(_) | Self::Stopped => None,
        }
    }
}

/// What to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Next {
    /// The ranks' own result is the run's.
    Accept(Box<RunResult>),
    /// No rank could write one: this is it.
    Conclude(Status, String),
    /// Start again, for this reason.
    Restart(String),
}

/// Decides. `result` is what the ranks of this attempt wrote; `stalled` counts the attempts in a
/// row, this one included, that did not bring the run forward.
pub fn next(ending: &Ending, result: Option<RunResult>, stalled: u32, rungs: &[Rung]) -> Next {
    let reason = match (&result, ending) {
        (Some(result), _) if result.status != Status::JobLost || result.conclusive => {
            return Next::Accept(Box::new(result.clone()));
        }
        (_, Ending::Starved(why)) => return Next::Conclude(Status::NoProgress, why.clone()),
        (_, Ending::NodeLost(why)) => why.clone(),
        (Some(result), _) => result.reason.clone(),
        (None, Ending::Exited(how)) => format!("mpirun ended ({how}) without a result"),
        (None, Ending::Hung(why)) => why.clone(),
        (None, Ending::Unstarted(why)) => format!("the ranks could not start: {why}"),
        (None, Ending::Deserted(first)) => format!("no rank is left; the first to end: {first}"),
        (None, Ending::Forestalled) => {
            return Next::Conclude(Status::Interrupted, FORESTALLED.to_owned());
        }
        (None, Ending::Stopped) => "no rank could write a checkpoint in time".to_owned(),
    };
    if matches!(ending, Ending::Stopped | Ending::Forestalled) {
        let reason = format!("asked to stop; {reason}: the newest verified state counts");
        return Next::Conclude(Status::Interrupted, reason);
    }
    if !rungs.contains(&Rung::Restart) {
        return match result {
            Some(result) => Next::Accept(Box::new(result)),
            None => {
                let reason = format!("{reason}, and recovery.ladder has no \"restart\"");
                Next::Conclude(Status::JobLost, reason)
            }
        };
    }
    if stalled >= STALLED_ATTEMPTS_MAX {
        let reason =
            format!("{stalled} attempts in a row committed no further step; the last: {reason}");
        return Next::Conclude(Status::NoProgress, reason);
    }
    Next::Restart(reason)
}

/// Whether the supervisor may start the world again.
pub fn may_restart(config: &Config) -> bool {
    config.recovery.rungs().contains(&Rung::Restart)
}

/// How far the run has come, over all attempts.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// The furthest step ever committed.
    furthest: u64,
    /// The furthest step an attempt began from.
    furthest_start: u64,
    forward: bool,
    stalled: u32,
    /// Whether this attempt has committed a step.
    committing: bool,
    /// The step of the newest checkpoint.
    saved: u64,
    /// Whether the ranks of this attempt have met.
    met: bool,
    /// The newest step of this attempt that was seen in memory.
    resident: Option<u64>,
    /// A rank waits for its data set: nothing was committed since it said so.
    waiting: bool,
    /// When ranks died of memory, in seconds of the run, and of what the last one did.
    starved: VecDeque<f64>,
    starved_last: String,
}

impl History {
    /// A start of mpirun. `committed`: the newest step that the ledger counts.
    pub fn attempt_begins(&mut self, committed: u64) {
        self.furthest = self.furthest.max(committed);
        self.forward = false;
        self.committing = false;
        self.met = false;
        self.waiting = false;
        self.resident = None;
    }

    /// Takes one event; says whether it shows that the world is alive and well.
    pub fn on(&mut self, event: &Event) -> bool {
        self.met |= matches!(event.kind, Kind::RunStart { .. } | Kind::Step { .. });
        let lost = match &event.kind {
            Kind::Recovered(record) => &record.lost[..],
            Kind::Restarted { lost, .. } => &lost[..],
            _ => &[],
        };
        if let Some(lost) = lost.iter().find(|lost| is_out_of_memory(&lost.cause)) {
            self.starve(event.seconds, &lost.cause);
        }
        match &event.kind {
            Kind::Checkpoint { name, .. } => {
                let step = name.strip_prefix("step-").and_then(|step| step.parse().ok());
                self.saved = step.unwrap_or(self.saved);
                false
            }
            // A later starting point is progress too: failures may be denser than epochs.
            Kind::RunStart { .. } if event.step > self.furthest_start => {
                self.furthest_start = event.step;
                self.forward = true;
                false
            }
            Kind::Waiting { .. } | Kind::Staging(_) => {
                self.waiting = true;
                true
            }
            Kind::Step { .. } => {
                self.on_commit(event.step);
                true
            }
            // Long ones are no reason to suspect the world, once they are done.
            Kind::Evaluation { .. } | Kind::Epoch { .. } => {
                self.waiting = false;
                self.committing
            }
            _ => false,
        }
    }

    /// Takes the newest step of this attempt that lies in memory; says whether it shows that ranks
    /// have committed since the last look. The first one that is seen may be what they begin with.
    pub fn on_resident(&mut self, step: u64) -> bool {
        let seen = self.resident.replace(step);
        let commits = seen.is_some_and(|seen| seen != step);
        if commits {
            self.on_commit(step);
        }
        commits
    }

    /// The newest step of this attempt that was seen in memory.
    pub fn resident(&self) -> Option<u64> {
        self.resident
    }

    fn on_commit(&mut self, step: u64) {
        (self.met, self.committing) = (true, true);
        self.waiting = false;
        self.forward |= step > self.furthest;
        self.furthest = self.furthest.max(step);
    }

    /// The end of mpirun; returns how many attempts in a row did not bring the run forward. One
    /// that lost a node is not held against them: that node is left out from now on. Short steps
    /// share an event, which their ranks may not live to write: `committed` knows of them.
    pub fn attempt_ends(&mut self, ending: &Ending, committed: u64) -> u32 {
        self.forward |= committed > self.furthest;
        self.furthest = self.furthest.max(committed);
        self.stalled = match ending {
            _ if self.forward => 0,
            Ending::NodeLost(_) => self.stalled,
            _ => self.stalled + 1,
        };
        self.stalled
    }

    /// Another launch, for which somebody may have made room.
    pub fn launch_begins(&mut self) {
        self.starved.clear();
    }

    fn starve(&mut self, seconds: f64, cause: &str) {
        if self.starved.len() > STARVED_DEATHS_MAX {
            self.starved.pop_front();
        }
        self.starved.push_back(seconds);
        cause.clone_into(&mut self.starved_last);
    }

    /// Why no further attempt or repair helps, where memory is too short for this run.
    pub fn starves(&self) -> Option<String> {
        let (first, last) = (self.starved.front()?, self.starved.back()?);
        let often = self.starved.len() > STARVED_DEATHS_MAX;
        (often && last - first <= STARVED_WITHIN_SECONDS).then(|| {
            format!(
                "ranks died of memory {} times within {:.0} s; the last: {}; give the run more \
                 memory, or lower data.cache, train.workers, train.global_batch or the number of \
                 ranks",
                self.starved.len(),
                last - first,
                self.starved_last
            )
        })
    }

    /// Whether its ranks have met, so that a death is theirs to repair.
    pub fn met(&self) -> bool {
        self.met
    }

    /// Whether the attempt has committed a step yet.
    pub fn committing(&self) -> bool {
        self.committing
    }

    /// Whether the newest checkpoint is of this step; without any, whether it is the start.
    pub fn has_saved(&self, step: u64) -> bool {
        self.saved == step
    }

    /// What the attempt is waited for.
    pub fn awaited(&self) -> Awaited {
        match (self.waiting, self.committing) {
            (true, _) => Awaited::Data,
            (false, true) => Awaited::NextStep,
            (false, false) => Awaited::FirstStep,
        }
    }
}

/// See [`hung`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// The attempt has committed nothing yet.
    FirstStep,
    /// It has.
    NextStep,
    /// The data set's storage is to come back first.
    Data,
}

/// Why a silence of this length ends the attempt, if it does.
pub fn hung(config: &Config, awaited: Awaited, silence: Duration) -> Option<String> {
    let recovery = &config.recovery;
    let (limit, key, what) = match awaited {
        Awaited::NextStep => {
            (recovery.time_limit, "recovery.time_limit", "no step was committed for")
        }
        Awaited::FirstStep => {
            (recovery.start_limit, "recovery.start_limit", "no first step was committed in")
        }
        // The ranks end by themselves when their patience is over.
        Awaited::Data => {
            let limit = Span(config.data.patience.0.saturating_add(recovery.time_limit.0));
            let keys = "data.patience and recovery.time_limit";
            (limit, keys, "the ranks waited for their data set for more than")
        }
    };
    (silence > limit.0).then(|| format!("{what} {limit} ({key}): the world was killed"))
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
