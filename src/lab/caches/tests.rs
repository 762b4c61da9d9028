//! The simulated caches against the formulas and the bound that nothing beats.

use proptest::prelude::*;

use super::*;

fn setting(samples: u64, owners: u32, nodes: &[u32]) -> Setting {
    let ratios = vec![0.5, 0.1, 0.05];
    Setting { samples, epochs: 12, owners, nodes: nodes.to_vec(), ratios, seed: 3 }
}

#[test]
fn what_is_played_agrees_with_the_formulas_and_nodes_with_owners_with_one_node() {
    let rows = play(&setting(20_000, 8, &[1, 4])).unwrap();
    let owned: Vec<&Row> = rows.iter().filter(|r| r.assignment == Assignment::Owners).collect();
    for row in &owned {
        if let Some(form) = row.closed_form {
            // A place more or less, and the finite bundles of 2500 rows.
            assert!((row.miss - form).abs() < 0.003, "{form}: {row:?}");
        }
    }
    let lru = |nodes: u32, assignment: Assignment, cache: f64, ratio: f64| {
        let row = rows.iter().find(|r| {
            let order = r.bundling.ratio == ratio && r.bundling.alternating == (ratio < 1.0);
            let plain = r.bundling.within == WithinBundle::Reshuffle && r.policy == Policy::Lru;
            order && plain && r.nodes == nodes && r.assignment == assignment && r.cache == cache
        });
        row.unwrap_or_else(|| panic!("{nodes} {cache} {ratio}")).miss
    };
    for cache in [0.1, 0.4, 0.8] {
        let (one, four) =
            (lru(1, Assignment::Owners, cache, 0.1), lru(4, Assignment::Owners, cache, 0.1));
        assert!((one - four).abs() < 0.02, "{cache}: {one} {four}");
    }
    // Positions dealt to nodes in turn lose what alternation gains.
    assert!(lru(4, Assignment::Strided, 0.4, 0.1) > 0.9);
    let gain = 1.0 - lru(1, Assignment::Owners, 0.9, 0.1) / lru(1, Assignment::Owners, 0.9, 1.0);
    assert!(gain > figure4::PAPER_BEST, "{gain}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn nothing_is_below_the_bound(samples in 20u64..300, owners in 1u32..9, seed in any::<u64>()) {
        let nodes = vec![1, 2.min(owners)];
        let rows = play(&Setting { epochs: 4, seed, ..setting(samples, owners, &nodes) }).unwrap();
        for row in rows {
            prop_assert!(row.miss >= forms::bound(row.cache) - 1e-9, "{row:?}");
            prop_assert!(row.miss_with_cold >= row.miss - 1e-9 && row.miss_with_cold <= 1.0);
        }
    }
}
