//! What is written about a run, and by whom.

use std::sync::{Arc, Mutex, PoisonError};

use crate::config::{PlannedFault, Point};
use crate::data::loader::Loader;
use crate::engine::memory::expected::Expected;
use crate::observe::event::{Kind, MemoryForecast};
use crate::observe::ledger::Entry;
use crate::observe::result::Status;
use crate::run_folder::lock;

use crate::train::TrainError;
use crate::train::state::rank::Rank;

pub mod began_with;
pub mod best;
pub mod casualties;
pub mod cause;
pub mod current;
pub mod due;
pub mod evaluations;
pub mod inexact;
pub mod journal;
pub mod keeper;
pub mod outcome;
pub mod pace;
pub mod reading;
pub mod reason;
pub mod repairs;
pub mod setup;
pub mod steps;
pub mod struck;
pub mod waiting;
pub mod why;

use best::BestKept;
use journal::Journal;
use keeper::Keeper;
use pace::Pace;
use repairs::{Patience, Repairs};
use steps::{Step, Steps};
use why::Why;

/// A rank's pen. Every rank has one, so that any can become the writer.
pub struct Record {
    /// Events, ledger, the picture of the world.
    pub journal: Journal,
    /// Checkpoints and the result, while this rank is the writer.
    pub keeper: Keeper,
    /// The checkpoint of the best evaluation, likewise.
    best: BestKept,
    /// Repairs of which the run's files do not know yet.
    pub repairs: Repairs,
    /// Committed steps.
    pub steps: Steps,
    pace: Pace,
}

impl Record {
    /// Nothing is written yet.
    pub fn new(journal: Journal, keeper: Keeper) -> Self {
        let (repairs, steps, pace) = (Repairs::default(), Steps::default(), Pace::default());
        let best = BestKept::default();
        Self { journal, keeper, best, repairs, steps, pace }
    }

    /// Writes an event from here.
    pub fn event(&mut self, rank: &Rank, kind: Kind) {
        self.journal.event(rank.place(), kind);
    }

    /// This rank is the writer from now on: fills what a dead one left open.
    pub fn take_over(&mut self, rank: &Rank) {
        let rollback = self.keeper.take_over(rank, &mut self.journal);
        let given_up = rollback.and_then(|entry| match entry {
            Entry::Rollback { to, .. } => Some(to),
            _ => None,
        });
        self.steps.take_over(given_up);
    }

    /// The writer's part of a commit.
    pub fn committed(&mut self, rank: &Rank) {
        self.journal.committed(rank.place(), &rank.state.position.ledger_tail);
        rank.process.at(Point::InSnapshot);
        self.keeper.after_commit(rank, &mut self.journal);
    }

    /// Behind an evaluation: its weights may be the best.
    pub fn evaluated(&mut self, rank: &Rank) {
        self.best.begin(&mut self.keeper, rank, self.journal.seconds());
    }

    /// Before the writer votes on another step: the best weights are on disk.
    pub fn settle_best(&mut self, rank: &Rank) {
        self.best.settle(&mut self.keeper, rank, &mut self.journal);
    }

    /// What was committed after this step is not to be trusted.
    pub fn distrust(&mut self, step: u64) {
        self.keeper.distrust(step);
        self.best.forget();
    }

    /// The writer's part where the state at hand turns out to be less than it was taken for: a
    /// checkpoint that it has begun of it, or that is there, is written anew in the end.
    pub fn doubted(&mut self, rank: &Rank, otherwise: Kind) {
        let limit = self.keeper.means.facts.last_limit;
        let keeper = &mut self.keeper;
        if keeper.has_begun(rank.state.position.step) {
            keeper.put_on_disk_within(rank, &mut self.journal, limit);
        }
        (keeper.last, keeper.published) = (None, None);
        self.event(rank, otherwise);
    }

    /// Whether a checkpoint holds all that this rank's memory does.
    pub fn has_saved(&self, rank: &Rank) -> bool {
        self.keeper.has_checkpoint_of(rank.state.position.step)
    }

    /// What could not be decoded, where something could not.
    pub fn bad_images(&mut self, rank: &Rank, bad: Option<Kind>) {
        if let Some(bad) = bad {
            self.event(rank, bad);
        }
    }

    /// What every rank tells of a committed step.
    pub fn report_step(&mut self, rank: &mut Rank, step: &Step<'_>, loader: &Loader) {
        let bound = loader.supply().miss_bound(rank.world.nodes());
        // Of whom nothing is heard for long, an event would come behind the run's end.
        self.journal.settle_events();
        if self.repairs.survived() && rank.reports() && !rank.is_writer() {
            self.steps.write_for_newcomer(rank, &mut self.journal, bound);
        }
        self.repairs.report_begin(rank, &mut self.journal, step.sums.begun_seconds);
        self.repairs.settle(rank, &mut self.journal, Patience::None);
        self.steps.report(rank, &mut self.journal, step, bound);
        self.steps.report_staging(rank, &mut self.journal, &step.sums.staged);
        self.pace.watch(rank, &mut self.journal, step.sums);
    }

    /// What this rank's engines expect of micro-batches, and what those took.
    pub fn report_memory(&mut self, rank: &Rank, expected: &Mutex<Vec<Expected>>) {
        let all = std::mem::take(&mut *expected.lock().unwrap_or_else(PoisonError::into_inner));
        for of in all {
            let forecast = MemoryForecast {
                samples: of.samples as u64,
                near_bytes: of.near_bytes,
                far_bytes: of.far_bytes,
                out_bytes: of.forecast.moved_bytes[0],
                back_bytes: of.forecast.moved_bytes[1],
                seconds: of.forecast.seconds,
                again_seconds: of.forecast.again,
                waits_seconds: of.forecast.waits,
                took_seconds: of.took_seconds,
            };
            self.event(rank, Kind::Memory(forecast));
        }
    }

    /// Before an end: repairs that no step followed are among what the result is made of, and so
    /// is what was skipped of an epoch that is not over.
    pub fn report_rest(&mut self, rank: &mut Rank) {
        self.repairs.report_rest(rank, &mut self.journal);
        if rank.is_writer() {
            let position = &rank.state.position;
            let of = position.cursor % rank.plan.samples_per_epoch.max(1);
            let bad = steps::bad_images(position.skipped_in_epoch, of);
            self.bad_images(rank, bad);
        }
    }

    /// The end of a run that all ranks agreed on: last checkpoint, result.
    pub fn finish(&mut self, rank: &Rank, status: Status) -> Result<Status, TrainError> {
        self.event(rank, Kind::Phase { name: "finishing".into(), seconds: 0.0 });
        self.best.settle_last(&mut self.keeper, rank, &mut self.journal);
        if status == Status::Completed {
            self.name_unclaimed_faults(rank);
        }
        let storage = self.keeper.means.storage.as_ref();
        let orphaned = status == Status::Interrupted && lock::launch_is_gone(storage);
        let why = if orphaned { Why::Orphaned } else { Why::Agreed(status) };
        self.keeper.finish(rank, &mut self.journal, why)
    }

    /// Who planned them believes that the run has lived through them. The last checkpoint is still
    /// to be written.
    fn name_unclaimed_faults(&mut self, rank: &Rank) {
        let injector = Arc::clone(&self.keeper.means.injector);
        let may_come = |fault: &PlannedFault| {
            matches!(fault.phase, Some(Point::InSnapshot | Point::InPersist))
        };
        for (number, fault) in injector.unclaimed() {
            if may_come(fault) {
                continue;
            }
            let fault = serde_json::to_string(fault).unwrap_or_default();
            let message = format!(
                "planned fault {number} never struck: {fault}; nobody that it means came to its \
                 place in this run (faults.plan)"
            );
            self.event(rank, Kind::Warning { message });
        }
    }

    /// The end of a run that no step can be committed in: its state is whole.
    pub fn pause(&mut self, rank: &Rank, error: &TrainError) -> Result<Status, TrainError> {
        self.keeper.finish(rank, &mut self.journal, Why::Pause(error))
    }
}
