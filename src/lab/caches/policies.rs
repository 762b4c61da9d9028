//! Policies that are played one size at a time. Each says how many blocks of reads after the first
//! epoch are not found.

use std::collections::{BinaryHeap, VecDeque};

use super::sizes::Sizes;
use super::trace::Trace;

/// What is in stays: what does not fit beside it is not taken in (`data.cache_policy = "keep"`).
pub fn keep(trace: &Trace, sizes: &Sizes, places: u64) -> u64 {
    let (mut held, mut free) = (vec![0; sizes.samples()], places);
    misses(trace, sizes, |id| {
        let found = held[id];
        let own = sizes.of(id);
        if found == 0 && u64::from(own) <= free {
            held[id] = own;
            free -= u64::from(own);
        }
        found
    })
}

/// Belady's: blocks of the one that is read again last go, which may be the newcomer itself. No
/// policy misses less.
pub fn belady(trace: &Trace, sizes: &Sizes, places: u64) -> u64 {
    let never = trace.ids.len();
    let mut following = vec![never; sizes.samples()];
    let mut next = vec![never; trace.ids.len()];
    for (now, &id) in trace.ids.iter().enumerate().rev() {
        next[now] = std::mem::replace(&mut following[id as usize], now);
    }
    let mut held = vec![0u32; sizes.samples()];
    let (mut count, mut now) = (0u64, 0usize);
    // Next reads of what is held, the latest on top. A pair that was read since is stale.
    let mut latest: BinaryHeap<(usize, usize)> = BinaryHeap::new();
    misses(trace, sizes, |id| {
        let found = std::mem::replace(&mut held[id], sizes.of(id));
        count += u64::from(held[id] - found);
        latest.push((next[now], id));
        while count > places {
            let Some((at, other)) = latest.pop() else { break };
            // What is read before now was read: its newer pair counts.
            if at > now {
                let leaves = (count - places).min(u64::from(held[other]));
                held[other] -= leaves as u32;
                count -= leaves;
                if held[other] > 0 {
                    latest.push((at, other));
                }
            }
        }
        now += 1;
        found
    })
}

/// Where a sample lies in [`TwoQueues`].
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Nowhere,
    /// Read once, waiting in the order of arrival.
    Probation,
    /// Dropped from there a while ago: only its name is kept.
    Ghost,
    /// Read again while it was a ghost: kept by recency.
    Main,
}

/// 2Q (Johnson and Shasha 1994), with a quarter of its places for what was read once, and the
/// names of samples that would take half of them. Samples come and go whole.
struct TwoQueues<'a> {
    sizes: &'a Sizes,
    places: u64,
    place: Vec<Place>,
    /// When each sample was put where it is: queue entries of another moment are stale.
    stamp: Vec<u32>,
    clock: u32,
    probation: VecDeque<usize>,
    probation_blocks: u64,
    ghosts: VecDeque<(usize, u32)>,
    ghost_blocks: u64,
    main: VecDeque<(usize, u32)>,
    main_blocks: u64,
}

/// The same.
pub fn two_queues(trace: &Trace, sizes: &Sizes, places: u64) -> u64 {
    let mut cache = TwoQueues {
        sizes,
        places,
        place: vec![Place::Nowhere; sizes.samples()],
        stamp: vec![0; sizes.samples()],
        clock: 0,
        probation: VecDeque::new(),
        probation_blocks: 0,
        ghosts: VecDeque::new(),
        ghost_blocks: 0,
        main: VecDeque::new(),
        main_blocks: 0,
    };
    misses(trace, sizes, |id| if cache.read(id) { sizes.of(id) } else { 0 })
}

impl TwoQueues<'_> {
    fn blocks(&self, id: usize) -> u64 {
        u64::from(self.sizes.of(id))
    }

    fn read(&mut self, id: usize) -> bool {
        let own = self.blocks(id);
        match self.place[id] {
            Place::Probation => true,
            Place::Main => {
                self.put(id, Place::Main);
                true
            }
            _ if own > self.places => false,
            Place::Ghost => {
                self.ghost_blocks -= own;
                self.place[id] = Place::Nowhere;
                self.make_room(own);
                self.main_blocks += own;
                self.put(id, Place::Main);
                false
            }
            Place::Nowhere => {
                self.make_room(own);
                self.probation_blocks += own;
                self.put(id, Place::Probation);
                false
            }
        }
    }

    fn put(&mut self, id: usize, place: Place) {
        self.clock += 1;
        (self.place[id], self.stamp[id]) = (place, self.clock);
        match place {
            Place::Probation => self.probation.push_back(id),
            Place::Ghost => self.ghosts.push_back((id, self.clock)),
            Place::Main => self.main.push_back((id, self.clock)),
            Place::Nowhere => {}
        }
    }

    /// For so many blocks, which are no more than there are places.
    fn make_room(&mut self, blocks: u64) {
        while self.probation_blocks + self.main_blocks + blocks > self.places {
            let waiting = self.probation_blocks > self.places / 4 || self.main_blocks == 0;
            match self.probation.front().filter(|_| waiting) {
                Some(&oldest) => self.demote(oldest),
                None => self.drop_the_oldest(),
            }
        }
    }

    /// The first in probation becomes a ghost.
    fn demote(&mut self, oldest: usize) {
        self.probation.pop_front();
        self.probation_blocks -= self.blocks(oldest);
        self.put(oldest, Place::Ghost);
        self.ghost_blocks += self.blocks(oldest);
        while self.ghost_blocks > self.places / 2 {
            let (id, stamp) = self.ghosts.pop_front().expect("each ghost has a pair");
            if self.place[id] == Place::Ghost && self.stamp[id] == stamp {
                self.place[id] = Place::Nowhere;
                self.ghost_blocks -= self.blocks(id);
            }
        }
    }

    /// The least recently used of the main queue.
    fn drop_the_oldest(&mut self) {
        while let Some((id, stamp)) = self.main.pop_front() {
            if self.stamp[id] == stamp {
                self.place[id] = Place::Nowhere;
                self.main_blocks -= self.blocks(id);
                return;
            }
        }
    }
}

/// Plays a trace; `read` says how many of a sample's blocks were found.
fn misses(trace: &Trace, sizes: &Sizes, mut read: impl FnMut(usize) -> u32) -> u64 {
    let mut missed = 0;
    for (now, &id) in trace.ids.iter().enumerate() {
        let lacking = sizes.of(id as usize) - read(id as usize);
        if now >= trace.cold {
            missed += u64::from(lacking);
        }
    }
    missed
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::lru::lru;
    use super::super::sizes::tests::sets;
    use super::*;

    /// The fewest misses over all ways to decide what stays, by trying them all.
    fn fewest(ids: &[u32], places: usize) -> u64 {
        let mut states = std::collections::BTreeMap::from([(0u32, 0u64)]);
        for id in ids {
            let mut next = std::collections::BTreeMap::new();
            for (held, misses) in states {
                let (with, misses) = (held | 1 << id, misses + u64::from(held >> id & 1 == 0));
                let one_less = (0..8).map(|out| with & !(1 << out));
                for held in one_less.chain([with]) {
                    if held.count_ones() as usize <= places {
                        let least = next.entry(held).or_insert(misses);
                        *least = misses.min(*least);
                    }
                }
            }
            states = next;
        }
        states.into_values().min().expect("one way at least")
    }

    proptest! {
        #[test]
        fn belady_is_the_best_there_is(
            ids in prop::collection::vec(0u32..6, 1..24), places in 0u64..7,
        ) {
            let trace = Trace { ids, cold: 0 };
            let fewest = fewest(&trace.ids, places as usize);
            prop_assert_eq!(belady(&trace, &Sizes::equal(6), places), fewest);
        }

        #[test]
        fn no_policy_beats_belady_and_all_find_what_fits(
            ids in prop::collection::vec(0u32..40, 1..400), sizes in sets(40, 3),
            share in 0.0f64..1.25,
        ) {
            let places = (share * sizes.total() as f64) as u64;
            let trace = Trace { ids, cold: 0 };
            let least = belady(&trace, &sizes, places);
            let lru = lru(&trace, &sizes, &[places])[0];
            let all = trace.ids.iter().map(|&id| u64::from(sizes.of(id as usize))).sum::<u64>();
            for other in [lru, keep(&trace, &sizes, places), two_queues(&trace, &sizes, places)] {
                prop_assert!(other >= least);
                prop_assert!(places < sizes.total() || other == least);
                prop_assert!(places > 0 || other == all);
            }
        }

        /// What holds of samples of one size holds of blocks.
        #[test]
        fn to_belady_a_file_is_its_blocks_one_after_another(
            ids in prop::collection::vec(0u32..12, 1..80), sizes in sets(12, 4),
            places in 0u64..40,
        ) {
            let each = |&id: &u32| (0..sizes.of(id as usize)).map(move |block| 4 * id + block);
            let blocks = Trace { ids: ids.iter().flat_map(each).collect(), cold: 0 };
            let alone = belady(&blocks, &Sizes::equal(48), places);
            prop_assert_eq!(belady(&Trace { ids, cold: 0 }, &sizes, places), alone);
        }
    }

    /// 2Q's point: a scan of what is read once does not push out what is read again.
    #[test]
    fn a_scan_passes_through_two_queues() {
        let mut ids: Vec<u32> = Vec::new();
        // Samples 0 to 3 come back after a while, between scans.
        for round in 0..40u32 {
            ids.extend(0..4);
            ids.extend((0..8).map(|at| 4 + (round * 8 + at) % 96));
        }
        let trace = Trace { ids, cold: 240 };
        let sizes = Sizes::equal(100);
        let lru = lru(&trace, &sizes, &[8])[0];
        let two = two_queues(&trace, &sizes, 8);
        assert_eq!((lru, two), (240, 160), "LRU finds none of them, 2Q all four");
    }
}
