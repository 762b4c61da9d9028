//! `kintsugi probe mpi`: does recovery work on this machine, and how long does each phase take?
//! Ranks (`rank.rs`) add numbers step by step while planned ones are killed; survivors repair the
//! world with `MpiComm` and every rank must end with the state of a run without failures. This
//! file is the plan, the launcher, and what it makes of the ranks' reports.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use kintsugi_ffi::{os, private, process};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::cluster::comm::mpi::flags::recovery_flags;
use crate::cluster::comm::mpi::loopback;
use crate::config::Shown;
use crate::launch::LaunchError;
use crate::launch::attempt::{mpirun, preload};
use crate::run_folder::launcher;

mod rank;

pub use rank::{RankPlan, run_rank};

/// Words of the state that ranks keep: 1 MB.
const STATE_WORDS: usize = 131_072;
/// Lines of the launcher's standard error that are kept to explain a failure.
const LAST_LINES_MAX: usize = 20;
/// How often the launcher looks whether mpirun ended.
const LOOK: Duration = Duration::from_millis(20);

/// Where a planned death strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum KillPoint {
    /// Before a step's reduction.
    Step,
    /// In a repair, before the leader spawns.
    Spawn,
    /// In a repair, before the replacements are merged.
    Merge,
    /// A replacement, before MPI_Init.
    JoinStart,
    /// A replacement, before it says hello.
    JoinHello,
    /// A replacement, before it bridges to the survivors.
    JoinBridge,
    /// A replacement, before it merges with all.
    JoinMerge,
    /// A replacement, before the ranks are put in order.
    JoinReorder,
    /// A replacement, before the first agreement of the new world.
    JoinAgree,
    /// Any rank, before it sends or receives the state.
    Restore,
}

/// One planned death, typed `POINT@NUMBER:RANK[:LIFE][+MICROSECONDS]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kill {
    /// Where.
    pub point: KillPoint,
    /// The step (`step`), else the attempt to bring replacements in, from 1.
    pub number: u64,
    /// Who.
    pub rank: usize,
    /// Which process of that rank: the attempt in which it came, 0 for first-born ones.
    pub life: u32,
    /// Microseconds after the point is reached, from another thread.
    pub delay_us: u64,
}

/// A `--kill` that names no death.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "{0:?} is not POINT@NUMBER:RANK[:LIFE][+MICROSECONDS] with POINT one of step, spawn, merge, \
     restore, join-start, join-hello, join-bridge, join-merge, join-reorder, join-agree"
)]
pub struct KillSyntax(String);

impl FromStr for Kill {
    type Err = KillSyntax;

    fn from_str(text: &str) -> Result<Self, KillSyntax> {
        let wrong = || KillSyntax(text.to_owned());
        let (place, delay) = text.split_once('+').unwrap_or((text, "0"));
        let (point, rest) = place.split_once('@').ok_or_else(wrong)?;
        let point = KillPoint::from_str(point, false).map_err(|_| wrong())?;
        let mut numbers = rest.split(':');
        let number = numbers.next().and_then(|n| n.parse().ok()).ok_or_else(wrong)?;
        let rank = numbers.next().and_then(|n| n.parse().ok()).ok_or_else(wrong)?;
        let joins = !matches!(
            point,
            KillPoint::Step | KillPoint::Spawn | KillPoint::Merge | KillPoint::Restore
        );
        let life = match numbers.next() {
            Some(life) => life.parse().map_err(|_| wrong())?,
            None if joins => u32::try_from(number).map_err(|_| wrong())?,
            None => 0,
        };
        let delay_us = delay.parse().map_err(|_| wrong())?;
        if numbers.next().is_some() {
            return Err(wrong());
        }
        Ok(Self { point, number, rank, life, delay_us })
    }
}

impl std::fmt::Display for Kill {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.point.to_possible_value();
        let name = name.as_ref().map_or("", |name| name.get_name());
        write!(f, "{name}@{}:{}:{}+{}", self.number, self.rank, self.life, self.delay_us)
    }
}

/// Deaths one after another, each of another rank, replacements included.
pub fn sequence(kills: u32, ranks: usize) -> Vec<Kill> {
    const STEPS_BETWEEN: u64 = 2;
    let mut lives = vec![0; ranks];
    (1..=kills)
        .map(|repair| {
            let rank = (repair as usize * 3) % ranks;
            let life = std::mem::replace(&mut lives[rank], repair);
            let number = u64::from(repair) * STEPS_BETWEEN;
            Kill { point: KillPoint::Step, number, rank, life, delay_us: 0 }
        })
        .collect()
}

/// What is run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scenario {
    /// Ranks to start.
    pub ranks: usize,
    /// Steps to commit.
    pub steps: u64,
    /// Who dies where.
    pub kills: Vec<Kill>,
    /// After this the launcher gives up.
    pub limit: Duration,
}

impl Scenario {
    /// The live check of `doctor`: a rank is killed and replaced, then the replacement is killed.
    pub fn live_check(limit: Duration) -> Self {
        let kill =
            |number, life| Kill { point: KillPoint::Step, number, rank: 2, life, delay_us: 0 };
        Self { ranks: 3, steps: 15, kills: vec![kill(5, 0), kill(10, 1)], limit }
    }
}

/// One repair as its leader timed it, seconds. `total` is from the last commit before the death
/// to the moment everybody has the state again.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Repair {
    /// The committed step it went on from.
    pub step: u64,
    /// Ranks that were replaced.
    pub lost: Vec<usize>,
    /// Attempts it took.
    pub attempts: u32,
    /// From the last commit to the first error.
    pub detect: f64,
    /// Revoke, shrink, and who is left.
    pub revoke_shrink: f64,
    /// MPI_Comm_spawn and the hello, all attempts.
    pub spawn: f64,
    /// Bridge, merge, reorder, first agreement, all attempts.
    pub merge: f64,
    /// Opening every connection.
    pub warm: f64,
    /// Sending the state.
    pub restore: f64,
    /// The whole.
    pub total: f64,
}

impl Repair {
    /// Its parts in milliseconds, for a person; `restore`: what the last one is called.
    pub fn phases(&self, restore: &str) -> String {
        let phases = [
            ("detect", self.detect),
            ("revoke+shrink", self.revoke_shrink),
            ("spawn", self.spawn),
            ("merge", self.merge),
            ("warm", self.warm),
            (restore, self.restore),
        ];
        phases.map(|(name, seconds)| format!("{name} {:.1}", seconds * 1e3)).join(", ")
    }
}

/// What ranks say on standard output, one JSON object a line after `REPORT`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Report {
    Killed { kill: String, pid: u32 },
    Repaired(Repair),
    Retry { reason: String },
    Done { rank: usize, ranks: usize, state: String, workarounds: String },
    GaveUp { rank: usize, reason: String },
}

/// Before every report, so that nothing else on the stream is taken for one.
const REPORT: &str = "kintsugi-probe ";

/// What came of a scenario.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outcome {
    /// Every rank finished, with the state of a run without failures, and every death happened.
    pub ok: bool,
    /// Why not.
    pub problems: Vec<String>,
    /// Planned deaths.
    pub kills_planned: usize,
    /// Deaths that happened.
    pub kills: usize,
    /// Repairs, in order.
    pub repairs: Vec<Repair>,
    /// Attempts to repair that failed, and why.
    pub retries: Vec<String>,
    /// Whether the work-arounds were active on all ranks.
    pub workarounds: Option<String>,
    /// From start to end of mpirun.
    pub seconds: f64,
}

impl Outcome {
    /// Whether the ranks were started at all.
    pub fn began(&self) -> bool {
        self.kills > 0
            || self.workarounds.is_some()
            || !(self.repairs.is_empty() && self.retries.is_empty())
    }
}

fn cannot(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> String {
    let what = what.into();
    move |error| format!("cannot {what}: {error}")
}

/// The environment's choice, the sibling of the compiler wrapper this was built with, or PATH's.
///
/// # Errors
/// When there is none.
pub fn find_mpirun() -> Result<PathBuf, LaunchError> {
    let chosen = std::env::var_os(mpirun::MPIRUN_VARIABLE).map(PathBuf::from);
    let path = std::env::var_os("PATH");
    mpirun::find(chosen, Path::new(kintsugi_ffi::mpi::mpicc()), path.as_deref())
}

fn mpirun_line(scenario: &Scenario, program: &Path) -> Vec<String> {
    let mut line = recovery_flags();
    line.extend(["-n".into(), scenario.ranks.to_string(), program.to_string_lossy().into_owned()]);
    line.extend(rank_arguments(scenario.steps, &scenario.kills));
    line
}

/// Arguments of a rank, first-born or replacement.
fn rank_arguments(steps: u64, kills: &[Kill]) -> Vec<String> {
    let mut line = ["probe", "mpi", "--steps"].map(str::to_owned).to_vec();
    line.push(steps.to_string());
    line.extend(kills.iter().flat_map(|kill| ["--kill".to_owned(), kill.to_string()]));
    line
}

/// Runs a scenario of this program under mpirun and judges it.
///
/// # Errors
/// When nothing could be started; a failed recovery is an [`Outcome`].
pub fn launch(scenario: &Scenario) -> Result<Outcome, String> {
    let program = std::env::current_exe().map_err(cannot("find this program's own path"))?;
    launch_program(scenario, &program)
}

/// The same with the ranks' program named (tests, whose own program is another).
///
/// # Errors
/// As [`launch`].
pub fn launch_program(scenario: &Scenario, program: &Path) -> Result<Outcome, String> {
    let mpirun = find_mpirun().map_err(|error| error.to_string())?;
    let folder = std::env::temp_dir().join(format!("kintsugi-probe-{}", private::word()));
    private::make_folder(&folder).map_err(cannot(format!("create {}", folder.shown())))?;
    let mut command = Command::new(&mpirun);
    launcher::suit(&mut command);
    command
        .args(mpirun_line(scenario, program))
        .env("TMPDIR", &folder)
        .env("OMPI_MCA_btl_sm_backing_directory", &folder)
        .envs(loopback::settings(&mpirun))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    process::supervise(&mut command, os::Signal::Kill);
    let start = Instant::now();
    let cured = preload::cure(&mut command, &folder);
    let cured = cured.map_err(cannot(format!("write into {}", folder.shown())));
    let child = cured.and_then(|()| command.spawn().map_err(cannot("start mpirun")));
    let observed = child.and_then(|child| observe(child, scenario.limit));
    // Best effort: leftovers of a killed mpirun; nothing else lives there.
    let _ = std::fs::remove_dir_all(&folder);
    let observed = observed?;
    Ok(judge(scenario, &observed, start.elapsed().as_secs_f64()))
}

/// What came out of mpirun.
struct Observed {
    reports: Vec<Report>,
    last_lines: VecDeque<String>,
    /// `None`: it ran past the limit and was killed.
    status: Option<ExitStatus>,
}

fn observe(mut child: Child, limit: Duration) -> Result<Observed, String> {
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let reports = std::thread::spawn(move || read_reports(stdout));
    let last_lines = std::thread::spawn(move || read_last_lines(stderr));
    let deadline = Instant::now() + limit;
    let status = loop {
        match child.try_wait().map_err(cannot("wait for mpirun"))? {
            Some(status) => break Some(status),
            None if Instant::now() < deadline => std::thread::sleep(LOOK),
            None => {
                end(&mut child)?;
                break None;
            }
        }
    };
    let reports = reports.join().unwrap_or_default();
    let last_lines = last_lines.join().unwrap_or_default();
    Ok(Observed { reports, last_lines, status })
}

/// SIGTERM takes the ranks along (0.5 s); SIGKILL what is left.
fn end(child: &mut Child) -> Result<(), String> {
    const GRACE: Duration = Duration::from_secs(2);
    let _ = os::kill(child.id(), os::Signal::Terminate);
    let deadline = Instant::now() + GRACE;
    while Instant::now() < deadline {
        if child.try_wait().map_err(cannot("wait for mpirun"))?.is_some() {
            return Ok(());
        }
        std::thread::sleep(LOOK);
    }
    let _ = os::kill_group(child.id(), os::Signal::Kill);
    child.wait().map_err(cannot("wait for mpirun"))?;
    Ok(())
}

fn lines(stream: Option<impl std::io::Read>) -> impl Iterator<Item = String> {
    let reader = stream.map(BufReader::new).into_iter();
    reader.flat_map(|reader| reader.lines().map_while(Result::ok))
}

fn read_reports(stream: Option<impl std::io::Read>) -> Vec<Report> {
    lines(stream).filter_map(|line| serde_json::from_str(line.strip_prefix(REPORT)?).ok()).collect()
}

fn read_last_lines(stream: Option<impl std::io::Read>) -> VecDeque<String> {
    let mut kept = VecDeque::new();
    for line in lines(stream) {
        if kept.len() == LAST_LINES_MAX {
            kept.pop_front();
        }
        kept.push_back(line);
    }
    kept
}

/// FNV-1a over the state's bytes, as text.
fn fingerprint(state: &[u64]) -> String {
    let hash = state
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
        });
    format!("{hash:016x}")
}

/// What rank `rank` adds in step `step` at word `index`.
fn contribution(step: u64, rank: usize, index: usize) -> u64 {
    let seed = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (rank as u64) << 40;
    (seed ^ index as u64).wrapping_mul(0xbf58_476d_1ce4_e5b9)
}

/// The update rule of the probe: a step done twice or never changes everything after it.
fn update(state: &mut [u64], sum: &[u64]) {
    for (word, sum) in state.iter_mut().zip(sum) {
        *word = word.wrapping_mul(3).wrapping_add(*sum);
    }
}

/// The state of a run in which nobody died, computed without MPI.
fn expected_state(steps: u64, ranks: usize) -> Vec<u64> {
    let mut state = vec![0; STATE_WORDS];
    let mut sum = vec![0_u64; STATE_WORDS];
    for step in 0..steps {
        for (index, word) in sum.iter_mut().enumerate() {
            *word = (0..ranks)
                .fold(0, |sum: u64, rank| sum.wrapping_add(contribution(step, rank, index)));
        }
        update(&mut state, &sum);
    }
    state
}

fn judge(scenario: &Scenario, observed: &Observed, seconds: f64) -> Outcome {
    let mut outcome = Outcome {
        ok: false,
        problems: Vec::new(),
        kills_planned: scenario.kills.len(),
        kills: 0,
        repairs: Vec::new(),
        retries: Vec::new(),
        workarounds: None,
        seconds,
    };
    let expected = fingerprint(&expected_state(scenario.steps, scenario.ranks));
    let mut finished = vec![false; scenario.ranks];
    for report in &observed.reports {
        match report {
            Report::Killed { .. } => outcome.kills += 1,
            Report::Repaired(repair) => outcome.repairs.push(repair.clone()),
            Report::Retry { reason } => outcome.retries.push(reason.clone()),
            Report::GaveUp { rank, reason } => {
                outcome.problems.push(format!("rank {rank} gave up: {reason}"));
            }
            Report::Done { rank, ranks, state, workarounds } => {
                if *ranks != scenario.ranks {
                    outcome.problems.push(format!("rank {rank} ended in a world of {ranks}"));
                }
                if *state != expected {
                    outcome.problems.push(format!("rank {rank} ended with a wrong state"));
                }
                finished.get_mut(*rank).into_iter().for_each(|done| *done = true);
                outcome.workarounds = Some(workarounds.clone());
            }
        }
    }
    let missing: Vec<String> =
        (0..scenario.ranks).filter(|rank| !finished[*rank]).map(|rank| rank.to_string()).collect();
    if !missing.is_empty() {
        let how = match observed.status {
            None => format!("stopped after {} s", scenario.limit.as_secs()),
            Some(status) => format!("mpirun: {}", os::ended(status)),
        };
        outcome.problems.push(format!("ranks {} did not finish ({how})", missing.join(", ")));
        outcome.problems.extend(observed.last_lines.iter().map(|line| format!("stderr: {line}")));
    }
    if outcome.kills != outcome.kills_planned {
        let (kills, planned) = (outcome.kills, outcome.kills_planned);
        outcome.problems.push(format!("{kills} of {planned} planned deaths happened"));
    }
    outcome.ok = outcome.problems.is_empty();
    outcome
}

#[cfg(test)]
mod tests;
