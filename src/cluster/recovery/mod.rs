//! The recovery ladder: a pure machine that decides and the driver that performs it
//! over any `Communicator`.

use std::time::Duration;

use crate::config::{Phase, Rung};

use super::comm::{CommError, Communicator};
use super::world::World;

pub mod driver;
pub mod machine;
pub mod quorum;
mod rollcall;
pub mod seats;
mod succession;

pub use driver::{Called, answer_call, join, recover};

/// What recovery may do, in which order, how often.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Rungs in order.
    pub ladder: Vec<Rung>,
    /// Tries per rung before the next one.
    pub tries_max: u32,
    /// Longest whole repair.
    pub limit: Duration,
    /// Fewer ranks than this are no world: the rung below "shrink" is taken.
    pub ranks_min: usize,
}

/// What the driver needs of the process it repairs. Everything is called on the communicating
/// thread.
pub trait Hooks {
    /// A point of the repair is reached (fault injection).
    fn reached(&mut self, phase: Phase);
    /// Told right before `InRestore` is reached: this process's rank in the repaired world, the
    /// rank that ships its state and the step that everybody goes on from, which a newcomer does
    /// not know before (fault injection's `who = "source"`, and `step` for newcomers).
    fn restoring(&mut self, _rank: usize, _source: usize, _step: u64) {}
    /// After a roll call: the step that everybody goes on from, which a spare does not know
    /// before.
    fn counted(&mut self, _step: u64) {}
    /// Nobody repairs this world any more: pid and host of those who answered its last roll call.
    fn gave_up(&mut self, _living: Vec<(u32, String)>) {}
    /// This process waited and gets a rank: what that needs can be made ready now. Told again when
    /// the seating has to be repeated.
    fn promoted(&mut self, _rank: usize) {}
    /// Monotonic time.
    fn now(&self) -> Duration;
    /// Arguments of a replacement; the communicator appends the join arguments.
    fn arguments(&self) -> Vec<String>;
    /// The last committed step, or `None` while this process holds no state (a newcomer).
    fn committed_step(&self) -> Option<u64>;
    /// Called on every rank of the repaired world that has newcomers: `source` ships, each of
    /// `receivers` (ascending, never empty) receives into scratch; others return at once.
    /// Survivors keep their state whatever happens.
    fn transfer(
        &mut self,
        comm: &mut dyn Communicator,
        source: usize,
        receivers: &[usize],
        step: u64,
    ) -> Result<(), CommError>;
    /// After a successful agreement: receivers swap the scratch in.
    fn adopt(&mut self, world: &World);
    /// Whether this rank of the old world is one to count on: not one that leaves on purpose.
    fn stays(&self, _rank: usize) -> bool {
        true
    }
    /// The supervisor's node: of two equal parts of a world, the one that has it goes on.
    fn home(&self) -> Option<String> {
        None
    }
    /// Pid and host of this process, for the world table.
    fn identity(&self) -> (u32, String);
    /// Something a person should read (a rung taken, a try that failed).
    fn note(&mut self, note: Note);
}

/// What a repair says while it runs.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Note {
    RungDown { from: Rung, to: Rung, reason: String },
    Retry { rung: Rung, reason: String },
}

/// A finished repair.
#[derive(Debug, Clone, PartialEq)]
pub struct Repaired {
    /// The rung that did it.
    pub rung: Rung,
    /// Members that died, with the rank they had and their host.
    pub lost: Vec<super::world::Member>,
    /// The step every rank now goes on from.
    pub step: u64,
    /// Seconds by phase: revoke_shrink, spawn, merge, agree, restore.
    pub seconds: crate::observe::event::Phases,
}

/// Recovery is at its end: the supervisor has to start again (exit 75).
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GaveUp {
    /// No rung is left, or nobody can go on.
    #[error("recovery gave up: {0}")]
    Ladder(String),
    /// The others may be training on: this process must leave without writing anything.
    #[error("{0}")]
    Minority(String),
}
