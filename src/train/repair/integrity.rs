//! Silent corruption: every `recovery.integrity_every` steps all ranks compare a hash of their
//! state. Replicas hold the same bits, so one that differs was damaged where it lies. It is
//! evicted, and everybody goes back to the last state that was found equal, since gradients of
//! damaged weights have entered the sums in between. Without a majority (two ranks) nobody knows
//! who is right: all go back, nobody is evicted. A gradient that was damaged before it entered the
//! sum is the same on all ranks: out of reach here.

use std::sync::PoisonError;

use crate::cluster::comm::{CommError, Communicator};
use crate::cluster::resident;
use crate::config::Interval;

use crate::train::state::proof::Proof;
use crate::train::state::{State, StateCopy};

/// Times in a row that a run goes back to the same state before it gives up: what is wrong then
/// does not go away.
pub const GOING_BACK_MAX: u32 = 3;

/// What a comparison says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Judgement {
    /// All hold the same.
    Same,
    /// They do not; these ranks differ from the majority. Empty where there is none.
    Differ(Vec<usize>),
}

/// One rank's part of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vote {
    hash: u64,
    /// Whether it took part in the last comparison. Who came since has a copy of another rank's
    /// state, flaws included: its hash says nothing that the giver's does not.
    witness: bool,
}

/// Compares everybody's hashes, in rank order. A majority is more than half of the witnesses.
pub fn judge(votes: &[Vote]) -> Judgement {
    if votes.windows(2).all(|pair| pair[0].hash == pair[1].hash) {
        return Judgement::Same;
    }
    let witnesses = || votes.iter().filter(|vote| vote.witness);
    let count = |hash: u64| witnesses().filter(|other| other.hash == hash).count();
    let majority = witnesses().map(|vote| vote.hash).find(|&h| 2 * count(h) > witnesses().count());
    let differs = |hash: u64| majority.is_some_and(|majority| majority != hash);
    Judgement::Differ((0..votes.len()).filter(|&rank| differs(votes[rank].hash)).collect())
}

/// A state that all ranks held alike, kept to go back to.
#[derive(Debug)]
struct Kept {
    state: StateCopy,
    hash: u64,
}

/// One rank's part in the comparisons.
#[derive(Debug)]
pub struct Integrity {
    every: Interval,
    kept: Option<Kept>,
}

impl Integrity {
    /// `every`: committed steps between two comparisons.
    pub fn new(every: Interval) -> Self {
        Self { every, kept: None }
    }

    /// Whether states are compared at all.
    pub fn is_on(&self) -> bool {
        self.every != Interval::Off
    }

    /// Everybody's votes, in rank order.
    pub fn gather(
        &self,
        comm: &mut dyn Communicator,
        state: &State,
    ) -> Result<Vec<Vote>, CommError> {
        let target = state.position.verified;
        let witness = self.kept.as_ref().is_some_and(|kept| kept.state.position.step == target);
        let words = comm.all_gather_u64(&[hash_of(state), u64::from(witness)])?;
        Ok(words.chunks_exact(2).map(|w| Vote { hash: w[0], witness: w[1] == 1 }).collect())
    }

    /// The state at hand is one that all begin from.
    pub fn begin(&mut self, state: &mut State) {
        if self.is_on() {
            self.keep(state, hash_of(state));
        }
    }

    /// The state at hand was found equal, by this hash.
    fn keep(&mut self, state: &mut State, hash: u64) {
        state.position.verified = state.position.step;
        state.position.gone_back = 0;
        let reused = self.kept.take().map(|kept| kept.state);
        self.kept = Some(Kept { state: state.copy(reused), hash });
    }

    /// All hold the same, by these votes.
    pub fn found_equal(&mut self, state: &mut State, votes: &[Vote]) {
        if let Some(vote) = votes.first() {
            self.keep(state, vote.hash);
        }
    }

    /// Goes back to the state that was kept, as one of this generation. A rank that has none, or
    /// whose copy was damaged too, holds no state afterwards: the repair that follows gives it one.
    pub fn go_back(&mut self, state: &mut State, generation: u32) {
        let target = state.position.verified;
        let gone_back = state.position.gone_back + 1;
        let kept = self.kept.as_mut().filter(|kept| kept.state.position.step == target);
        let whole = match kept {
            Some(kept) => {
                // A newcomer with other instructions may have come since.
                kept.state.position.exact &= state.position.exact;
                kept.state.position.gone_back = gone_back;
                state.put(&kept.state, generation);
                hash_of(state) == kept.hash
            }
            None => false,
        };
        if !whole {
            // What it lacks must not be taken from its own slots.
            state.slots.write().unwrap_or_else(PoisonError::into_inner).refuse_all();
        }
        // A hash that is known, or being made, is of another state.
        state.proof = Proof::default();
        state.is_held = whole;
        state.position.gone_back = gone_back;
    }
}

/// Hash of the committed tensors.
fn hash_of(state: &State) -> u64 {
    let slots = state.slots.read().unwrap_or_else(PoisonError::into_inner);
    resident::hash(&slots.committed()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn witnesses(hashes: &[u64]) -> Vec<Vote> {
        hashes.iter().map(|&hash| Vote { hash, witness: true }).collect()
    }

    #[test]
    fn the_one_that_differs_is_named() {
        assert_eq!(judge(&witnesses(&[7, 7, 7, 7])), Judgement::Same);
        assert_eq!(judge(&witnesses(&[7, 7, 9, 7])), Judgement::Differ(vec![2]));
        assert_eq!(judge(&witnesses(&[9, 7, 7, 8, 7])), Judgement::Differ(vec![0, 3]));
    }

    #[test]
    fn without_a_majority_nobody_is_evicted() {
        for hashes in [&[1, 2][..], &[1, 1, 2, 2], &[1, 2, 3]] {
            let judgement = judge(&witnesses(hashes));
            assert_eq!(judgement, Judgement::Differ(Vec::new()), "{hashes:?}");
        }
        assert_eq!(judge(&witnesses(&[5])), Judgement::Same);
    }

    #[test]
    fn a_newcomer_does_not_speak_for_the_rank_that_gave_it_its_state() {
        let newcomer = |hash| Vote { hash, witness: false };
        let vote = |hash| Vote { hash, witness: true };
        // The damaged rank 1 gave rank 2 its state: one against one, whatever the newcomer holds.
        assert_eq!(judge(&[vote(7), vote(9), newcomer(9)]), Judgement::Differ(Vec::new()));
        // A sound rank outlived: the damaged one and its copies go.
        let votes = [vote(7), vote(9), newcomer(9), newcomer(9), vote(7)];
        assert_eq!(judge(&votes), Judgement::Differ(vec![1, 2, 3]));
    }
}
