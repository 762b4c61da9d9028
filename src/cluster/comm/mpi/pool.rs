//! The pool: ranks and the spares that wait beside them, one communicator around the world's own.
//! A spare's death is no error on the world. A spare waits for a revocation of the pool, at the
//! price of a look every 10 ms; a rank of its machine that revokes rings a bell, and its death
//! wakes the spare too.

use std::time::{Duration, Instant};

use kintsugi_ffi::bell::Bell;
use kintsugi_ffi::mpi::{self, Comm, MpiError};
use kintsugi_ffi::os;
use kintsugi_ffi::watch::Watch;

use crate::cluster::comm::{Call, CommError};

/// Of the message that dismisses a spare at the end of a run.
const DISMISSAL_TAG: u16 = 6;
/// How often a spare looks (measured: 0.15 % of a core beside short steps, under 2 % beside
/// all-reduces of 95 MB, which it helps along).
const LOOK: Duration = Duration::from_millis(10);
/// The same once a rank has died or called.
const ALERT_LOOK: Duration = Duration::from_micros(200);
/// How long a spare stays alert.
const ALERT: Duration = Duration::from_secs(2);
/// How long a dismissal may be on its way when every rank of this machine is gone.
const ABANDONED_AFTER: Duration = Duration::from_secs(1);

/// What a process knows of the spares.
#[derive(Debug, Default)]
pub(super) struct Spares {
    part: Standing,
}

#[derive(Debug, Default)]
enum Standing {
    /// There are none, or everybody is gathered.
    #[default]
    None,
    /// This process is a rank; others wait.
    Rank {
        pool: Comm,
        /// Their places in the pool.
        waiting: Vec<usize>,
        /// Rung when the pool is revoked, for those on this machine.
        bell: Option<Bell>,
    },
    /// This process waits; its communicator is the pool.
    Spare {
        /// Place of each rank in the pool.
        ranks: Vec<usize>,
    },
}

/// A process's place in a world that a gathering has made.
#[derive(Debug)]
pub(super) struct Seated {
    pub world: Comm,
    pub rank: usize,
    pub size: usize,
}

/// Places of a gathering that get no seat.
pub(super) fn without_seat(seats: &[Option<usize>]) -> Vec<usize> {
    (0..seats.len()).filter(|place| seats[*place].is_none()).collect()
}

/// Place in the gathering of each rank that it makes.
pub(super) fn by_rank(seats: &[Option<usize>]) -> Vec<usize> {
    let place = |wanted: usize| seats.iter().position(|seat| *seat == Some(wanted));
    (0..seats.len()).map_while(place).collect()
}

/// `Membership::seat` over MPI: the gathering's `place`-th process gets a world, or (`None`) waits.
pub(super) fn divide(
    gathering: &Comm,
    place: usize,
    seats: &[Option<usize>],
) -> Result<Option<Seated>, CommError> {
    let made = gathering.divide(seats[place]);
    let made = made.and_then(|world| match world {
        Some(world) => Ok(Some(Seated { rank: world.rank()?, size: world.size()?, world })),
        None => Ok(None),
    });
    if made.is_err() {
        revoke(gathering);
    }
    let (flags, outcome) = gathering.agree(u32::from(made.is_ok()));
    match (made, outcome) {
        (Ok(made), Ok(())) if flags & 1 == 1 => Ok(made),
        (Ok(made), outcome) => {
            if let Some(Seated { world, .. }) = &made {
                revoke(world);
            }
            revoke(gathering);
            Err(outcome.err().map_or(CommError::ProcFailed, CommError::from))
        }
        (Err(error), _) => Err(error.into()),
    }
}

/// Revoking is local and reliable: all it could report is that the handle is no communicator.
pub(super) fn revoke(comm: &Comm) {
    if let Err(error) = comm.revoke() {
        tracing::error!("{error}");
    }
}

impl Spares {
    /// A rank's pool, while others wait in it.
    pub(super) fn pool(&self) -> Option<&Comm> {
        match &self.part {
            Standing::Rank { pool, .. } => Some(pool),
            _ => None,
        }
    }

    /// Of a spare: how many ranks it waits for.
    pub(super) fn ranks(&self) -> Option<usize> {
        match &self.part {
            Standing::Spare { ranks } => Some(ranks.len()),
            _ => None,
        }
    }

    /// This process waits from now on; `ranks` are the places of the ranks in its pool.
    pub(super) fn wait_for(&mut self, ranks: Vec<usize>) {
        self.part = Standing::Spare { ranks };
    }

    /// This process is a rank from now on; others wait in its pool.
    pub(super) fn stand_beside(&mut self, pool: Comm, waiting: Vec<usize>) {
        let bell = Bell::hang().inspect_err(|error| {
            tracing::warn!("spares will hear of a repair by looking, every {LOOK:?}: {error}");
        });
        self.part = Standing::Rank { pool, waiting, bell: bell.ok() };
    }

    /// Everybody in the pool is called to a repair.
    pub(super) fn call(&mut self) {
        let Standing::Rank { pool, bell, .. } = &mut self.part else { return };
        revoke(pool);
        if let Some(bell) = bell.take() {
            bell.ring();
        }
    }

    /// From now on everybody is gathered; a rank gets its pool.
    pub(super) fn gather(&mut self) -> Option<Comm> {
        match std::mem::take(&mut self.part) {
            Standing::Rank { pool, .. } => Some(pool),
            _ => None,
        }
    }

    /// Known deaths, by order among the spares.
    pub(super) fn failed(&self) -> Vec<usize> {
        let Standing::Rank { pool, waiting, .. } = &self.part else { return Vec::new() };
        let failed = pool.failed_ranks().unwrap_or_default();
        let dead = |index: &usize| failed.binary_search(&waiting[*index]).is_ok();
        (0..waiting.len()).filter(dead).collect()
    }

    /// Tells every spare that the run has ended well. One that is not told sees its ranks go.
    pub(super) fn dismiss(&self) {
        let Standing::Rank { pool, waiting, .. } = &self.part else { return };
        for &spare in waiting {
            if let Err(error) = pool.notify(spare, DISMISSAL_TAG) {
                tracing::debug!("a spare was not dismissed: {error}");
            }
        }
    }

    /// Only once they call: at the end of a run they go without a failure.
    fn watch_ranks(&self, pool: &Comm, pids: &[u32]) {
        let (Standing::Spare { ranks }, Ok(size)) = (&self.part, pool.size()) else { return };
        let mut placed = vec![0; size];
        for (&place, &pid) in ranks.iter().zip(pids) {
            placed[place] = pid;
        }
        pool.watch(&placed);
    }

    /// `Membership::await_call` over MPI. It ends with the ranks, at the latest.
    pub(super) fn await_call(&self, pool: &Comm, pids: &[u32], idle: &mut dyn FnMut()) -> Call {
        let Standing::Spare { ranks } = &self.part else { return Call::Gather };
        let here: Vec<u32> = pids.iter().copied().filter(|pid| *pid != 0).collect();
        let mut watch = Watch::new(&here);
        // Asked now: of a process that ends it cannot be told.
        let seen = os::visible(pids);
        let all_here = here.len() == ranks.len();
        let mut alert_until = Instant::now();
        let mut gone_since: Option<Instant> = None;
        loop {
            match look(pool, ranks) {
                Ok(Some(Call::Gather)) => {
                    self.watch_ranks(pool, &seen);
                    return Call::Gather;
                }
                Ok(Some(call)) => return call,
                Ok(None) => {}
                Err(error) => {
                    tracing::error!("this spare cannot wait any more: {error}");
                    return Call::Abandoned;
                }
            }
            if all_here && watch.living() == 0 {
                let since = *gone_since.get_or_insert_with(Instant::now);
                if since.elapsed() > ABANDONED_AFTER {
                    return Call::Abandoned;
                }
            }
            idle();
            watch.listen();
            let alert = Instant::now() < alert_until;
            if watch.wait(if alert { ALERT_LOOK } else { LOOK }) {
                alert_until = Instant::now() + ALERT;
            }
        }
    }
}

/// One look at what came: costs microseconds.
fn look(pool: &Comm, ranks: &[usize]) -> Result<Option<Call>, MpiError> {
    mpi::progress()?;
    // A dead leader cannot have dismissed anybody; that it died shows elsewhere.
    if let Some(leader) = ranks.first()
        && let Ok(true) = pool.noticed(*leader, DISMISSAL_TAG)
    {
        return Ok(Some(Call::Dismissed));
    }
    if pool.is_revoked()? {
        return Ok(Some(Call::Gather));
    }
    let failed = pool.failed_ranks()?;
    let gone = ranks.iter().all(|rank| failed.binary_search(rank).is_ok());
    Ok(gone.then_some(Call::Abandoned))
}
