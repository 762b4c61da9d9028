//! `[faults]`: what is broken on purpose, whom it strikes, where and when.

use serde::{Deserialize, Serialize};

use super::point::Point;
use super::units::Span;

/// What breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum FaultKind {
    Kill,
    Stop,
    Exit,
    Panic,
    Segv,
    Oom,
    DeviceError,
    Deadlock,
    Loop,
    Slow,
    Nan,
    BitFlip,
}

/// Whom it strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    /// The rank named by `rank`.
    Rank,
    /// The lowest live rank.
    Leader,
    /// A process that is joining.
    Newcomer,
    /// The rank that ships its state to a newcomer.
    Source,
    /// A waiting spare.
    Spare,
}

/// One planned fault. Exactly one of `step` and `seconds` is given.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedFault {
    /// What breaks.
    pub kind: FaultKind,
    /// Whom it strikes.
    #[serde(default = "by_rank")]
    pub who: Who,
    /// With `who = "rank"`.
    #[serde(default)]
    pub rank: u32,
    /// Strikes while this step is computed (at a point of a repair: repaired).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u64>,
    /// Strikes at this many seconds since the run's first start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Where; unset = at the first point reached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Point>,
    /// With `kind = "slow"`: what the rank is held up by in every forward pass from then on, each
    /// of its owners'; 50 ms where unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pause: Option<Span>,
}

fn by_rank() -> Who {
    Who::Rank
}

/// `[faults]`
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Mean seconds between random SIGKILLs; unset = none.
    pub mtbf_seconds: Option<f64>,
    /// Of the random ones.
    pub seed: u64,
    /// Exact ones.
    pub plan: Vec<PlannedFault>,
}
