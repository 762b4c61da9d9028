//! What reading took, from the commit of a step until it is written down. The counts of each step
//! are written once: a writer that dies has written some of the newest ones, perhaps even those of
//! a step that it alone took for committed. So every rank keeps the newest, and whoever writes next
//! looks up in the events what stands there already.

use std::collections::VecDeque;

use crate::data::store::tally::Counts;
use crate::observe::data_use::Waits;

/// Steps that are kept: many more than a writer leaves unwritten.
const KEPT_MAX: usize = 1024;

/// What one step took, over all ranks.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Took {
    /// The step that was committed.
    pub step: u64,
    /// What was counted.
    pub counts: Counts,
    /// What a worker waited for.
    pub waits: Waits,
}

/// Up to which step counts are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Written {
    /// This one.
    Until(u64),
    /// Another process wrote: the events say.
    ByAnother,
}

/// Counts of steps that no line has told yet.
#[derive(Debug)]
pub struct Reading {
    kept: VecDeque<Took>,
    written: Written,
}

impl Default for Reading {
    fn default() -> Self {
        Self { kept: VecDeque::new(), written: Written::Until(0) }
    }
}

impl Reading {
    /// A step was committed.
    pub fn add(&mut self, took: Took) {
        if self.kept.back().is_some_and(|last| took.step <= last.step) {
            // The run went back: what is read again counts again.
            self.go_back(took.step.saturating_sub(1));
        }
        self.kept.push_back(took);
        if self.kept.len() > KEPT_MAX {
            self.kept.pop_front();
        }
    }

    /// This process writes from now on, and another did.
    pub fn take_over(&mut self) {
        self.written = Written::ByAnother;
    }

    /// Steps after `to` are to be computed again.
    pub fn go_back(&mut self, to: u64) {
        self.kept.clear();
        self.written = Written::Until(to);
    }

    /// What is to be written now, of all steps together, with the last of them; `None`: nothing.
    /// `stands`: up to which step the events have it.
    pub fn take(&mut self, stands: impl FnOnce() -> Option<u64>) -> Option<Took> {
        let written = match self.written {
            Written::Until(step) => step,
            Written::ByAnother => stands().unwrap_or(0),
        };
        let mut sum: Option<Took> = None;
        for took in self.kept.iter().filter(|took| took.step > written) {
            let sum = sum.get_or_insert_default();
            sum.step = took.step;
            sum.counts = sum.counts.plus(&took.counts);
            sum.waits.add(&took.waits);
        }
        // The last one stays: it shows whether the run has gone back.
        let last = self.kept.back().map_or(written, |last| last.step.max(written));
        self.kept.drain(..self.kept.len().saturating_sub(1));
        self.written = Written::Until(last);
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::store::tally::Count;

    fn took(step: u64) -> Took {
        let counts = Counts::default().with(Count::Opens, 10 + step);
        Took { step, counts, ..Took::default() }
    }

    fn after(steps: std::ops::RangeInclusive<u64>) -> Reading {
        let mut reading = Reading::default();
        steps.for_each(|step| reading.add(took(step)));
        reading
    }

    fn opens(took: Option<Took>) -> Option<(u64, u64)> {
        took.map(|took| (took.step, took.counts.of(Count::Opens)))
    }

    #[test]
    fn a_writer_writes_each_step_once() {
        let mut reading = after(1..=3);
        assert_eq!(opens(reading.take(|| None)), Some((3, 36)));
        assert_eq!(opens(reading.take(|| None)), None);
        reading.add(took(4));
        assert_eq!(opens(reading.take(|| None)), Some((4, 14)));
    }

    #[test]
    fn who_takes_over_writes_what_the_dead_one_has_not() {
        let mut reading = after(1..=5);
        reading.take_over();
        assert_eq!(opens(reading.take(|| Some(3))), Some((5, 29)));
        let mut reading = after(1..=5);
        reading.take_over();
        assert_eq!(opens(reading.take(|| None)), Some((5, 65)));
    }

    #[test]
    fn a_step_that_a_dead_writer_alone_took_for_committed_is_not_written_again() {
        let mut reading = after(1..=5);
        reading.take_over();
        reading.add(took(6));
        assert_eq!(opens(reading.take(|| Some(6))), None);
        reading.add(took(7));
        assert_eq!(opens(reading.take(|| None)), Some((7, 17)));
    }

    #[test]
    fn what_is_read_again_after_a_rollback_counts_again() {
        let mut reading = after(1..=5);
        assert_eq!(opens(reading.take(|| None)), Some((5, 65)));
        reading.add(took(3));
        assert_eq!(opens(reading.take(|| None)), Some((3, 13)));
        let mut reading = after(1..=5);
        reading.take_over();
        reading.go_back(2);
        reading.add(took(3));
        assert_eq!(opens(reading.take(|| Some(5))), Some((3, 13)));
    }
}
