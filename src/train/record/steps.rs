//! What is written of committed steps: those that are shorter than a reader's eye share a line.

use std::time::Duration;

use crate::data::Split;
use crate::data::staging::progress::Progress;
use crate::observe::data_use::Waits;
use crate::observe::event::Kind;
use crate::train::compute::totals::Totals;
use crate::train::exchange::Sums;
use crate::train::exchange::anew::Why;
use crate::train::record::journal::{Journal, Stamp};
use crate::train::record::reading::{Reading, Took};
use crate::train::state::rank::{Moment, Rank};

/// Step events are written at most this often; shorter steps are summed up in one.
const STEP_EVENT_EVERY: Duration = Duration::from_millis(100);
/// From twice as many steps on several share an event whatever they take, ever more: the ledger has
/// a line of each, and events of a long run stay small beside it.
const STEPS_FULLY_TOLD: u64 = 8192;
/// Whoever watches a run hears of it at least this often where steps are shorter, and several times
/// within `recovery.time_limit`, by which the supervisor counts.
const STEP_EVENT_LATEST: Duration = Duration::from_secs(10);
const EVENTS_PER_LIMIT: u32 = 4;

/// How often people hear how far staging is.
const STAGING_EVENT_EVERY: Duration = Duration::from_secs(5);

/// What the next step event sums up.
#[derive(Debug, Default)]
struct Recent {
    totals: Totals,
    seconds: f64,
    since: Option<Duration>,
}

/// What tells of a step.
#[derive(Debug)]
struct Lines {
    stamp: Stamp,
    kinds: Vec<Kind>,
}

/// Committed steps that no line has told yet.
#[derive(Debug, Default)]
pub struct Steps {
    recent: Recent,
    reading: Reading,
    /// What the writer tells of the newest step. It may die before it does.
    of_writer: Option<Lines>,
    /// When staging was told of last; whether its end was.
    staging_told: Option<Duration>,
    staging_over: bool,
    coarse_grid_said: bool,
    /// Tries of steps that held something infinite or undefined.
    not_finite: u64,
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
    /// With which it moved the weights.
    pub learning_rate: f64,
    /// Training samples of its epoch that were skipped so far.
    pub epoch_skipped: u64,
}

impl Steps {
    /// Of a larger grid once, of what is not finite ever more rarely: a run that diverges would say
    /// it with every step. That first values are summed again is nothing to tell: most runs do it.
    pub fn report_anew(&mut self, rank: &Rank, journal: &mut Journal, why: Why) {
        let step = rank.state.position.step + 1;
        let said = match why {
            Why::First => None,
            Why::Larger if std::mem::replace(&mut self.coarse_grid_said, true) => None,
            Why::Larger => Some(Kind::StepAgain { step }),
            Why::NotFinite => {
                self.not_finite += 1;
                let message = format!(
                    "step {step}: gradients are not finite; it is computed again, to see \
                     whether they stay so (the {}. time in this attempt)",
                    self.not_finite
                );
                self.not_finite.is_power_of_two().then_some(Kind::Warning { message })
            }
        };
        if let Some(said) = said.filter(|_| rank.is_writer()) {
            journal.event(rank.place(), said);
        }
    }

    /// How far staging is, now and then, and that it is over.
    pub fn report_staging(&mut self, rank: &Rank, journal: &mut Journal, staged: &Progress) {
        let over = staged.lacking == 0;
        if staged.files_total == 0 || (over && self.staging_over) {
            return;
        }
        let now = rank.clock.now();
        let since = now.saturating_sub(*self.staging_told.get_or_insert(now));
        self.staging_over = over;
        if over || since >= STAGING_EVENT_EVERY {
            self.staging_told = Some(now);
            if rank.is_writer() {
                journal.event(rank.place(), Kind::Staging(staged.over(rank.comm.size())));
            }
        }
    }

    /// The run goes back: what was not told of the steps that it gives up is told by nobody.
    pub fn give_up(&mut self) {
        self.recent = Recent::default();
        self.of_writer = None;
    }

    /// After a repair: what a writer that died was still to tell. Of steps before the newest it
    /// has: it took part in that one's vote behind the line.
    pub fn make_up(&mut self, journal: &mut Journal) {
        if let Some(Lines { stamp, kinds }) = self.of_writer.take()
            && !journal.tells_step(stamp)
        {
            kinds.into_iter().for_each(|kind| journal.event_of(stamp, kind));
        }
    }

    /// This rank is the writer from now on. `to`: the run goes back there.
    pub fn take_over(&mut self, to: Option<u64>) {
        self.reading.take_over();
        to.into_iter().for_each(|to| self.reading.go_back(to));
    }

    /// The writer has died and its place is a newcomer's, who knows nothing of the steps before:
    /// what is not yet written of them.
    pub fn write_for_newcomer(&mut self, rank: &Rank, journal: &mut Journal, bound: Option<f64>) {
        self.reading.take_over();
        self.write_reading(rank, journal, bound);
    }

    fn write_reading(&mut self, rank: &Rank, journal: &mut Journal, bound: Option<f64>) {
        let place = rank.place();
        let Some(took) = self.reading.take(|| journal.reading_before(place)) else { return };
        let place = Moment { step: took.step, ..place };
        journal.event(place, Kind::Data { used: took.counts.as_use(bound), waits: took.waits });
    }

    /// Adds a step to the next event, or writes it.
    pub fn report(
        &mut self,
        rank: &Rank,
        journal: &mut Journal,
        step: &Step<'_>,
        miss_bound: Option<f64>,
    ) {
        self.of_writer = None;
        let now = rank.clock.now();
        let seconds = now.saturating_sub(step.began).as_secs_f64();
        self.recent.totals.add(&step.sums.totals);
        self.recent.seconds += seconds;
        let (counts, waits) = (step.sums.counts, waits(rank, step.sums, seconds));
        self.reading.add(Took { step: rank.state.position.step, counts, waits });
        let since = *self.recent.since.get_or_insert(step.began);
        let position = &rank.state.position;
        // The first step of a world is told at once: the supervisor waits for it. One that the run
        // may go back to ends its line: what counts shares none with what is given up.
        let quiet = position.ending.is_none()
            && !position.evaluation_due
            && !position.is_to_be_compared(rank.plan.integrity)
            && !step.ends_epoch
            && step.sums.begun_seconds.is_none();
        let latest = STEP_EVENT_LATEST.min(rank.plan.policy.limit / EVENTS_PER_LIMIT);
        if quiet && !is_told(position.step, now.saturating_sub(since), latest) {
            return;
        }
        let kinds = std::mem::take(&mut self.recent).kinds(rank, step);
        if !rank.is_writer() {
            self.of_writer = Some(Lines { stamp: journal.stamp(rank.place()), kinds });
            return;
        }
        self.write_reading(rank, journal, miss_bound);
        kinds.into_iter().for_each(|kind| journal.event(rank.place(), kind));
    }
}

impl Recent {
    /// What is told of it; `last`: the step that it ends with.
    fn kinds(self, rank: &Rank, last: &Step<'_>) -> Vec<Kind> {
        let Self { totals, seconds, .. } = self;
        let (epoch, n) = (rank.state.position.epoch(), totals.non_finite);
        let warning = || Kind::Warning {
            message: format!(
                "the loss of {n} micro-batches was not a finite number, or is beyond 2^30, and is \
                 not summed"
            ),
        };
        let mut kinds = Vec::from_iter((n > 0).then(warning));
        kinds.push(Kind::Step {
            epoch,
            loss: totals.mean_loss(),
            error: totals.error(),
            samples: totals.count,
            learning_rate: last.learning_rate,
            seconds,
        });
        if last.ends_epoch {
            kinds.push(Kind::Epoch { epoch });
            kinds.extend(bad_images(last.epoch_skipped, rank.plan.samples_per_epoch));
        }
        kinds
    }
}

/// Whether an event tells of this step and those before it, the first of which began so long ago.
/// By the number of the step, so that ranks mostly agree who tells what when the writer dies.
fn is_told(step: u64, since: Duration, latest: Duration) -> bool {
    let sharing = (step / STEPS_FULLY_TOLD).next_power_of_two();
    since >= latest || since >= STEP_EVENT_EVERY && step.is_multiple_of(sharing)
}

/// What a worker waited for in a step; nothing is known of peers in the asynchronous exchange.
fn waits(rank: &Rank, sums: &Sums, seconds: f64) -> Waits {
    let ranks = rank.comm.size() as u64;
    let workers = u64::from(rank.plan.workers) * ranks;
    let busy = match sums.rank_micros.iter().sum::<u64>() {
        0 => seconds,
        // Alone there is nobody to wait for.
        _ if ranks == 1 => seconds,
        micros => micros as f64 / 1e6 / workers.max(1) as f64,
    };
    sums.counts.waits(workers, seconds, busy)
}

/// How many of so many samples of the epoch at hand were skipped, where some were.
pub fn bad_images(skipped: u64, of: u64) -> Option<Kind> {
    let set = Split::Train.name().to_string();
    (skipped > 0).then_some(Kind::BadImages { set, skipped, of })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Events of so many steps of this length.
    fn events(steps: u64, seconds: f64, latest: Duration) -> (u64, Duration) {
        let length = Duration::from_secs_f64(seconds);
        let (mut told, mut since, mut longest) = (0, Duration::ZERO, Duration::ZERO);
        for step in 1..=steps {
            since += length;
            longest = longest.max(since);
            if is_told(step, since, latest) {
                (told, since) = (told + 1, Duration::ZERO);
            }
        }
        (told, longest)
    }

    #[test]
    fn a_million_steps_take_few_events_and_nobody_waits_long_for_one() {
        let latest = Duration::from_secs(10);
        // Short runs tell every step that is long enough to be read about.
        assert_eq!(events(16_383, 0.2, latest), (16_383, Duration::from_millis(200)));
        for (seconds, most) in [(0.01, 22_000), (0.1, 48_500), (0.3, 60_000), (1.0, 130_000)] {
            let (told, longest) = events(1_000_000, seconds, latest);
            assert!(told <= most, "{seconds} s a step: {told} events");
            assert!(longest <= latest + Duration::from_secs_f64(seconds), "{longest:?}");
        }
        // Where the supervisor is impatient it hears more often.
        let (told, longest) = events(1_000_000, 0.3, Duration::from_secs(2));
        assert!(told > 140_000 && longest <= Duration::from_millis(2300), "{told} {longest:?}");
    }
}
