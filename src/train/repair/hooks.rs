//! What recovery needs of a rank that it repairs.

use std::time::Duration;

use crate::cluster::comm::{CommError, Communicator};
use crate::cluster::recovery::{Environment, Note, StateHolder};
use crate::cluster::world::World;
use crate::config::Phase;
use crate::run_folder::variables;
use crate::train::repair::take_over;
use crate::train::state::replica::Replica;

/// The node of the supervisor of a world on several nodes, as `Surroundings::identity` names it.
pub(in crate::train) fn home() -> Option<String> {
    std::env::var(variables::HOME).ok()
}

impl StateHolder for Replica {
    fn committed_step(&self) -> Option<u64> {
        self.holds_state.then_some(self.position.step)
    }

    fn stays(&self, rank: usize) -> bool {
        self.leave_from.is_none_or(|first| rank < first)
    }

    fn counted(&mut self, _step: u64) {}

    fn restoring(&mut self, rank: usize, source: usize, step: u64) {
        self.given.clear();
        self.standing.source = rank == source;
        self.standing.rank = rank as u32;
        self.standing.step = step;
    }

    fn transfer(
        &mut self,
        comm: &mut dyn Communicator,
        source: usize,
        receivers: &[usize],
        _step: u64,
    ) -> Result<(), CommError> {
        let rank = comm.rank();
        self.incoming = None;
        if rank == source {
            self.given = take_over::give(self, comm, receivers)?;
        } else if receivers.contains(&rank) {
            self.incoming = Some(take_over::receive(self, comm, source)?);
        }
        Ok(())
    }

    fn adopt(&mut self, world: &World) {
        let received = self.incoming.is_some();
        let reference = self.standing.source && !self.given.is_empty();
        self.adopt_state(world);
        self.proof.repaired(received, reference);
    }
}

impl Environment for Replica {
    fn now(&self) -> Duration {
        self.clock.now()
    }

    fn identity(&self) -> (u32, String) {
        self.identity.clone()
    }

    fn home(&self) -> Option<String> {
        crate::train::repair::hooks::home()
    }

    fn arguments(&self) -> Vec<String> {
        self.arguments.clone()
    }

    fn reached(&mut self, phase: Phase) {
        self.reached_point(phase);
    }

    fn promoted(&mut self, _rank: usize) {}

    fn note(&mut self, note: Note) {
        self.notes.push(note);
    }

    fn gave_up(&mut self, living: Vec<(u32, String)>) {
        self.living = living;
    }
}

/// Everybody goes on from what `source` holds.
pub fn hand_to_all(
    comm: &mut dyn Communicator,
    replica: &mut Replica,
    source: usize,
    world: &World,
) -> Result<(), CommError> {
    let (rank, ranks) = (comm.rank(), comm.size());
    let receivers: Vec<usize> = (0..ranks).filter(|other| *other != source).collect();
    replica.restoring(rank, source, 0);
    if !receivers.is_empty() {
        replica.transfer(comm, source, &receivers, 0)?;
    }
    let agreement = comm.agree(1);
    if !agreement.committed() {
        return Err(agreement.outcome.err().unwrap_or(CommError::ProcFailed));
    }
    replica.adopt_state(world);
    Ok(())
}
