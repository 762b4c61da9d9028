//! How long training beside copying has to take: no step begins before its files are there, and
//! steps follow one another. With `C_j` the time when the files of step j and of all before it are
//! there, and `t_i` what step i takes once they are, the last step ends at
//! `T = max_j (C_j + sum of t_i over i >= j)`, or after all `t_i` where nothing was waited for.
//! Pure.

use super::data_use::Waits;
use super::event::{Event, Kind};

/// One step, or several that one event tells of.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stage {
    /// Steps committed with it.
    pub step: u64,
    /// When the files that it needs are there, in seconds of the run; 0: they were before.
    pub ready_seconds: f64,
    /// What it takes once they are.
    pub seconds: f64,
}

/// The least time until the last of them has ended.
pub fn least_seconds(stages: &[Stage]) -> f64 {
    stages.iter().fold(0.0, |ended: f64, stage| ended.max(stage.ready_seconds) + stage.seconds)
}

/// What an attempt's steps took, from its first event on.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Course {
    /// When it began, in seconds since 1970.
    pub began: f64,
    /// From there to the end of the last step.
    pub seconds: f64,
    /// The steps, without what they waited for files to be staged; their files are there at once.
    pub stages: Vec<Stage>,
}

/// A step that waited less for files to be staged did not wait.
const WAITED_SECONDS: f64 = 1e-3;

/// What a step spent in waiting for files, its own or those of the ranks that it waited for: never
/// less than what it did, so that the steps come out no longer than they were.
fn held_up(waits: &Waits) -> f64 {
    if waits.staging < WAITED_SECONDS { 0.0 } else { waits.staging + waits.peers }
}

impl Course {
    /// Of the events of a run without failures. `None`: it has no steps.
    pub fn of(events: &[Event]) -> Option<Self> {
        let is_start = |event: &&Event| matches!(event.kind, Kind::RunStart { .. });
        let began = events.iter().find(is_start)?.time;
        let (mut last, mut waited, mut stages) = (began, 0.0, Vec::new());
        for event in events {
            match &event.kind {
                Kind::Data { waits, .. } => waited += held_up(waits),
                Kind::Step { .. } => {
                    let seconds = (event.time - last - waited).max(0.0);
                    stages.push(Stage { step: event.step, ready_seconds: 0.0, seconds });
                    (last, waited) = (event.time, 0.0);
                }
                _ => {}
            }
        }
        (!stages.is_empty()).then_some(Self { began, seconds: last - began, stages })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::data_use::DataUse;
    use crate::observe::event::samples::{event, run_start, step};

    fn stages(of: &[(f64, f64)]) -> Vec<Stage> {
        let stage = |(step, &(ready_seconds, seconds)): (usize, &(f64, f64))| Stage {
            step: step as u64 + 1,
            ready_seconds,
            seconds,
        };
        of.iter().enumerate().map(stage).collect()
    }

    /// The formula as it is written.
    fn by_the_formula(stages: &[Stage]) -> f64 {
        let after = |j: usize| stages[j..].iter().map(|stage| stage.seconds).sum::<f64>();
        let waited = (0..stages.len()).map(|j| stages[j].ready_seconds + after(j));
        waited.fold(after(0), f64::max)
    }

    #[test]
    fn the_slower_of_copying_and_training_decides() {
        let cases = [
            (&[(1.0, 1.0), (2.0, 1.0), (3.0, 1.0)][..], 4.0),
            (&[(1.0, 3.0), (2.0, 3.0), (3.0, 3.0)], 10.0),
            (&[(3.0, 1.0), (6.0, 1.0), (9.0, 1.0)], 10.0),
            (&[(0.0, 1.0), (9.0, 1.0), (9.5, 0.1)], 10.1),
            (&[(0.0, 1.0), (0.0, 2.0)], 3.0),
        ];
        for (of, expected) in cases {
            let stages = stages(of);
            assert!((least_seconds(&stages) - expected).abs() < 1e-9, "{stages:?}");
            assert!((by_the_formula(&stages) - expected).abs() < 1e-9, "{stages:?}");
        }
        assert_eq!(least_seconds(&[]), 0.0);
    }

    #[test]
    fn what_steps_waited_for_copies_is_no_part_of_them() {
        let waited = |staging| Kind::Data {
            used: DataUse::default(),
            waits: Waits { staging, peers: 0.125, ..Waits::default() },
        };
        let events = [
            event(0, 10.0, run_start(1)),
            event(1, 10.5, waited(0.25)),
            event(1, 10.5, step(8, 0.1)),
            event(3, 11.0, waited(0.0)),
            event(3, 11.0, step(8, 0.1)),
        ];
        let course = Course::of(&events).expect("it has steps");
        assert_eq!((course.began, course.seconds), (10.0, 1.0));
        let taken: Vec<_> = course.stages.iter().map(|stage| (stage.step, stage.seconds)).collect();
        assert_eq!(taken, [(1, 0.125), (3, 0.5)]);
        assert_eq!(Course::of(&events[..1]), None);
    }
}
