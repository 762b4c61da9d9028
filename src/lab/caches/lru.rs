//! Least recently used, for all sizes at once (Mattson et al. 1970): a sample is found in a cache
//! of c places if fewer than c others were read since it was read last. A Fenwick tree counts them.

use super::trace::Trace;

/// How many reads after the first epoch are found, by the size of the cache.
#[derive(Debug, Clone, PartialEq)]
pub struct Distances {
    /// Reads whose distance is the index: found by a cache of that many places or more.
    counts: Vec<u64>,
    /// Reads after the first epoch.
    warm: u64,
}

/// One mark per time, and how many lie before a time, in O(log n).
struct Fenwick(Vec<u32>);

impl Fenwick {
    fn add(&mut self, at: usize, delta: u32) {
        let mut at = at + 1;
        while at < self.0.len() {
            self.0[at] = self.0[at].wrapping_add(delta);
            at += at & at.wrapping_neg();
        }
    }

    /// Marks at times below `end`.
    fn before(&self, mut end: usize) -> u32 {
        let mut sum = 0u32;
        while end > 0 {
            sum = sum.wrapping_add(self.0[end]);
            end -= end & end.wrapping_neg();
        }
        sum
    }
}

/// Measures a trace; ids lie below `samples`.
pub fn distances(trace: &Trace, samples: usize) -> Distances {
    const NEVER: usize = usize::MAX;
    let mut latest = vec![NEVER; samples];
    // Marks stand at the latest read of each sample.
    let mut marks = Fenwick(vec![0; trace.ids.len() + 1]);
    let mut marked = 0u32;
    let mut counts = vec![0u64; samples + 1];
    for (now, &id) in trace.ids.iter().enumerate() {
        let before = std::mem::replace(&mut latest[id as usize], now);
        if before == NEVER {
            marked += 1;
        } else {
            // The sample's own mark lies at `before`: it is counted with those that came later.
            let distance = marked - marks.before(before);
            counts[distance as usize] += u64::from(now >= trace.cold);
            marks.add(before, u32::MAX);
        }
        marks.add(now, 1);
    }
    Distances { counts, warm: trace.warm() }
}

impl Distances {
    /// Misses after the first epoch of a cache with so many places.
    pub fn misses(&self, places: usize) -> u64 {
        let last = places.min(self.counts.len() - 1);
        self.warm - self.counts[..=last].iter().sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A list with the latest at its end.
    fn by_hand(trace: &Trace, places: usize) -> u64 {
        let (mut held, mut misses) = (Vec::new(), 0);
        for (now, id) in trace.ids.iter().enumerate() {
            match held.iter().position(|other| other == id) {
                Some(at) => drop(held.remove(at)),
                None => misses += u64::from(now >= trace.cold),
            }
            held.push(*id);
            if held.len() > places {
                held.remove(0);
            }
        }
        misses
    }

    proptest! {
        #[test]
        fn one_pass_says_what_a_cache_of_each_size_does(
            ids in prop::collection::vec(0u32..24, 1..200),
            places in 0usize..30,
            part in 0.0f64..1.0,
        ) {
            let cold = (ids.len() as f64 * part) as usize;
            let trace = Trace { ids, cold };
            prop_assert_eq!(distances(&trace, 24).misses(places), by_hand(&trace, places));
        }
    }
}
