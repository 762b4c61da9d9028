//! Least recently used, for all sizes at once (Mattson et al. 1970): a sample is found in a cache
//! of c blocks if it and the others that were read since it was read last have no more than c. A
//! Fenwick tree counts them. Blocks of a file are read one after another, so all of them have this
//! distance, and a file is found whole or not at all.

use super::sizes::Sizes;
use super::trace::Trace;

/// Blocks per time, and how many lie before a time, in O(log n).
struct Fenwick(Vec<u32>);

impl Fenwick {
    fn add(&mut self, at: usize, delta: u32) {
        let mut at = at + 1;
        while at < self.0.len() {
            self.0[at] = self.0[at].wrapping_add(delta);
            at += at & at.wrapping_neg();
        }
    }

    /// Blocks at times below `end`.
    fn before(&self, mut end: usize) -> u32 {
        let mut sum = 0u32;
        while end > 0 {
            sum = sum.wrapping_add(self.0[end]);
            end -= end & end.wrapping_neg();
        }
        sum
    }
}

/// Blocks that caches of so many `places` do not find after the first epoch, one number for each.
pub fn lru(trace: &Trace, sizes: &Sizes, places: &[u64]) -> Vec<u64> {
    const NEVER: usize = usize::MAX;
    let mut latest = vec![NEVER; sizes.samples()];
    // A sample's blocks stand at its latest read.
    let mut blocks = Fenwick(vec![0; trace.ids.len() + 1]);
    let mut standing = 0u32;
    let mut missed = vec![0u64; places.len()];
    for (now, &id) in trace.ids.iter().enumerate() {
        let own = sizes.of(id as usize);
        let before = std::mem::replace(&mut latest[id as usize], now);
        let distance = if before == NEVER {
            standing += own;
            u64::MAX
        } else {
            // The sample's own blocks lie at `before`: they are counted with those that came later.
            let distance = standing - blocks.before(before);
            blocks.add(before, own.wrapping_neg());
            u64::from(distance)
        };
        blocks.add(now, own);
        if now >= trace.cold {
            for (missed, &places) in missed.iter_mut().zip(places) {
                *missed += u64::from(own) * u64::from(distance > places);
            }
        }
    }
    missed
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::sizes::tests::sets;
    use super::*;

    /// A list of blocks with the latest at its end.
    fn by_hand(trace: &Trace, sizes: &Sizes, places: u64) -> u64 {
        let (mut held, mut misses) = (Vec::new(), 0);
        for (now, &id) in trace.ids.iter().enumerate() {
            for block in (0..sizes.of(id as usize)).map(|block| (id, block)) {
                match held.iter().position(|other| *other == block) {
                    Some(at) => drop(held.remove(at)),
                    None => misses += u64::from(now >= trace.cold),
                }
                held.push(block);
                if held.len() as u64 > places {
                    held.remove(0);
                }
            }
        }
        misses
    }

    proptest! {
        #[test]
        fn one_pass_says_what_a_cache_of_blocks_of_each_size_does(
            ids in prop::collection::vec(0u32..24, 1..200),
            sizes in sets(24, 5),
            places in prop::collection::vec(0u64..80, 1..4),
            part in 0.0f64..1.0,
        ) {
            let cold = (ids.len() as f64 * part) as usize;
            let trace = Trace { ids, cold };
            let each = |&places: &u64| by_hand(&trace, &sizes, places);
            let wanted: Vec<u64> = places.iter().map(each).collect();
            prop_assert_eq!(lru(&trace, &sizes, &places), wanted);
        }

        #[test]
        fn a_larger_cache_never_misses_more(
            ids in prop::collection::vec(0u32..24, 1..200), sizes in sets(24, 5),
        ) {
            let places: Vec<u64> = (0..130).collect();
            let missed = lru(&Trace { ids, cold: 0 }, &sizes, &places);
            prop_assert!(missed.is_sorted_by(|less, more| less >= more), "{missed:?}");
        }
    }
}
