//! What decides which samples a run learns from and is measured by, in a few words: all ranks of a
//! start compare them, and whoever brings a newcomer in. Two sets in two orders give other bits.

use serde::{Deserialize, Serialize};

/// One set, as a process has listed it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Listed {
    /// Of names, sizes, places and labels, and of the classes.
    pub hash: u64,
    /// Samples.
    pub samples: u64,
}

impl Listed {
    /// How this set differs from the one that counts.
    pub fn beside(self, other: Self) -> String {
        match self.samples == other.samples {
            true => "as many, with other names, sizes or labels".into(),
            false => format!("{}, not {}", self.samples, other.samples),
        }
    }
}

/// What ranks tell each other of the data sets that they have listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SetIdentity {
    /// What is learned from.
    pub train: Listed,
    /// What errors are measured on; empty where none are.
    pub validation: Listed,
}

impl SetIdentity {
    /// Words on the wire.
    pub const WORDS: usize = 4;

    /// For the wire.
    pub fn to_words(self) -> [u64; Self::WORDS] {
        let Self { train, validation } = self;
        [train.hash, train.samples, validation.hash, validation.samples]
    }

    /// Reads what `to_words` wrote.
    pub fn from_words(words: &[u64]) -> Self {
        let listed = |words: &[u64]| Listed { hash: words[0], samples: words[1] };
        Self { train: listed(words), validation: listed(&words[2..]) }
    }

    /// How these sets differ from those that count.
    fn beside(self, other: Self) -> String {
        let kinds = [
            ("training", self.train, other.train),
            ("validation", self.validation, other.validation),
        ];
        let differing = kinds.iter().filter(|(_, mine, others)| mine != others);
        let each = differing
            .map(|(kind, mine, others)| format!("other {kind} samples ({})", mine.beside(*others)));
        each.collect::<Vec<_>>().join(" and ")
    }
}

/// What is wrong where the ranks of a start, in their order, have listed different sets: most of
/// them are taken to be right, of equal parts the one with the lowest rank.
pub fn difference(sets: &[SetIdentity]) -> Option<String> {
    let count = |set: SetIdentity| sets.iter().filter(|other| **other == set).count();
    // Of several largest the first counts.
    let most = sets.iter().copied().rev().max_by_key(|set| count(*set))?;
    let mut others: Vec<SetIdentity> = Vec::new();
    for set in sets.iter().filter(|set| **set != most) {
        if !others.contains(set) {
            others.push(*set);
        }
    }
    if others.is_empty() {
        return None;
    }
    let named = others.into_iter().map(|set| {
        let ranks = (0..sets.len()).filter(|rank| sets[*rank] == set);
        let ranks: Vec<String> = ranks.map(|rank| rank.to_string()).collect();
        let (s, have) = if ranks.len() == 1 { ("", "has") } else { ("s", "have") };
        format!("rank{s} {} {have} {}", ranks.join(", "), set.beside(most))
    });
    let named = named.collect::<Vec<_>>().join("; ");
    Some(format!(
        "the ranks have listed different data sets: {named}. Start again once every node sees the \
         same files: is the set still being copied, or does a node's cache show an older one?"
    ))
}

/// Why a newcomer may not join.
pub(super) fn refusal(rank: usize, host: &str, newcomer: SetIdentity, run: SetIdentity) -> String {
    let how = newcomer.beside(run);
    format!("the newcomer for rank {rank} (on {host}) has listed {how} than the run")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(hash: u64, train: u64, validation: u64) -> SetIdentity {
        let train = Listed { hash, samples: train };
        SetIdentity { train, validation: Listed { hash: validation, samples: validation } }
    }

    #[test]
    fn ranks_that_differ_are_named_with_their_counts() {
        let (all, fewer, other) = (set(1, 24, 6), set(2, 23, 6), set(3, 24, 6));
        assert_eq!(difference(&[]), None);
        assert_eq!(difference(&[all; 4]), None);
        let one = difference(&[all, fewer, all]).unwrap();
        assert!(one.contains("rank 1 has other training samples (23, not 24)."), "{one}");
        let two = difference(&[fewer, all, all, other, fewer, all]).unwrap();
        assert!(
            two.contains("ranks 0, 4 have other training samples (23, not 24); rank 3 has"),
            "{two}"
        );
        assert!(two.contains("(as many, with other names"), "{two}");
        let even = difference(&[fewer, all]).unwrap();
        assert!(even.contains("rank 1 has other training samples (24, not 23)"), "{even}");
        let both = difference(&[all, all, set(4, 25, 7)]).unwrap();
        assert!(both.contains("(25, not 24) and other validation samples (7, not 6)"));
    }

    #[test]
    fn a_set_survives_the_wire() {
        let set = set(u64::MAX, 1, 0);
        assert_eq!(SetIdentity::from_words(&set.to_words()), set);
    }
}
