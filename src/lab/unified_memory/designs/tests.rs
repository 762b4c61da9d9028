//! What each design comes to, whatever a fault costs.

use super::*;
use crate::lab::unified_memory::pager::What;

fn row(design: Design, policy: MemoryPolicy, load: usize) -> Row {
    step(design, policy, load)
}

#[test]
fn where_all_fits_no_design_moves_anything_or_takes_longer() {
    for policy in [MemoryPolicy::Driver, MemoryPolicy::Lru, MemoryPolicy::Belady] {
        for row in play(policy).iter().filter(|row| row.load <= 1.0) {
            assert_eq!((row.miss, row.to_gpu, row.to_cpu), (0.0, 0.0, 0.0), "{row:?}");
            assert!((1.0 - 1e-9..1.05).contains(&row.time), "{row:?}");
        }
    }
}

#[test]
fn prefetching_after_use_makes_the_drivers_order_lru() {
    for fault_seconds in [0.0, COSTS.fault_seconds, 0.04] {
        let costs = Costs { fault_seconds, ..COSTS };
        for load in LOADS {
            let repaired = step_with(costs, Design::DivisionInPlace, MemoryPolicy::Driver, load);
            let lru = step_with(costs, Design::Full, MemoryPolicy::Lru, load);
            let moved = |row: &Row| (row.miss, row.to_gpu, row.to_cpu);
            assert_eq!(moved(&repaired), moved(&lru));
            assert!((repaired.time / lru.time - 1.0).abs() < 0.05, "{repaired:?} {lru:?}");
        }
    }
}

#[test]
fn the_driver_alone_misses_every_second_touch_as_soon_as_all_do_not_fit() {
    let full = |load| row(Design::Full, MemoryPolicy::Driver, load);
    for load in [105, 125, 150, 200] {
        assert!((full(load).miss - 0.5).abs() < 0.01);
        // Ten times slower, by the cost that was chosen for it.
        assert!((9.0..12.0).contains(&full(load).time), "{}", full(load).time);
    }
}

#[test]
fn direct_instruction_never_faults_and_moves_what_must_move() {
    for policy in [MemoryPolicy::Driver, MemoryPolicy::Lru, MemoryPolicy::Belady] {
        for load in [105, 125, 150, 200, 400] {
            let row = row(Design::Direct, policy, load);
            let units = (CAPACITY * load / 100) as f64;
            let least = 1.0 - CAPACITY as f64 / units;
            assert_eq!(row.miss, 0.0, "{row:?}");
            assert_eq!(row.to_gpu, row.to_cpu);
            assert!((row.to_gpu - least - UNDER_WAY as f64 / units).abs() < 1e-9, "{row:?}");
            assert!(row.time < 1.05, "{row:?}");
        }
    }
}

#[test]
fn discarding_halves_what_crosses_the_link() {
    for load in [105, 125, 150, 200, 400] {
        let kept = row(Design::DivisionInPlace, MemoryPolicy::Driver, load);
        let discarded = row(Design::DivisionWithDiscard, MemoryPolicy::Driver, load);
        assert_eq!(kept.miss, discarded.miss);
        for (kept, discarded) in [(kept.to_gpu, discarded.to_gpu), (kept.to_cpu, discarded.to_cpu)]
        {
            assert!((discarded / kept - 0.5).abs() < 0.01, "{kept} {discarded}");
        }
        assert!(discarded.time < kept.time);
    }
}

#[test]
fn an_order_stated_by_transfers_pays_for_them() {
    for load in [105, 125, 150, 200, 400] {
        let stated = row(Design::Division, MemoryPolicy::Driver, load);
        let in_place = row(Design::DivisionInPlace, MemoryPolicy::Driver, load);
        assert!((stated.miss - in_place.miss).abs() < 0.01);
        assert!(stated.to_gpu > 2.0 * in_place.to_gpu, "{stated:?}");
        assert!(stated.time > in_place.time);
    }
}

#[test]
fn a_trainer_that_orders_all_transfers_leaves_the_driver_nothing_to_copy() {
    let mut trainer = Trainer::new(COSTS, Design::Direct, MemoryPolicy::Driver, 150);
    (0..4).for_each(|_| trainer.step());
    let copied = |what| {
        let events = trainer.pager.events.iter().filter(|event| event.what == what);
        events.map(|event| event.to_cpu_bytes + event.to_gpu_bytes).sum::<u64>()
    };
    assert_eq!((copied(What::Evicted), copied(What::Faulted)), (0, 0));
    assert!(copied(What::SentHome) > 0);
}
