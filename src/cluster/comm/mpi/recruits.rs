//! How used-up spares are replaced while training goes on. A spare starts new processes: the start
//! and MPI's initialisation run beside the ranks' steps, and a launcher that hangs costs a spare.
//! Only connecting and merging hold the ranks, once, at a step boundary that they agree on.

use std::time::{Duration, Instant};

use kintsugi_ffi::life::Mark;
use kintsugi_ffi::mpi::Comm;
use kintsugi_ffi::os;

use super::arguments::JoinArguments;
use super::join::{self, Expected, Merged, Newcomers, Survivor, Watchdog};
use super::pool::revoke;
use crate::cluster::comm::{CommError, SpawnError};

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
    /// `Membership::recruit` over MPI.
    pub(super) fn start(
        spare: &Survivor<'_>,
        number: usize,
        world_ranks: usize,
        arguments: &[String],
    ) -> Result<Self, SpawnError> {
        let attempt_of_join = spare.attempt_of_join;
        let ranks = (0..number).collect();
        let leader = Mark::own();
        let join = JoinArguments { attempt_of_join, ranks, world_ranks, spares: true, leader };
        let started = join::start(&spare.limits, &join, arguments.to_vec(), None);
        os::alarm(0);
        let newcomers = started.map_err(|born| SpawnError::Failed(born.error.to_string()))?;
        Ok(Self { newcomers, number, since: Instant::now() })
    }

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

/// `Membership::admit` over MPI: `rank` is this process's place in the gathering, `recruits` those
/// that it has started itself. On error they are sent away.
pub(super) fn admit(
    gathering: &Comm,
    rank: usize,
    leader: usize,
    mut recruits: Option<Recruits>,
) -> Result<Merged, CommError> {
    let _watchdog = Watchdog::arm(ADMISSION_SECONDS_MAX);
    let newcomers = recruits.as_ref().map(|recruits| &recruits.newcomers);
    let larger = join::connect(gathering, leader, newcomers, rank).map_err(|error| {
        tracing::warn!("new spares were not taken in: {error}");
        revoke(gathering);
        CommError::ProcFailed
    })?;
    // From here on they are members; who fails now is missed by the next shrink.
    if let Some(recruits) = &mut recruits {
        recruits.number = 0;
    }
    let settled = join::meet_all(&larger, Expected::Anywhere);
    Ok(Merged { comm: larger, settled })
}
