//! Which sample of a node's cache goes when room is needed: what nobody on the node uses, then what
//! any of its ranks used least recently. A plain value: who asks has the files.

use std::collections::HashMap;

use crate::data::staging::key::Key;

/// Names of samples, worked out one by one when they are needed.
pub type Keys = Box<dyn Iterator<Item = Key> + Send>;

/// Who uses what on a node.
pub struct Holdings {
    /// The samples of this rank's owners.
    pub mine: Keys,
    /// Those of the owners of the node's other ranks.
    pub beside: Keys,
}

/// A sample that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kept {
    /// When it was used last. No two uses on a node have the same tick.
    pub(super) tick: u64,
    /// What it holds.
    pub(super) bytes: u64,
}

/// Of all samples the share that is put in order at a time, and how many at the least: a listing
/// costs a look at each, so that each that goes costs as many looks as this.
const ORDERED_SHARE: usize = 16;
const ORDERED_MIN: usize = 16;

/// Which samples are used, by whom, and when last.
#[derive(Default)]
pub(super) struct Used {
    /// Those used least recently when the folder was listed last, the first to go at the end. One
    /// that has been used since has another tick.
    oldest: Vec<(Key, Kept)>,
    /// Of owners that no rank of the node computes.
    unused: Vec<(Key, u64)>,
    /// A plan that the files were not compared with yet.
    planned: Option<Holdings>,
}

impl std::fmt::Debug for Used {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} in order, {} unused", self.oldest.len(), self.unused.len())
    }
}

impl Used {
    /// Takes what was used least recently off the list, as of the last listing; made anew where
    /// nothing of it is left.
    pub(super) fn oldest(
        &mut self,
        listing: impl FnOnce() -> HashMap<Key, Kept>,
    ) -> Option<(Key, Kept)> {
        if self.oldest.is_empty() {
            self.oldest = listing().into_iter().collect();
            self.oldest.sort_unstable_by_key(|(key, kept)| (kept.tick, *key));
            self.oldest.truncate((self.oldest.len() / ORDERED_SHARE).max(ORDERED_MIN));
            self.oldest.reverse();
        }
        self.oldest.pop()
    }

    /// Takes one of those that nobody on this node uses off the list.
    pub(super) fn unused(&mut self) -> Option<(Key, u64)> {
        self.unused.pop()
    }

    /// Owners have moved.
    pub(super) fn plan(&mut self, holdings: Holdings) {
        self.planned = Some(holdings);
    }

    /// Finds what nobody on the node uses, once for each plan.
    pub(super) fn settle(&mut self, listing: impl FnOnce() -> HashMap<Key, Kept>) {
        let Some(Holdings { mine, beside }) = self.planned.take() else { return };
        let mut there = listing();
        for key in mine.chain(beside) {
            there.remove(&key);
        }
        self.unused = there.into_iter().map(|(key, kept)| (key, kept.bytes)).collect();
        // The same whatever the listing's order; the last one goes first.
        self.unused.sort_unstable();
    }
}
