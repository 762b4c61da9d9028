//! The recovery ladder: a pure machine that decides and the driver that performs it
//! over any `Communicator`.

use std::time::Duration;

use crate::config::{Point, Rung};

use super::comm::{CommError, Communicator};
use super::world::World;
use position::Position;
use set::SetIdentity;

pub mod driver;
pub mod machine;
pub mod position;
pub mod quorum;
mod rollcall;
pub mod seats;
pub mod set;
mod succession;
pub mod unproved;

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

/// What the driver needs of the process it repairs: what it holds and what is around it.
/// Everything is called on the communicating thread. What it is merely told has a default: it does
/// nothing.
pub trait Hooks: StateHolder + Environment {}

impl<T: StateHolder + Environment> Hooks for T {}

/// The state that a repair saves, and the steps it goes through in one.
pub trait StateHolder {
    /// The last committed step, or `None` while this process holds no state (a newcomer).
    fn committed_step(&self) -> Option<u64>;
    /// Whether this rank of the old world is one to count on: not one that leaves on purpose.
    fn stays(&self, _rank: usize) -> bool {
        true
    }
    /// What this process has listed of the run's data; one that has none of it is like all others.
    ///
    /// # Errors
    /// It cannot be listed: this process cannot become a rank.
    fn set(&mut self) -> Result<SetIdentity, CommError> {
        Ok(SetIdentity::default())
    }
    /// After a roll call: the step that everybody goes on from, which a spare does not know
    /// before.
    fn counted(&mut self, _step: u64) {}
    /// Told right before `InRestore` is reached: this process's rank in the repaired world, the
    /// rank that ships its state and the step that everybody goes on from, which a newcomer does
    /// not know before (fault injection's `who = "source"`, and `step` for newcomers).
    fn restoring(&mut self, _rank: usize, _source: usize, _step: u64) {}
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
}

/// What is around the process: a clock, a name, and those who want to hear of the repair.
pub trait Environment {
    /// Monotonic time.
    fn now(&self) -> Duration;
    /// Pid and host of this process, for the world table.
    fn identity(&self) -> (u32, String);
    /// The supervisor's node: of two equal parts of a world, the one that has it goes on. `None`
    /// where no part is preferred.
    fn home(&self) -> Option<String> {
        None
    }
    /// Arguments of a replacement; the communicator appends the join arguments.
    fn arguments(&self) -> Vec<String>;
    /// A point of the repair is reached (fault injection).
    fn reached(&mut self, point: Point);
    /// This process waited and gets a rank: what that needs can be made ready now. Told again when
    /// the seating has to be repeated.
    fn promoted(&mut self, _rank: usize) {}
    /// Something a person should read (a rung taken, a try that failed).
    fn note(&mut self, _note: Note) {}
    /// Nobody repairs this world any more: pid and host of those who answered its last roll call.
    fn gave_up(&mut self, _living: Vec<(u32, String)>) {}
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
    /// How far down the ladder it came.
    pub position: Position,
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
    /// The others do not take this newcomer: it leaves, they go on without.
    #[error("{0}")]
    Refused(String),
}
