//! How a simulated run gets its samples: from files of one or of several, staged, cached, in
//! bundles, on how many nodes. Who waits for a micro-batch copies it, so that nothing depends on
//! threads.

use std::path::PathBuf;

use kintsugi_ffi::mapping::PAGE_BYTES;

use crate::config::seed::{self, Stream};
use crate::config::{Bytes, CachePolicy, CacheSize, Config, Pace, Rate, StagingMode, WithinBundle};

/// Nodes of a run, at most.
pub const NODES_MAX: u64 = 3;
/// Copies are made as fast as they can be.
const RATE: Rate = Rate(u64::MAX);
/// Samples of a file of several.
const SHARD_SAMPLES: u64 = 5;
/// Runs with a cache.
const CACHED_ONE_IN: u64 = 2;

/// How a run gets its samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plane {
    /// Files of the set.
    pub layout: Layout,
    /// Nodes that processes are spread over; 0: each has its own.
    nodes: u64,
}

impl Plane {
    /// Draws one, and writes it into the configuration. Order and bundles are part of the
    /// arithmetic; all else never shows in a bit.
    pub fn draw(draws: &mut Stream, samples: u64, config: &mut Config) -> Self {
        let layout = match draws.below(2) {
            0 => Layout::FileEach,
            _ => Layout::Shards(SHARD_SAMPLES),
        };
        config.staging.mode = match draws.below(5) {
            0 => StagingMode::None,
            1 => StagingMode::Before,
            _ => StagingMode::During,
        };
        (config.staging.workers, config.staging.keep) = (0, true);
        config.staging.rate = Pace::Rate(RATE);
        let cached = draws.below(CACHED_ONE_IN) == 0;
        let pages = if draws.below(2) == 0 { samples } else { 1 + draws.below(samples / 2) };
        if cached {
            config.data.cache = CacheSize::Bytes(Bytes(pages * PAGE_BYTES as u64));
        }
        if draws.below(2) == 0 {
            config.data.cache_policy = CachePolicy::Lru;
        }
        match draws.below(3) {
            0 => {}
            1 => (config.data.bundle_ratio, config.data.alternating) = (0.5, true),
            _ => {
                config.data.bundle_ratio = 0.34;
                config.data.within_bundle = WithinBundle::Reverse;
            }
        }
        Self { layout, nodes: draws.below(1 + NODES_MAX) }
    }

    /// The node of a process.
    pub fn node(&self, process: usize) -> u64 {
        match self.nodes {
            0 => process as u64,
            nodes => seed::key(&[process as u64]) % nodes,
        }
    }
}

/// Which samples lie in one file, one behind the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// All.
    OneFile,
    /// So many, as in a tar shard.
    Shards(u64),
    /// One, as in an image folder.
    FileEach,
}

impl Layout {
    /// The file of a sample, and its place there.
    pub fn place(self, id: u64) -> (PathBuf, u64) {
        let (file, at) = match self {
            Self::OneFile => (0, id),
            Self::Shards(each) => (id / each, id % each),
            Self::FileEach => (id, 0),
        };
        (format!("samples-{file}").into(), at)
    }
}
