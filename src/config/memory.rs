//! What becomes of values that do not fit the near tier of memory.

use serde::{Deserialize, Serialize};

use super::units::Rate;

/// `[memory]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Memory {
    /// What becomes of values that the backward pass reads. No bit depends on it.
    pub mode: MemoryMode,
    /// `"ram"`, or a folder for a spill file: where values lie that do not stay.
    pub far: String,
    /// Paces copies in each direction, for experiments; unset: as fast as they go.
    pub link: Option<Rate>,
    /// What the modes `"swap_sync"` and `"swap"` move together.
    pub granularity: Granularity,
    /// Parts that the mode `"swap"` brings back ahead of the backward pass.
    pub window: u32,
    /// What the trainer says of transfers in the mode `"unified"`.
    pub design: MemoryDesign,
    /// Whom that mode's pager takes when it needs room.
    pub policy: MemoryPolicy,
}

impl Default for Memory {
    fn default() -> Self {
        Self {
            mode: MemoryMode::InCore,
            far: Self::RAM.into(),
            link: None,
            granularity: Granularity::Layer,
            window: 1,
            design: MemoryDesign::Full,
            policy: MemoryPolicy::Driver,
        }
    }
}

impl Memory {
    /// The far tier that is memory of the host.
    pub const RAM: &str = "ram";
}

/// What becomes of values that the backward pass reads (Imai et al., section 3; beyond them
/// recomputation and the planner).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryMode {
    /// They stay.
    #[serde(alias = "resident")]
    InCore,
    /// They are copied to the far tier and back, and computing waits for each copy.
    SwapSync,
    /// The same, beside computing.
    Swap,
    /// They are computed again, as far as the budget asks.
    Recompute,
    /// Each stays, is swapped or is computed again, as the budget and measured times ask.
    Planned,
    /// A pager moves whatever a step touches, as under CUDA's managed memory (Negishi et al.).
    Unified,
}

impl MemoryMode {
    /// Whether values are copied to the far tier.
    pub fn swaps(self) -> bool {
        matches!(self, Self::SwapSync | Self::Swap | Self::Planned | Self::Unified)
    }

    /// Whether steps are computed again.
    pub fn recomputes(self) -> bool {
        matches!(self, Self::Recompute | Self::Planned)
    }

    /// Whether the budget decides what leaves.
    pub fn fits_a_budget(self) -> bool {
        matches!(self, Self::Recompute | Self::Planned | Self::Unified)
    }
}

/// Who orders transfers under unified memory (Negishi et al., section 4). The third design, direct
/// instruction, is what the other modes do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryDesign {
    /// The pager alone: full dependence.
    Full,
    /// Division of labour: before the backward pass the trainer prefetches all that it will read,
    /// the first of it last.
    Division,
    /// It prefetches each value after use, while it is there: nothing moves but its rank.
    DivisionInPlace,
    /// And discards what nothing reads any more.
    DivisionWithDiscard,
}

/// Which of the values that are there leaves first.
// Its comments are what `--help` says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum MemoryPolicy {
    /// Order of allocation, migration and prefetch, not of access
    #[default]
    Driver,
    /// Least recently used, by access too
    Lru,
    /// Whose next use is furthest
    Belady,
}

/// What is moved together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Granularity {
    /// What one layer leaves.
    Layer,
    /// What the layers leave between two results that several others read.
    Coarse,
}
