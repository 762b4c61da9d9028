//! Open MPI with ULFM, over `kintsugi_ffi::mpi`. The protocol that brings replacements in is in
//! `mpi/join.rs`, the spares are in `mpi/pool.rs`. These know communicators of MPI, and not the
//! rank that holds them.

use std::time::Duration;

use kintsugi_ffi::mpi::{self, Comm};
use kintsugi_ffi::os;

use crate::config::Point;
use crate::observe::notice::act_on;
use crate::observe::panics::vital;
use crate::observe::threads::explained;
use crate::run_folder::launcher;

use super::{
    Agreement, Call, CommError, Communicator, Elements, Membership, SpawnError, SpawnRequest,
    Waiting,
};

mod arguments;
pub mod environment;
mod error;
pub mod flags;
mod join;
mod leader;
pub mod loopback;
mod pool;

pub use arguments::{JoinArguments, JoinSyntax};
pub use join::JoinPoint;
use join::{Merged, Survivor};
use pool::Spares;

/// Longest `MPI_Finalize`: it is not fault tolerant, and everything is written by then.
const FINALIZE_SECONDS_MAX: u32 = 10;
/// How often an orphan looks for its launcher.
const ORPHAN_LOOK: Duration = Duration::from_millis(500);
/// Of `meet`.
const MEET_TAG: u16 = 31_998;
/// Exit code of a rank whose launcher is gone (README, "Exit codes").
const JOB_LOST: i32 = 75;

/// This process's place among the ranks that mpirun (or a surviving leader) started.
#[derive(Debug)]
pub struct MpiComm {
    /// The world; between a shrink and the seating everybody who lives; a spare's: the pool.
    comm: Comm,
    rank: usize,
    size: usize,
    spares: Spares,
    /// Calls of `spawn_and_merge` so far; a newcomer goes on from its own.
    joins: u32,
    born: u32,
}

/// Whether a launcher of MPI started this process: then it is a rank, and MPI may be started.
pub fn under_mpirun() -> bool {
    launcher::place().is_some()
}

/// Which rank of its launcher's first world this process is, before MPI is started.
pub fn launchers_rank() -> Option<u32> {
    launcher::place().and_then(|place| place.rank)
}

/// Ends this process when its parent does: ranks outside MPI calls outlive a killed mpirun.
///
/// `PR_SET_PDEATHSIG` would follow the launcher's *thread* that forked the rank, which Open MPI
/// does not promise to keep.
pub fn start_orphan_watch() {
    let parent = os::parent_pid();
    let watch = move || {
        loop {
            std::thread::sleep(ORPHAN_LOOK);
            if os::parent_pid() != parent {
                os::exit_now(JOB_LOST);
            }
        }
    };
    let started =
        std::thread::Builder::new().name("orphan-watch".into()).spawn(move || vital(watch));
    if let Err(error) = started {
        let error = explained(error);
        act_on(&format!("no orphan watch ({error}): kill leftover ranks if mpirun dies"));
    }
}

impl MpiComm {
    /// Starts MPI. Without `join` this is a first-born rank; with it a replacement, which comes
    /// out as a full member with its slot as rank, or with an error, after which it must exit
    /// (`os::exit_now`; survivors count it as dead and try again).
    ///
    /// # Errors
    /// MPI's own, and a death while joining.
    pub fn initialise(join: Option<&JoinArguments>) -> Result<Self, CommError> {
        Self::initialise_observed(join, &mut |_| {})
    }

    /// The same; `reached` is told where a replacement stands (fault injection).
    pub fn initialise_observed(
        join: Option<&JoinArguments>,
        reached: &mut dyn FnMut(JoinPoint),
    ) -> Result<Self, CommError> {
        if let Some(join) = join {
            return Self::over(join::join(join, reached)?, join.attempt_of_join);
        }
        let world = mpi::initialise()?.duplicate()?;
        world.warm()?;
        Self::over(world, 0)
    }

    /// Starts MPI in one of the first-born: the first `ranks` are the world, the others wait.
    ///
    /// # Errors
    /// MPI's own, and a death meanwhile.
    pub fn initialise_with_spares(ranks: usize) -> Result<Self, CommError> {
        let mut comm = Self::initialise(None)?;
        if comm.size > ranks {
            let seats: Vec<_> = (0..comm.size).map(|p| (p < ranks).then_some(p)).collect();
            comm.seat(&seats)?;
        }
        Ok(comm)
    }

    fn over(comm: Comm, joins: u32) -> Result<Self, CommError> {
        let (rank, size) = (comm.rank()?, comm.size()?);
        Ok(Self { comm, rank, size, spares: Spares::default(), joins, born: joins })
    }

    fn become_world(&mut self, comm: Comm) -> Result<(), CommError> {
        (self.rank, self.size) = (comm.rank()?, comm.size()?);
        self.comm = comm; // the old one is parked
        Ok(())
    }

    /// From here on the newcomers are members: whatever was decided, the next shrink is theirs too.
    fn become_merged(&mut self, merged: Merged) -> Result<(), CommError> {
        let became = self.become_world(merged.comm);
        merged.settled.and(became)
    }

    /// How this process takes part in bringing others in, for the next time of this world.
    fn next_join(&mut self) -> Survivor<'_> {
        self.joins += 1;
        Survivor { comm: &self.comm, rank: self.rank, attempt_of_join: self.joins }
    }
}

/// MPI guarantees tags up to 32767; the ffi keeps two above 32000.
fn checked_tag(call: &'static str, tag: u32) -> Result<u16, CommError> {
    const TAG_MAX: u16 = 31_999;
    u16::try_from(tag).ok().filter(|tag| *tag <= TAG_MAX).ok_or_else(|| CommError::Fatal {
        call,
        class: 0,
        text: format!("tag {tag} is above {TAG_MAX}"),
    })
}

impl Communicator for MpiComm {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_reduce(&mut self, elements: Elements<'_>) -> Result<(), CommError> {
        Ok(match elements {
            Elements::F32(send, recv) => self.comm.all_reduce(send, recv),
            Elements::U64(send, recv) => self.comm.all_reduce(send, recv),
            Elements::I32(send, recv) => self.comm.all_reduce(send, recv),
            Elements::I64(send, recv) => self.comm.all_reduce(send, recv),
        }?)
    }

    fn all_gather_u64(&mut self, send: &[u64]) -> Result<Vec<u64>, CommError> {
        Ok(self.comm.all_gather(send)?)
    }

    fn broadcast(&mut self, data: &mut [u8], root: usize) -> Result<(), CommError> {
        Ok(self.comm.broadcast(data, root)?)
    }

    fn send(&mut self, data: &[u8], to: usize, tag: u32) -> Result<(), CommError> {
        Ok(self.comm.send(data, to, checked_tag("MPI_Send", tag)?)?)
    }

    fn recv(&mut self, data: &mut [u8], from: usize, tag: u32) -> Result<(), CommError> {
        Ok(self.comm.recv(data, from, checked_tag("MPI_Recv", tag)?)?)
    }

    fn agree(&mut self, flags: u32) -> Agreement {
        let (flags, outcome) = self.comm.agree(flags);
        Agreement { flags, outcome: outcome.map_err(CommError::from) }
    }

    fn revoke(&mut self) {
        pool::revoke(&self.comm);
        self.spares.call();
    }

    fn shrink(&mut self) -> Result<(), CommError> {
        if let Some(pool) = self.spares.gather() {
            self.become_world(pool)?;
        }
        let survivors = self.comm.shrink()?;
        self.become_world(survivors)
    }

    fn warm(&mut self) -> Result<(), CommError> {
        Ok(self.comm.warm()?)
    }

    fn meet(&mut self, word: u64) -> Result<u64, CommError> {
        let others = 1..self.size;
        if self.rank > 0 {
            self.comm.send(&word.to_ne_bytes(), 0, MEET_TAG)?;
            return Ok(self.comm.recv_word_gently(0, MEET_TAG)?);
        }
        let mut largest = word;
        for rank in others.clone() {
            largest = largest.max(self.comm.recv_word_gently(rank, MEET_TAG)?);
        }
        for rank in others {
            self.comm.send(&largest.to_ne_bytes(), rank, MEET_TAG)?;
        }
        Ok(largest)
    }

    fn wait_by(&mut self, waiting: Waiting) {
        match waiting {
            Waiting::Spinning => mpi::keep_core(),
            Waiting::Sharing => mpi::share_core(),
        }
    }

    fn is_broken(&mut self) -> bool {
        // What cannot be asked is left to the next call.
        let failed = mpi::progress().and_then(|()| self.comm.failed_ranks());
        self.comm.is_revoked().unwrap_or(false) || failed.is_ok_and(|ranks| !ranks.is_empty())
    }
}

impl Membership for MpiComm {
    fn ranks(&self) -> usize {
        self.spares.ranks().unwrap_or(self.size)
    }

    fn waits(&self) -> bool {
        self.spares.ranks().is_some()
    }

    fn born(&self) -> u32 {
        self.born
    }

    fn introduce(&mut self, words: &[u64]) -> Result<Vec<u64>, CommError> {
        Ok(self.spares.pool().unwrap_or(&self.comm).all_gather(words)?)
    }

    fn spawn_and_merge(
        &mut self,
        request: &SpawnRequest,
        reached: &mut dyn FnMut(Point),
    ) -> Result<(), SpawnError> {
        let merged = join::spawn_and_merge(&self.next_join(), request, reached)?;
        self.become_merged(merged).map_err(|error| {
            pool::revoke(&self.comm);
            SpawnError::Failed(format!("the first agreement of the new world: {error}"))
        })
    }

    fn seat(&mut self, seats: &[Option<usize>]) -> Result<(), CommError> {
        let waiting = pool::without_seat(seats);
        match pool::divide(&self.comm, self.rank, seats)? {
            Some(seated) => {
                let pool = std::mem::replace(&mut self.comm, seated.world);
                (self.rank, self.size) = (seated.rank, seated.size);
                if !waiting.is_empty() {
                    self.spares.stand_beside(pool, waiting);
                }
            }
            None => self.spares.wait_for(pool::by_rank(seats)),
        }
        Ok(())
    }

    fn watch(&mut self, pids: &[u32]) {
        let seen = os::visible(pids);
        self.comm.watch(&seen);
    }

    /// What repairs leave behind is small (a few communicators, the names of processes that were
    /// started) and lies scattered: with a huge page for every piece, and with all that was free
    /// between them kept, it would be 0.5 MB a repair.
    fn lived_through_repair(&mut self) {
        os::stop_huge_pages();
        os::return_freed_memory();
    }

    fn await_call(&mut self, pids: &[u32], idle: &mut dyn FnMut()) -> Call {
        self.spares.await_call(&self.comm, pids, idle)
    }

    fn failed_spares(&mut self) -> Vec<usize> {
        self.spares.failed()
    }

    fn finalize(&mut self) {
        // From here on to end is no failure.
        self.comm.watch(&[]);
        os::exit_after(FINALIZE_SECONDS_MAX);
        if self.rank == 0 {
            self.spares.dismiss();
        }
        drop(self.spares.gather());
        self.comm.retire();
        if let Err(error) = mpi::finalize() {
            tracing::warn!("{error}");
        }
        os::alarm(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_that_mpi_does_not_promise_are_refused() {
        assert_eq!(checked_tag("MPI_Send", 31_999), Ok(31_999));
        assert!(checked_tag("MPI_Send", 32_000).is_err());
        assert!(checked_tag("MPI_Send", 1 << 20).is_err());
    }
}
