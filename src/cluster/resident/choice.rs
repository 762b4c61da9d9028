//! Which state a world that was killed goes on from: the highest that the living nodes hold and
//! agree on. Pure; every rank decides the same from the same gathered words.

use super::header::{Header, Key, Refusal};

/// Keys that are tried, from the highest down: two slots a rank, and what is left is older still.
pub const KEYS_MAX: usize = 8;

/// The distinct keys of all ranks, highest first.
pub fn keys_in_order(offered: impl IntoIterator<Item = Key>) -> Vec<Key> {
    let mut keys: Vec<Key> = offered.into_iter().collect();
    keys.sort_unstable_by(|a, b| b.cmp(a));
    keys.dedup();
    keys.truncate(KEYS_MAX);
    keys
}

/// What the hashes of all holders of one key say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Majority {
    /// More than half of the holders have the same bits.
    Agreed {
        /// Of the tensors.
        hash: u128,
        /// The lowest rank that has them.
        source: usize,
        /// Ranks that hold other bits: theirs are refused.
        differing: Vec<usize>,
    },
    /// No bits have a majority: nobody knows which are right, so none are used. What is left is the
    /// step before, where no holder had begun the next one (that writes over it), or a checkpoint.
    Disputed(Vec<usize>),
    /// Nobody holds it.
    Nobody,
}

/// Judges one key by the hashes of the ranks that hold it, by rank. A single holder is believed:
/// its header has a checksum, and there is nothing to compare its tensors with.
pub fn judge(hashes: &[Option<u128>]) -> Majority {
    let holders: Vec<(usize, u128)> =
        hashes.iter().enumerate().filter_map(|(rank, hash)| Some((rank, (*hash)?))).collect();
    let same = |hash: u128| holders.iter().filter(|(_, other)| *other == hash).count();
    let Some(&(source, hash)) = holders.iter().max_by_key(|(rank, hash)| {
        // Of equals the lowest rank.
        (same(*hash), std::cmp::Reverse(*rank))
    }) else {
        return Majority::Nobody;
    };
    if same(hash) * 2 <= holders.len() {
        return Majority::Disputed(holders.iter().map(|(rank, _)| *rank).collect());
    }
    let differing = holders.iter().filter(|(_, other)| *other != hash).map(|(rank, _)| *rank);
    Majority::Agreed { hash, source, differing: differing.collect() }
}

/// What a rank knows of the run's past before it offers its slots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Past {
    /// Every rollback: the attempt that began there, and its step.
    pub rollbacks: Vec<(u32, u64)>,
    /// The newest checkpoint: attempt and step.
    pub checkpoint: Option<(u32, u64)>,
    /// The newest known world: attempt, generation, its members.
    pub world: Option<(u32, u32, Vec<u32>)>,
}

impl Past {
    /// Whether a slot may be gone on from. `owner` is the member that its file is named after: a
    /// process that took a file over has its name on it before it has committed anything.
    ///
    /// # Errors
    /// Why not.
    pub fn check(&self, header: &Header, owner: Option<u32>) -> Result<(), Refusal> {
        let key = header.key;
        if let Some((_, to)) =
            self.rollbacks.iter().find(|(attempt, to)| key.attempt < *attempt && key.step > *to)
        {
            return Err(Refusal::RolledBack(*to));
        }
        if let Some((attempt, step)) = self.checkpoint
            && (attempt, step) > (key.attempt, key.step)
        {
            return Err(Refusal::Older(step));
        }
        if let Some((attempt, generation, members)) = &self.world {
            let member = header.identity.member;
            let known = members.contains(&member) || owner.is_some_and(|m| members.contains(&m));
            if key.attempt == *attempt && key.generation <= *generation && !known {
                return Err(Refusal::Evicted(owner.unwrap_or(member)));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Identity, Shape};
    use super::*;

    fn key(attempt: u32, generation: u32, step: u64) -> Key {
        Key { attempt, generation, step }
    }

    fn header(key: Key, member: u32) -> Header {
        let identity = Identity { member, attempt: key.attempt, ..Identity::default() };
        let shape = Shape::of(&[("weights", 1)]);
        Header { identity, key, shape: shape.words(), extra_bytes: 0, extra_checksum: 0 }
    }

    #[test]
    fn the_highest_state_is_tried_first() {
        let offered = [key(1, 0, 9), key(1, 0, 10), key(1, 0, 9), key(1, 1, 8)];
        assert_eq!(keys_in_order(offered), [key(1, 1, 8), key(1, 0, 10), key(1, 0, 9)]);
    }

    #[test]
    fn the_majority_is_believed_and_the_others_are_named() {
        let hashes = [Some(5), None, Some(7), Some(7)];
        let agreed = Majority::Agreed { hash: 7, source: 2, differing: vec![0] };
        assert_eq!(judge(&hashes), agreed);
        assert_eq!(judge(&[Some(5), Some(7)]), Majority::Disputed(vec![0, 1]));
        let alone = Majority::Agreed { hash: 5, source: 1, differing: vec![] };
        assert_eq!(judge(&[None, Some(5)]), alone);
        assert_eq!(judge(&[None]), Majority::Nobody);
    }

    #[test]
    fn what_a_rollback_left_behind_is_refused() {
        let past = Past { rollbacks: vec![(2, 20)], ..Past::default() };
        assert_eq!(past.check(&header(key(1, 0, 33), 0), None), Err(Refusal::RolledBack(20)));
        assert_eq!(past.check(&header(key(1, 0, 20), 0), None), Ok(()));
        assert_eq!(past.check(&header(key(2, 0, 33), 0), None), Ok(()));
    }

    #[test]
    fn a_newer_checkpoint_counts_more_and_an_abandoned_one_does_not() {
        let past = Past { checkpoint: Some((2, 50)), ..Past::default() };
        assert_eq!(past.check(&header(key(1, 0, 60), 0), None), Err(Refusal::Older(50)));
        assert_eq!(past.check(&header(key(2, 0, 49), 0), None), Err(Refusal::Older(50)));
        assert_eq!(past.check(&header(key(2, 0, 50), 0), None), Ok(()));
        assert_eq!(past.check(&header(key(3, 0, 30), 0), None), Ok(()));
    }

    #[test]
    fn slots_of_evicted_members_are_refused_but_not_those_taken_over() {
        let past = Past { world: Some((1, 1, vec![0, 1, 2, 5])), ..Past::default() };
        let check = |key, member, owner| past.check(&header(key, member), owner);
        assert_eq!(check(key(1, 0, 9), 3, Some(3)), Err(Refusal::Evicted(3)));
        // Member 5 mapped what member 3 had committed, and has not committed anything itself.
        assert_eq!(check(key(1, 0, 9), 3, Some(5)), Ok(()));
        // The world went on after its picture was written.
        assert_eq!(check(key(1, 2, 9), 6, Some(6)), Ok(()));
        assert_eq!(check(key(2, 0, 9), 3, Some(3)), Ok(()));
    }

    proptest! {
        #[test]
        fn whoever_is_agreed_on_has_more_than_half(
            hashes in proptest::collection::vec(proptest::option::of(0u128..3), 1..9)
        ) {
            let holders = hashes.iter().flatten().count();
            match judge(&hashes) {
                Majority::Agreed { hash, source, differing } => {
                    prop_assert_eq!(hashes[source], Some(hash));
                    prop_assert!(2 * differing.len() < holders);
                    prop_assert!(differing.iter().all(|&rank| hashes[rank] != Some(hash)));
                }
                Majority::Disputed(ranks) => prop_assert_eq!(ranks.len(), holders),
                Majority::Nobody => prop_assert_eq!(holders, 0),
            }
        }
    }
}
