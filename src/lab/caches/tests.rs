//! The simulated caches against the formulas and the bound that nothing beats.

use proptest::prelude::*;

use super::sizes::tests::sets;
use super::*;

fn setting(owners: u32, nodes: &[u32]) -> Setting {
    let ratios = vec![0.5, 0.1, 0.05];
    Setting { epochs: 12, owners, nodes: nodes.to_vec(), ratios, seed: 3 }
}

#[test]
fn what_is_played_agrees_with_the_formulas_and_nodes_with_owners_with_one_node() {
    let rows = play(&setting(8, &[1, 4]), &POLICIES, &Sizes::equal(20_000)).unwrap();
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
    assert!(gain > sizes::PUBLISHED[0].best, "{gain}");
}

/// Blocks are only a finer measure.
#[test]
fn files_of_one_size_miss_as_samples_of_one_size() {
    let setting = Setting { epochs: 4, ..setting(4, &[1, 2]) };
    let alone = play(&setting, &POLICIES, &Sizes::equal(600)).unwrap();
    let of_a_block = Sizes::of_files(std::iter::repeat_n(4000, 600)).unwrap();
    assert_eq!(play(&setting, &POLICIES, &of_a_block).unwrap(), alone);
    // Each size on the grid is a whole number of samples on both nodes.
    let of_blocks = Sizes::of_files(std::iter::repeat_n(99_999, 600)).unwrap();
    assert_eq!(of_blocks.total(), 600 * 25);
    for (files, samples) in play(&setting, &POLICIES, &of_blocks).unwrap().iter().zip(&alone) {
        assert!((files.miss - samples.miss).abs() < 1e-12, "{files:?} {samples:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn nothing_is_below_the_bound(
        sizes in (20usize..300, 1u64..6).prop_flat_map(|(samples, most)| sets(samples, most)),
        owners in 1u32..9, seed in any::<u64>(),
    ) {
        let nodes = vec![1, 2.min(owners)];
        let setting = Setting { epochs: 4, seed, ..setting(owners, &nodes) };
        let rows = play(&setting, &POLICIES, &sizes).unwrap();
        for row in &rows {
            prop_assert!(row.miss >= forms::bound(row.cache) - 1e-9, "{row:?}");
            prop_assert!(row.miss_with_cold >= row.miss - 1e-9 && row.miss_with_cold <= 1.0);
        }
        for pair in rows.windows(2).filter(|pair| pair[0].cache < pair[1].cache) {
            let falls = matches!(pair[0].policy, Policy::Lru | Policy::Belady);
            prop_assert!(!falls || pair[1].miss <= pair[0].miss, "{pair:?}");
        }
    }
}
