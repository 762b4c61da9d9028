//! Which micro-batches have all their files on this node: a plain value, without threads. Files
//! are counted by micro-batch, micro-batches in the order of their use; what is asked is only
//! whether one lies before the first that is not whole (Higuchi et al., section 3: a check for
//! many samples, never for each).

use std::collections::VecDeque;

/// What each micro-batch still waits for.
#[derive(Debug, Default)]
pub struct Gate {
    first_step: u64,
    owners: Vec<u32>,
    /// Micro-batches from the first on that are whole.
    passed: u64,
    /// Files that the ones after them lack. The last of them may still grow.
    lacking: VecDeque<u32>,
    /// Every file has been counted.
    counted: bool,
}

impl Gate {
    /// For micro-batches of these owners, from that step on; owners take turns in this order.
    pub fn new(first_step: u64, owners: &[u32]) -> Self {
        Self { first_step, owners: owners.to_vec(), ..Self::default() }
    }

    /// Opens the next micro-batch, without files yet; its number.
    pub fn begin(&mut self) -> u64 {
        self.lacking.push_back(1);
        self.passed + self.lacking.len() as u64 - 1
    }

    /// One more file of the micro-batch that was opened last.
    pub fn lacks_another(&mut self) {
        if let Some(last) = self.lacking.back_mut() {
            *last += 1;
        }
    }

    /// A file of this micro-batch is there, or its counting is over; whether the way is now open
    /// for more than before.
    pub fn arrived(&mut self, number: u64) -> bool {
        let Some(lacks) = number.checked_sub(self.passed).map(|at| at as usize) else {
            return false;
        };
        if let Some(lacks) = self.lacking.get_mut(lacks) {
            *lacks = lacks.saturating_sub(1);
        }
        let before = self.passed;
        while self.lacking.front() == Some(&0) {
            self.lacking.pop_front();
            self.passed += 1;
        }
        self.passed > before
    }

    /// No micro-batch will be opened any more.
    pub fn close(&mut self) {
        self.counted = true;
    }

    /// Whether every file is there.
    pub fn is_whole(&self) -> bool {
        self.counted && self.lacking.is_empty()
    }

    /// Whether the files of that micro-batch are there. What was never asked for is not waited for.
    pub fn lets(&self, step: u64, owner: u32) -> bool {
        let Some(place) = self.owners.iter().position(|&one| one == owner) else { return true };
        let Some(after) = step.checked_sub(self.first_step) else { return true };
        let number = after * self.owners.len() as u64 + place as u64;
        self.is_whole() || number < self.passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_micro_batch_is_let_through_when_all_before_it_are_whole() {
        let mut gate = Gate::new(5, &[0, 2]);
        let first = gate.begin();
        gate.lacks_another();
        gate.lacks_another();
        assert!(!gate.arrived(first), "its counting is over");
        let second = gate.begin();
        gate.lacks_another();
        gate.arrived(second);
        assert!(!gate.arrived(second), "the first one is not whole");
        assert!(!gate.lets(5, 0) && !gate.lets(5, 2));
        assert!(!gate.arrived(first));
        assert!(gate.arrived(first));
        assert!(gate.lets(5, 0) && gate.lets(5, 2) && !gate.lets(6, 0));
        assert!(gate.lets(6, 1) && gate.lets(4, 0), "what nobody asked for is not waited for");
        gate.close();
        assert!(gate.is_whole() && gate.lets(999, 2));
    }

    #[test]
    fn one_without_files_is_whole_when_it_is_counted() {
        let mut gate = Gate::new(0, &[7]);
        let empty = gate.begin();
        assert!(!gate.lets(0, 7));
        assert!(gate.arrived(empty) && gate.lets(0, 7));
        assert!(!gate.arrived(empty), "a late word changes nothing");
    }
}
