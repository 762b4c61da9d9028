//! Whether the state that a newcomer took over is the survivors': a live take-over
//! trusts lock and commit word, so that nobody waits for a hash; the newcomer's tensors and those
//! of one survivor are hashed beside the first step, and compared before that step is voted on. A
//! newcomer that differs leaves before anything it computed counts. What it took over is a replica
//! of its own, so it may be the one who is right; and if it is not, its flaw may be older than the
//! death, and in the sums since: the others go back to what all held alike.

use crate::cluster::wire;

use crate::train::TrainError;
use crate::train::state::arithmetic;
use crate::train::state::proof::Proof;
use crate::train::state::rank::Rank;

/// One rank's part of the comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Answer {
    unproven: bool,
    hash: Option<u128>,
    /// What it computes with.
    arithmetic: String,
}

impl Answer {
    const KIND_AT: usize = 3;
    const WORDS: usize = Self::KIND_AT + arithmetic::WORDS;

    fn to_words(&self) -> [u64; Self::WORDS] {
        let hash = self.hash.unwrap_or(0);
        let flags = u64::from(self.unproven) | u64::from(self.hash.is_some()) << 1;
        let mut words = [0; Self::WORDS];
        words[..Self::KIND_AT].copy_from_slice(&[flags, hash as u64, (hash >> 64) as u64]);
        words[Self::KIND_AT..].copy_from_slice(&arithmetic::to_words(&self.arithmetic));
        words
    }

    fn from_words(words: &[u64]) -> Self {
        let hash = u128::from(words[1]) | u128::from(words[2]) << 64;
        let arithmetic = wire::to_text(&words[Self::KIND_AT..]);
        Self { unproven: words[0] & 1 == 1, hash: (words[0] & 2 == 2).then_some(hash), arithmetic }
    }
}

/// What the answers of all ranks mean; the same on every rank.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Comparison {
    /// Every state is proven.
    Equal,
    /// The lowest rank whose state is proven has to hash it first: who gave the state is dead.
    NeedsReference(usize),
    /// These ranks hold other bits.
    Differ(Vec<usize>),
}

fn judge(answers: &[Answer]) -> Comparison {
    if answers.iter().all(|answer| !answer.unproven) {
        return Comparison::Equal;
    }
    let proven = || answers.iter().enumerate().filter(|(_, answer)| !answer.unproven);
    let reference = match proven().find_map(|(_, answer)| answer.hash) {
        Some(hash) => Some(hash),
        None => match proven().next() {
            Some((rank, _)) => return Comparison::NeedsReference(rank),
            // Only newcomers are left: nobody can know better than the first of them.
            None => answers.first().and_then(|answer| answer.hash),
        },
    };
    let differs = |answer: &Answer| answer.unproven && answer.hash != reference;
    let ranks: Vec<usize> =
        answers.iter().enumerate().filter(|(_, a)| differs(a)).map(|(rank, _)| rank).collect();
    if ranks.is_empty() { Comparison::Equal } else { Comparison::Differ(ranks) }
}

/// What this world's ranks know of their states.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proved {
    /// It has been proven before.
    Before,
    /// All hold the same, and compute with these, in rank order.
    Alike(Vec<String>),
    /// These newcomers hold other bits. To be acted on when all have voted: one that left at once
    /// could keep others from hearing it.
    Differ(Vec<usize>),
}

/// Before the first vote of a repaired world: whether its newcomers hold the survivors' bits.
pub fn prove(rank: &mut Rank) -> Result<Proved, TrainError> {
    if !rank.state.proof.is_due() {
        return Ok(Proved::Before);
    }
    let mut answers = gather_answers(rank)?;
    if let Comparison::NeedsReference(reference) = judge(&answers) {
        if rank.comm.rank() == reference {
            rank.state.proof.hash_now(&rank.state.slots);
        }
        answers = gather_answers(rank)?;
    }
    match judge(&answers) {
        Comparison::Differ(ranks) => Ok(Proved::Differ(ranks)),
        Comparison::Equal | Comparison::NeedsReference(_) => {
            rank.state.proof = Proof::default();
            Ok(Proved::Alike(answers.into_iter().map(|answer| answer.arithmetic).collect()))
        }
    }
}

fn gather_answers(rank: &mut Rank) -> Result<Vec<Answer>, TrainError> {
    let proof = &mut rank.state.proof;
    let hash = proof.value(&rank.state.slots);
    let arithmetic = rank.plan.arithmetic.clone();
    let answer = Answer { unproven: proof.is_unproven(), hash, arithmetic };
    let words = rank.comm.all_gather_u64(&answer.to_words())?;
    Ok(words.chunks_exact(Answer::WORDS).map(Answer::from_words).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proven(hash: Option<u128>) -> Answer {
        Answer { unproven: false, hash, arithmetic: "a kind".into() }
    }

    fn newcomer(hash: u128) -> Answer {
        Answer { unproven: true, hash: Some(hash), arithmetic: "another kind".into() }
    }

    #[test]
    fn a_newcomer_is_compared_with_a_survivor() {
        let (none, source) = (|| proven(None), || proven(Some(7)));
        assert_eq!(judge(&[none(), none()]), Comparison::Equal);
        assert_eq!(judge(&[source(), none(), newcomer(7)]), Comparison::Equal);
        assert_eq!(judge(&[source(), newcomer(8), newcomer(7)]), Comparison::Differ(vec![1]));
    }

    #[test]
    fn when_the_source_is_dead_another_survivor_is_the_reference() {
        let answers = [newcomer(7), proven(None), proven(None)];
        assert_eq!(judge(&answers), Comparison::NeedsReference(1));
    }

    #[test]
    fn newcomers_alone_are_compared_with_each_other() {
        assert_eq!(judge(&[newcomer(7), newcomer(7)]), Comparison::Equal);
        assert_eq!(judge(&[newcomer(7), newcomer(8)]), Comparison::Differ(vec![1]));
    }

    #[test]
    fn answers_survive_the_wire() {
        for answer in [proven(None), proven(Some(u128::MAX - 1)), newcomer(1 << 64)] {
            assert_eq!(Answer::from_words(&answer.to_words()), answer);
        }
    }
}
