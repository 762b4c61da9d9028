//! How used-up spares are replaced while training goes on. A spare starts new processes: the start
//! and MPI's initialisation run beside the ranks' steps, and a launcher that hangs costs a spare.
//! Only connecting and merging hold the ranks, once, at a step boundary that they agree on.

use std::time::{Duration, Instant};

use super::join::{self, Newcomers, Watchdog};
use super::pool::RECRUITS_TAG;
use super::{CommError, JoinArguments, MpiComm, SpawnError};
use kintsugi_ffi::os;

/// Longest connecting and merging; whoever overstays it dies, and the others go on.
const ADMISSION_SECONDS_MAX: u32 = 10;
/// Recruits that nobody has taken in after so long are sent away: they end by themselves some
/// seconds later.
const PATIENCE: Duration = Duration::from_secs(12);

/// Processes that a spare has started.
#[derive(Debug)]
pub(super) struct Recruits {
    newcomers: Newcomers,
    number: usize,
    since: Instant,
}

impl Recruits {
    /// How many; none that have waited too long.
    pub(super) fn count(&self) -> usize {
        if self.since.elapsed() < PATIENCE { self.number } else { 0 }
    }
}

impl Drop for Recruits {
    fn drop(&mut self) {
        // No effect on those that have become members: their pids are not ours to kill then.
        if self.number > 0 {
            self.newcomers.give_up();
        }
    }
}

/// `Communicator::recruit` over MPI.
pub(super) fn recruit(
    mpi: &mut MpiComm,
    number: usize,
    arguments: &[String],
) -> Result<(), SpawnError> {
    let world_ranks = mpi.spares.ranks().unwrap_or(mpi.size);
    mpi.recruits = None;
    mpi.joins += 1;
    let ranks = (0..number).collect();
    let join = JoinArguments { attempt_of_join: mpi.joins, ranks, world_ranks, spares: true };
    let started = join::start(mpi, &join, arguments.to_vec(), None);
    os::alarm(0);
    let newcomers = started.map_err(|born| SpawnError::Failed(born.error.to_string()))?;
    mpi.recruits = Some(Recruits { newcomers, number, since: Instant::now() });
    Ok(())
}

impl MpiComm {
    /// Says that recruits wait, to whoever is rank 0 now.
    pub(super) fn announce_recruits(&self) {
        let (Some(leader), Some(recruits)) = (self.spares.leader(), &self.recruits) else { return };
        if recruits.count() > 0
            && let Err(error) = self.comm.notify(leader, RECRUITS_TAG)
        {
            tracing::debug!("recruits could not be announced: {error}");
        }
    }
}

/// `Communicator::admit` over MPI.
pub(super) fn admit(mpi: &mut MpiComm, leader: usize) -> Result<(), CommError> {
    let _watchdog = Watchdog::arm(ADMISSION_SECONDS_MAX);
    let mut recruits = mpi.recruits.take();
    let newcomers = recruits.as_ref().map(|recruits| &recruits.newcomers);
    let gathering = join::connect(&mpi.comm, leader, newcomers, mpi.rank);
    let gathering = gathering.map_err(|error| {
        tracing::warn!("new spares were not taken in: {error}");
        join::revoke(&mpi.comm);
        CommError::ProcFailed
    })?;
    // From here on they are members; who fails now is missed by the next shrink.
    if let Some(recruits) = &mut recruits {
        recruits.number = 0;
    }
    let met = join::meet_all(&gathering, true);
    let became = mpi.become_world(gathering);
    met.and(became)
}
