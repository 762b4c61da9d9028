//! Worlds that take turns: all are started, one trains at a time, the others are frozen (SIGSTOP).
//! What wanders on a machine over minutes strikes turns that lie seconds apart alike, as it would
//! not strike one whole run after another. Time that the host of a virtual machine gave to others
//! (steal, proc(5)) is no time of a step: there, often, it wanders most. Supervisors and mpirun are
//! never frozen: what they take, all worlds pay alike.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kintsugi_ffi::os::{self, Signal};
use kintsugi_ffi::process;

use crate::cluster::world::World;
use crate::config::Shown;
use crate::observe::console::say;
use crate::observe::event::{Event, Kind};
use crate::observe::log::{EVENTS_FILE, EventTail};

use super::runs::Runs;
use super::{Case, median};

/// Steps before the first turn: pages, caches and programs are new in them.
const WARM_UP_STEPS: u64 = 10;
/// How often it is looked whether a turn is over. It costs all worlds the same.
const LOOK: Duration = Duration::from_millis(20);
/// A turn lasts at least as long. A guardian that stood still for half of it knows that its rank
/// did so too (`guard::judge::JUMP`).
const TURN_MIN: Duration = Duration::from_secs(1);
/// Longest wait for the steps of a warm-up or of a turn.
const STEPS_TIME_MAX: Duration = Duration::from_secs(300);
/// Lines of a failed world that are shown.
const LAST_WORDS: usize = 8;
/// Of `train.steps`: more than any bench waits for.
const STEPS: &str = "train.steps=1000000000";

/// A world before its start.
#[derive(Debug)]
pub(super) struct Contender {
    pub(super) name: &'static str,
    /// Without its length, which is added as keys.
    pub(super) command: Command,
    pub(super) run_dir: PathBuf,
}

/// How often and how long each has its turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turns {
    pub(super) count: u32,
    /// Whole steps of a turn, at least.
    pub(super) steps: u64,
}

/// A world that was started.
struct Running {
    name: &'static str,
    run_dir: PathBuf,
    /// What it says, for a person, should it fail.
    log: PathBuf,
    child: Child,
    tail: EventTail,
    /// Its guardians, then its ranks. Whoever is here can be frozen.
    processes: Vec<u32>,
}

/// Milliseconds per step, but for stolen time: for each contender, in their order, one figure a
/// turn.
///
/// # Errors
/// What kept it from running, for a person.
pub(super) fn take_turns(
    runs: &Runs,
    contenders: Vec<Contender>,
    turns: Turns,
) -> Result<Vec<Vec<f64>>, String> {
    let mut worlds = Vec::new();
    let result = contenders
        .into_iter()
        .try_for_each(|contender| start(runs, contender, &mut worlds))
        .and_then(|()| play(runs, &mut worlds, turns));
    for world in &worlds {
        signal(world.processes.iter().rev(), Signal::Continue);
    }
    for world in &mut worlds {
        // Who has ended has given its number back.
        if matches!(world.child.try_wait(), Ok(None)) {
            let _ = os::kill(world.child.id(), Signal::Terminate);
        }
    }
    for world in &mut worlds {
        world.child.wait().map_err(|error| format!("waiting for {}: {error}", world.name))?;
    }
    result
}

/// Starts one, lets it warm up and freezes it.
fn start(runs: &Runs, contender: Contender, worlds: &mut Vec<Running>) -> Result<(), String> {
    let Contender { name, mut command, run_dir } = contender;
    let keys = [STEPS, "evaluation.every=never", "checkpoint.every=never"];
    let log = run_dir.with_extension("log");
    let file = File::create(&log).map_err(|error| format!("{}: {error}", log.shown()))?;
    command.args(keys.iter().flat_map(|key| ["-s", key])).stderr(Stdio::from(file));
    let child = runs.start(&mut command)?;
    let tail = EventTail::new(run_dir.join(EVENTS_FILE));
    worlds.push(Running { name, run_dir, log, child, tail, processes: Vec::new() });
    let Some(world) = worlds.last_mut() else { return Ok(()) };
    say!("{name}: {WARM_UP_STEPS} steps to warm up");
    world.follow(runs, |events| events.last().is_some_and(|event| event.step >= WARM_UP_STEPS))?;
    world.processes = processes(world)?;
    signal(world.processes.iter(), Signal::Stop);
    Ok(())
}

fn play(runs: &Runs, worlds: &mut [Running], turns: Turns) -> Result<Vec<Vec<f64>>, String> {
    let mut times = vec![Vec::new(); worlds.len()];
    for turn in 0..turns.count {
        let mut order: Vec<usize> = (0..worlds.len()).collect();
        if turn % 2 == 1 {
            order.reverse();
        }
        for at in order {
            times[at].push(worlds[at].turn(runs, turns.steps)?);
        }
        if (turn + 1) % 10 == 0 || turn + 1 == turns.count {
            let so_far = worlds.iter().zip(&times);
            let so_far = so_far.map(|(world, ms)| format!("{} {:.3} ms", world.name, median(ms)));
            let so_far = so_far.collect::<Vec<_>>().join(", ");
            say!("turn {} of {}: medians so far: {so_far}", turn + 1, turns.count);
        }
    }
    Ok(times)
}

impl Running {
    /// One turn, in milliseconds per whole step.
    fn turn(&mut self, runs: &Runs, steps: u64) -> Result<f64, String> {
        let (begun, since, before) = (Instant::now(), now(), ProcessorTime::so_far());
        signal(self.processes.iter().rev(), Signal::Continue);
        let enough = |events: &[Event]| whole_steps(events, since).1 >= steps;
        let events = self.follow(runs, |events| enough(events) && begun.elapsed() >= TURN_MIN)?;
        signal(self.processes.iter(), Signal::Stop);
        let (seconds, count) = whole_steps(&events, since);
        Ok(seconds / count as f64 * 1e3 * (1.0 - ProcessorTime::so_far().stolen_since(before)))
    }

    /// The events that it writes until there are enough. One that says that the world was struck
    /// is an error: a repair is no calm weather.
    fn follow(
        &mut self,
        runs: &Runs,
        enough: impl Fn(&[Event]) -> bool,
    ) -> Result<Vec<Event>, String> {
        let (begun, name) = (Instant::now(), self.name);
        let mut events = Vec::new();
        while !enough(&events) {
            let why = match self.child.try_wait() {
                Ok(None) if runs.asked_to_end() => "the bench was asked to end".into(),
                Ok(None) if begun.elapsed() < STEPS_TIME_MAX => {
                    std::thread::sleep(LOOK);
                    events.extend(self.tail.poll());
                    let struck = |event: &&Event| is_blow(&event.kind);
                    let Some(blow) = events.iter().find(struck) else { continue };
                    format!("it was struck by a failure of its own: {:?}", blow.kind)
                }
                Ok(None) => format!("too few steps in {} s", STEPS_TIME_MAX.as_secs()),
                Ok(Some(status)) => format!("it ended ({status})"),
                Err(error) => error.to_string(),
            };
            return Err(format!("{name}: {why}; its last words:\n{}", self.last_words()));
        }
        Ok(events)
    }
}

/// Of all processors since the machine's start, in ticks.
#[derive(Debug, Clone, Copy, Default)]
struct ProcessorTime {
    all: u64,
    stolen: u64,
}

impl ProcessorTime {
    /// Nothing where it cannot be read.
    fn so_far() -> Self {
        Self::of(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
    }

    /// The first line of proc(5), stat: user, nice, system, idle, iowait, irq, softirq, steal; what
    /// follows is in user and nice already.
    fn of(stat: &str) -> Self {
        const STEAL: usize = 7;
        let words = stat.lines().next().unwrap_or_default().split_whitespace().skip(1);
        let ticks: Vec<u64> = words.map_while(|word| word.parse().ok()).take(STEAL + 1).collect();
        Self { all: ticks.iter().sum(), stolen: ticks.get(STEAL).copied().unwrap_or(0) }
    }

    /// A share, 0..1.
    fn stolen_since(self, before: Self) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        self.stolen.saturating_sub(before.stolen) as f64 / all as f64
    }
}

impl Running {
    fn last_words(&self) -> String {
        let text = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LAST_WORDS)..].join("\n")
    }
}

fn is_blow(kind: &Kind) -> bool {
    matches!(kind, Kind::FailureDetected { .. } | Kind::Recovered { .. } | Kind::Restarted { .. })
}

/// Seconds and number of the steps that began and ended after `since`: the first event behind it
/// is the end of a step that stood still, or that began with cold caches.
fn whole_steps(events: &[Event], since: f64) -> (f64, u64) {
    let step = |event: &&Event| matches!(event.kind, Kind::Step { .. }) && event.time > since;
    let steps: Vec<&Event> = events.iter().filter(step).collect();
    match (steps.first(), steps.last()) {
        (Some(first), Some(last)) => (last.time - first.time, last.step - first.step),
        _ => (0.0, 0),
    }
}

/// Seconds since 1970, as events have them.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// Guardians before ranks: one that sees its rank stopped kills it.
fn processes(world: &Running) -> Result<Vec<u32>, String> {
    let world = World::read(&world.run_dir).map_err(|error| error.to_string())?;
    let ranks: Vec<u32> = world.members.iter().map(|member| member.pid).collect();
    let mut all: Vec<u32> = process::children_of(&ranks);
    all.extend(ranks);
    Ok(all)
}

/// Whoever has ended meanwhile is noticed by the steps that do not come.
fn signal<'a>(pids: impl Iterator<Item = &'a u32>, signal: Signal) {
    for pid in pids {
        let _ = os::kill(*pid, signal);
    }
}

/// What each sample of `name` (a turn, or the median of a start's turns) took more than that of
/// `other` beside it.
pub(super) struct Paired {
    /// Milliseconds; its `phases` are the ends of the median's interval.
    pub(super) difference: Case,
    /// Median of the samples' ratios and the ends of its interval.
    pub(super) ratios: BTreeMap<String, f64>,
}

impl Paired {
    pub(super) fn of(name: &str, of: &[f64], other: &str, against: &[f64]) -> Self {
        let sorted = |pair: fn(f64, f64) -> f64| {
            let mut all: Vec<f64> = of.iter().zip(against).map(|(a, b)| pair(*a, *b)).collect();
            all.sort_by(f64::total_cmp);
            all
        };
        let (differences, ratios) = (sorted(|a, b| a - b), sorted(|a, b| a / b));
        let (low, high) = interval(ratios.len());
        let ends = |all: &[f64]| [all[low], all[high]];
        let mut difference = Case::of(&format!("{name} - {other}"), &differences, &BTreeMap::new());
        let names = ["95 % interval, low", "95 % interval, high"].map(String::from);
        difference.phases = names.into_iter().zip(ends(&differences)).collect();
        let [from, to] = ends(&ratios);
        let figures = [("", median(&ratios)), (" low", from), (" high", to)];
        let ratios = figures.map(|(end, figure)| (format!("{name}/{other}{end}"), figure));
        Self { difference, ratios: ratios.into() }
    }
}

/// The ratio of all turns together, by name: what happens in few of them only (a comparison every
/// 100 steps) is no part of a median.
pub(super) fn of_all_turns(name: &str, of: &[f64], other: &str, against: &[f64]) -> (String, f64) {
    let together = of.iter().sum::<f64>() / against.iter().sum::<f64>();
    (format!("{name}/{other}, all turns"), together)
}

/// Places, in `n` sorted samples, that enclose the median with at least 95 % where n allows it
/// (binomial, whatever the distribution; from n = 6 on), else the smallest and the largest.
fn interval(n: usize) -> (usize, usize) {
    // The probability that at most `low` samples lie on one side of the median.
    let mut below = 0.5_f64.powi(n as i32);
    let mut term = below;
    let mut low = 0;
    while low + 1 < n / 2 {
        term *= (n - low) as f64 / (low + 1) as f64;
        below += term;
        if 2.0 * below > 0.05 {
            break;
        }
        low += 1;
    }
    (low, n - 1 - low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::event::samples;

    fn step(step: u64, time: f64) -> Event {
        samples::event(step, time, samples::step(8, 0.1))
    }

    #[test]
    fn only_steps_that_lie_in_the_turn_count() {
        let events = [step(10, 9.9), step(11, 20.3), step(12, 20.5), step(14, 20.9)];
        let (seconds, count) = whole_steps(&events, 20.0);
        assert!((seconds - 0.6).abs() < 1e-9, "{seconds}");
        assert_eq!(count, 3, "step 11 stood still between two turns");
        assert_eq!(whole_steps(&events, 30.0).1, 0);
        assert_eq!(whole_steps(&[], 0.0).1, 0);
    }

    #[test]
    fn stolen_time_is_a_share_of_all() {
        let before = ProcessorTime::of("cpu  100 0 50 40 0 5 5 10 0 0\ncpu0 1 2\n");
        let after = ProcessorTime::of("cpu  150 0 70 40 0 5 5 40 9 9\n");
        assert!((after.stolen_since(before) - 0.3).abs() < 1e-9, "30 of 100 ticks");
        assert_eq!(before.stolen_since(after), 0.0, "time does not run back");
        assert_eq!(ProcessorTime::of("").all, 0);
        assert!(ProcessorTime::so_far().all > 0);
    }

    #[test]
    fn the_interval_is_the_binomial_one() {
        // Tables of the sign test: n = 6 takes all, n = 9 drops one, n = 12 two from either end.
        assert_eq!([6, 9, 12, 20].map(interval), [(0, 5), (1, 7), (2, 9), (5, 14)]);
        assert_eq!(interval(1), (0, 0));
    }

    #[test]
    fn turns_are_compared_in_pairs() {
        let paired = Paired::of("a", &[2.0, 40.0, 600.0], "b", &[1.0, 20.0, 300.0]);
        assert_eq!(paired.ratios["a/b"], 2.0);
        assert_eq!((paired.ratios["a/b low"], paired.ratios["a/b high"]), (2.0, 2.0));
        assert_eq!((paired.difference.case.as_str(), paired.difference.median), ("a - b", 20.0));
        assert_eq!(paired.difference.phases["95 % interval, high"], 300.0);
    }
}
