//! Keeps the weights of the best evaluation (`checkpoint.keep_best`): the writer has them on disk
//! before another step is committed, so whoever dies meanwhile, a rank that still holds them writes
//! them again.

use std::time::Duration;

use crate::cluster::guard::report;
use crate::config::Every;
use crate::observe::event::Kind;
use crate::observe::result::Best;
use crate::observe::storage::Storage;
use crate::train::checkpoint::{best, store};
use crate::train::record::journal::Journal;
use crate::train::record::keeper::{Keeper, Means};
use crate::train::state::rank::Rank;

/// Longest wait for them before the next vote, as other ranks wait for the writer: the write goes
/// on beside training then. A run that ends waits as for its last checkpoint.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// What became of the newest best evaluation.
#[derive(Debug, Default)]
pub struct BestKept {
    /// Everything is done about that of this step.
    settled: Option<u64>,
    /// The write of this step's takes long, which was said.
    late: Option<u64>,
}

/// What is to be done about the best evaluation now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    Nothing,
    /// Its state is here.
    Write,
    /// Its checkpoint is there.
    Name,
    /// Neither: whoever held it died before it was on disk.
    Lost,
}

fn due(best: Best, step: u64, named: Option<u64>, published: &[u64]) -> Due {
    if named == Some(best.step) {
        Due::Nothing
    } else if best.step == step {
        Due::Write
    } else if published.contains(&best.step) {
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
        let begun = keeper.last.is_some_and(|last| last.step == position.step);
        let is_best = position.improvement.is_of(position.step).is_some();
        if keeps_best(keeper) && is_best && !begun {
            keeper.begin(rank, seconds);
        }
    }

    /// Before the next vote: what was begun is on disk, and named.
    pub fn settle(&mut self, keeper: &mut Keeper, rank: &Rank, journal: &mut Journal) {
        self.settle_within(WAIT_MAX, keeper, rank, journal);
    }

    /// The same before the end of a run.
    pub fn settle_last(&mut self, keeper: &mut Keeper, rank: &Rank, journal: &mut Journal) {
        self.settle_within(keeper.means.facts.last_limit, keeper, rank, journal);
    }

    fn settle_within(
        &mut self,
        limit: Duration,
        keeper: &mut Keeper,
        rank: &Rank,
        journal: &mut Journal,
    ) {
        let position = &rank.state.position;
        let best = position.improvement.best.filter(|_| keeps_best(keeper));
        let best = best.filter(|_| keeper.is_current());
        let Some(best) = best.filter(|best| self.settled != Some(best.step)) else { return };
        // Asked again with the next step where the folder cannot be read now.
        let Ok((named, published)) = seen(keeper.means.storage.as_ref()) else { return };
        match due(best, position.step, named, &published) {
            Due::Nothing => {}
            Due::Name => name(keeper, rank, journal, best),
            Due::Lost if self.late == Some(best.step) && keeper.is_writing() => return,
            Due::Lost => warn(rank, journal, best, "it was not on disk when its writer ended"),
            Due::Write if report::loading(|| keeper.put_on_disk(rank, journal, limit)) => {
                name(keeper, rank, journal, best);
            }
            Due::Write if keeper.is_writing() => {
                self.late = Some(best.step);
                tracing::warn!(
                    "the checkpoint of step {}, the best so far, takes longer than {} s: training \
                     goes on beside it, and it is lost if this rank dies first",
                    best.step,
                    limit.as_secs()
                );
                return;
            }
            Due::Write => {
                let why = keeper.unwritten.as_deref();
                warn(rank, journal, best, why.unwrap_or("no checkpoint of it could be made"));
            }
        }
        self.settled = Some(best.step);
    }
}

fn keeps_best(keeper: &Keeper) -> bool {
    let facts = &keeper.means.facts;
    facts.keep_best && facts.every != Every::Never
}

fn name(keeper: &Keeper, rank: &Rank, journal: &mut Journal, best: Best) {
    let Means { facts, storage, .. } = &keeper.means;
    if let Err(error) = store::name_best(storage.as_ref(), best, facts.keep) {
        warn(rank, journal, best, &error.to_string());
    }
}

/// Which one the folder names, and the steps of which checkpoints are there.
fn seen(storage: &dyn Storage) -> Result<(Option<u64>, Vec<u64>), String> {
    let named = best::read(storage).map_err(|error| error.to_string())?;
    let published = store::published(storage).map_err(|error| error.to_string())?;
    let steps = published.into_iter().map(|(step, _)| step).collect();
    Ok((named.map(|best| best.step), steps))
}

fn warn(rank: &Rank, journal: &mut Journal, best: Best, why: &str) {
    let message = format!(
        "the weights of the best evaluation, behind step {}, are not kept: {why}; those that were \
         the best before it stay",
        best.step
    );
    tracing::warn!("{message}");
    journal.event(rank.place(), Kind::Warning { message });
}
