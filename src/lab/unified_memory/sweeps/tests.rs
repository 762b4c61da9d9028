//! Sweeps, played against the formulas and against the table of published simulations.

use super::*;

#[test]
fn what_is_played_is_what_is_computed() {
    let rows = play();
    assert_eq!(rows.len(), 2 * 3 * LOADS.len());
    for row in &rows {
        assert!((row.miss - row.closed_form).abs() <= AGREE, "{row:?}");
    }
    let of = |sweep, policy, load: f64| {
        let row = |row: &&Row| (row.sweep, row.policy, row.load) == (sweep, policy, load);
        rows.iter().find(row).map(|row| (row.miss * 1000.0).round() / 1000.0)
    };
    use MemoryPolicy::{Belady, Driver, Lru};
    let table = [
        (1.05, 0.5, 0.048),
        (1.25, 0.5, 0.2),
        (1.5, 0.5, 0.333),
        (2.0, 0.5, 0.5),
        (4.0, 0.75, 0.75),
    ];
    for (load, driver, least) in table {
        assert_eq!(of(Sweep::ForwardBackward, Driver, load), Some(driver));
        for policy in [Lru, Belady] {
            assert_eq!(of(Sweep::ForwardBackward, policy, load), Some(least));
        }
        assert_eq!(of(Sweep::Cyclic, Belady, load), Some(least));
        assert_eq!(of(Sweep::Cyclic, Driver, load), Some(1.0));
        assert_eq!(of(Sweep::Cyclic, Lru, load), Some(1.0));
    }
}

#[test]
fn formulas_hold_between_the_loads_that_are_shown() {
    for units in [101, 110, 130, 170, 199, 201, 250, 330] {
        for sweep in [Sweep::Cyclic, Sweep::ForwardBackward] {
            for policy in [MemoryPolicy::Driver, MemoryPolicy::Lru, MemoryPolicy::Belady] {
                let computed = sweep.closed_form(policy, units as f64 / CAPACITY as f64);
                let played = miss(sweep, policy, units);
                assert!((played - computed).abs() <= AGREE, "{sweep:?} {policy:?} {units}");
            }
        }
    }
}
