//! A run and an arm in figures: errors, lost steps, goodput, recoveries, and whether the run has
//! the calm run's bits. Pure; the table of `report.html`, of `results.json` and of the terminal.

use super::compare::{Bits, compare};
use super::episodes::{Episode, episodes};
use super::series;
use super::statistics::{DataPoint, Estimate, estimate};
use super::{Run, Study};
use crate::observe::event::{Event, Kind, name_of};
use crate::observe::ledger;
use crate::observe::result::Status;

/// One run in figures. Errors are fractions.
#[derive(Debug, Clone, serde::Serialize)]
#[allow(missing_docs)]
pub struct RunSummary {
    pub arm: String,
    pub seed: u64,
    pub path: String,
    pub status: Option<Status>,
    pub reason: Option<String>,
    /// At its start.
    pub ranks: u32,
    /// The first step of each number of ranks, and that number.
    pub ranks_by_step: Vec<(u64, u32)>,
    pub seconds: f64,
    pub steps: u64,
    pub final_error: Option<f64>,
    pub min_error: Option<f64>,
    pub min_error_seconds: Option<f64>,
    /// Minimum up to 10/12 of the study's time (Table 3 of Tsuji et al.).
    pub min_error_early: Option<f64>,
    /// What the run says it lost.
    pub lost_steps: u64,
    /// What the rollbacks of its ledger threw away.
    pub lost_steps_ledger: u64,
    /// The most that committed steps ever fell.
    pub largest_fall: u64,
    pub goodput: Option<f64>,
    /// Share of the reads through the nodes' caches that missed, the first epoch's included; `None`
    /// without caches.
    pub missed: Option<f64>,
    pub recoveries: Vec<Episode>,
    pub state_sha256: Option<String>,
    pub bits: Bits,
}

impl RunSummary {
    /// Its status, in a word or two.
    pub fn ending(&self) -> String {
        self.status.map_or("no result".into(), |status| name_of(&status))
    }

    /// Its ranks, in words, and from which steps on there were others.
    pub fn ranks_words(&self) -> String {
        let first = self.ranks_by_step.first().map_or(self.ranks, |first| first.1);
        let later = self.ranks_by_step.iter().skip(1);
        let later: String =
            later.map(|(step, ranks)| format!(", from step {step} on {ranks}")).collect();
        first.to_string() + &later
    }

    /// Seconds from failures until every rank computed again, all recoveries together.
    pub fn recovery_seconds(&self) -> f64 {
        self.recoveries.iter().map(Episode::seconds).sum()
    }

    /// Seconds spent computing again what had been committed before.
    pub fn redo_seconds(&self) -> f64 {
        self.recoveries.iter().map(|episode| episode.redo_seconds).sum()
    }
}

/// The fraction of the time at which Table 3 looks first (10 h of 12 h in the paper).
pub const EARLY: f64 = 10.0 / 12.0;

/// The smallest value up to `until`, and where.
pub fn minimum(points: &[DataPoint], until: f64) -> Option<DataPoint> {
    let early = points.iter().filter(|point| point.0 <= until + 1e-9);
    early.copied().min_by(|a, b| a.1.total_cmp(&b.1))
}

/// The first arm whose runs met no failure.
pub fn calm_arm(study: &Study) -> Option<&str> {
    calm_arms(study).first().copied()
}

fn calm_arms(study: &Study) -> Vec<&str> {
    let is_calm = |arm: &&str| {
        let mut runs = study.runs_of(arm).peekable();
        runs.peek().is_some() && runs.all(|run| series::failures(&run.events).is_empty())
    };
    study.arms().into_iter().filter(is_calm).collect()
}

/// What a run is compared with: the first calm run of its seed and of its arithmetic, which of
/// several models in one study is not the same; `None` where that is itself.
fn reference<'a>(study: &'a Study, calm: &[&'a str], run: &Run) -> Option<&'a Run> {
    let is_alike = |other: &&Run| other.seed == run.seed && other.arithmetic == run.arithmetic;
    let first = calm.iter().find_map(|arm| study.runs_of(arm).find(is_alike))?;
    (first.arm != run.arm).then_some(first)
}

/// Whether nothing failed in any run: the arms differ in something else.
pub fn is_calm(runs: &[RunSummary]) -> bool {
    runs.iter().all(|run| run.recoveries.is_empty() && run.lost_steps == 0)
}

/// Every run of the study in figures, in the order of its arms.
pub fn summarise(study: &Study) -> Vec<RunSummary> {
    let total = study.total_seconds();
    let calm = calm_arms(study);
    let arms = study.arms();
    let runs = arms.iter().flat_map(|arm| study.runs_of(arm));
    runs.map(|run| summary_of(run, reference(study, &calm, run), total)).collect()
}

fn summary_of(run: &Run, calm: Option<&Run>, total_seconds: f64) -> RunSummary {
    let events = &run.events;
    let errors = series::standing_errors(run);
    let best = series::least_errors(run);
    let least = minimum(&best, f64::INFINITY);
    let result = run.result.as_ref();
    let recoveries = episodes(events);
    let lost_ledger = ledger::lost_steps(&run.ledger);
    RunSummary {
        arm: run.arm.clone(),
        seed: run.seed,
        path: run.path.clone(),
        status: result.map(|result| result.status),
        reason: result.map(|result| result.reason.clone()),
        ranks: starting_ranks(events),
        ranks_by_step: ranks_by_step(events),
        seconds: result.map_or_else(|| run.seconds(), |result| result.seconds),
        steps: result.map_or_else(|| last_step(events), |result| result.steps),
        final_error: errors.last().map(|point| point.1),
        min_error: least.map(|point| point.1),
        min_error_seconds: least.map(|point| point.0),
        min_error_early: minimum(&best, total_seconds * EARLY).map(|point| point.1),
        lost_steps: result.map_or(lost_ledger, |result| result.lost_steps),
        lost_steps_ledger: lost_ledger,
        largest_fall: series::largest_fall(&series::committed_steps(events)) as u64,
        goodput: result.map(|result| result.goodput),
        missed: result.and_then(|result| result.data.missed()),
        recoveries,
        state_sha256: result.and_then(|result| result.state_sha256.clone()),
        bits: calm.map_or(Bits::Unknown, |calm| compare(run, calm)),
    }
}

fn starting_ranks(events: &[Event]) -> u32 {
    let first = events.iter().find_map(|event| match event.kind {
        Kind::RunStart { ranks, .. } => Some(ranks),
        _ => None,
    });
    first.unwrap_or(0)
}

fn ranks_by_step(events: &[Event]) -> Vec<(u64, u32)> {
    let mut all: Vec<(u64, u32)> = Vec::new();
    for event in events {
        let (step, ranks) = match &event.kind {
            Kind::RunStart { ranks, .. } => (event.step + 1, *ranks),
            Kind::Recovered(record) => (record.step, record.ranks),
            Kind::Resized(record) => (record.step + 1, record.to),
            _ => continue,
        };
        // These ranks did again what a rollback threw away.
        while all.last().is_some_and(|last| last.0 >= step) {
            all.pop();
        }
        if all.last().is_none_or(|last| last.1 != ranks) {
            all.push((step, ranks));
        }
    }
    all
}

fn last_step(events: &[Event]) -> u64 {
    events.last().map_or(0, |event| event.step)
}

/// The mean over an arm's seeds of one figure.
pub fn over_seeds(
    runs: &[&RunSummary],
    figure: impl Fn(&RunSummary) -> Option<f64>,
) -> Option<Estimate> {
    estimate(runs.iter().filter_map(|run| figure(run)))
}
