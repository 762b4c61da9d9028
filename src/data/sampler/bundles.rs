//! Bundles: an owner's rows cut into slices, which an epoch takes one after another (Lee and Bahn,
//! section II). A cache holds the slices that were read last; an epoch that begins with them finds
//! them there.
//!
//! Boundaries are fixed: they depend on the number of rows and on `data.bundle_ratio` alone, and
//! are the same in both directions. The direction is the epoch's parity, so nobody has to remember
//! it.

use std::ops::Range;

use crate::config::seed::{self, purpose};
use crate::config::{Data, WithinBundle};

use super::permutation::Permutation;

/// How an owner's rows come in an epoch.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Bundling {
    /// A bundle's share of an owner's rows: above 0, to 1. Of 1 there is one bundle.
    #[serde(rename = "bundle_ratio")]
    pub ratio: f64,
    /// Bundles come from the last to the first in odd epochs.
    pub alternating: bool,
    /// The order inside a bundle. `Reverse`: an odd epoch is the exact reverse of the even one
    /// before it, bundles included, whether `alternating` or not.
    #[serde(rename = "within_bundle")]
    pub within: WithinBundle,
}

impl Bundling {
    /// One bundle, at random in every epoch.
    pub const WHOLE: Self =
        Self { ratio: 1.0, alternating: false, within: WithinBundle::Reshuffle };

    /// As a configuration says.
    pub fn of(data: &Data) -> Self {
        let (ratio, alternating, within) =
            (data.bundle_ratio, data.alternating, data.within_bundle);
        Self { ratio, alternating, within }
    }
}

/// Where an owner's rows are cut. All bundles have `size` rows but the last, which has what is
/// left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    rows: u64,
    size: u64,
}

impl Cut {
    /// `rows` > 0, `ratio` above 0 and at most 1.
    pub(super) fn new(rows: u64, ratio: f64) -> Self {
        debug_assert!(rows > 0, "every owner has a row");
        let size = (ratio * rows as f64).round() as u64;
        Self { rows, size: size.clamp(1, rows) }
    }

    /// Bundles.
    pub fn count(&self) -> u64 {
        self.rows.div_ceil(self.size)
    }

    /// Rows of the owner.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The rows of a bundle; none beyond the last.
    pub fn rows_of(&self, bundle: u64) -> Range<u64> {
        let edge = |bundle: u64| bundle.saturating_mul(self.size).min(self.rows);
        edge(bundle)..edge(bundle.saturating_add(1))
    }

    /// The bundle that place `place` (below `rows`) of an epoch lies in, and the place inside it.
    fn forwards(&self, place: u64) -> (u64, u64) {
        (place / self.size, place % self.size)
    }

    /// The same where the last bundle comes first.
    fn backwards(&self, place: u64) -> (u64, u64) {
        let last = self.count() - 1;
        let short = self.rows - last * self.size;
        match place.checked_sub(short) {
            None => (last, place),
            Some(place) => (last - 1 - place / self.size, place % self.size),
        }
    }
}

/// One owner's rows in the order of one epoch.
pub(super) struct Rows {
    /// What the permutations of its bundles are keyed by.
    key: [u64; 4],
    cut: Cut,
    turn: Turn,
    /// The bundle of the last row that was asked for: the next one lies in it as a rule.
    latest: Option<(u64, Permutation)>,
}

/// What an epoch does to the order of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Forwards,
    /// The last bundle comes first.
    Bundles,
    /// The last row comes first.
    All,
}

impl Rows {
    pub(super) fn new(seed: u64, epoch: u64, owner: u64, cut: Cut, bundling: Bundling) -> Self {
        let odd = epoch % 2 == 1;
        let (drawn, turn) = match bundling.within {
            // An odd epoch takes the draws of the even one before it.
            WithinBundle::Reverse if odd => (epoch - 1, Turn::All),
            WithinBundle::Reshuffle if odd && bundling.alternating => (epoch, Turn::Bundles),
            _ => (epoch, Turn::Forwards),
        };
        Self { key: [seed, purpose::EPOCH, drawn, owner], cut, turn, latest: None }
    }

    /// The row at a place (below the number of rows) of the epoch.
    pub(super) fn at(&mut self, place: u64) -> u64 {
        let (bundle, inner) = match self.turn {
            Turn::Forwards => self.cut.forwards(place),
            Turn::Bundles => self.cut.backwards(place),
            Turn::All => self.cut.forwards(self.cut.rows - 1 - place),
        };
        let rows = self.cut.rows_of(bundle);
        let permutation = match self.latest {
            Some((latest, permutation)) if latest == bundle => permutation,
            _ => Permutation::new(rows.end - rows.start, self.key_of(bundle)),
        };
        self.latest = Some((bundle, permutation));
        rows.start + permutation.at(inner)
    }

    /// The only bundle has the key of an order without bundles, and so its rows come as there.
    fn key_of(&self, bundle: u64) -> u64 {
        let [seed, purpose, epoch, owner] = self.key;
        match self.cut.count() {
            1 => seed::key(&self.key),
            _ => seed::key(&[seed, purpose, epoch, owner, bundle]),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Any bundling; one in four has one bundle.
    pub fn bundlings() -> impl Strategy<Value = Bundling> {
        let ratio = prop_oneof![Just(1.0), 0.001f64..0.1, 0.1f64..1.0, Just(0.5)];
        let within = prop_oneof![Just(WithinBundle::Reshuffle), Just(WithinBundle::Reverse)];
        (ratio, any::<bool>(), within).prop_map(|(ratio, alternating, within)| Bundling {
            ratio,
            alternating,
            within,
        })
    }

    proptest! {
        #[test]
        fn both_directions_have_the_same_boundaries(rows in 1u64..3000, ratio in 0.0005f64..=1.0) {
            let cut = Cut::new(rows, ratio);
            let sizes: Vec<u64> = (0..cut.count())
                .map(|bundle| cut.rows_of(bundle))
                .map(|rows| rows.end - rows.start)
                .collect();
            let wanted = ((ratio * rows as f64).round() as u64).max(1);
            let (last, others) = sizes.split_last().expect("at least one");
            prop_assert!(others.iter().all(|size| *size == wanted));
            prop_assert!(*last >= 1 && *last <= wanted);
            prop_assert_eq!(sizes.iter().sum::<u64>(), rows);
            let mut counted = vec![[0u64; 2]; sizes.len()];
            for place in 0..rows {
                let (bundle, inner) = cut.forwards(place);
                prop_assert!(inner < sizes[bundle as usize]);
                counted[bundle as usize][0] += 1;
                let (bundle, inner) = cut.backwards(place);
                prop_assert!(inner < sizes[bundle as usize]);
                counted[bundle as usize][1] += 1;
            }
            prop_assert!(counted.iter().zip(&sizes).all(|(both, size)| *both == [*size; 2]));
        }
    }

    /// Fig. 3 of the paper: 1, 2, 3, 4, then 4, 3, 2, 1.
    #[test]
    fn four_bundles_alternate() {
        let bundling = Bundling { ratio: 0.25, alternating: true, ..Bundling::WHOLE };
        let bundles = |epoch: u64| -> Vec<u64> {
            let mut rows = Rows::new(7, epoch, 0, Cut::new(40, 0.25), bundling);
            let mut bundles: Vec<u64> = (0..40).map(|place| rows.at(place) / 10).collect();
            bundles.dedup();
            bundles
        };
        assert_eq!([bundles(0), bundles(1)], [vec![0, 1, 2, 3], vec![3, 2, 1, 0]]);
        assert_eq!([bundles(2), bundles(3)], [vec![0, 1, 2, 3], vec![3, 2, 1, 0]]);
    }

    #[test]
    fn a_bundle_is_shuffled_anew_in_each_epoch() {
        let inside = |epoch: u64, owner: u64, bundle: u64| -> Vec<u64> {
            let bundling = Bundling { ratio: 0.5, ..Bundling::WHOLE };
            let mut rows = Rows::new(7, epoch, owner, Cut::new(80, 0.5), bundling);
            (40 * bundle..40 * (bundle + 1)).map(|place| rows.at(place) - 40 * bundle).collect()
        };
        let first = inside(0, 0, 0);
        assert_eq!(first, inside(0, 0, 0));
        for other in [inside(1, 0, 0), inside(0, 1, 0), inside(0, 0, 1)] {
            assert!(first.iter().zip(&other).filter(|(a, b)| a == b).count() < 10);
        }
    }
}
