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
use crate::train::record::keeper::Keeper;
use crate::train::state::rank::Rank;

/// Longest wait for them before the next vote, as other ranks wait for the writer: the write goes
/// on beside training then. A run that ends waits as for its last checkpoint.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// What became of the newest best evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// Not looked at by this process.
    Unknown,
    /// Everything is done about that of this step.
    Settled(u64),
    /// The write of this step's takes long, which was said.
    Late(u64),
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

impl Keeper {
    fn keeps_best(&self) -> bool {
        self.means.facts.keep_best && self.means.facts.every != Every::Never
    }

    /// Behind an evaluation: begins the write of its weights where it was the best, beside what the
    /// next step computes.
    pub fn begin_best(&mut self, rank: &Rank, journal: &Journal) {
        let position = &rank.state.position;
        let begun = self.last.is_some_and(|last| last.step == position.step);
        if self.keeps_best() && position.improvement.is_of(position.step).is_some() && !begun {
            self.begin(rank, journal.seconds());
        }
    }

    /// Before the next vote, and at the end: what was begun is on disk, and named.
    pub fn settle_best(&mut self, rank: &Rank, journal: &mut Journal) {
        let position = &rank.state.position;
        let best = position.improvement.best.filter(|_| self.keeps_best());
        let Some(best) = best.filter(|best| self.best != Kept::Settled(best.step)) else { return };
        let (named, published) = match seen(self.means.storage.as_ref()) {
            Ok(seen) => seen,
            // Asked again with the next step.
            Err(_) => return,
        };
        match due(best, position.step, named, &published) {
            Due::Nothing => {}
            Due::Name => self.name_best(best, journal, rank),
            Due::Lost if self.best == Kept::Late(best.step) && self.is_writing() => return,
            Due::Lost => warn(rank, journal, best, "it was not on disk when its writer ended"),
            Due::Write if report::loading(|| self.put_on_disk(rank, journal, WAIT_MAX)) => {
                self.name_best(best, journal, rank);
            }
            Due::Write if self.is_writing() => {
                self.best = Kept::Late(best.step);
                let text = format!(
                    "the checkpoint of step {}, the best so far, takes longer than {} s: training \
                     goes on beside it, and it is lost if this rank dies first",
                    best.step,
                    WAIT_MAX.as_secs()
                );
                return tracing::warn!("{text}");
            }
            Due::Write => {
                let why = self.unwritten.as_deref().unwrap_or("no checkpoint of it could be made");
                warn(rank, journal, best, why);
            }
        }
        self.best = Kept::Settled(best.step);
    }

    fn name_best(&mut self, best: Best, journal: &mut Journal, rank: &Rank) {
        let keep = self.means.facts.keep;
        if let Err(error) = store::name_best(self.means.storage.as_ref(), best, keep) {
            warn(rank, journal, best, &error.to_string());
        }
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
