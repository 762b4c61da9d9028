//! What a run's events and its ledger prove of it, as `result.json` says it: the ranks' own, and
//! the supervisor's for a run whose ranks could not write one.

use std::path::Path;

use serde::de::DeserializeOwned;

use super::data_use::DataUse;
use super::event::{Event, Kind};
use super::ledger::{Entry, lost_steps, zero_updates};
use super::log::parse_lines;
use super::notice::act_on;
use super::refusal::{if_there, insist};
use super::result::{BadImages, Restart, RunResult, Status, Validation};
use super::standing::standing;
use super::storage::Storage;

/// The lines of a run's file. What cannot be read cannot be claimed, and that is said: how the run
/// ended matters more.
pub fn lines<T: DeserializeOwned>(storage: &dyn Storage, name: &str) -> Vec<T> {
    let path = Path::new(name);
    let read = if_there(insist(|| storage.read(path))).map(Option::unwrap_or_default);
    read.and_then(|body| parse_lines(path, &body)).unwrap_or_else(|error| {
        act_on(&format!("what {name} tells is not in the result: {error}"));
        Vec::new()
    })
}

/// A result that claims nothing.
pub fn from_nothing(run_id: &str, attempt: u32, status: Status, reason: &str) -> RunResult {
    RunResult {
        run_id: run_id.to_owned(),
        attempt,
        status,
        reason: reason.to_owned(),
        steps: 0,
        epochs: 0,
        samples: 0,
        seconds: 0.0,
        validation: None,
        best: None,
        state_sha256: None,
        exact: true,
        recoveries: Vec::new(),
        restarts: Vec::new(),
        resizes: Vec::new(),
        lost_steps: 0,
        bad_images: BadImages::default(),
        data: DataUse::default(),
        zero_updates: 0,
        conclusive: false,
        goodput: 0.0,
    }
}

/// Folds a run's events and ledger into a result that claims nothing yet but its length, if that.
#[must_use]
pub fn told(mut result: RunResult, events: &[Event], ledger: &[Entry]) -> RunResult {
    // Seconds of the steps that still count, with the step each committed.
    let mut counted: Vec<(u64, f64)> = Vec::new();
    let mut samples_per_epoch = None;
    for event in events {
        result.seconds = result.seconds.max(event.seconds);
        match &event.kind {
            Kind::Data { used, .. } => result.data.add(used),
            Kind::RunStart { run_id, train_samples, .. } => {
                result.run_id.clone_from(run_id);
                samples_per_epoch = Some(*train_samples).filter(|samples| *samples > 0);
                // An attempt from a state that is not says so again.
                result.exact = true;
            }
            Kind::Inexact { .. } => result.exact = false,
            Kind::Step { seconds, .. } => {
                while counted.last().is_some_and(|(step, _)| *step >= event.step) {
                    counted.pop();
                }
                counted.push((event.step, *seconds));
            }
            Kind::FailureDetected { .. } => counted.retain(|(step, _)| *step <= event.step),
            Kind::Recovered(record) => result.recoveries.push(record.clone()),
            Kind::Resized(record) => result.resizes.push(record.clone()),
            Kind::Restarted { from, lost, .. } => {
                counted.retain(|(step, _)| *step <= event.step);
                let (attempt, step) = (event.attempt, event.step);
                let (from, lost) = (from.clone(), lost.clone());
                result.restarts.push(Restart { attempt, from, step, lost });
            }
            _ => {}
        }
    }
    for event in standing(events) {
        if let Kind::Evaluation { error, average_error, .. } = event.kind
            && error.is_finite()
        {
            let least = average_error.map_or(error, |average| error.min(average));
            let best = result.validation.map_or(least, |v| v.best.min(least));
            result.validation = Some(Validation { error, best });
        }
    }
    if result.seconds > 0.0 {
        // Not `sum`: that of nothing is -0.
        let productive = counted.iter().fold(0.0, |all, (_, seconds)| all + seconds);
        result.goodput = (productive / result.seconds).clamp(0.0, 1.0);
    }
    (result.steps, result.epochs, result.samples) = position(ledger);
    if let Some(all) = samples_per_epoch {
        result.epochs = result.samples / all;
    }
    result.lost_steps = lost_steps(ledger);
    result.bad_images = BadImages::of(events, ledger);
    result.zero_updates = zero_updates(ledger);
    result
}

/// Steps, begun epochs before theirs, and samples that count after the last line of the ledger.
fn position(ledger: &[Entry]) -> (u64, u64, u64) {
    let target = match ledger.last() {
        None => return (0, 0, 0),
        Some(Entry::Step(line)) => line.step,
        Some(Entry::Rollback { to, .. } | Entry::Withdrawn { to, .. } | Entry::Gap { to, .. }) => {
            *to
        }
    };
    let line = ledger.iter().rev().find_map(|entry| match entry {
        Entry::Step(line) if line.step == target => Some(line),
        _ => None,
    });
    line.map_or((target, 0, 0), |line| (line.step, line.epoch, line.cursor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::event::Lost;
    use crate::observe::event::samples::{self, event, run_start};
    use crate::observe::ledger::Committed;

    fn step(step: u64, at: f64) -> Event {
        event(step, at, samples::step(10, 1.0))
    }

    fn line(step: u64) -> Entry {
        Entry::Step(Committed {
            step,
            epoch: step / 5,
            cursor: step * 10,
            count: 10,
            skipped: 0,
            mix: 0,
            attempt: 1,
            zero_update: false,
        })
    }

    fn result(status: Status, events: &[Event], ledger: &[Entry]) -> RunResult {
        told(from_nothing("r", 2, status, "lost"), events, ledger)
    }

    #[test]
    fn steps_that_a_restart_threw_away_do_not_count() {
        let cause = "SIGKILL".into();
        let lost = vec![Lost { member: 1, rank: 1, host: "h".into(), cause }];
        let (from, lost_steps, weights) = ("checkpoint".to_string(), 2, None);
        let again = (from.clone(), lost.clone());
        let restarted = Kind::Restarted { from, lost_steps, lost, weights };
        let before = [step(1, 1.0), step(2, 2.0), step(3, 3.0), event(1, 5.0, restarted)];
        let two = RunResult { seconds: 8.0, ..from_nothing("r", 2, Status::Completed, "all") };
        let result = told(two.clone(), &before, &[]);
        assert_eq!(result.goodput, 1.0 / 8.0, "one step counts of eight seconds");
        let (from, lost) = again;
        assert_eq!(result.restarts, vec![Restart { attempt: 1, from, step: 1, lost }]);
        assert_eq!(told(two, &[&before[..], &[step(2, 6.0)]].concat(), &[]).goodput, 2.0 / 8.0);
    }

    #[test]
    fn an_evaluation_of_steps_that_were_rolled_back_is_not_the_runs() {
        let evaluation = |step, error| {
            let (average_error, loss, samples, seconds) = (None, 1.0, 4, 0.1);
            event(step, 1.0, Kind::Evaluation { error, average_error, loss, samples, seconds })
        };
        let (from, lost_steps, lost, weights) = ("scratch".into(), 2, Vec::new(), None);
        let restarted = event(0, 5.0, Kind::Restarted { from, lost_steps, lost, weights });
        let told = [step(2, 1.0), evaluation(2, 0.25), restarted, step(2, 6.0), evaluation(2, 0.5)];
        let validation = |events: &[Event]| result(Status::JobLost, events, &[]).validation;
        assert_eq!(validation(&told[..2]).map(|found| found.best), Some(0.25));
        assert_eq!(validation(&told[..3]), None);
        assert_eq!(validation(&told).map(|found| (found.error, found.best)), Some((0.5, 0.5)));
        // The running average's counts for the best, as it does for the weights that are kept.
        let average_error = Some(0.125);
        let (error, loss, samples, seconds) = (0.5, 1.0, 4, 0.1);
        let averaged = Kind::Evaluation { error, average_error, loss, samples, seconds };
        let found = validation(&[event(2, 1.0, averaged)]).map(|found| (found.error, found.best));
        assert_eq!(found, Some((0.5, 0.125)));
    }

    #[test]
    fn epochs_are_those_that_are_over() {
        let epochs = |steps: u64| {
            let ledger: Vec<Entry> = (1..=steps).map(line).collect();
            result(Status::JobLost, &[event(0, 0.0, run_start(50))], &ledger).epochs
        };
        assert_eq!([4, 5, 9, 10].map(epochs), [0, 1, 1, 2]);
    }

    #[test]
    fn steps_that_were_rolled_back_count_neither_as_steps_nor_as_goodput() {
        let restarted = Kind::Restarted {
            from: "checkpoint".into(),
            lost_steps: 2,
            lost: Vec::new(),
            weights: None,
        };
        let events =
            [step(1, 1.0), step(2, 2.0), step(3, 3.0), event(1, 5.0, restarted), step(2, 6.0)];
        let rollback = Entry::Rollback { to: 1, attempt: 2 };
        let ledger = [line(1), line(2), line(3), rollback, line(2)];
        let result = result(Status::JobLost, &events, &ledger);
        assert_eq!((result.steps, result.samples, result.lost_steps), (2, 20, 2));
        assert_eq!(result.restarts[0].step, 1);
        assert!((result.goodput - 2.0 / 6.0).abs() < 1e-12);
        let ledger = &ledger[..4];
        assert_eq!(super::tests::result(Status::JobLost, &events, ledger).steps, 1);
    }

    #[test]
    fn a_run_is_exact_unless_it_says_otherwise_of_the_state_it_ended_with() {
        let start = || event(4, 1.0, run_start(1));
        let inexact = || event(5, 2.0, Kind::Inexact { reason: "another processor".into() });
        let exact = |events: &[Event]| result(Status::JobLost, events, &[]).exact;
        assert!(exact(&[start()]));
        assert!(!exact(&[start(), inexact()]));
        assert!(exact(&[start(), inexact(), start()]), "it went on from a state before");
        assert!(!exact(&[start(), inexact(), start(), inexact()]));
    }

    #[test]
    fn a_run_that_wrote_nothing_still_has_a_result() {
        let result = told(from_nothing("r", 1, Status::NoProgress, "three times"), &[], &[]);
        assert_eq!((result.steps, result.goodput), (0, 0.0));
    }
}
