//! `RUN/ledger.jsonl`: one line per committed step, from what was *summed*; a rollback is a line
//! too. `kintsugi audit` compares it with the order (DESIGN 4.7).

use serde::{Deserialize, Serialize};

/// A line.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    /// A committed step.
    Step(Committed),
    /// The run went back: steps after `to` no longer count.
    Rollback {
        /// Steps that still count.
        to: u64,
        /// The attempt that starts there.
        attempt: u32,
    },
}

/// What one committed step summed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Committed {
    /// Steps committed with this one (the first line has 1).
    pub step: u64,
    /// The epoch it belonged to.
    pub epoch: u64,
    /// Samples committed in the whole run, this step included.
    pub cursor: u64,
    /// Samples whose gradients entered the sum, skipped ones included.
    pub count: u64,
    /// Of them, images that could not be decoded.
    pub skipped: u64,
    /// Wrapping sum over the samples of `data::sampler::mix(epoch, id)`.
    pub mix: u64,
    /// Writer's attempt.
    pub attempt: u32,
}
