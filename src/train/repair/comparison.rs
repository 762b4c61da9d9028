//! Whether the state that a newcomer took over is the survivors': a live take-over
//! trusts lock and commit word, so that nobody waits for a hash; the newcomer's tensors and those
//! of one survivor are hashed beside the first step, and compared before that step is voted on. A
//! newcomer that differs leaves before anything it computed counts.

use std::sync::{Arc, PoisonError, RwLock};

use crate::cluster::comm::CommError;
use crate::cluster::resident::{self, Slots};

use crate::train::TrainError;
use crate::train::state::beside::Beside;
use crate::train::state::replica::Replica;
use crate::train::trainer::Trainer;

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
    /// A repair has made the world whole. `received`: this rank got its state in it. `reference`:
    /// it gave it.
    pub(in crate::train) fn repaired(&mut self, received: bool, reference: bool) {
        self.due = true;
        self.unproven |= received;
        // A state that somebody has begun to hash is still the committed one: no step came between.
        if (received || reference) && self.hash.is_none() {
            self.hash = Some(Hash::Due);
        }
    }

    /// Every rank computes its part of the first step: what is to be hashed is hashed beside it.
    pub(in crate::train) fn begin(&mut self, slots: &Arc<RwLock<Slots>>) {
        if matches!(self.hash, Some(Hash::Due)) {
            self.hash = Some(hash_beside(slots));
        }
    }

    /// The committed state is another one than when the world was repaired.
    pub(in crate::train) fn state_changed(&mut self) {
        if !self.unproven {
            self.hash = None;
        }
    }

    fn value(&mut self, slots: &RwLock<Slots>) -> Option<u128> {
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

/// One rank's part of the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Answer {
    unproven: bool,
    hash: Option<u128>,
}

impl Answer {
    const WORDS: usize = 3;

    fn to_words(self) -> [u64; Self::WORDS] {
        let hash = self.hash.unwrap_or(0);
        let flags = u64::from(self.unproven) | u64::from(self.hash.is_some()) << 1;
        [flags, hash as u64, (hash >> 64) as u64]
    }

    fn from_words(words: &[u64]) -> Self {
        let hash = u128::from(words[1]) | u128::from(words[2]) << 64;
        Self { unproven: words[0] & 1 == 1, hash: (words[0] & 2 == 2).then_some(hash) }
    }
}

/// What the answers of all ranks mean; the same on every rank.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Verdict {
    /// Every state is proven.
    Equal,
    /// The lowest rank whose state is proven has to hash it first: who gave the state is dead.
    NeedsReference(usize),
    /// These ranks hold other bits.
    Differ(Vec<usize>),
}

fn judge(answers: &[Answer]) -> Verdict {
    if answers.iter().all(|answer| !answer.unproven) {
        return Verdict::Equal;
    }
    let proven = || answers.iter().enumerate().filter(|(_, answer)| !answer.unproven);
    let reference = match proven().find_map(|(_, answer)| answer.hash) {
        Some(hash) => Some(hash),
        None => match proven().next() {
            Some((rank, _)) => return Verdict::NeedsReference(rank),
            // Only newcomers are left: nobody can know better than the first of them.
            None => answers.first().and_then(|answer| answer.hash),
        },
    };
    let differs = |answer: &Answer| answer.unproven && answer.hash != reference;
    let ranks: Vec<usize> =
        answers.iter().enumerate().filter(|(_, a)| differs(a)).map(|(rank, _)| rank).collect();
    if ranks.is_empty() { Verdict::Equal } else { Verdict::Differ(ranks) }
}

impl Trainer {
    /// Before the first vote of a repaired world.
    pub(in crate::train) fn compare(&mut self) -> Result<(), TrainError> {
        if !self.replica.proof.due {
            return Ok(());
        }
        let mut answers = self.gather_answers()?;
        if let Verdict::NeedsReference(rank) = judge(&answers) {
            if self.comm.rank() == rank {
                self.replica.proof.hash = Some(Hash::Known(hash_now(&self.replica.slots)));
            }
            answers = self.gather_answers()?;
        }
        match judge(&answers) {
            Verdict::Differ(ranks) if ranks.contains(&self.comm.rank()) => {
                Err(leave(&mut self.replica))
            }
            Verdict::Differ(ranks) => {
                tracing::warn!("the state of ranks {ranks:?} differs: they leave the world");
                // They are about to die, which ends this. Who revoked now could interrupt one that
                // has not heard it yet: all would gather, lose nobody and compare once more.
                self.gather_answers()?;
                Err(TrainError::Comm(CommError::ProcFailed))
            }
            Verdict::Equal | Verdict::NeedsReference(_) => {
                self.replica.proof = Proof::default();
                Ok(())
            }
        }
    }

    fn gather_answers(&mut self) -> Result<Vec<Answer>, TrainError> {
        let proof = &mut self.replica.proof;
        let hash = proof.value(&self.replica.slots);
        let answer = Answer { unproven: proof.unproven, hash };
        let words = self.comm.all_gather_u64(&answer.to_words())?;
        Ok(words.chunks_exact(Answer::WORDS).map(Answer::from_words).collect())
    }
}

/// What this rank holds must not be taken over by the next newcomer.
fn leave(replica: &mut Replica) -> TrainError {
    replica.slots.write().unwrap_or_else(PoisonError::into_inner).refuse_all();
    let text = "the state that it took over differs from the survivors'";
    tracing::error!("{text}: this rank leaves, the next newcomer gets the state from a survivor");
    TrainError::Evicted(text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proven(hash: Option<u128>) -> Answer {
        Answer { unproven: false, hash }
    }

    fn newcomer(hash: u128) -> Answer {
        Answer { unproven: true, hash: Some(hash) }
    }

    #[test]
    fn a_newcomer_is_compared_with_a_survivor() {
        let (none, source) = (proven(None), proven(Some(7)));
        assert_eq!(judge(&[none, none]), Verdict::Equal);
        assert_eq!(judge(&[source, none, newcomer(7)]), Verdict::Equal);
        assert_eq!(judge(&[source, newcomer(8), newcomer(7)]), Verdict::Differ(vec![1]));
    }

    #[test]
    fn when_the_source_is_dead_another_survivor_is_the_reference() {
        let answers = [newcomer(7), proven(None), proven(None)];
        assert_eq!(judge(&answers), Verdict::NeedsReference(1));
    }

    #[test]
    fn newcomers_alone_are_compared_with_each_other() {
        assert_eq!(judge(&[newcomer(7), newcomer(7)]), Verdict::Equal);
        assert_eq!(judge(&[newcomer(7), newcomer(8)]), Verdict::Differ(vec![1]));
    }

    #[test]
    fn answers_survive_the_wire() {
        for answer in [proven(None), proven(Some(u128::MAX - 1)), newcomer(1 << 64)] {
            assert_eq!(Answer::from_words(&answer.to_words()), answer);
        }
    }
}
