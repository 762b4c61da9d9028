//! Policies that are played one size at a time. Each says how many reads after the first epoch
//! are not found.

use std::collections::{BinaryHeap, VecDeque};

use super::trace::Trace;

/// What is in stays: nothing is taken in once the cache is full (`data.cache_policy = "keep"`).
pub fn keep(trace: &Trace, samples: usize, places: usize) -> u64 {
    let (mut held, mut free) = (vec![false; samples], places);
    misses(trace, |id| {
        let found = held[id];
        if !found && free > 0 {
            held[id] = true;
            free -= 1;
        }
        found
    })
}

/// Belady's: the one that is read again last goes, which may be the newcomer itself. No policy
/// misses less.
pub fn belady(trace: &Trace, samples: usize, places: usize) -> u64 {
    let never = trace.ids.len();
    let mut following = vec![never; samples];
    let mut next = vec![never; trace.ids.len()];
    for (now, &id) in trace.ids.iter().enumerate().rev() {
        next[now] = std::mem::replace(&mut following[id as usize], now);
    }
    let mut held = vec![false; samples];
    let (mut count, mut now) = (0usize, 0usize);
    // Next reads of what is held, the latest on top. A pair that was read since is stale.
    let mut latest: BinaryHeap<(usize, usize)> = BinaryHeap::new();
    misses(trace, |id| {
        let found = held[id];
        if !found {
            held[id] = true;
            count += 1;
        }
        latest.push((next[now], id));
        while count > places {
            let Some((at, other)) = latest.pop() else { break };
            // What is read before now was read: its newer pair counts.
            if held[other] && at > now {
                held[other] = false;
                count -= 1;
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
/// names of half as many samples as it has places.
struct TwoQueues {
    places: usize,
    place: Vec<Place>,
    /// When each sample was put where it is: queue entries of another moment are stale.
    stamp: Vec<u32>,
    clock: u32,
    probation: VecDeque<usize>,
    ghosts: VecDeque<(usize, u32)>,
    ghost_count: usize,
    main: VecDeque<(usize, u32)>,
    main_count: usize,
}

/// The same.
pub fn two_queues(trace: &Trace, samples: usize, places: usize) -> u64 {
    let mut cache = TwoQueues {
        places,
        place: vec![Place::Nowhere; samples],
        stamp: vec![0; samples],
        clock: 0,
        probation: VecDeque::new(),
        ghosts: VecDeque::new(),
        ghost_count: 0,
        main: VecDeque::new(),
        main_count: 0,
    };
    misses(trace, |id| cache.read(id))
}

impl TwoQueues {
    fn read(&mut self, id: usize) -> bool {
        match self.place[id] {
            Place::Probation => true,
            Place::Main => {
                self.put(id, Place::Main);
                true
            }
            _ if self.places == 0 => false,
            Place::Ghost => {
                self.ghost_count -= 1;
                self.place[id] = Place::Nowhere;
                self.make_room();
                self.main_count += 1;
                self.put(id, Place::Main);
                false
            }
            Place::Nowhere => {
                self.make_room();
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

    fn make_room(&mut self) {
        if self.probation.len() + self.main_count < self.places {
            return;
        }
        if (self.probation.len() > self.places / 4 || self.main_count == 0)
            && let Some(oldest) = self.probation.pop_front()
        {
            self.put(oldest, Place::Ghost);
            self.ghost_count += 1;
            if self.ghost_count > self.places / 2 {
                self.forget_a_ghost();
            }
            return;
        }
        while let Some((id, stamp)) = self.main.pop_front() {
            if self.stamp[id] == stamp {
                self.place[id] = Place::Nowhere;
                self.main_count -= 1;
                return;
            }
        }
    }

    fn forget_a_ghost(&mut self) {
        while let Some((id, stamp)) = self.ghosts.pop_front() {
            if self.place[id] == Place::Ghost && self.stamp[id] == stamp {
                self.place[id] = Place::Nowhere;
                self.ghost_count -= 1;
                return;
            }
        }
    }
}

/// Plays a trace; `read` says whether a sample was found.
fn misses(trace: &Trace, mut read: impl FnMut(usize) -> bool) -> u64 {
    let reads = trace.ids.iter().enumerate();
    reads.map(|(now, &id)| u64::from(!read(id as usize) && now >= trace.cold)).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::lru::distances;
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
            ids in prop::collection::vec(0u32..6, 1..24), places in 0usize..7,
        ) {
            let trace = Trace { ids, cold: 0 };
            prop_assert_eq!(belady(&trace, 6, places), fewest(&trace.ids, places));
        }

        #[test]
        fn no_policy_beats_belady_and_all_find_what_fits(
            ids in prop::collection::vec(0u32..40, 1..400), places in 0usize..50,
        ) {
            let trace = Trace { ids, cold: 0 };
            let least = belady(&trace, 40, places);
            let lru = distances(&trace, 40).misses(places);
            for other in [lru, keep(&trace, 40, places), two_queues(&trace, 40, places)] {
                prop_assert!(other >= least);
                prop_assert!(places == 0 || places < 40 || other == least);
                prop_assert!(places > 0 || other == trace.ids.len() as u64);
            }
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
        let lru = distances(&trace, 100).misses(8);
        let two = two_queues(&trace, 100, 8);
        assert_eq!((lru, two), (240, 160), "LRU finds none of them, 2Q all four");
    }
}
