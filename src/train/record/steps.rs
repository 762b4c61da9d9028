//! What is written of committed steps: those that are shorter than a reader's eye share a line.

use std::time::Duration;

use crate::data::Split;
use crate::observe::event::Kind;
use crate::train::compute::totals::Totals;
use crate::train::exchange::Sums;
use crate::train::record::journal::Journal;
use crate::train::state::rank::Rank;

/// Step events are written at most this often; shorter steps are summed up in one.
const STEP_EVENT_EVERY: Duration = Duration::from_millis(100);

/// What the next step event sums up.
#[derive(Debug, Default)]
struct Recent {
    totals: Totals,
    seconds: f64,
    since: Option<Duration>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Steps {
    recent: Recent,
    coarse_grid_said: bool,
}

/// A committed step.
#[derive(Debug, Clone, Copy)]
pub struct Step<'a> {
    /// What was summed.
    pub sums: &'a Sums,
    /// When it began (monotonic).
    pub began: Duration,
    /// Whether it was its epoch's last.
    pub ends_epoch: bool,
    /// Of the step that comes next.
    pub learning_rate: f64,
    /// Training samples of its epoch that were skipped so far.
    pub epoch_skipped: u64,
}

impl Steps {
    /// Said once: a run that diverges would say it with every step.
    pub fn report_coarse_grid(&mut self, rank: &Rank, journal: &mut Journal) {
        if !std::mem::replace(&mut self.coarse_grid_said, true) && rank.is_writer() {
            let step = rank.replica.position.step + 1;
            let message = format!(
                "gradients of step {step} are too large for the finest grid of reproducible sums: \
                 the step is computed again on a coarser one, as every later one that is"
            );
            journal.event(rank.place(), Kind::Warning { message });
        }
    }

    /// Adds a step to the next event, or writes it.
    pub fn report(&mut self, rank: &Rank, journal: &mut Journal, step: &Step<'_>) {
        let now = rank.clock.now();
        self.recent.totals.add(&step.sums.totals);
        self.recent.seconds += now.saturating_sub(step.began).as_secs_f64();
        let since = *self.recent.since.get_or_insert(step.began);
        let position = &rank.replica.position;
        let quiet = position.ending.is_none() && !position.evaluation_due && !step.ends_epoch;
        if quiet && now.saturating_sub(since) < STEP_EVENT_EVERY {
            return;
        }
        let recent = std::mem::take(&mut self.recent);
        if !rank.is_writer() {
            return;
        }
        let epoch = position.ledger_tail.last().map_or(0, |line| line.epoch);
        if recent.totals.non_finite > 0 {
            let n = recent.totals.non_finite;
            let message = format!("the loss of {n} micro-batches was not a finite number");
            journal.event(rank.place(), Kind::Warning { message });
        }
        let event = Kind::Step {
            epoch,
            loss: recent.totals.mean_loss(),
            error: recent.totals.error(),
            samples: recent.totals.count,
            learning_rate: step.learning_rate,
            seconds: recent.seconds,
        };
        journal.event(rank.place(), event);
        if step.ends_epoch {
            journal.event(rank.place(), Kind::Epoch { epoch });
            report_bad_images(rank, journal, step.epoch_skipped);
        }
    }
}

/// How many samples of the epoch at hand were skipped, where some were.
pub fn report_bad_images(rank: &Rank, journal: &mut Journal, skipped: u64) {
    if skipped > 0 {
        let set = Split::Train.name().to_string();
        let bad = Kind::BadImages { set, skipped, of: rank.plan.samples_per_epoch };
        journal.event(rank.place(), bad);
    }
}
