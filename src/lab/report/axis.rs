//! What curves are drawn against: epochs, committed steps or running time; and where what
//! happened in a run lies there. Pure.

use std::collections::BTreeMap;

use super::{Run, Study};
use crate::observe::event::{Event, Kind};
use crate::observe::ledger::Entry;

/// What lies along the x axis of a curve.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Axis {
    /// Samples committed, in training sets.
    Epochs,
    /// Committed steps.
    Steps,
    /// Seconds since the run's first start, restarts included, pauses between two launches not.
    Time,
}

impl Axis {
    /// All of them, in the order in which a page offers them.
    pub const ALL: [Self; 3] = [Self::Epochs, Self::Steps, Self::Time];

    /// For a page's style and for names of files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Epochs => "epochs",
            Self::Steps => "steps",
            Self::Time => "time",
        }
    }

    /// For a person.
    pub fn words(self) -> &'static str {
        match self {
            Self::Epochs => "epochs",
            Self::Steps => "committed steps",
            Self::Time => "running time",
        }
    }

    /// Those that every run of a study knows.
    pub fn known(study: &Study) -> Vec<Self> {
        let is_known = |axis: &Self| study.runs.iter().all(|run| Ruler::new(run, *axis).is_some());
        Self::ALL.into_iter().filter(is_known).collect()
    }

    /// The one that lengths and machines leave comparable, where the runs know it.
    pub fn comparable(study: &Study) -> Self {
        Self::known(study).first().copied().unwrap_or(Self::Time)
    }

    /// Where the longest run of a study ends.
    pub fn end(self, study: &Study) -> f64 {
        if self == Self::Time {
            return study.total_seconds();
        }
        let rulers = study.runs.iter().filter_map(|run| Ruler::new(run, self));
        rulers.map(|ruler| ruler.end()).fold(0.0, f64::max)
    }
}

/// Where the events of one run lie on an axis.
pub struct Ruler<'a> {
    /// Which.
    pub axis: Axis,
    events: &'a [Event],
    /// Samples committed with each step.
    cursors: BTreeMap<u64, u64>,
    /// Samples of an epoch.
    epoch: f64,
}

impl<'a> Ruler<'a> {
    /// Of a run's seconds.
    pub fn over_time(run: &'a Run) -> Self {
        Self { axis: Axis::Time, events: &run.events, cursors: BTreeMap::new(), epoch: 1.0 }
    }

    /// `None`: the run does not tell how many samples its steps had.
    pub fn new(run: &'a Run, axis: Axis) -> Option<Self> {
        let mut ruler = Self { axis, ..Self::over_time(run) };
        if axis != Axis::Epochs {
            return Some(ruler);
        }
        ruler.epoch = run.events.iter().find_map(|event| match event.kind {
            Kind::RunStart { train_samples, .. } if train_samples > 0 => Some(train_samples as f64),
            _ => None,
        })?;
        for entry in &run.ledger {
            if let Entry::Step(line) = entry {
                ruler.cursors.insert(line.step, line.cursor);
            }
        }
        (!ruler.cursors.is_empty()).then_some(ruler)
    }

    /// Where an event lies.
    pub fn at(&self, event: &Event) -> f64 {
        match self.axis {
            Axis::Epochs => {
                let committed = self.cursors.range(..=event.step).next_back();
                committed.map_or(0.0, |(_, cursor)| *cursor as f64) / self.epoch
            }
            Axis::Steps => event.step as f64,
            Axis::Time => event.seconds,
        }
    }

    /// Where the run was at a time.
    pub fn at_seconds(&self, seconds: f64) -> f64 {
        if self.axis == Axis::Time {
            return seconds;
        }
        let before = self.steps().filter(|event| event.seconds <= seconds).last();
        before.map_or(0.0, |event| self.at(event))
    }

    /// The furthest step.
    fn end(&self) -> f64 {
        self.steps().map(|event| self.at(event)).fold(0.0, f64::max)
    }

    fn steps(&self) -> impl Iterator<Item = &'a Event> {
        self.events.iter().filter(|event| matches!(event.kind, Kind::Step { .. }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::event::samples::{event, run_start, step};
    use crate::observe::ledger::Committed;

    #[test]
    fn epochs_are_what_the_ledger_says_was_committed() {
        let line = |step, cursor, count| {
            let (epoch, skipped, mix, attempt, zero_update) = (0, 0, 0, 1, false);
            let line = Committed { step, epoch, cursor, count, skipped, mix, attempt, zero_update };
            Entry::Step(line)
        };
        let step = step(16, 1.0);
        // The last step of an epoch is short.
        let run = Run {
            events: vec![
                event(0, 0.0, run_start(40)),
                event(2, 2.0, step.clone()),
                event(3, 3.0, step),
            ],
            ledger: vec![line(1, 16, 16), line(2, 32, 16), line(3, 40, 8)],
            ..Run::default()
        };
        let ruler = Ruler::new(&run, Axis::Epochs).unwrap();
        let at: Vec<f64> = run.events.iter().map(|event| ruler.at(event)).collect();
        assert_eq!(at, [0.0, 0.8, 1.0]);
        assert_eq!([1.0, 2.5, 9.0].map(|seconds| ruler.at_seconds(seconds)), [0.0, 0.8, 1.0]);
        let ledgerless = Run { ledger: Vec::new(), ..run.clone() };
        assert!(Ruler::new(&ledgerless, Axis::Epochs).is_none());
        assert!(Ruler::new(&ledgerless, Axis::Steps).is_some());
    }
}
