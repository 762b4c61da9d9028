//! Keeps the weights of the best evaluation (`checkpoint.keep_best`): the writer has them on disk
//! before another step is committed, so whoever dies meanwhile, a rank that still holds them writes
//! them again.

use std::time::Duration;

use crate::cluster::guard::report;
use crate::config::{Every, Interval};
use crate::observe::event::Kind;
use crate::observe::result::Best;
use crate::observe::storage::Storage;
use crate::train::checkpoint::best::{self, Kept};
use crate::train::checkpoint::store;
use crate::train::record::journal::Journal;
use crate::train::record::keeper::{Keeper, Means};
use crate::train::state::rank::Rank;

/// Longest wait for them before the next vote, as other ranks wait for the writer: the write goes
/// on beside training then. A run that ends waits as for its last checkpoint.
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Of `recovery.time_limit`, by half of which a guardian takes a rank for hung.
const WAIT_SHARE: u32 = 4;

/// What became of the newest best evaluation.
#[derive(Debug, Default)]
pub struct BestKept {
    /// Everything is done about that of this step.
    settled: Option<u64>,
    /// The write of this step's takes long, which was said.
    late: Option<u64>,
    /// The one before it stays until replicas are compared.
    unproved: bool,
    /// The run keeps none, and what it kept under another configuration is no longer named.
    forgotten: bool,
}

/// What is to be done about the best evaluation now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Nothing,
    /// Its state is here.
    Write,
    /// Its checkpoint is there.
    Name,
    /// Neither.
    Lost,
}

fn due(best: Best, step: u64, kept: Option<Kept>, published: &[u64]) -> Due {
    let is_there = published.contains(&best.step);
    if is_there && kept.is_some_and(|kept| kept.best == best) {
        Due::Nothing
    } else if best.step == step {
        Due::Write
    } else if is_there {
        Due::Name
    } else {
        Due::Lost
    }
}

impl BestKept {
    /// The run has gone back: steps come again.
    pub fn forget(&mut self) {
        *self = Self::default();
    }

    /// Behind an evaluation: begins the write of its weights where it was the best, beside what the
    /// next step computes.
    pub fn begin(&self, keeper: &mut Keeper, rank: &Rank, seconds: f64) {
        let position = &rank.state.position;
        let is_best = position.improvement.is_of(position.step).is_some();
        if keeps_best(keeper) && is_best && !keeper.has_begun(position.step) {
            keeper.begin(rank, seconds);
        }
    }

    /// Before the next vote: what was begun is on disk, and named.
    pub fn settle(&mut self, keeper: &mut Keeper, rank: &Rank, journal: &mut Journal) {
        let limit = WAIT_MAX.min(rank.plan.policy.limit / WAIT_SHARE);
        // Where the folder cannot be read now it is asked again with the next step.
        let _ = self.settle_within(limit, keeper, rank, journal);
    }

    /// The same before the end of a run.
    pub fn settle_last(&mut self, keeper: &mut Keeper, rank: &Rank, journal: &mut Journal) {
        let limit = keeper.means.facts.last_limit;
        if let Err(why) = self.settle_within(limit, keeper, rank, journal) {
            warn(rank, journal, &why);
        }
        if keeps_best(keeper) && keeper.is_current() && !keeper.is_writing() {
            store::tidy(keeper.means.storage.as_ref(), keeper.means.facts.keep);
        }
    }

    fn settle_within(
        &mut self,
        limit: Duration,
        keeper: &mut Keeper,
        rank: &Rank,
        journal: &mut Journal,
    ) -> Result<(), String> {
        if !keeper.means.facts.keep_best {
            return self.name_none(keeper);
        }
        let position = &rank.state.position;
        let proved = (rank.plan.integrity != Interval::Off).then_some(position.verified);
        let best = position.improvement.best.filter(|_| keeps_best(keeper));
        let Some(best) = best.filter(|best| !self.is_settled(*best, proved)) else {
            return Ok(());
        };
        if !keeper.is_current() {
            return Ok(());
        }
        let (kept, published) = seen(keeper.means.storage.as_ref())?;
        let written = match due(best, position.step, kept, &published) {
            Due::Nothing | Due::Name => true,
            Due::Write => report::loading(|| keeper.put_on_disk_within(rank, journal, limit)),
            Due::Lost => false,
        };
        let is_late = !written && keeper.has_begun(best.step) && keeper.is_writing();
        if is_late {
            self.say_late(best, limit);
            return Ok(());
        }
        self.settled = Some(best.step);
        if !written {
            let why = keeper.unwritten.as_deref().unwrap_or("it is not on disk");
            warn(rank, journal, &format!("of step {}: {why}", best.step));
            return Ok(());
        }
        let next = Kept::next(kept, best, proved);
        self.unproved = next.before.is_some();
        if Some(next) != kept {
            let Means { storage, .. } = &keeper.means;
            best::write(storage.as_ref(), next).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn is_settled(&self, best: Best, proved: Option<u64>) -> bool {
        let is_proved = proved.is_none_or(|proved| best.step <= proved);
        self.settled == Some(best.step) && !(self.unproved && is_proved)
    }

    fn say_late(&mut self, best: Best, limit: Duration) {
        if self.late.replace(best.step) != Some(best.step) {
            tracing::warn!(
                "the checkpoint of step {}, the best so far, takes longer than {} s: training goes \
                 on beside it, and it is lost if this rank dies first",
                best.step,
                limit.as_secs_f64()
            );
        }
    }

    /// What was kept under another configuration no longer stays.
    fn name_none(&mut self, keeper: &Keeper) -> Result<(), String> {
        if std::mem::replace(&mut self.forgotten, true) || !keeper.is_current() {
            return Ok(());
        }
        best::forget(keeper.means.storage.as_ref()).map_err(|error| error.to_string())
    }
}

fn keeps_best(keeper: &Keeper) -> bool {
    let facts = &keeper.means.facts;
    facts.keep_best && facts.every != Every::Never
}

/// Which one the folder names, and the steps of which checkpoints are there.
fn seen(storage: &dyn Storage) -> Result<(Option<Kept>, Vec<u64>), String> {
    let kept = best::read(storage).map_err(|error| error.to_string())?;
    let published = store::published(storage).map_err(|error| error.to_string())?;
    Ok((kept, published.into_iter().map(|(step, _)| step).collect()))
}

fn warn(rank: &Rank, journal: &mut Journal, why: &str) {
    let message = format!("the weights of the best evaluation are not kept: {why}");
    tracing::warn!("{message}");
    journal.event(rank.place(), Kind::Warning { message });
}
