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

/// One rank's word on one key: the hash of what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// Of the tensors.
    pub hash: u128,
    /// It may be gone on from. What a member that has left committed under the same key has the
    /// same bits: it bears witness, and gives nothing.
    pub offers: bool,
}

/// What the hashes of all holders of one key say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Majority {
    /// More than half of the holders have the same bits.
    Agreed {
        /// Of the tensors.
        hash: u128,
        /// The lowest rank that has them and offers them.
        source: usize,
        /// Ranks that hold other bits: theirs are refused.
        differing: Vec<usize>,
    },
    /// No bits that are offered have a majority: nobody knows which are right, so none are used.
    /// What is left is the step before, where no holder had begun the next one (that writes over
    /// it), or a checkpoint.
    Disputed(Vec<usize>),
    /// Nobody holds it.
    Nobody,
}

/// Judges one key by what the ranks hold of it, by rank. A single holder is believed: its header
/// has a checksum, and there is nothing to compare its tensors with.
pub fn judge(held: &[Option<Holder>]) -> Majority {
    let holders: Vec<(usize, Holder)> =
        held.iter().enumerate().filter_map(|(rank, held)| Some((rank, (*held)?))).collect();
    if !holders.iter().any(|(_, holder)| holder.offers) {
        return Majority::Nobody;
    }
    let same = |hash: u128| holders.iter().filter(|(_, other)| other.hash == hash).count();
    let agreed = |hash: u128| same(hash) * 2 > holders.len();
    let source = holders.iter().find(|(_, holder)| holder.offers && agreed(holder.hash));
    let Some(&(source, Holder { hash, .. })) = source else {
        return Majority::Disputed(holders.iter().map(|(rank, _)| *rank).collect());
    };
    let differing = holders.iter().filter(|(_, other)| other.hash != hash).map(|(rank, _)| *rank);
    Majority::Agreed { hash, source, differing: differing.collect() }
}

/// What a rank knows of the run's past before it offers its slots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Past {
    /// Every rollback: the attempt that began there, and its step.
    pub rollbacks: Vec<(u32, u64)>,
    /// Of the newest checkpoint.
    pub checkpoint: Option<Key>,
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
        if let Some(newest) = self.checkpoint
            && newest > key
        {
            return Err(Refusal::Older(newest.step));
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

    fn offers(hash: u128) -> Option<Holder> {
        Some(Holder { hash, offers: true })
    }

    fn witnesses(hash: u128) -> Option<Holder> {
        Some(Holder { hash, offers: false })
    }

    #[test]
    fn the_majority_is_believed_and_the_others_are_named() {
        let agreed = Majority::Agreed { hash: 7, source: 2, differing: vec![0] };
        assert_eq!(judge(&[offers(5), None, offers(7), offers(7)]), agreed);
        assert_eq!(judge(&[offers(5), offers(7)]), Majority::Disputed(vec![0, 1]));
        let alone = Majority::Agreed { hash: 5, source: 1, differing: vec![] };
        assert_eq!(judge(&[None, offers(5)]), alone);
        assert_eq!(judge(&[None]), Majority::Nobody);
    }

    #[test]
    fn what_left_members_hold_bears_witness_and_is_never_given() {
        let agreed = Majority::Agreed { hash: 7, source: 1, differing: vec![2] };
        assert_eq!(judge(&[witnesses(7), offers(7), offers(5)]), agreed);
        // The one that may be gone on from is the one that was damaged.
        let disputed = Majority::Disputed(vec![0, 1, 2]);
        assert_eq!(judge(&[witnesses(7), offers(5), witnesses(7)]), disputed);
        assert_eq!(judge(&[witnesses(7), None]), Majority::Nobody);
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
        let past = Past { checkpoint: Some(key(2, 0, 50)), ..Past::default() };
        assert_eq!(past.check(&header(key(1, 0, 60), 0), None), Err(Refusal::Older(50)));
        assert_eq!(past.check(&header(key(2, 0, 49), 0), None), Err(Refusal::Older(50)));
        assert_eq!(past.check(&header(key(2, 0, 50), 0), None), Ok(()));
        assert_eq!(past.check(&header(key(3, 0, 30), 0), None), Ok(()));
        // The world went back behind it, and whoever was to remove it died.
        assert_eq!(past.check(&header(key(2, 1, 20), 0), None), Ok(()));
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
            held in proptest::collection::vec(proptest::option::of((0u128..3, any::<bool>())), 1..9)
        ) {
            let holder = |(hash, offers)| Holder { hash, offers };
            let held: Vec<_> = held.into_iter().map(|one| one.map(holder)).collect();
            let holders = held.iter().flatten().count();
            match judge(&held) {
                Majority::Agreed { hash, source, differing } => {
                    prop_assert_eq!(held[source], offers(hash));
                    prop_assert!(2 * differing.len() < holders);
                    let other = |rank: usize| held[rank].is_some_and(|one| one.hash != hash);
                    prop_assert!(differing.into_iter().all(other));
                }
                Majority::Disputed(ranks) => prop_assert_eq!(ranks.len(), holders),
                Majority::Nobody => prop_assert!(held.iter().flatten().all(|one| !one.offers)),
            }
        }
    }
}
