//! Plays one row and checks the standing claims: it ends in time and by its own account (A1, A7),
//! with the calm run's bits (A2), every sample summed once (A3), replicas equal wherever they were
//! compared (A4), nothing left behind (A5), whoever was lost named with cause and times (A6), and
//! the calm run's learning curve (A8). The bits of an asynchronous run hang on timing: it must
//! learn, and its audit must say that its epochs were summed exactly once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use kintsugi::cluster::resident::folder::inventory;
use kintsugi::launch::start::run_dir::RunDir;
use kintsugi::launch::traces::folders;
use kintsugi::observe::event::{Event, Kind, Lost};
use kintsugi::observe::log::read_events;
use kintsugi::observe::result::{RunResult, Status};

use super::outside::{Done, Outside, bad_pictures, played, prepare};

use crate::support::{Ended, alone, kintsugi, launch, processes_of, result_of, run, run_dir};

/// Seconds that any row may take.
pub const LIMIT: u64 = 120;
/// Replicas are compared every so many steps.
const COMPARE: &str = "recovery.integrity_every=5steps";

/// A run whose newcomers can neither map nor copy a state.
pub const NO_RESIDENT: &str = "recovery.resident=off";
/// A run whose workers run free.
pub const ASYNCHRONOUS: &str = "train.exchange=asynchronous";
/// The event of a state that came over MPI.
const SENT: &str = "state_sent";

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

impl Planned {
    fn is_free(&self) -> bool {
        self.keys.iter().any(|key| key == ASYNCHRONOUS)
    }
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
    prepare(planned.outside);
    let reference = (!planned.is_free()).then(|| calm.of(&planned.keys));
    let folder = run_dir(&format!("matrix-{}", id.replace([' ', ','], "-")));
    let plan = format!("faults.plan=[{}]", planned.faults.join(", "));
    let mut overrides = vec![plan.as_str()];
    overrides.extend(reference.as_ref().map(|_| COMPARE));
    overrides.extend(planned.keys.iter().map(String::as_str));
    let begun = Instant::now();
    let ended = match played(planned.outside, &folder, &overrides) {
        Done::Ended(ended) => ended,
        Done::Impossible(why) => return Ok(Held::Skipped(why)),
        Done::Wrong(fault) => return Err(fault),
    };
    let seconds = begun.elapsed().as_secs_f64();
    let told = |fault: String| {
        let lines: Vec<&str> = ended.stderr.lines().rev().take(12).collect();
        let lines: Vec<&str> = lines.into_iter().rev().collect();
        format!("{fault}; its last words:\n  {}", lines.join("\n  "))
    };
    let checks = ended_well(&folder, &ended).and_then(|result| {
        match &reference {
            Some(calm) => same_bits(&folder, &result, calm)?,
            None => learned(&folder, &result)?,
        }
        repaired(planned, &result)?;
        passed_over(planned, &result, &events_of(&folder))?;
        bad_pictures_are_named(planned, &folder, &ended)?;
        timed(&folder, &result, seconds)?;
        planned_are_named(planned, &result)?;
        met_where_it_struck(&folder, planned)?;
        sent_where_nothing_is_shared(&folder, planned)?;
        named(&folder, planned, &result)
    });
    checks.map_err(&told)?;
    let audit = run(kintsugi().arg("audit").arg(&folder), 60);
    if audit.code != Some(0) || !audit.stdout.contains("exactly once") {
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

/// Its errors fall, its losses are finite, and it claims no bits.
fn learned(folder: &Path, result: &RunResult) -> Result<(), String> {
    let curve = curve(&events_of(folder));
    let numbers = |(error, loss): &(u64, u64)| (f64::from_bits(*error), f64::from_bits(*loss));
    let curve: Vec<(f64, f64)> = curve.values().map(numbers).collect();
    let finite = curve.iter().all(|(error, loss)| error.is_finite() && loss.is_finite());
    let falls = match (curve.first(), curve.last()) {
        (Some(first), Some(last)) => curve.len() > 2 && last.0 < first.0 && last.1 < first.1,
        _ => false,
    };
    match finite && falls && !result.exact {
        true => Ok(()),
        false => Err(format!("errors and losses: {curve:?}; exact: {}", result.exact)),
    }
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

/// The run went on from the checkpoint before the damaged one, and lost the steps since. What the
/// run itself can notice, it says.
fn passed_over(planned: &Planned, result: &RunResult, events: &[Event]) -> Result<(), String> {
    let Outside::Disk(damage) = planned.outside else { return Ok(()) };
    let from = result.restarts.last().map(|restart| (restart.from.as_str(), restart.step));
    if from != Some(damage.goes_on_from()) || result.lost_steps < damage.costs() {
        let lost = result.lost_steps;
        return Err(format!("after {damage:?} it went on from {from:?}, {lost} steps lost"));
    }
    let says = |event: &Event| match &event.kind {
        Kind::Warning { message } => message.contains(damage.warns()),
        _ => false,
    };
    match damage.warns().is_empty() || events.iter().any(says) {
        true => Ok(()),
        false => Err(format!("no event says {:?}", damage.warns())),
    }
}

/// Who cannot be decoded is told of, and named in the log of a rank.
fn bad_pictures_are_named(planned: &Planned, folder: &Path, ended: &Ended) -> Result<(), String> {
    if planned.outside != Outside::BadPictures {
        return Ok(());
    }
    let told = "could not be decoded and were skipped";
    if !ended.stderr.contains(told) {
        return Err(format!("it does not say that pictures {told}"));
    }
    let logs = std::fs::read_dir(folder.join("logs")).map_err(|error| error.to_string())?;
    let logs: String =
        logs.flatten().filter_map(|e| std::fs::read_to_string(e.path()).ok()).collect();
    let unnamed = |path: &PathBuf| !logs.contains(&path.display().to_string());
    match bad_pictures().into_iter().find(unnamed) {
        None => Ok(()),
        Some(path) => Err(format!("{} is not named", path.display())),
    }
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

/// Everybody whose loss the result tells of, by live repairs and by new starts.
fn all_lost(result: &RunResult) -> impl Iterator<Item = &Lost> {
    let live = result.recoveries.iter().flat_map(|record| &record.lost);
    live.chain(result.restarts.iter().flat_map(|restart| &restart.lost))
}

/// A6: whoever was planned to die is named, with what struck it and where, whether the world was
/// repaired or started again. A newcomer may never have been in a world, a spare is no rank, and
/// a run that is over is not started again for a rank that dies in finalize.
fn planned_are_named(planned: &Planned, result: &RunResult) -> Result<(), String> {
    for fault in &planned.faults {
        let (kind, phase) = (value_of(fault, "kind"), value_of(fault, "phase"));
        let rank = value_of(fault, "rank").and_then(|rank| rank.parse::<u32>().ok());
        let of_a_world = !matches!(value_of(fault, "who"), Some("newcomer" | "spare"));
        if !of_a_world || (phase == Some("in_finalize") && result.recoveries.is_empty()) {
            continue;
        }
        let words = format!("injected {} {}", kind.unwrap_or(""), phase.unwrap_or(""));
        let is_it =
            |lost: &Lost| rank.is_none_or(|r| r == lost.rank) && lost.cause.contains(&words);
        if !all_lost(result).any(is_it) {
            let all: Vec<_> = all_lost(result).collect();
            return Err(format!("rank {rank:?}, {words:?}, is not among the lost: {all:?}"));
        }
    }
    Ok(())
}

/// Where the others may meet a death in this phase of a step. `None`: anywhere, or not at all.
fn met_in(phase: &str) -> Option<&'static [&'static str]> {
    Some(match phase {
        "before_load"
        | "in_forward"
        | "in_backward"
        | "in_swap_out"
        | "in_swap_in"
        | "in_recompute"
        | "in_all_reduce"
        | "before_first_commit" => &["step", "all_reduce"],
        // Everybody had its part of the totals to give: nobody computes any more.
        "in_update" | "before_vote" => &["all_reduce", "vote"],
        // Whatever follows a commit.
        "after_vote" | "in_publish" | "in_snapshot" => {
            &["vote", "comparison", "evaluation", "step", "all_reduce", "finish"]
        }
        // Who is late may still be in the vote of what came before.
        "in_evaluation" => &["comparison", "evaluation"],
        "in_finalize" => &["comparison", "evaluation", "finish"],
        "in_revoke" | "in_shrink" | "in_spawn" | "in_merge" | "in_restore" | "in_transfer" => &[],
        _ => return None,
    })
}

/// A6: every failure was met where a planned one could be met, and who tells of it says so.
fn met_where_it_struck(folder: &Path, planned: &Planned) -> Result<(), String> {
    let free = planned.is_free();
    let phases = planned.faults.iter().map(|fault| value_of(fault, "phase").unwrap_or(""));
    let Some(names) = phases.map(met_in).collect::<Option<Vec<_>>>() else { return Ok(()) };
    let names: Vec<&str> = names.concat();
    let told = events_of(folder).into_iter().filter_map(|event| match event.kind {
        Kind::FailureDetected { phase, .. } => Some(phase),
        _ => None,
    });
    let told: Vec<String> = told.collect();
    // Workers die, and commits end, wherever the others are.
    let all_right = free || told.iter().all(|phase| names.contains(&phase.as_str()));
    match all_right && (planned.repair != Repair::Live || !told.is_empty()) {
        true => Ok(()),
        false => Err(format!("failures were met in {told:?}, expected were {names:?}")),
    }
}

/// Where the state has to go over MPI, it did.
fn sent_where_nothing_is_shared(folder: &Path, planned: &Planned) -> Result<(), String> {
    let shared = !planned.keys.iter().any(|key| key == NO_RESIDENT);
    let sent = |event: &Event| matches!(&event.kind, Kind::Phase { name, .. } if *name == SENT);
    match shared || planned.repair != Repair::Live || events_of(folder).iter().any(sent) {
        true => Ok(()),
        false => Err("no state was sent over MPI".into()),
    }
}

/// A6, and A4: no comparison found replicas that differ.
fn named(folder: &Path, planned: &Planned, result: &RunResult) -> Result<(), String> {
    for record in &result.recoveries {
        let timed = record.seconds.values().all(|seconds| *seconds >= 0.0);
        if record.seconds.is_empty() || !timed {
            return Err(format!("a recovery is not told: {record:?}"));
        }
    }
    if let Some(lost) = all_lost(result).find(|l| l.cause.is_empty() || l.host.is_empty()) {
        return Err(format!("a loss is not told: {lost:?}"));
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
    let folders = folders::of_run(&run.id());
    let name = folder.display().to_string();
    let slots =
        inventory(Path::new("/dev/shm")).unwrap().into_iter().filter(|f| f.run_dir == name).count();
    if processes.is_empty() && folders.is_empty() && slots == 0 {
        return Ok(());
    }
    Err(format!("left behind: processes {processes:?}, folders {folders:?}, {slots} slots"))
}
