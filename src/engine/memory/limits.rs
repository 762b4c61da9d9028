//! What an engine may hold of the near tier, and what becomes of what it may not.

use std::path::PathBuf;
use std::time::Duration;

use super::far::Place;
use super::unified::Paging;
use crate::config::{Config, Device, ExchangeKind, Granularity, Memory, MemoryMode, Rate};
use crate::engine::error::EngineError;
use crate::engine::plan::operation::Direction;
use crate::observe::spans::amount;

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
    /// Where copies of weights may lie.
    pub weights: WeightCopies,
}

/// Where an engine has its copies of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightCopies {
    /// Beside the values of a pass, for all passes.
    Apart,
    /// Among them: those for which there is no room go, and are loaded where they are read.
    Placed,
}

impl Limits {
    /// Of each of `workers` workers of a rank of a run.
    pub fn of(config: &Config, workers: usize) -> Self {
        let limits = Self::of_worker(&config.device, &config.memory, workers);
        match config.train.exchange {
            ExchangeKind::Synchronous => limits,
            // A micro-batch during which the state changes has copies of all weights.
            ExchangeKind::Asynchronous => Self { weights: WeightCopies::Apart, ..limits },
        }
    }

    /// The same by the sections that matter; the state does not change during a pass.
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
            weights: WeightCopies::Placed,
        }
    }

    /// Waits for as long as the link takes for what a step uses in the far tier, by way.
    pub fn pace(&self, crossing_bytes: [u64; 2]) {
        for (bytes, rate) in crossing_bytes.into_iter().zip(self.link) {
            if let Some(rate) = rate.filter(|_| bytes > 0) {
                std::thread::sleep(Duration::from_secs_f64(bytes as f64 / rate.0.max(1) as f64));
            }
        }
    }

    /// Where copies of weights lie. Among the values only where these have a budget; a pager has
    /// rules of its own.
    pub fn copies(&self) -> WeightCopies {
        match self.mode {
            MemoryMode::Unified => WeightCopies::Apart,
            _ if self.budget_bytes.is_none() => WeightCopies::Apart,
            _ => self.weights,
        }
    }

    /// Everything stays, whatever it takes.
    pub fn none() -> Self {
        Self::of_worker(&Device::default(), &Memory::default(), 1)
    }

    /// Everything stays within a budget that has room for all: copies of weights count as they do
    /// within a smaller one.
    pub fn ample() -> Self {
        Self { budget_bytes: Some(usize::MAX), ..Self::none() }
    }

    /// The same for passes of this direction.
    pub fn in_direction(&self, direction: Direction) -> Self {
        match direction {
            Direction::Training => self.clone(),
            // Nothing waits for a backward pass.
            Direction::Inference => {
                Self { mode: MemoryMode::InCore, weights: self.copies(), ..self.clone() }
            }
        }
    }

    /// Of a budget that is less than a micro-batch takes at the least; `most`: where most of it
    /// lives.
    pub fn refusal(
        &self,
        samples: usize,
        direction: Direction,
        wanted_bytes: usize,
        most: &str,
    ) -> EngineError {
        let budget = self.budget_bytes.unwrap_or(0);
        let (what, instead) = match (direction, self.mode) {
            (Direction::Inference, _) => ("evaluation of", ", or lower evaluation.batch"),
            (_, MemoryMode::Unified) if self.far != Place::Ram => (
                "a micro-batch of",
                ", set memory.far = \"ram\", which may hold less near, or raise train.accumulate",
            ),
            (_, MemoryMode::Planned | MemoryMode::Unified) => {
                ("a micro-batch of", ", or raise train.accumulate")
            }
            _ => (
                "a micro-batch of",
                ", set memory.mode = \"planned\", which may hold less, or raise \
                 train.accumulate",
            ),
        };
        EngineError::Refused(format!(
            "device.memory_budget: {what} {samples} samples takes {wanted_bytes} B ({}) of the \
             near tier at the least with memory.mode = {} ({most}), and a worker may take \
             {budget} B ({}): raise device.memory_budget, which a rank's workers share{instead}",
            amount(wanted_bytes as u64),
            shown(self.mode),
            amount(budget as u64),
        ))
    }
}

/// As it is written.
fn shown(mode: MemoryMode) -> String {
    toml::Value::try_from(mode).map_or_else(|_| format!("{mode:?}"), |mode| mode.to_string())
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
