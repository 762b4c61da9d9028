//! What an engine may hold of the near tier, and what becomes of what it may not.

use std::path::PathBuf;

use super::far::Place;
use super::unified::Paging;
use crate::config::{Device, Granularity, Memory, MemoryMode, Rate};

/// Of one worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    /// How values leave.
    pub mode: MemoryMode,
    /// Bytes of activations, scratch and copies of weights; `None`: as many as there are.
    pub budget_bytes: Option<usize>,
    /// Where the others lie.
    pub far: Place,
    /// Paces copies out, and back.
    pub link: [Option<Rate>; 2],
    /// What is moved together.
    pub granularity: Granularity,
    /// Parts that come back ahead.
    pub window: usize,
    /// How unified memory is paged.
    pub paging: Paging,
}

impl Limits {
    /// Of each of `workers` workers of a rank.
    pub fn of_worker(device: &Device, memory: &Memory, workers: usize) -> Self {
        let budget = device.memory_budget.map(|budget| budget.0 as usize / workers.max(1));
        Self {
            mode: memory.mode,
            budget_bytes: budget,
            far: match memory.far.as_str() {
                Memory::RAM => Place::Ram,
                folder => Place::File(PathBuf::from(folder)),
            },
            link: [memory.link; 2],
            granularity: memory.granularity,
            window: memory.window as usize,
            paging: Paging { design: memory.design, policy: memory.policy },
        }
    }

    /// Everything stays, whatever it takes.
    pub fn none() -> Self {
        Self::of_worker(&Device::default(), &Memory::default(), 1)
    }
}

/// What an engine holds while it trains on a micro-batch, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Values between layers, forward and backward.
    pub activations_bytes: u64,
    /// Copies of weights as its kernels want them to lie, where the state's lie otherwise.
    pub weights_bytes: u64,
    /// Values that do not stay, in the far tier.
    pub far_bytes: u64,
}
