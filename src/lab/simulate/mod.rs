//! `kintsugi simulate`: whole runs of the production code over simulated processes, time and
//! disks. A seed is a schedule: the run, what goes wrong in it, and the timing of every message.
//! Resident state lies in real slot files, in memory. What it takes from production: the rank's
//! program from its first agreement to its result, with trainer, exchange, loader, sampler, keeper,
//! journal, ledger, checkpoints, recovery driver and machine, slots and the start from them, and
//! the supervisor's decisions between attempts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::cluster::comm::sim::Trace;

mod bits;
mod broken;
mod change;
mod check;
mod disk;
mod nodes;
mod plane;
mod rank;
#[cfg(test)]
mod reuse_tests;
mod scenario;
mod slots;
mod stand_in;
#[cfg(test)]
mod struck_tests;
mod supervise;

pub use broken::Rule;
pub use check::Fault as Failure;
pub use scenario::{Fault, Scenario};

use crate::train::start::state::From;

use check::Calm;
use scenario::Variant;
use supervise::play;

/// Failing schedules that are minimised and kept; the rest is only counted.
const FAILURES_KEPT_MAX: usize = 10;

/// Which schedules are played.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schedules {
    /// The first seed.
    pub first_seed: u64,
    /// How many, one a seed.
    pub seeds: u64,
    /// Faults that are left out, by their place in the schedule.
    pub without: Vec<usize>,
    /// The commit rule.
    pub rule: Rule,
    /// Which exchange their runs have.
    pub exchange: Exchange,
    /// Threads that play.
    pub threads: usize,
}

/// Which exchange simulated runs have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Exchange {
    /// Every third the asynchronous one.
    #[default]
    Drawn,
    /// The synchronous one, all.
    Synchronous,
    /// The asynchronous one, all.
    Asynchronous,
}

impl Schedules {
    fn of(&self, seed: u64) -> Scenario {
        match self.exchange {
            Exchange::Drawn => Scenario::of(seed),
            Exchange::Synchronous => Scenario::synchronous(seed),
            Exchange::Asynchronous => Scenario::asynchronous(seed),
        }
    }
}

/// A schedule that did not end as promised.
#[derive(Debug, Clone, PartialEq)]
pub struct Failed {
    /// It.
    pub seed: u64,
    /// What was wrong with it.
    pub failure: Failure,
    /// Faults that can be left out while it still fails.
    pub without: Vec<usize>,
    /// What is wrong then.
    pub minimal: Failure,
    /// The faults that are left.
    pub faults: Vec<Fault>,
}

/// What the schedules came to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Tally {
    /// Schedules played.
    pub schedules: u64,
    /// That ended, but not as promised.
    pub wrong: u64,
    /// That did not end.
    pub stuck: u64,
    /// Starts of the world.
    pub attempts: u64,
    /// Processes that died.
    pub deaths: u64,
    /// Repairs that the schedules' events tell of.
    pub recoveries: u64,
    /// Starts of the world from state that outlived its processes.
    pub resident_starts: u64,
    /// Files that were copied to nodes.
    pub copies: u64,
    /// Asynchronous runs.
    pub asynchronous: u64,
    /// How the runs ended.
    pub ends: BTreeMap<String, u64>,
    /// The first failures, by seed.
    pub failed: Vec<Failed>,
}

/// One schedule, played for a person.
pub struct Shown {
    /// What it was.
    pub scenario: Scenario,
    /// One line per event.
    pub trace: Vec<String>,
    /// How it ended.
    pub end: String,
    /// What was wrong, if anything.
    pub failure: Option<Failure>,
}

/// What runs without failures are like; each is played once.
#[derive(Default)]
struct Calms(Mutex<BTreeMap<Variant, Arc<Calm>>>);

impl Calms {
    fn of(&self, scenario: &Scenario) -> Result<Arc<Calm>, String> {
        let variant = scenario.variant();
        if let Some(calm) = hold(&self.0).get(&variant) {
            return Ok(Arc::clone(calm));
        }
        let played = play(&scenario.calm(), Rule::Vote, Trace::Digest);
        let calm = Arc::new(check::calm(&played)?);
        hold(&self.0).insert(variant, Arc::clone(&calm));
        Ok(calm)
    }
}

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Plays all schedules; `progress` is told the number played from time to time.
pub fn play_all(schedules: &Schedules, progress: &(dyn Fn(u64) + Sync)) -> Tally {
    let (calms, tally) = (Calms::default(), Mutex::new(Tally::default()));
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..schedules.threads.max(1) {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= schedules.seeds {
                        return;
                    }
                    let seed = schedules.first_seed.wrapping_add(index);
                    play_one(schedules, seed, &calms, &tally);
                    progress(hold(&tally).schedules);
                }
            });
        }
    });
    let mut tally = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    tally.failed.sort_by_key(|failed| failed.seed);
    tally
}

fn play_one(schedules: &Schedules, seed: u64, calms: &Calms, tally: &Mutex<Tally>) {
    let scenario = schedules.of(seed).without(&schedules.without);
    let played = play(&scenario, schedules.rule, Trace::Digest);
    let failure = judged(&scenario, &played, calms);
    let (recoveries, resident_starts) = told(&played);
    let mut sum = hold(tally);
    sum.schedules += 1;
    sum.attempts += played.attempts.len() as u64;
    sum.deaths += u64::from(played.deaths);
    sum.recoveries += recoveries;
    sum.resident_starts += resident_starts;
    sum.asynchronous += u64::from(scenario.is_free());
    sum.copies += played.copies.iter().flat_map(|node| node.made.values()).sum::<u64>();
    *sum.ends.entry(end_name(&played.end)).or_default() += 1;
    let Err(failure) = failure else { return };
    match failure {
        Failure::Wrong(_) => sum.wrong += 1,
        Failure::Stuck(_) => sum.stuck += 1,
    }
    if sum.failed.len() >= FAILURES_KEPT_MAX {
        return;
    }
    drop(sum);
    let failed = minimise(schedules, seed, failure, calms);
    hold(tally).failed.push(failed);
}

/// Repairs and starts from resident state that a run's events tell of.
fn told(played: &supervise::Played) -> (u64, u64) {
    use crate::observe::event::{Event, Kind};
    let events: Vec<Event> = played.lines(crate::train::record::journal::EVENTS);
    let count = |wanted: fn(&Kind) -> bool| {
        events.iter().filter(|event| wanted(&event.kind)).count() as u64
    };
    let repairs = count(|kind| matches!(kind, Kind::Recovered(_)));
    let resident = From::Resident.name();
    let starts =
        |event: &&Event| matches!(&event.kind, Kind::Restarted { from, .. } if from == resident);
    (repairs, events.iter().filter(starts).count() as u64)
}

fn judged(scenario: &Scenario, played: &supervise::Played, calms: &Calms) -> Result<(), Failure> {
    let calm = calms.of(scenario).map_err(Failure::Wrong)?;
    check::check(scenario, played, &calm)
}

/// Leaves out one fault after the other while the schedule still fails.
fn minimise(schedules: &Schedules, seed: u64, failure: Failure, calms: &Calms) -> Failed {
    let whole = schedules.of(seed);
    let mut without: BTreeSet<usize> = schedules.without.iter().copied().collect();
    let mut minimal = failure.clone();
    for index in 0..whole.faults.len() {
        if without.contains(&index) {
            continue;
        }
        let fewer: Vec<usize> = without.iter().copied().chain([index]).collect();
        let scenario = whole.without(&fewer);
        let played = play(&scenario, schedules.rule, Trace::Digest);
        if let Err(still) = judged(&scenario, &played, calms) {
            without.insert(index);
            minimal = still;
        }
    }
    let without: Vec<usize> = without.into_iter().collect();
    let faults = whole.without(&without).faults;
    Failed { seed, failure, without, minimal, faults }
}

/// Plays one schedule with its trace.
pub fn show(seed: u64, without: &[usize], rule: Rule) -> Shown {
    let scenario = Scenario::of(seed).without(without);
    let played = play(&scenario, rule, Trace::Kept);
    let failure = judged(&scenario, &played, &Calms::default()).err();
    let mut trace = played.trace;
    for name in [crate::train::record::journal::EVENTS, crate::train::record::journal::LEDGER] {
        use crate::observe::storage::Storage;
        let body = played.files.memory.read(name.as_ref()).unwrap_or_default();
        let body = String::from_utf8_lossy(&body);
        trace.extend(body.lines().map(|line| format!("{name}: {line}")));
    }
    Shown { scenario, trace, end: end_name(&played.end), failure }
}

fn end_name(end: &supervise::Final) -> String {
    match end {
        supervise::Final::Result(result) => crate::observe::event::name_of(&result.status),
        supervise::Final::Refused(_) => "refused".into(),
        supervise::Final::Stuck(_) => "stuck".into(),
    }
}
