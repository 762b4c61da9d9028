//! `RUN/result.json`, composed from the run's own events and its final position: recoveries and
//! restarts are what was written when they happened, whoever wrote it. Lost steps are the ledger's:
//! a writer that dies between two lines may leave a rollback without its event.

use std::io;
use std::path::Path;

use crate::observe::data_use::DataUse;
use crate::observe::event::{Event, Kind};
use crate::observe::ledger::{self, Entry};
use crate::observe::log::parse_lines;
use crate::observe::refusal::insist;
use crate::observe::result::{BadImages, Restart, RunResult, Status, Validation};
use crate::observe::storage::Storage;

use crate::train::record::journal::{EVENTS, LEDGER};
use crate::train::state::position::Position;
use crate::train::state::rank::Moment;

/// The file.
pub const RESULT: &str = "result.json";

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
        let events = insist(|| storage.read(Path::new(EVENTS))).unwrap_or_default();
        let events = parse_lines::<Event>(Path::new(EVENTS), &events).unwrap_or_default();
        let ledger = insist(|| storage.read(Path::new(LEDGER))).unwrap_or_default();
        let ledger = parse_lines::<Entry>(Path::new(LEDGER), &ledger).unwrap_or_default();
        let position = self.position;
        let from_events = History::of(&events);
        let result = RunResult {
            run_id: self.run_id.to_string(),
            attempt: self.place.attempt,
            status: self.status,
            reason: self.reason,
            steps: position.step,
            epochs: position.cursor / self.samples_per_epoch.max(1),
            samples: position.cursor,
            seconds: self.seconds,
            validation: position
                .last_error
                .map(|error| Validation { error, best: position.best_error.unwrap_or(error) }),
            state_sha256: self.state_sha256,
            exact: position.exact,
            recoveries: from_events.recoveries,
            restarts: from_events.restarts,
            resizes: from_events.resizes,
            lost_steps: ledger::lost_steps(&ledger),
            bad_images: BadImages::of(&events, &ledger),
            data: from_events.data,
            zero_updates: ledger::zero_updates(&ledger),
            conclusive: self.conclusive,
            goodput: from_events.counted_seconds / self.seconds.max(1e-9),
        };
        let text = serde_json::to_vec_pretty(&result).map_err(io::Error::other)?;
        storage.write_whole(Path::new(RESULT), &[&text, b"\n"])
    }
}

/// What the events of a run add up to.
#[derive(Debug, Default, PartialEq)]
struct History {
    recoveries: Vec<crate::observe::event::RecoveryRecord>,
    restarts: Vec<Restart>,
    resizes: Vec<crate::observe::event::ResizeRecord>,
    counted_seconds: f64,
    data: DataUse,
}

impl History {
    fn of(events: &[Event]) -> Self {
        let mut history = Self::default();
        let mut counted: Vec<(u64, f64)> = Vec::new();
        for event in events {
            match &event.kind {
                Kind::Step { seconds, .. } => counted.push((event.step, *seconds)),
                Kind::Data { used, .. } => history.data.add(used),
                Kind::Recovered(record) => history.recoveries.push(record.clone()),
                Kind::Resized(record) => history.resizes.push(record.clone()),
                Kind::Restarted { from, lost, .. } => {
                    counted.retain(|(step, _)| *step <= event.step);
                    let (attempt, step) = (event.attempt, event.step);
                    let (from, lost) = (from.clone(), lost.clone());
                    history.restarts.push(Restart { attempt, from, step, lost });
                }
                _ => {}
            }
        }
        history.counted_seconds = counted.iter().map(|(_, seconds)| seconds).sum();
        history
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::event::Lost;

    fn event(step: u64, attempt: u32, kind: Kind) -> Event {
        Event { v: 1, time: 0.0, seconds: 0.0, attempt, generation: 0, step, rank: 0, kind }
    }

    fn step(step: u64) -> Event {
        let kind = Kind::Step {
            epoch: 0,
            loss: 1.0,
            error: 0.5,
            samples: 8,
            learning_rate: 0.1,
            seconds: 2.0,
        };
        event(step, 1, kind)
    }

    #[test]
    fn steps_that_a_restart_threw_away_do_not_count() {
        let lost = vec![Lost { member: 1, rank: 1, host: "h".into(), cause: "SIGKILL".into() }];
        let from = String::from("checkpoint");
        let restarted = Kind::Restarted {
            from: from.clone(),
            lost_steps: 2,
            lost: lost.clone(),
            weights: None,
        };
        let events = [step(1), step(2), step(3), event(1, 2, restarted), step(2)];
        let history = History::of(&events);
        assert_eq!(history.counted_seconds, 4.0);
        assert_eq!(history.restarts, vec![Restart { attempt: 2, from, step: 1, lost }]);
    }
}
