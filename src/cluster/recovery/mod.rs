//! The recovery ladder: a pure machine that decides and the driver that performs it
//! over any `Communicator`.

use std::time::Duration;

use crate::config::{Point, Rung};

use super::comm::{CommError, Communicator};
use super::world::World;
use descent::Descent;
use set::SetIdentity;

pub mod driver;
pub mod machine;
pub mod descent;
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
    /// Ranks from here on leave on purpose: nobody counts on them.
    pub leave_from: Option<usize>,
    /// The supervisor's node: of two equal parts of a world, the one that has it goes on. `None`
    /// where no part is preferred.
    pub home: Option<String>,
}

impl Policy {
    /// These rungs; any number of ranks is a world, and all of them are to stay.
    pub fn new(ladder: Vec<Rung>, tries_max: u32, limit: Duration) -> Self {
        Self { ladder, tries_max, limit, ranks_min: 1, leave_from: None, home: None }
    }
}

/// Who takes part in a repair.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Participant {
    /// Its process.
    pub pid: u32,
    /// Where that runs.
    pub host: String,
    /// Arguments of a replacement; the communicator appends the join arguments.
    pub arguments: Vec<String>,
}

/// What the driver needs of the process it repairs. Everything is called on the communicating
/// thread.
pub trait Hooks {
    /// Monotonic time.
    fn now(&self) -> Duration;
    /// Who this process is.
    fn who(&self) -> &Participant;
    /// The last committed step, or `None` while this process holds no state (a newcomer).
    fn committed_step(&self) -> Option<u64>;
    /// What this process has listed of the run's data; one that has none of it is like all others.
    ///
    /// # Errors
    /// It cannot be listed: this process cannot become a rank.
    fn set(&mut self) -> Result<SetIdentity, CommError> {
        Ok(SetIdentity::default())
    }
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
    /// Where the repair stands.
    fn tell(&mut self, remark: Remark);
}

/// What a process is told of its repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Remark {
    /// It is at this point (fault injection).
    Reached(Point),
    /// After a roll call: the step that everybody goes on from, which a spare does not know
    /// before.
    Counted(u64),
    /// This process waited and gets this rank: what that needs can be made ready now. Told again
    /// when the seating has to be repeated.
    Promoted(usize),
    /// Right before `InRestore` is reached: this process's rank in the repaired world, the rank
    /// that ships its state and the step that everybody goes on from, which a newcomer does not
    /// know before (fault injection's `who = "source"`, and `step` for newcomers).
    #[allow(missing_docs)]
    Restoring { rank: usize, source: usize, step: u64 },
}

/// What a person should read of a repair: a rung taken, a try that failed.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Note {
    RungDown { from: Rung, to: Rung, reason: String },
    Retry { rung: Rung, reason: String },
}

impl Note {
    fn of(from: Rung, to: Rung, reason: String) -> Self {
        if to == from {
            Self::Retry { rung: to, reason }
        } else {
            Self::RungDown { from, to, reason }
        }
    }
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
    pub descent: Descent,
    /// Seconds by phase: revoke_shrink, spawn, merge, agree, restore.
    pub seconds: crate::observe::event::Phases,
    /// What a person should read of it.
    pub notes: Vec<Note>,
}

/// Recovery is at its end: the supervisor has to start again (exit 75).
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{reason}")]
pub struct GaveUp {
    /// Whom this process leaves behind.
    pub leaves: Leaves,
    /// Why.
    pub reason: String,
    /// What a person should read of the repair until then.
    pub notes: Vec<Note>,
    /// Pid and host of those who answered the last roll call.
    pub living: Vec<(u32, String)>,
}

/// Whom a process that gives up leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaves {
    /// Nobody goes on: no rung is left, or all state is lost.
    WithAll,
    /// The others may be training on, on more nodes: it must leave without writing anything.
    Outvoted,
    /// The others do not take this newcomer: it leaves, they go on without.
    Refused,
}
