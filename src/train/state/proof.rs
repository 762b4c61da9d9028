//! What a rank knows of its own state since the last repair: whether somebody has still to compare
//! it, and its hash, which is computed beside the first step.

use std::sync::{Arc, PoisonError, RwLock};

use crate::cluster::resident::{self, Slots};
use crate::train::state::beside::Beside;

/// What a repair did with a rank's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restored {
    /// It stayed.
    Kept,
    /// Others got it: theirs are compared with it.
    Given,
    /// It came from another rank.
    Received,
}

/// What a rank knows of its own state since the last repair.
#[derive(Debug, Default)]
pub struct Proof {
    /// Whether this world has still to compare. Set on every rank of a repaired world.
    due: bool,
    /// It got its state in a repair, and nobody has compared it yet.
    unproven: bool,
    hash: Option<Hash>,
}

#[derive(Debug)]
enum Hash {
    /// To be computed once every rank is at work again: until then cores are dear.
    Due,
    /// Being computed.
    Coming(Beside<u128>),
    Known(u128),
}

impl Proof {
    /// A repair has made the world whole.
    pub fn repaired(&mut self, restored: Restored) {
        self.due = true;
        self.unproven |= restored == Restored::Received;
        // A state that somebody has begun to hash is still the committed one: no step came between.
        if restored != Restored::Kept && self.hash.is_none() {
            self.hash = Some(Hash::Due);
        }
    }

    /// Every rank computes its part of the first step: what is to be hashed is hashed beside it.
    pub fn begin(&mut self, slots: &Arc<RwLock<Slots>>) {
        if matches!(self.hash, Some(Hash::Due)) {
            self.hash = Some(hash_beside(slots));
        }
    }

    /// The committed state is another one than when the world was repaired.
    pub fn state_changed(&mut self) {
        if !self.unproven {
            self.hash = None;
        }
    }

    /// Whether this world has still to compare.
    pub fn is_due(&self) -> bool {
        self.due
    }

    /// Whether this rank got its state in a repair, and nobody has compared it yet.
    pub fn is_unproven(&self) -> bool {
        self.unproven
    }

    /// This rank is the one that the others are compared with.
    pub fn hash_now(&mut self, slots: &RwLock<Slots>) {
        self.hash = Some(Hash::Known(hash_now(slots)));
    }

    /// The hash, once it is known; `None` where nobody asked for it.
    pub fn value(&mut self, slots: &RwLock<Slots>) -> Option<u128> {
        let value = match self.hash.take()? {
            Hash::Due => hash_now(slots),
            Hash::Known(value) => value,
            Hash::Coming(thread) => thread.wait()?,
        };
        self.hash = Some(Hash::Known(value));
        Some(value)
    }
}

fn hash_now(slots: &RwLock<Slots>) -> u128 {
    let slots = slots.read().unwrap_or_else(PoisonError::into_inner);
    let hash = resident::hash(&slots.committed());
    // A newcomer's first update must not wait for pages.
    slots.populate();
    hash
}

fn hash_beside(slots: &Arc<RwLock<Slots>>) -> Hash {
    let shared = Arc::clone(slots);
    match Beside::start("hash", move || hash_now(&shared)) {
        Ok(thread) => Hash::Coming(thread),
        Err(_) => Hash::Known(hash_now(slots)),
    }
}
