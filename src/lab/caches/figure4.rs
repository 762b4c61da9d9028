//! Fig. 4 of Lee and Bahn: how much less an LRU cache misses under an order than under the global
//! shuffle, over a grid of cache sizes.

use serde::Serialize;

use super::trace::Assignment;
use super::{AUTHORS_GRID, Policy, Row, SMALL_GRID};
use crate::config::WithinBundle;
use crate::data::sampler::Bundling;

/// The best improvement that the paper states (Food101), and its mean there.
pub const PAPER_BEST: f64 = 0.339;
/// See [`PAPER_BEST`].
pub const PAPER_MEAN: f64 = 0.163;

/// The improvement of one order over a grid.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Improvement {
    /// "10..90 %" or "0..40 %".
    pub grid: &'static str,
    /// Whether the first epoch counts.
    pub cold_epoch: bool,
    /// The order.
    #[serde(flatten)]
    pub bundling: Bundling,
    /// The largest, as a share of the global shuffle's misses.
    pub best: f64,
    /// The cache size it is at.
    pub best_at: f64,
    /// The mean over the grid.
    pub mean: f64,
}

/// Of every order but the global shuffle, on both grids, without and with the cold epoch; LRU on
/// `nodes` nodes with owners.
pub fn improvements(rows: &[Row], nodes: u32) -> Vec<Improvement> {
    let lru: Vec<&Row> = rows
        .iter()
        .filter(|row| row.policy == Policy::Lru && row.nodes == nodes)
        .filter(|row| row.assignment == Assignment::Owners)
        .collect();
    let mut orders = Vec::new();
    for row in lru.iter().filter(|row| row.bundling != Bundling::WHOLE) {
        if !orders.contains(&row.bundling) {
            orders.push(row.bundling);
        }
    }
    let mut all = Vec::new();
    for (grid, sizes) in [("10..90 %", AUTHORS_GRID), ("0..40 %", SMALL_GRID)] {
        for cold_epoch in [false, true] {
            let miss = |of: Bundling, size: f64| {
                let row = lru.iter().find(|row| row.bundling == of && row.cache == size)?;
                Some(if cold_epoch { row.miss_with_cold } else { row.miss })
            };
            for &of in &orders {
                let gains = sizes.iter().filter_map(|&size| {
                    let base = miss(Bundling::WHOLE, size)?;
                    Some((1.0 - miss(of, size)? / base, size))
                });
                let gains: Vec<(f64, f64)> = gains.filter(|gain| gain.0.is_finite()).collect();
                let Some(best) = gains.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0)) else {
                    continue;
                };
                let mean = gains.iter().map(|gain| gain.0).sum::<f64>() / gains.len() as f64;
                let (best, best_at) = best;
                all.push(Improvement { grid, cold_epoch, bundling: of, best, best_at, mean });
            }
        }
    }
    all
}

/// The largest of the paper's method, alternating bundles; of equals the first.
pub fn best(improvements: &[Improvement]) -> Option<&Improvement> {
    let method = |gain: &&Improvement| {
        gain.bundling.alternating && gain.bundling.within == WithinBundle::Reshuffle
    };
    improvements.iter().filter(method).rev().max_by(|a, b| a.best.total_cmp(&b.best))
}
