//! `kintsugi simulate cache`: how often a node's cache misses under the orders that training can
//! take (Lee and Bahn, Fig. 4). The order is the one that runs use; policies are played over it or
//! computed. Samples have the same size, or that of files. Pure; nothing reads a clock.

use serde::Serialize;

use crate::config::WithinBundle;
use crate::data::DataError;
use crate::data::sampler::{Bundling, Order};

pub mod figure4;
pub mod forms;
pub mod lru;
pub mod page;
pub mod policies;
pub mod sizes;
pub mod trace;

use sizes::Sizes;
use trace::{Assignment, Trace, traces};

/// Cache sizes of the published simulator, as shares of the set.
pub const AUTHORS_GRID: [f64; 9] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];
/// The sizes under which the published mean and maximum come out.
pub const SMALL_GRID: [f64; 9] = [0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4];
/// Most reads of one order: its trace is kept in memory.
pub const READS_MAX: u64 = 1 << 28;

/// What a full cache does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Policy {
    Lru,
    Keep,
    Belady,
    #[serde(rename = "2q")]
    TwoQueues,
}

/// All that are compared.
pub const POLICIES: [Policy; 4] = [Policy::Lru, Policy::Keep, Policy::Belady, Policy::TwoQueues];
/// The one that the paper plays: a kernel's page cache drops what was used least recently.
pub const OF_THE_PAPER: [Policy; 1] = [Policy::Lru];

/// What is played.
#[derive(Debug, Clone, PartialEq, clap::Args)]
pub struct Setting {
    /// Epochs; caches are cold in the first
    #[arg(long, value_name = "N", default_value_t = 30)]
    pub epochs: u64,
    /// Virtual owners (`train.owners`)
    #[arg(long, value_name = "V", default_value_t = 8)]
    pub owners: u32,
    /// Numbers of nodes; Belady and 2Q are played on the first
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [1, 4])]
    pub nodes: Vec<u32>,
    /// Bundle ratios (`data.bundle_ratio`)
    #[arg(long = "bundle-ratios", value_name = "B,...", value_delimiter = ',',
        default_values_t = [0.5, 0.2, 0.1, 0.05, 0.01])]
    pub ratios: Vec<f64>,
    /// `run.seed`
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,
}

/// One cache under one order.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// What a full cache does.
    pub policy: Policy,
    /// Blocks of all nodes' caches together, as a share of the set's.
    pub cache: f64,
    /// The order.
    #[serde(flatten)]
    pub bundling: Bundling,
    /// Nodes, each with a cache of its own.
    pub nodes: u32,
    /// Which node reads a sample.
    pub assignment: Assignment,
    /// Share of the blocks read after the first epoch that miss.
    pub miss: f64,
    /// The same with the first epoch, which finds nothing.
    pub miss_with_cold: f64,
    /// `miss` from a formula; `None` where there is none.
    pub closed_form: Option<f64>,
}

/// The sizes of both grids, from the smallest.
pub fn cache_sizes() -> Vec<f64> {
    let mut sizes = [SMALL_GRID, AUTHORS_GRID].concat();
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    sizes
}

/// The orders that are compared, the global shuffle first.
pub fn bundlings(ratios: &[f64]) -> Vec<Bundling> {
    let whole = Bundling::WHOLE;
    let mut all = vec![whole, Bundling { within: WithinBundle::Reverse, ..whole }];
    all.extend(ratios.iter().map(|&ratio| Bundling { ratio, alternating: true, ..whole }));
    if let Some(&ratio) = ratios.iter().find(|ratio| **ratio == 0.1).or(ratios.first()) {
        all.push(Bundling { ratio, ..whole });
        all.push(Bundling { ratio, alternating: true, within: WithinBundle::Reverse });
    }
    all
}

/// One order, played under all policies, sizes and numbers of nodes.
struct Case {
    bundling: Bundling,
    order: Order,
    /// The same over one owner, whose positions are dealt to nodes in turn.
    undivided: Order,
}

/// Plays everything, on as many threads as there are cores. The rows of all orders, in their
/// order: the same whatever the threads did.
pub fn play(setting: &Setting, policies: &[Policy], sizes: &Sizes) -> Result<Vec<Row>, DataError> {
    let samples = sizes.samples() as u64;
    let cases = bundlings(&setting.ratios)
        .into_iter()
        .map(|bundling| {
            let of = |owners| {
                Order::new(samples, owners, setting.seed, samples)
                    .and_then(|order| order.bundled(bundling))
            };
            Ok(Case { bundling, order: of(setting.owners)?, undivided: of(1)? })
        })
        .collect::<Result<Vec<Case>, DataError>>()?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let mut rows = Vec::new();
    // No more at once than there are processors: the trace of each is in memory.
    for some in cases.chunks(threads) {
        std::thread::scope(|scope| {
            let played: Vec<_> = some
                .iter()
                .map(|case| scope.spawn(|| case.rows(setting, policies, sizes)))
                .collect();
            let played = played.into_iter().map(|case| case.join().expect("nothing panics in it"));
            rows.extend(played.flatten());
        });
    }
    Ok(rows)
}

impl Case {
    fn rows(&self, setting: &Setting, all: &[Policy], sizes: &Sizes) -> Vec<Row> {
        let mut rows = Vec::new();
        let quick = |policy: &&Policy| matches!(policy, Policy::Lru | Policy::Keep);
        let quick: Vec<Policy> = all.iter().filter(quick).copied().collect();
        for (index, &nodes) in setting.nodes.iter().enumerate() {
            let policies = if index == 0 { all } else { &quick };
            let mut play = |assignment, policies: &[Policy]| {
                let order = match assignment {
                    Assignment::Owners => &self.order,
                    Assignment::Strided => &self.undivided,
                };
                let traces = traces(order, setting.epochs, nodes, assignment);
                for &policy in policies {
                    let missed = misses(policy, &traces, sizes);
                    let of = (policy, nodes, assignment);
                    let row = |(cache, missed)| self.row(setting, sizes, of, cache, missed);
                    rows.extend(cache_sizes().into_iter().zip(missed).map(row));
                }
            };
            play(Assignment::Owners, policies);
            if nodes > 1 {
                play(Assignment::Strided, &quick);
            }
        }
        rows
    }

    fn row(
        &self,
        setting: &Setting,
        sizes: &Sizes,
        (policy, nodes, assignment): (Policy, u32, Assignment),
        cache: f64,
        missed: u64,
    ) -> Row {
        let (blocks, epochs) = (sizes.total() as f64, setting.epochs as f64);
        let bundling = self.bundling;
        let closed_form = match policy {
            // A sample that changes its node is another matter.
            _ if assignment == Assignment::Strided => None,
            Policy::Lru => Some(forms::lru(cache, self.order.cut(0), bundling, setting.epochs)),
            Policy::Keep | Policy::Belady => Some(forms::bound(cache)),
            Policy::TwoQueues => None,
        };
        Row {
            policy,
            cache,
            bundling,
            nodes,
            assignment,
            miss: missed as f64 / (blocks * (epochs - 1.0)),
            miss_with_cold: (missed as f64 + blocks) / (blocks * epochs),
            closed_form,
        }
    }
}

/// Blocks that all nodes miss together after the first epoch, by the size of the cache.
fn misses(policy: Policy, traces: &[Trace], sizes: &Sizes) -> Vec<u64> {
    let nodes = traces.len() as f64;
    let places = |cache| (cache * sizes.total() as f64 / nodes + 1e-9) as u64;
    let places: Vec<u64> = cache_sizes().into_iter().map(places).collect();
    let each = |of: fn(&Trace, &Sizes, u64) -> u64, trace: &Trace| -> Vec<u64> {
        places.iter().map(|&places| of(trace, sizes, places)).collect()
    };
    let of = |trace: &Trace| match policy {
        Policy::Lru => lru::lru(trace, sizes, &places),
        Policy::Keep => each(policies::keep, trace),
        Policy::Belady => each(policies::belady, trace),
        Policy::TwoQueues => each(policies::two_queues, trace),
    };
    let add = |sum: Vec<u64>, more: Vec<u64>| sum.iter().zip(more).map(|(a, b)| a + b).collect();
    traces.iter().map(of).fold(vec![0; places.len()], add)
}

#[cfg(test)]
mod tests;
