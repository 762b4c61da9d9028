//! How gradients meet. Both ways have the same shape: `attempt` goes up to the vote and may fail
//! on some ranks only; after the vote everybody calls `apply`, or everybody `give_back`.

use std::time::Duration;

use crate::cluster::comm::{CommError, Communicator};
use crate::cluster::world::World;
use crate::data::loader::Loader;
use crate::data::staging::progress::Progress;
use crate::data::store::tally::Counts;
use crate::observe::clock::Clock;
use crate::observe::ledger::Committed;
use crate::train::TrainError;
use crate::train::compute::pool::Pool;
use crate::train::compute::totals::Totals;
use crate::train::exchange::anew::Anew;
use crate::train::state::State;
use crate::train::state::position::Position;
use crate::train::state::process::Process;
use crate::train::state::rank::Rank;

pub mod anew;
pub mod asynchronous;
pub mod beside;
mod received;
pub mod synchronous;

/// Longest wait for this rank's own workers to begin, after a repair, and how often it looks.
const BEGIN_LIMIT: Duration = Duration::from_secs(30);
const POLL_BEGIN: Duration = Duration::from_micros(200);

/// What an exchange works on.
pub struct Context<'a> {
    /// The world's communicator.
    pub comm: &'a mut dyn Communicator,
    /// Who computes what.
    pub world: &'a World,
    /// What this rank holds.
    pub state: &'a mut State,
    /// Who it is.
    pub process: &'a Process,
    /// Time.
    pub clock: &'a dyn Clock,
    /// In the first step after a repair: when it was finished.
    pub repaired_at: Option<Duration>,
}

impl<'a> Context<'a> {
    /// A rank's; `repaired_at`: in the first step after a repair, when it was finished.
    pub fn of(rank: &'a mut Rank, repaired_at: Option<Duration>) -> Self {
        Self {
            comm: rank.comm.as_mut(),
            world: &rank.world,
            state: &mut rank.state,
            process: &rank.process,
            clock: rank.clock.as_ref(),
            repaired_at,
        }
    }

    /// Tells the loader that this rank computes `owners` from `step` on, and the node's cache whose
    /// samples it holds.
    pub fn plan_loading(&self, loader: &Loader, step: u64, owners: &[u32]) {
        if let Some(memory) = &loader.supply().memory {
            memory.plan(owners, &self.world.owners_beside(self.comm.rank()));
        }
        loader.plan(step, owners);
    }

    /// What ends a wait for this rank's workers: a rank is known to be dead.
    pub fn lost_rank(&mut self) -> Option<TrainError> {
        self.comm.is_broken().then_some(TrainError::Comm(CommError::ProcFailed))
    }
}

/// One step's sums over all ranks, before the vote.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Sums {
    /// Counted over all ranks.
    pub totals: Totals,
    /// Asynchronous exchange: micro-batches of each owner in this round.
    pub owner_batches: Vec<u64>,
    /// Synchronous exchange: microseconds that each rank computed.
    pub rank_micros: Vec<u64>,
    /// What reading took, over all ranks.
    pub counts: Counts,
    /// How far files are copied, over all ranks.
    pub staged: Progress,
    /// In the first step after a repair: seconds until every rank had begun to compute.
    pub begun_seconds: Option<f64>,
    /// They are not the step's: all are to compute it anew.
    pub again: Option<Anew>,
    /// They hold something that is not finite, and was another thing in each try.
    pub wavering: bool,
}

/// A way for gradients to meet.
pub trait Exchange {
    /// One step or round, up to the vote.
    fn attempt(&mut self, context: &mut Context<'_>) -> Result<Sums, TrainError>;
    /// After a successful vote: what was written into the other slot, or is now (asynchronous
    /// exchange), is the next state. The caller commits it together with the position that follows
    /// from the ledger line returned.
    fn apply(&mut self, context: &mut Context<'_>, sums: &Sums) -> Committed;
    /// After a failed vote: nothing that was computed is lost.
    fn give_back(&mut self);
    /// The state is to become another one: sums that were made from this one do not count.
    fn forget(&mut self) {
        self.give_back();
    }
    /// After a successful vote on sums that are not the step's (`Sums::again`): everybody computes
    /// it anew. Exchanges whose sums always are, are never told.
    fn compute_again(&mut self, _anew: Anew) {}
    /// The worker threads, for evaluation.
    fn pool(&mut self) -> &mut Pool;
    /// After evaluation: workers go on.
    fn resume(&mut self, context: &mut Context<'_>);
    /// Learning rate of the step that comes next.
    fn learning_rate(&self, position: &Position) -> f64;
}

/// "Back in the update loop": seconds from the repair until every rank, the newcomer
/// included, has begun to compute. `begun_before` is what the pool had begun before this step was
/// started; a rank with nothing left to compute has begun. Workers that the repair holds back go on
/// here, and the time is taken behind that.
pub fn measure_begin(
    context: &mut Context<'_>,
    pool: &Pool,
    begun_before: u64,
) -> Result<Option<f64>, TrainError> {
    let Some(repaired_at) = context.repaired_at else { return Ok(None) };
    let limit = context.clock.now() + BEGIN_LIMIT;
    while pool.begun() == begun_before && context.clock.now() < limit {
        // Storage may keep a worker waiting: a death meanwhile is answered at once.
        if let Some(end) = pool.failure().or_else(|| context.lost_rank()) {
            return Err(end);
        }
        context.clock.sleep(POLL_BEGIN);
    }
    let mine = context.clock.now().saturating_sub(repaired_at).as_micros() as u64;
    let slowest = context.comm.meet(mine)?;
    pool.shared.pause.release();
    let released = context.clock.now().saturating_sub(repaired_at).as_micros() as u64;
    // Everybody computes: from here on the states may be compared beside it.
    context.state.proof.begin(&context.state.slots);
    Ok(Some(slowest.max(released) as f64 * 1e-6))
}
