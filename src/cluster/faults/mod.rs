//! The fault plan: which fault strikes whom, where, when (pure: `plan`), and its injection.

use crate::config::{FaultKind, Point};

pub mod inject;
pub mod plan;
pub mod strike;

pub use inject::{FOLDER as FAULTS_FOLDER, Injector};
pub use strike::RealStrike;

/// Where a process stands when it asks whether a fault strikes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Standing {
    /// Its rank (in recovery: the rank it has or will have).
    pub rank: u32,
    /// Ranks of the world.
    pub ranks: u32,
    /// Steps committed so far; the step being computed or repaired is `step + 1`.
    pub step: u64,
    /// Whether it is joining or has not yet committed a step since it joined.
    pub newcomer: bool,
    /// Whether it ships state in this repair.
    pub source: bool,
    /// Whether it is a waiting spare.
    pub spare: bool,
}

/// Makes a fault real: SIGKILL of this process, an exit, a panic; in simulation the death of a
/// simulated rank. Returns for kinds that are performed elsewhere (nan, bit_flip, slow).
pub trait Strike: Send + Sync {
    /// Strikes.
    fn strike(&self, kind: FaultKind, point: Point);
}
