//! What moves, who leaves, and what nothing takes back.

use proptest::prelude::*;

use super::*;

/// A unit takes a second over the link; a fault and a call take nothing.
const COSTS: Costs = Costs { link_bytes_per_second: 100.0, fault_seconds: 0.0, call_seconds: 0.0 };
const POLICIES: [MemoryPolicy; 3] = [MemoryPolicy::Driver, MemoryPolicy::Lru, MemoryPolicy::Belady];

fn card(policy: MemoryPolicy, capacity: usize, units: usize) -> Pager {
    let mut pager = Pager::new(policy, COSTS, 100, capacity);
    for _ in 0..units {
        pager.allocate();
    }
    pager
}

/// A card whose first units are filled, as far as there is room.
fn filled(policy: MemoryPolicy, capacity: usize, units: usize) -> Pager {
    let mut pager = card(policy, capacity, units);
    (0..capacity).for_each(|unit| pager.touch(unit, Access::Write, 0.0));
    pager
}

fn evicted(pager: &Pager) -> Vec<usize> {
    let gone = pager.events.iter().filter(|event| event.what == What::Evicted);
    gone.map(|event| event.unit).collect()
}

fn moved(pager: &Pager) -> [u64; 2] {
    let sum = |of: fn(&Event) -> u64| pager.events.iter().map(of).sum();
    [sum(|event| event.to_gpu_bytes), sum(|event| event.to_cpu_bytes)]
}

#[test]
fn access_ranks_a_unit_under_lru_alone() {
    for (policy, gone) in [(MemoryPolicy::Driver, 0), (MemoryPolicy::Lru, 1)] {
        let mut pager = filled(policy, 3, 4);
        pager.touch(0, Access::Read, 0.0);
        pager.touch(3, Access::Write, 0.0);
        assert_eq!(evicted(&pager), [gone], "{policy:?}");
    }
}

#[test]
fn prefetching_what_is_there_moves_its_rank_and_nothing_else() {
    let mut pager = filled(MemoryPolicy::Driver, 3, 4);
    pager.prefetch(0, Place::Gpu);
    assert_eq!((moved(&pager), pager.seconds()), ([0, 0], 0.0));
    pager.touch(3, Access::Write, 0.0);
    assert_eq!(evicted(&pager), [1]);
}

#[test]
fn memory_whose_contents_left_is_taken_before_discarded_and_used_memory() {
    let mut pager = filled(MemoryPolicy::Driver, 3, 6);
    pager.discard(1);
    pager.prefetch(2, Place::Cpu);
    assert_eq!(moved(&pager), [0, 100]);
    for unit in 3..6 {
        pager.touch(unit, Access::Write, 0.0);
    }
    assert_eq!(evicted(&pager), [2, 1, 0]);
    // The first had been copied, the second is worth nothing: only the third moves.
    assert_eq!(moved(&pager), [0, 200]);
}

#[test]
fn memory_that_contents_left_stays_their_own() {
    let mut pager = filled(MemoryPolicy::Driver, 3, 3);
    pager.prefetch(0, Place::Cpu);
    pager.touch(0, Access::Read, 0.0);
    assert_eq!((evicted(&pager), moved(&pager)), (vec![], [100, 100]));
}

#[test]
fn a_copy_outlives_the_unit_it_was_asked_for() {
    let mut pager = filled(MemoryPolicy::Driver, 2, 4);
    pager.touch(2, Access::Write, 0.0); // unit 0 leaves: one second
    assert_eq!((evicted(&pager), pager.seconds()), (vec![0], 1.0));
    pager.prefetch(0, Place::Gpu); // unit 1 leaves until 2 s, unit 0 is there at 3 s
    pager.free(0);
    assert_eq!(moved(&pager), [100, 200], "what was asked for is moved");
    // Its memory is not free yet: another must leave.
    pager.touch(3, Access::Write, 0.0);
    assert_eq!((evicted(&pager), pager.seconds()), (vec![0, 1, 2], 3.0));
    pager.synchronize();
    assert_eq!(pager.seconds(), 3.0);
    // Now it is.
    let one_more = pager.allocate();
    pager.touch(one_more, Access::Write, 0.0);
    assert_eq!(evicted(&pager), [0, 1, 2]);
}

#[test]
fn where_all_memory_is_of_freed_units_the_first_copy_to_end_is_waited_for() {
    let mut pager = filled(MemoryPolicy::Driver, 1, 3);
    pager.prefetch(0, Place::Cpu);
    pager.free(0);
    pager.touch(1, Access::Write, 0.0);
    assert_eq!((evicted(&pager), pager.seconds()), (vec![], 1.0));
}

#[test]
fn directions_of_the_link_do_not_wait_for_each_other() {
    let mut pager = filled(MemoryPolicy::Driver, 3, 5);
    pager.touch(3, Access::Write, 0.0); // unit 0 leaves until 1 s
    pager.prefetch(1, Place::Cpu);
    pager.prefetch(0, Place::Gpu); // into the memory of unit 1, from 2 s on
    pager.prefetch(2, Place::Cpu); // beside it
    pager.synchronize();
    assert_eq!((pager.seconds(), moved(&pager)), (3.0, [100, 300]));
}

#[test]
fn a_unit_on_its_way_is_waited_for() {
    let mut pager = filled(MemoryPolicy::Driver, 2, 2);
    pager.prefetch(0, Place::Cpu);
    pager.prefetch(0, Place::Gpu);
    assert_eq!(pager.seconds(), 0.0);
    pager.touch(0, Access::Read, 0.5);
    assert_eq!(pager.seconds(), 2.5);
    assert!(!pager.events.iter().any(|event| event.what == What::Faulted));
}

#[test]
fn a_unit_on_its_way_leaves_when_it_is_there() {
    let mut pager = filled(MemoryPolicy::Driver, 1, 2);
    pager.touch(1, Access::Write, 0.0); // unit 0 leaves until 1 s
    pager.prefetch(0, Place::Gpu); // unit 1 leaves until 2 s, unit 0 is there at 3 s
    pager.touch(1, Access::Read, 0.0); // and has left at 4 s
    assert_eq!(pager.seconds(), 5.0);
}

#[test]
fn what_was_discarded_comes_back_from_nowhere() {
    let mut pager = filled(MemoryPolicy::Driver, 2, 3);
    pager.touch(2, Access::Write, 0.0);
    assert_eq!((evicted(&pager), moved(&pager)), (vec![0], [0, 100]));
    pager.discard(0);
    pager.touch(0, Access::Write, 0.0);
    assert_eq!((evicted(&pager), moved(&pager)), (vec![0, 1], [0, 200]));
}

#[test]
fn a_fault_takes_each_block_its_time() {
    let costs = Costs { fault_seconds: 0.25, link_bytes_per_second: 1e30, ..COSTS };
    let mut pager = Pager::new(MemoryPolicy::Driver, costs, 2 * BLOCK_BYTES + 1, 1);
    for _ in 0..2 {
        let unit = pager.allocate();
        pager.touch(unit, Access::Write, 0.0);
    }
    let before = pager.seconds();
    pager.touch(0, Access::Read, 0.0);
    assert!((pager.seconds() - before - 0.75).abs() < 1e-6);
}

#[test]
fn what_the_card_maps_from_afar_is_not_brought() {
    for advice in [Advice::AccessedBy(Place::Gpu), Advice::PreferredLocation(Place::Cpu)] {
        let mut pager = filled(MemoryPolicy::Driver, 2, 3);
        pager.advise(0, advice);
        pager.touch(2, Access::Write, 0.0);
        assert_eq!(evicted(&pager), [0], "advice keeps nothing there");
        pager.touch(0, Access::Read, 0.0);
        pager.touch(0, Access::Read, 0.0);
        assert_eq!((evicted(&pager), moved(&pager)), (vec![0], [200, 100]), "{advice}");
        pager.prefetch(0, Place::Gpu);
        assert_eq!(evicted(&pager), [0, 1], "a call brings it");
    }
}

#[test]
fn what_is_mostly_read_is_in_both_memories_until_it_is_written() {
    let mut pager = filled(MemoryPolicy::Driver, 2, 4);
    pager.advise(0, Advice::ReadMostly);
    pager.prefetch(0, Place::Cpu);
    assert_eq!(moved(&pager), [0, 100]);
    pager.touch(0, Access::Read, 0.0);
    pager.touch(2, Access::Write, 0.0);
    assert_eq!((evicted(&pager), moved(&pager)), (vec![0], [0, 100]), "there is a copy");
    pager.touch(0, Access::Write, 0.0);
    pager.prefetch(2, Place::Gpu);
    pager.touch(3, Access::Write, 0.0);
    assert_eq!((evicted(&pager), moved(&pager)), (vec![0, 1, 0], [100, 300]), "no more");
}

#[test]
fn what_is_mostly_read_is_copied_home_once() {
    let mut pager = filled(MemoryPolicy::Driver, 1, 2);
    pager.advise(0, Advice::ReadMostly);
    for unit in [1, 0, 1] {
        pager.touch(unit, Access::Read, 0.0);
    }
    // Unit 1, which was populated, left once; unit 0 left twice.
    assert_eq!((evicted(&pager), moved(&pager)), (vec![0, 1, 0], [200, 200]));
}

#[test]
fn freed_memory_is_taken_before_any_other() {
    let mut pager = filled(MemoryPolicy::Driver, 2, 3);
    pager.free(1);
    pager.touch(2, Access::Write, 0.0);
    assert!(evicted(&pager).is_empty());
    // A unit that is no more is nobody's.
    pager.free(1);
    pager.touch(1, Access::Read, 1.0);
    pager.prefetch(1, Place::Gpu);
    pager.discard(1);
    assert_eq!((evicted(&pager), moved(&pager), pager.seconds()), (vec![], [0, 0], 0.0));
}

fn misses(policy: MemoryPolicy, capacity: usize, touches: &[usize]) -> usize {
    let mut pager = card(policy, capacity, 12);
    pager.foresee(touches.iter().copied());
    touches.iter().for_each(|&unit| pager.touch(unit, Access::Read, 0.0));
    pager.events.iter().filter(|event| event.what != What::Evicted).count()
}

/// A list with the next to leave at its front.
fn by_hand(renewed: impl Fn() -> bool, capacity: usize, touches: &[usize]) -> usize {
    let (mut held, mut misses) = (Vec::new(), 0);
    for &unit in touches {
        match held.iter().position(|&other| other == unit) {
            Some(at) if renewed() => {
                let unit = held.remove(at);
                held.push(unit);
            }
            Some(_) => {}
            None => {
                misses += 1;
                if held.len() == capacity {
                    held.remove(0);
                }
                held.push(unit);
            }
        }
    }
    misses
}

#[derive(Debug, Clone, Copy)]
enum Deed {
    Touch(usize, Access),
    Prefetch(usize, Place),
    Advise(usize, Advice),
    Discard(usize),
    Free(usize),
    Allocate,
    Synchronize,
}

fn deed() -> impl Strategy<Value = Deed> {
    let unit = || 0usize..8;
    let place = || prop_oneof![Just(Place::Gpu), Just(Place::Cpu)];
    let access = prop_oneof![Just(Access::Read), Just(Access::Write)];
    let advice = prop_oneof![
        Just(Advice::ReadMostly),
        place().prop_map(Advice::PreferredLocation),
        place().prop_map(Advice::AccessedBy),
    ];
    prop_oneof![
        8 => (unit(), access).prop_map(|(unit, access)| Deed::Touch(unit, access)),
        6 => (unit(), place()).prop_map(|(unit, to)| Deed::Prefetch(unit, to)),
        1 => (unit(), advice).prop_map(|(unit, advice)| Deed::Advise(unit, advice)),
        1 => unit().prop_map(Deed::Discard),
        1 => unit().prop_map(Deed::Free),
        1 => Just(Deed::Allocate),
        1 => Just(Deed::Synchronize),
    ]
}

fn act(pager: &mut Pager, deed: Deed) {
    match deed {
        Deed::Touch(unit, access) => pager.touch(unit, access, 0.1),
        Deed::Prefetch(unit, to) => pager.prefetch(unit, to),
        Deed::Advise(unit, advice) => pager.advise(unit, advice),
        Deed::Discard(unit) => pager.discard(unit),
        Deed::Free(unit) => pager.free(unit),
        Deed::Allocate => drop(pager.allocate()),
        Deed::Synchronize => pager.synchronize(),
    }
}

proptest! {
    #[test]
    fn policies_are_what_they_are_called(
        touches in prop::collection::vec(0usize..12, 1..150),
        capacity in 1usize..10,
    ) {
        let [driver, lru, best] = POLICIES.map(|policy| misses(policy, capacity, &touches));
        prop_assert_eq!(driver, by_hand(|| false, capacity, &touches));
        prop_assert_eq!(lru, by_hand(|| true, capacity, &touches));
        prop_assert!(best <= driver.min(lru));
    }

    /// Belady's is the least that any list can do: found by trying all victims.
    #[test]
    fn belady_misses_least(
        touches in prop::collection::vec(0usize..5, 1..9),
        capacity in 1usize..4,
    ) {
        fn least(held: &[usize], touches: &[usize], capacity: usize) -> usize {
            let Some((unit, rest)) = touches.split_first() else { return 0 };
            if held.contains(unit) {
                return least(held, rest, capacity);
            }
            if held.len() < capacity {
                return 1 + least(&[held, &[*unit]].concat(), rest, capacity);
            }
            let without = |victim: usize| {
                let kept: Vec<usize> = held.iter().copied().filter(|&u| u != victim).collect();
                1 + least(&[&kept[..], &[*unit]].concat(), rest, capacity)
            };
            held.iter().map(|&victim| without(victim)).min().unwrap_or(0)
        }
        let played = misses(MemoryPolicy::Belady, capacity, &touches);
        prop_assert_eq!(played, least(&[], &touches, capacity));
    }

    #[test]
    fn whatever_is_done_room_is_kept_contents_are_somewhere_and_time_goes_on(
        deeds in prop::collection::vec(deed(), 1..120),
        capacity in 1usize..6,
        policy in prop::sample::select(&POLICIES[..]),
    ) {
        let mut pager = card(policy, capacity, 5);
        let mut written = vec![false; 5];
        for deed in deeds {
            let known = pager.units.len();
            let number = match deed {
                Deed::Touch(unit, _) | Deed::Prefetch(unit, _) | Deed::Advise(unit, _)
                | Deed::Discard(unit) | Deed::Free(unit) => unit,
                Deed::Allocate | Deed::Synchronize => 0,
            };
            if number >= known {
                continue;
            }
            let (before, seen) = (pager.seconds(), pager.events.len());
            act(&mut pager, deed);
            written.resize(pager.units.len(), false);
            match deed {
                Deed::Touch(unit, _) => written[unit] |= pager.units[unit].is_some(),
                Deed::Discard(unit) | Deed::Free(unit) => written[unit] = false,
                _ => {}
            }
            prop_assert!(pager.seconds() >= before);
            prop_assert!(pager.chunks() + pager.leaving.len() <= capacity);
            prop_assert!(pager.events[seen..].iter().all(|event| event.end_seconds >= 0.0));
            for (unit, written) in pager.units.iter().zip(&written) {
                let Some(unit) = unit else { continue };
                prop_assert!(!written || unit.on_gpu() || unit.at_home);
            }
        }
        let all: u64 = moved(&pager).iter().sum();
        let busy = (pager.to_gpu_free + pager.to_cpu_free) * COSTS.link_bytes_per_second;
        prop_assert!(all as f64 <= busy + 1e-6, "the link carries no more than it can");
    }
}
