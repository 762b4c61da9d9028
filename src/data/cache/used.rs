//! What a rank used of its node's cache, in which order, and what nobody on the node uses. A plain
//! value: who asks has the files.

use std::collections::{BTreeMap, HashMap};

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

/// See the module.
#[derive(Default)]
pub(super) struct Used {
    last: HashMap<Key, Kept>,
    by_tick: BTreeMap<(u64, Key), u64>,
    /// Of owners that no rank of the node computes.
    unused: Vec<(Key, u64)>,
    /// A plan that the files were not compared with yet.
    planned: Option<Holdings>,
}

impl std::fmt::Debug for Used {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} used, {} unused", self.last.len(), self.unused.len())
    }
}

impl Used {
    /// A sample was used.
    pub(super) fn touch(&mut self, key: Key, now: Kept) {
        if let Some(before) = self.last.insert(key, now) {
            self.by_tick.remove(&(before.tick, key));
        }
        self.by_tick.insert((now.tick, key), now.bytes);
    }

    /// Takes what was used least recently off the list.
    pub(super) fn oldest(&mut self) -> Option<(Key, u64)> {
        let ((_, key), bytes) = self.by_tick.pop_first()?;
        self.last.remove(&key);
        Some((key, bytes))
    }

    /// Takes one of those that nobody on this node uses off the list.
    pub(super) fn unused(&mut self) -> Option<(Key, u64)> {
        self.unused.pop()
    }

    /// Owners have moved.
    pub(super) fn plan(&mut self, holdings: Holdings) {
        self.planned = Some(holdings);
    }

    /// Sorts what is there by who uses it, once for each plan: what is this rank's from now on has
    /// the place in its list that its last use gives it.
    pub(super) fn settle(&mut self, listing: impl FnOnce() -> HashMap<Key, Kept>) {
        let Some(Holdings { mine, beside }) = self.planned.take() else { return };
        let mut there = listing();
        self.last.clear();
        self.by_tick.clear();
        for key in mine {
            if let Some(kept) = there.remove(&key) {
                self.touch(key, kept);
            }
        }
        for key in beside {
            there.remove(&key);
        }
        self.unused = there.into_iter().map(|(key, kept)| (key, kept.bytes)).collect();
        // The same whatever the listing's order; the last one goes first.
        self.unused.sort_unstable();
    }
}
