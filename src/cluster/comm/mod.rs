//! The one communicator of training, with calls that return what happened. Three
//! implementations: `mpi` (Open MPI with ULFM), `sim` (threads and a seeded board), `solo`.
//!
//! `Communicator` is what a rank needs to compute with others: it moves data, agrees, revokes,
//! shrinks. `Membership` is what a repair needs beside it: who belongs to the world, who waits for
//! a place in it, who is started anew. No method of either has a default: an implementation says
//! of each what it does.

use thiserror::Error;

use crate::config::Point;

pub mod mpi;
pub mod sim;
pub mod solo;
pub mod watched;

/// Why a call did not complete. The first three start recovery; all else ends the run
/// (ULFM's PROC_FAILED, REVOKED, PENDING).
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CommError {
    /// `MPIX_ERR_PROC_FAILED` (75).
    #[error("a rank failed")]
    ProcFailed,
    /// `MPIX_ERR_REVOKED` (77).
    #[error("the communicator was revoked")]
    Revoked,
    /// `MPIX_ERR_PROC_FAILED_PENDING` (76) or `MPI_ERR_PENDING`.
    #[error("a pending operation met a failed rank")]
    Pending,
    /// Anything else.
    #[error("{call} failed with MPI error class {class}: {text}")]
    Fatal {
        /// The MPI call.
        call: &'static str,
        /// `MPI_Error_class`.
        class: i32,
        /// `MPI_Error_string`.
        text: String,
    },
}

impl CommError {
    /// Whether recovery answers it.
    pub fn starts_recovery(&self) -> bool {
        !matches!(self, Self::Fatal { .. })
    }
}

/// What an agreement decided: `flags` is the AND over the ranks that took part, the same
/// everywhere; `outcome` is the call's own return code, uniform too (ULFM: MPIX_Comm_agree).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agreement {
    /// AND of everybody's flags.
    pub flags: u32,
    /// `Err` when a failure nobody has repaired yet is known.
    pub outcome: Result<(), CommError>,
}

impl Agreement {
    /// The commit rule: success **and** bit 0.
    pub fn committed(&self) -> bool {
        self.outcome.is_ok() && self.flags & 1 == 1
    }
}

/// What a leader needs to start replacements. Equal on every survivor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpawnRequest {
    /// This survivor's rank in the repaired world.
    pub my_rank: usize,
    /// Ranks to fill, ascending; replacement i takes `lost[i]`.
    pub lost: Vec<usize>,
    /// Ranks of the repaired world.
    pub ranks: usize,
    /// The program's arguments; every replacement gets the same. The implementation appends what
    /// a process that joins needs.
    pub arguments: Vec<String>,
}

/// Why replacements did not come. Uniform over the survivors.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SpawnError {
    /// The runtime cannot start them (no slot, no binary): take the next rung.
    #[error("the runtime refused to start a replacement: {0}")]
    Refused(String),
    /// Somebody died or did not answer in time: shrink and try again.
    #[error("joining failed: {0}")]
    Failed(String),
}

/// What a waiting spare is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// The world is being repaired: take part.
    Gather,
    /// The run has ended well.
    Dismissed,
    /// Every rank is gone, and with them all that a spare could go on from.
    Abandoned,
}

/// How a process waits inside the calls of its communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// It looks without pause: for calls that move much.
    Spinning,
    /// It leaves the core to others where there are too few of them: for chains of short messages.
    Sharing,
}

/// What an all-reduce adds up: one's own elements, then room for everybody's, of equal lengths.
#[derive(Debug)]
pub enum Elements<'a> {
    /// Plain sums.
    F32(&'a [f32], &'a mut [f32]),
    /// Counts; sums wrap.
    U64(&'a [u64], &'a mut [u64]),
    /// Fixed-point sums; they wrap.
    I32(&'a [i32], &'a mut [i32]),
    /// Wide ones; they wrap.
    I64(&'a [i64], &'a mut [i64]),
}

/// A world of ranks. One thread per rank calls it. Every call that moves data may fail on some
/// ranks and succeed on others; only `agree` is uniform.
pub trait Communicator: Send {
    /// This process's rank.
    fn rank(&self) -> usize;
    /// Ranks in this world.
    fn size(&self) -> usize;
    /// Element-wise sums over all ranks. What is sent is never changed, so a failed step can be
    /// repeated.
    fn all_reduce(&mut self, elements: Elements<'_>) -> Result<(), CommError>;
    /// Everybody's words, in rank order; equal lengths everywhere.
    fn all_gather_u64(&mut self, send: &[u64]) -> Result<Vec<u64>, CommError>;
    /// From `root` to everybody; equal lengths everywhere.
    fn broadcast(&mut self, data: &mut [u8], root: usize) -> Result<(), CommError>;
    /// To one rank.
    fn send(&mut self, data: &[u8], to: usize, tag: u32) -> Result<(), CommError>;
    /// From one rank; exactly `data.len()` bytes.
    fn recv(&mut self, data: &mut [u8], from: usize, tag: u32) -> Result<(), CommError>;
    /// The largest of everybody's words. Who waits leaves the cores to those who are not there yet.
    fn meet(&mut self, word: u64) -> Result<u64, CommError>;
    /// Opens every pair's connection while all live: one that is first opened towards a dead peer
    /// can block for ever.
    fn warm(&mut self) -> Result<(), CommError>;
    /// Uniform AND, also on a revoked communicator (MPIX_Comm_agree).
    fn agree(&mut self, flags: u32) -> Agreement;
    /// Interrupts everybody's calls (MPIX_Comm_revoke).
    fn revoke(&mut self);
    /// Becomes the communicator of the survivors, in old rank order (MPIX_Comm_shrink). The old
    /// one is parked, not freed. Where spares wait they are survivors too: all that live are then
    /// one gathering, to be seated again.
    fn shrink(&mut self) -> Result<(), CommError>;
    /// Whether a rank of this world is known to be dead, or the world is revoked: whoever computes
    /// need not wait for the next call to learn it. Local knowledge, microseconds.
    fn is_broken(&mut self) -> bool;
    /// How it waits from now on; at first it spins.
    fn wait_by(&mut self, waiting: Waiting);
}

/// Who belongs to the world, and how that changes: seats, spares, processes that are started.
pub trait Membership: Communicator {
    /// Ranks of the world that this process belongs to, or waits for.
    fn ranks(&self) -> usize;
    /// Whether this process waits: it holds no rank.
    fn waits(&self) -> bool;
    /// Which spawn brought this process into the world, 0 for the first-born.
    fn born(&self) -> u32;
    /// Everybody's words, waiting spares' included: ranks first, then spares. At the start only.
    fn introduce(&mut self, words: &[u64]) -> Result<Vec<u64>, CommError>;
    /// Collective over a just shrunk world: starts `request.lost.len()` replacements, merges
    /// them, becomes the full world in which every survivor has `request.my_rank`. `reached` is
    /// called at `InSpawn` and `InMerge` (fault injection, timing). On error `self` is still the
    /// shrunk world (perhaps revoked).
    fn spawn_and_merge(
        &mut self,
        request: &SpawnRequest,
        reached: &mut dyn FnMut(Point),
    ) -> Result<(), SpawnError>;
    /// Collective over a gathering: `seats[i]` is what its i-th process becomes, a rank or (`None`)
    /// a spare that waits. Uniform; on error the gathering is revoked and stays.
    fn seat(&mut self, seats: &[Option<usize>]) -> Result<(), CommError>;
    /// Ranks of this machine, whose death this process sees by itself: pids by rank, 0 for the
    /// ranks elsewhere.
    fn watch(&mut self, pids: &[u32]);
    /// A repair is over and everybody computes; this process was a rank before it and has the
    /// memory that it computes with.
    fn lived_through_repair(&mut self);
    /// A spare's life: returns when it is needed, or not any more. `pids` are those of the ranks on
    /// this machine, as for `watch`; `idle` is called at every look.
    fn await_call(&mut self, pids: &[u32], idle: &mut dyn FnMut()) -> Call;
    /// Spares known to be dead, by their order among the spares. Local knowledge, microseconds.
    fn failed_spares(&mut self) -> Vec<usize>;
    /// The last call of a healthy end: dismisses the spares, frees what was parked, leaves MPI.
    fn finalize(&mut self);
}
