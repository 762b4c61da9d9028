//! Plays one row and checks the standing claims: it ends in time and by its own account (A1, A7),
//! with the calm run's bits (A2), every sample summed once (A3), replicas equal wherever they were
//! compared (A4), nothing left behind (A5), whoever was lost named with cause and times (A6), and
//! the calm run's learning curve (A8).

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kintsugi::cluster::launch::attempt::place;
use kintsugi::cluster::launch::run_dir::RunDir;
use kintsugi::cluster::resident::folder::inventory;
use kintsugi::observe::event::{Event, Kind};
use kintsugi::observe::log::read_events;
use kintsugi::observe::result::{RunResult, Status};

use crate::outside::{Done, Outside, played};
use crate::support::{Ended, alone, kintsugi, launch, processes_of, result_of, run, run_dir};

/// Seconds that any row may take.
pub const LIMIT: u64 = 120;
/// Replicas are compared every so many steps.
const COMPARE: &str = "recovery.integrity_every=5steps";

/// How a row's run must have been repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repair {
    /// In the running world, by replacing who was lost.
    Live,
    /// In the running world, with fewer ranks (and sums that do not depend on their number).
    Shrunk,
    /// With fewer ranks, and when they would be too few by another start, from the state in memory.
    ShrunkThenAgain,
    /// By another start of the world, from the state in memory: nothing lost.
    Again,
    /// By another start of the world, from a checkpoint or from nothing.
    Checkpoint,
    /// Live, or by another start: both are right, as the moment falls.
    Any,
    /// There was nothing to repair.
    Nothing,
}

/// What a row does to its run.
#[derive(Debug, Clone)]
pub struct Planned {
    /// From outside, once ten steps are committed.
    pub outside: Outside,
    /// `faults.plan`, its tables.
    pub faults: Vec<String>,
    /// Further keys.
    pub keys: Vec<String>,
    /// What must have happened.
    pub repair: Repair,
    /// Processes that must have been lost, at least; those of a restart are not counted.
    pub lost: usize,
    /// What the cause of some loss must say, where any is told.
    pub marks: &'static str,
}

/// What the run without failures ended with, by the keys that decide its bits.
#[derive(Default)]
pub struct Calm(Mutex<BTreeMap<String, Reference>>);

/// A run without failures.
#[derive(Debug, Clone)]
struct Reference {
    state_sha256: Option<String>,
    curve: BTreeMap<u64, (u64, u64)>,
}

impl Calm {
    fn of(&self, keys: &[String]) -> Reference {
        let decides = |key: &&String| {
            ["train.", "optimizer.", "data.", "model."].iter().any(|room| key.starts_with(room))
        };
        let keys: Vec<&str> = keys.iter().filter(decides).map(String::as_str).collect();
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let make = || {
            let folder = run_dir("matrix-calm");
            let ended = run(&mut launch(&folder, &keys), LIMIT);
            assert_eq!(ended.code, Some(0), "{}", ended.stderr);
            let state_sha256 = result_of(&folder).state_sha256;
            Reference { state_sha256, curve: curve(&events_of(&folder)) }
        };
        known.entry(keys.join(" ")).or_insert_with(make).clone()
    }
}

fn events_of(folder: &Path) -> Vec<Event> {
    read_events(&folder.join("events.jsonl")).unwrap_or_default()
}

/// Bits of each evaluation's error and loss, by step; the last word on a step counts.
fn curve(events: &[Event]) -> BTreeMap<u64, (u64, u64)> {
    let of = |event: &Event| match event.kind {
        Kind::Evaluation { error, loss, .. } => {
            Some((event.step, (error.to_bits(), loss.to_bits())))
        }
        _ => None,
    };
    events.iter().filter_map(of).collect()
}

/// What came of a row that nothing was wrong with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Held {
    /// Its claims hold.
    Yes,
    /// It cannot be made on this machine; why.
    Skipped(String),
}

/// Plays a row; what is wrong with its run.
pub fn play(id: &str, planned: &Planned, calm: &Calm) -> Result<Held, String> {
    let _turn = alone();
    let reference = calm.of(&planned.keys);
    let folder = run_dir(&format!("matrix-{}", id.replace([' ', ','], "-")));
    let plan = format!("faults.plan=[{}]", planned.faults.join(", "));
    let mut overrides = vec![plan.as_str(), COMPARE];
    overrides.extend(planned.keys.iter().map(String::as_str));
    let begun = Instant::now();
    let ended = match played(planned.outside, &folder, &overrides) {
        Done::Ended(ended) => ended,
        Done::Impossible(why) => return Ok(Held::Skipped(why)),
    };
    let seconds = begun.elapsed().as_secs_f64();
    let told = |fault: String| {
        let lines: Vec<&str> = ended.stderr.lines().rev().take(12).collect();
        let lines: Vec<&str> = lines.into_iter().rev().collect();
        format!("{fault}; its last words:\n  {}", lines.join("\n  "))
    };
    let checks = ended_well(&folder, &ended).and_then(|result| {
        same_bits(&folder, &result, &reference)?;
        repaired(planned, &result)?;
        timed(&folder, &result, seconds)?;
        planned_are_named(planned, &result)?;
        named(&folder, planned, &result)
    });
    checks.map_err(&told)?;
    let audit = run(kintsugi().arg("audit").arg(&folder), 60);
    if audit.code != Some(0) {
        return Err(told(format!("audit: {}{}", audit.stdout, audit.stderr)));
    }
    nothing_left(&folder).map_err(told)?;
    let _ = std::fs::remove_dir_all(&folder);
    Ok(Held::Yes)
}

fn ended_well(folder: &Path, ended: &Ended) -> Result<RunResult, String> {
    if ended.code != Some(0) {
        return Err(format!("exit code {:?}", ended.code));
    }
    let result = result_of(folder);
    match result.status {
        Status::Completed => Ok(result),
        other => Err(format!("it ended as {other:?}: {}", result.reason)),
    }
}

fn same_bits(folder: &Path, result: &RunResult, calm: &Reference) -> Result<(), String> {
    if result.state_sha256 != calm.state_sha256 {
        return Err("it ends with other bits than the calm run".into());
    }
    let curve = curve(&events_of(folder));
    if curve != calm.curve {
        return Err(format!("another learning curve than the calm run's: {curve:?}"));
    }
    Ok(())
}

fn repaired(planned: &Planned, result: &RunResult) -> Result<(), String> {
    let rungs: Vec<&str> = result.recoveries.iter().map(|record| record.rung.as_str()).collect();
    let from: Vec<&str> = result.restarts.iter().map(|restart| restart.from.as_str()).collect();
    let lost: usize = result.recoveries.iter().map(|record| record.lost.len()).sum();
    let live = from.is_empty() && !rungs.is_empty();
    let right = match planned.repair {
        Repair::Live => live && rungs.iter().all(|rung| ["spare", "respawn"].contains(rung)),
        Repair::Shrunk => live && rungs.contains(&"shrink"),
        Repair::ShrunkThenAgain => rungs == ["shrink"] && from == ["resident"],
        Repair::Again => !from.is_empty() && from.iter().all(|&from| from == "resident"),
        Repair::Checkpoint => !from.is_empty() && !from.contains(&"resident"),
        Repair::Any => true,
        Repair::Nothing => from.is_empty() && rungs.is_empty(),
    };
    let keeps = planned.repair != Repair::Checkpoint;
    if right && lost >= planned.lost && (!keeps || result.lost_steps == 0) {
        return Ok(());
    }
    let steps = result.lost_steps;
    Err(format!("repaired by {rungs:?}, restarted from {from:?}, {lost} lost, {steps} steps lost"))
}

/// A6: no time that is told can lie outside of the seconds that the run took.
fn timed(folder: &Path, result: &RunResult, seconds: f64) -> Result<(), String> {
    let within = |time: f64| (0.0..=seconds).contains(&time);
    let events = events_of(folder);
    let strange = events.iter().find(|event| !within(event.seconds));
    if let Some(event) = strange {
        return Err(format!(
            "an event at {} s of a run of {seconds:.1} s: {event:?}",
            event.seconds
        ));
    }
    let spans = result.recoveries.iter().flat_map(|record| record.seconds.values());
    match within(result.seconds) && spans.copied().all(within) {
        true => Ok(()),
        false => Err(format!("told {} s of {seconds:.1}: {:?}", result.seconds, result.recoveries)),
    }
}

/// One value of a planned fault, as it was written.
fn value_of<'a>(fault: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = fault.split_once(&format!("{key}="))?;
    Some(rest.split([',', '}']).next()?.trim_matches('"'))
}

/// A6: whoever was planned to die by rank is named, with what struck it and where.
fn planned_are_named(planned: &Planned, result: &RunResult) -> Result<(), String> {
    if planned.repair != Repair::Live {
        return Ok(());
    }
    for fault in &planned.faults {
        let Some(rank) = value_of(fault, "rank").and_then(|rank| rank.parse::<u32>().ok()) else {
            continue;
        };
        let (kind, phase) = (value_of(fault, "kind"), value_of(fault, "phase"));
        let words = format!("injected {} {}", kind.unwrap_or(""), phase.unwrap_or(""));
        let mut lost = result.recoveries.iter().flat_map(|record| &record.lost);
        if !lost.any(|lost| lost.rank == rank && lost.cause.contains(&words)) {
            let all: Vec<_> = result.recoveries.iter().flat_map(|record| &record.lost).collect();
            return Err(format!("rank {rank}, {words:?}, is not among the lost: {all:?}"));
        }
    }
    Ok(())
}

/// A6, and A4: no comparison found replicas that differ.
fn named(folder: &Path, planned: &Planned, result: &RunResult) -> Result<(), String> {
    for record in &result.recoveries {
        let timed = record.seconds.values().all(|seconds| *seconds >= 0.0);
        let told = record.lost.iter().all(|lost| !lost.cause.is_empty() && !lost.host.is_empty());
        if record.seconds.is_empty() || !timed || !told {
            return Err(format!("a recovery is not told: {record:?}"));
        }
    }
    let causes: Vec<&str> =
        result.recoveries.iter().flat_map(|r| &r.lost).map(|lost| lost.cause.as_str()).collect();
    let marked = causes.iter().any(|cause| cause.contains(planned.marks));
    if !causes.is_empty() && !marked {
        return Err(format!("no cause says {:?}: {causes:?}", planned.marks));
    }
    let corruption = |event: &Event| match &event.kind {
        Kind::Warning { message } => message.contains("silent corruption"),
        _ => false,
    };
    match events_of(folder).iter().any(corruption) && !planned.marks.contains("corruption") {
        true => Err("replicas differed".into()),
        false => Ok(()),
    }
}

fn nothing_left(folder: &Path) -> Result<(), String> {
    const WAIT: Duration = Duration::from_millis(50);
    // The launcher's children need a moment to be reaped.
    for _ in 0..100 {
        if processes_of(folder).is_empty() {
            break;
        }
        std::thread::sleep(WAIT);
    }
    let processes = processes_of(folder);
    let run = RunDir::at(folder).map_err(|error| error.to_string())?;
    let attempts = 1..=run.result().map_or(1, |result| result.attempt);
    let folders = attempts.flat_map(|attempt| {
        let (_, temporary, segments) = place(&run.id(), attempt);
        [temporary, segments]
    });
    let folders: Vec<_> = folders.filter(|folder| folder.exists()).collect();
    let name = folder.display().to_string();
    let slots = inventory(Path::new("/dev/shm")).into_iter().filter(|f| f.run_dir == name).count();
    if processes.is_empty() && folders.is_empty() && slots == 0 {
        return Ok(());
    }
    Err(format!("left behind: processes {processes:?}, folders {folders:?}, {slots} slots"))
}
