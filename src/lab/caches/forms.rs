//! Miss rates in formulas: of one pass over all samples an epoch, in the steady state, for many
//! samples. `c` is the cache's share of the samples. Pure.
//!
//! Let `u` and `w` be what part of its bundle is read before a sample in one epoch, and after it in
//! the next. Both are uniform where the bundle is shuffled anew, so the share of the bundle that is
//! *not* read between the two reads is `uw`, which exceeds `t` with probability `1 - t + t ln t`.

use crate::config::WithinBundle;
use crate::data::sampler::{Bundling, Cut};

/// Any policy, any order that reads each sample once an epoch: what is found was in the cache when
/// the epoch began, and so at most a share of `c` is.
pub fn bound(c: f64) -> f64 {
    (1.0 - c).max(0.0)
}

/// The share of reads with `uw > t`.
fn found(t: f64) -> f64 {
    if t <= 0.0 {
        1.0
    } else if t >= 1.0 {
        0.0
    } else {
        1.0 - t + t * t.ln()
    }
}

/// Least recently used, mean over the turns between `epochs` epochs (two or more).
pub fn lru(c: f64, cut: Cut, bundling: Bundling, epochs: u64) -> f64 {
    let rows = cut.rows() as f64;
    let share = |bundle: u64| {
        let rows_of = cut.rows_of(bundle);
        (rows_of.end - rows_of.start) as f64 / rows
    };
    let shares: Vec<f64> = (0..cut.count()).map(share).collect();
    // Turns after even epochs, and after odd ones.
    let turns = [epochs / 2, epochs.saturating_sub(1) / 2];
    let misses = match bundling.within {
        WithinBundle::Reverse => [bound(c), alternating(c, shares.iter())],
        WithinBundle::Reshuffle if bundling.alternating => {
            // What was read last comes first: the last bundle after an even epoch.
            [alternating(c, shares.iter().rev()), alternating(c, shares.iter())]
        }
        WithinBundle::Reshuffle => [fixed(c, &shares); 2],
    };
    let sum = misses[0] * turns[0] as f64 + misses[1] * turns[1] as f64;
    sum / (turns[0] + turns[1]).max(1) as f64
}

/// Bundles that come in reverse, in the order in which they come: of those before depth `c` all is
/// found, of those behind it nothing. For bundles of equal size b that divide 1, with r the part
/// of the one at depth `c`: `1 - c - b (1 - r) ln(1 - r)`. Of one bundle: `(1 - c)(1 - ln(1 - c))`.
fn alternating<'a>(c: f64, shares: impl Iterator<Item = &'a f64>) -> f64 {
    let (mut depth, mut hits) = (0.0, 0.0);
    for share in shares {
        hits += share * found(1.0 - (c - depth) / share);
        depth += share;
    }
    1.0 - hits
}

/// Bundles that come in the same order: all others are read between two reads of a sample.
fn fixed(c: f64, shares: &[f64]) -> f64 {
    1.0 - shares.iter().map(|share| share * found((1.0 - c) / share)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::sampler::Order;

    fn of(c: f64, ratio: f64, alternating: bool, within: WithinBundle) -> f64 {
        let bundling = Bundling { ratio, alternating, within };
        let order = Order::new(100_000, 1, 1, 1).unwrap().bundled(bundling).unwrap();
        lru(c, order.cut(0), bundling, 31)
    }

    #[test]
    fn the_formulas_of_the_literature_are_special_cases() {
        use WithinBundle::{Reshuffle, Reverse};
        for c in [0.1, 0.25, 0.4, 0.6, 0.9f64] {
            let shuffled = (1.0 - c) * (1.0 - (1.0 - c).ln());
            for alternating in [false, true] {
                assert!((of(c, 1.0, alternating, Reshuffle) - shuffled).abs() < 1e-9);
            }
            for b in [0.5, 0.2, 0.1, 0.01f64] {
                let r = c / b - (c / b + 1e-9).floor();
                let wanted = if r < 1e-9 { 0.0 } else { -b * (1.0 - r) * (1.0 - r).ln() };
                assert!((of(c, b, true, Reshuffle) - (1.0 - c + wanted)).abs() < 1e-6, "{c} {b}");
                assert!((of(c, b, false, Reverse) - (1.0 - c + wanted / 2.0)).abs() < 1e-6);
                let outside = of(c, b, false, Reshuffle);
                assert!(outside <= 1.0 && (c > 1.0 - b || outside == 1.0));
            }
        }
        assert!((of(0.35, 0.1, true, Reshuffle) - 0.6848).abs() < 0.002);
        assert!(of(1.0, 0.1, false, Reshuffle).abs() < 1e-9);
        assert_eq!(of(0.0, 0.1, true, Reshuffle), 1.0);
    }
}
