//! Fig. 4 of Lee and Bahn: how much less an LRU cache misses under an order than under the global
//! shuffle, over a grid of cache sizes.

use serde::Serialize;

use super::trace::Assignment;
use super::{AUTHORS_GRID, Policy, Row, SMALL_GRID};
use crate::config::WithinBundle;
use crate::data::sampler::Bundling;

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

/// Misses of an order as shares of the global shuffle's.
#[derive(Debug, Clone, PartialEq)]
pub struct Relative {
    /// The order.
    pub bundling: Bundling,
    /// Whether the first epoch counts.
    pub cold_epoch: bool,
    /// Sizes of the cache, and the share there.
    pub points: Vec<(f64, f64)>,
}

/// Of every order but the global shuffle, without and with the cold epoch; LRU on `nodes` nodes
/// with owners.
pub fn relative(rows: &[Row], nodes: u32) -> Vec<Relative> {
    let lru: Vec<&Row> = rows
        .iter()
        .filter(|row| row.policy == Policy::Lru && row.nodes == nodes)
        .filter(|row| row.assignment == Assignment::Owners)
        .collect();
    let (usual, others): (Vec<&Row>, Vec<&Row>) =
        lru.into_iter().partition(|row| row.bundling == Bundling::WHOLE);
    let mut all = Vec::new();
    for cold_epoch in [false, true] {
        let miss = |row: &Row| if cold_epoch { row.miss_with_cold } else { row.miss };
        for own in others.chunk_by(|a, b| a.bundling == b.bundling) {
            let share = |row: &&Row| {
                let base = usual.iter().find(|base| base.cache == row.cache)?;
                Some((row.cache, miss(row) / miss(base))).filter(|point| point.1.is_finite())
            };
            let (bundling, points) = (own[0].bundling, own.iter().filter_map(share).collect());
            all.push(Relative { bundling, cold_epoch, points });
        }
    }
    all
}

/// What they come to on both grids.
pub fn improvements(relative: &[Relative]) -> Vec<Improvement> {
    let mut all = Vec::new();
    for (grid, sizes) in [("10..90 %", AUTHORS_GRID), ("0..40 %", SMALL_GRID)] {
        for &Relative { bundling, cold_epoch, ref points } in relative {
            let gains = points.iter().filter(|point| sizes.contains(&point.0));
            let gains: Vec<(f64, f64)> = gains.map(|&(size, share)| (1.0 - share, size)).collect();
            let Some(best) = gains.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0)) else {
                continue;
            };
            let mean = gains.iter().map(|gain| gain.0).sum::<f64>() / gains.len() as f64;
            let (best, best_at) = best;
            all.push(Improvement { grid, cold_epoch, bundling, best, best_at, mean });
        }
    }
    all
}

/// Whether an order is the paper's: alternating bundles.
pub fn is_method(order: Bundling) -> bool {
    order.alternating && order.within == WithinBundle::Reshuffle
}

/// The largest of the paper's method, alternating bundles; of equals the first.
pub fn best(improvements: &[Improvement]) -> Option<&Improvement> {
    let method = improvements.iter().filter(|gain| is_method(gain.bundling));
    method.rev().max_by(|a, b| a.best.total_cmp(&b.best))
}
