//! One rank: who it is in which world, and what it holds of the run.

use std::sync::Arc;

use crate::cluster::comm::Membership;
use crate::cluster::processors::claim;
use crate::cluster::recovery::GaveUp;
use crate::cluster::world::{Member, World};
use crate::observe::clock::Clock;
use crate::observe::storage::Storage;

use crate::train::TrainError;
use crate::train::plan::Plan;
use crate::train::state::State;
use crate::train::state::process::Process;

/// Where in the run a line is written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Moment {
    pub attempt: u32,
    pub generation: u32,
    pub step: u64,
    pub rank: u32,
}

/// Communicator, world, state and plan of one process.
pub struct Rank {
    /// The world's communicator.
    pub comm: Box<dyn Membership>,
    /// Who is in it.
    pub world: World,
    /// What it holds.
    pub state: State,
    /// Who it is.
    pub process: Process,
    /// The run directory.
    pub storage: Arc<dyn Storage>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Constants of this start.
    pub plan: Plan,
    /// Members that joined in the last repair or growth.
    pub newcomers: Vec<u32>,
    /// Pid and host of those who lived when recovery gave up; before, the world's table says it.
    pub living: Vec<(u32, String)>,
    /// Committed steps that were given up since the last repair.
    pub given_up_steps: u64,
}

impl Rank {
    /// Puts the parts together.
    pub fn new(
        comm: Box<dyn Membership>,
        world: World,
        state: State,
        process: Process,
        storage: Arc<dyn Storage>,
        plan: Plan,
    ) -> Self {
        let (clock, newcomers, living) = (Arc::clone(&process.clock), Vec::new(), Vec::new());
        let given_up_steps = 0;
        let mut rank = Self {
            comm,
            world,
            state,
            process,
            storage,
            clock,
            plan,
            newcomers,
            living,
            given_up_steps,
        };
        rank.watch_neighbours();
        rank
    }

    /// Whether this rank writes what the run publishes.
    pub fn is_writer(&self) -> bool {
        self.comm.rank() == 0
    }

    /// Where the run stands, for a line of the journal.
    pub fn place(&self) -> Moment {
        Moment {
            attempt: self.world.attempt,
            generation: self.world.generation,
            step: self.state.position.step,
            rank: self.comm.rank() as u32,
        }
    }

    /// Who shares this machine with this rank, from now on.
    pub fn watch_neighbours(&mut self) {
        self.comm.watch(&self.world.pids_on(&self.process.who.host));
    }

    /// Nobody repairs its world any more.
    pub fn gave_up(&mut self, end: GaveUp) -> TrainError {
        self.living.clone_from(&end.living);
        end.into()
    }

    /// Where this process stands, for fault injection.
    pub fn update_standing(&mut self) {
        let standing = &mut self.process.standing;
        (standing.rank, standing.ranks) = (self.comm.rank() as u32, self.comm.size() as u32);
        standing.step = self.state.position.step;
    }

    /// Whether the workers of those who share this rank's processors, so many each, keep them busy:
    /// of this machine's ranks, or of this one alone where it has its own.
    pub fn cores_are_short(&self, workers: usize) -> bool {
        let pids = self.world.pids_on(&self.process.who.host);
        let here = match claim::is_bound() {
            true => 1,
            false => pids.iter().filter(|pid| **pid != 0).count(),
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        here * workers >= cores
    }

    /// Members that are ranks since before the last repair or change of size.
    pub fn survivors(&self) -> Vec<u32> {
        let ranks = (0..self.world.ranks()).filter_map(|rank| self.world.member_at(rank));
        ranks.map(|m| m.member).filter(|member| !self.newcomers.contains(member)).collect()
    }

    /// Whether this is the lowest rank that lived through the repairs at hand: the newcomers of
    /// the last one know nothing of them.
    pub fn reports(&self) -> bool {
        self.is_first_of(&self.survivors())
    }

    /// Whether this is the lowest rank of these members, as far as they live. Where recovery gave
    /// up, ranks of the communicator are no longer those of the world.
    pub fn is_first_of(&self, members: &[u32]) -> bool {
        let (living, who) = (&self.living, &self.process.who);
        let gave_up = !living.is_empty();
        let ranks = (0..self.world.ranks()).filter_map(|rank| self.world.member_at(rank));
        let lives = |m: &&Member| !gave_up || living.contains(&(m.pid, m.host.clone()));
        let first = ranks.filter(lives).find(|m| members.contains(&m.member));
        first.is_some_and(|first| match gave_up {
            true => (first.pid, &first.host) == (who.pid, &who.host),
            false => first.rank == self.comm.rank() as u32,
        })
    }
}
