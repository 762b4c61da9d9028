//! How far the files of a run are copied to its nodes, from its events: the console and `status`
//! say the same of them.

use std::collections::BTreeMap;

use super::event::{Event, Kind, Staged};
use super::spans::{amount, clock};

impl Staged {
    /// Whether nothing lacks.
    pub fn is_whole(&self) -> bool {
        self.files >= self.files_total
    }

    /// Until nothing lacks; unknown as long as nothing was copied.
    pub fn seconds_left(&self) -> Option<f64> {
        let left = self.bytes_total.saturating_sub(self.bytes) as f64;
        (self.bytes_per_second >= 1.0).then(|| left / self.bytes_per_second)
    }

    /// For a person.
    pub fn line(&self) -> String {
        let left = match self.seconds_left().filter(|_| !self.is_whole()) {
            Some(seconds) => format!(", {} left", clock(seconds)),
            None => String::new(),
        };
        let of = match self.ranks {
            0 => String::new(),
            1 => " of 1 rank".into(),
            ranks => format!(" of {ranks} ranks"),
        };
        format!(
            "staged {} of {} files{of} ({} of {}, {}/s{left})",
            self.files,
            self.files_total,
            amount(self.bytes),
            amount(self.bytes_total),
            amount(self.bytes_per_second as u64)
        )
    }

    fn add(&mut self, other: &Self) {
        self.ranks += other.ranks;
        self.files += other.files;
        self.files_total += other.files_total;
        self.bytes += other.bytes;
        self.bytes_total += other.bytes_total;
        self.bytes_per_second += other.bytes_per_second;
    }
}

/// Files and bytes copied so far, and of how many.
#[derive(Debug, Default)]
pub struct Copies {
    /// With the last step that told of it.
    all: Option<Staged>,
    /// Of ranks that wait within a step, since then.
    waiting: BTreeMap<u32, Staged>,
    generation: (u32, u32),
}

impl Copies {
    /// Takes one event, in the order written.
    pub fn on(&mut self, event: &Event) {
        let generation = (event.attempt, event.generation);
        if std::mem::replace(&mut self.generation, generation) != generation {
            // Other ranks read other files now.
            self.waiting.clear();
        }
        let Kind::Staging(staged) = event.kind else { return };
        match staged.ranks {
            0 => drop(self.waiting.insert(event.rank, Staged { ranks: 1, ..staged })),
            _ => {
                self.waiting.clear();
                self.all = Some(staged);
            }
        }
    }

    /// What was heard last: of all ranks, or of those that have waited since.
    pub fn newest(&self) -> Option<Staged> {
        let mut sum = Staged::default();
        self.waiting.values().for_each(|staged| sum.add(staged));
        if self.waiting.is_empty() { self.all } else { Some(sum) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::event::samples;

    fn event(generation: u32, rank: u32, ranks: u32, files: u64) -> Event {
        let (bytes, bytes_total, bytes_per_second) = (files * 1000, 4000, 500.0);
        let files_total = 4;
        let staged = Staged { ranks, files, files_total, bytes, bytes_total, bytes_per_second };
        Event { generation, rank, ..samples::event(0, 0.0, Kind::Staging(staged)) }
    }

    #[test]
    fn ranks_that_wait_are_summed_until_a_step_tells_of_all() {
        let mut copies = Copies::default();
        assert_eq!(copies.newest(), None);
        for (rank, files) in [(0, 1), (1, 2), (0, 3)] {
            copies.on(&event(0, rank, 0, files));
        }
        let newest = copies.newest().expect("told");
        assert_eq!((newest.ranks, newest.files, newest.files_total), (2, 5, 8));
        assert_eq!(newest.seconds_left(), Some(3.0));
        copies.on(&event(0, 0, 2, 3));
        let line = copies.newest().expect("told").line();
        assert_eq!(line, "staged 3 of 4 files of 2 ranks (3.0 kB of 4.0 kB, 500 B/s, 2s left)");
        copies.on(&event(1, 1, 0, 4));
        let newest = copies.newest().expect("told");
        assert!(newest.is_whole() && newest.ranks == 1, "{newest:?}");
        assert!(!newest.line().contains("left"), "{}", newest.line());
    }
}
