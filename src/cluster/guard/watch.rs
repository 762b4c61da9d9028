//! The guardian at work: samples the shared words, kills its rank when the judge says so, and when
//! the rank has ended, however, leaves word of how and removes what it left behind.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use kintsugi_ffi::cgroup;
use kintsugi_ffi::os::{self, Ended, Signal};
use kintsugi_ffi::pidfd::PidFd;
use kintsugi_ffi::proc::Stat;
use kintsugi_ffi::process;
use kintsugi_ffi::shared::SharedWords;
use signal_hook::consts::SIGTSTP;
use signal_hook::flag::register_conditional_default;

use crate::observe::spans::amount;

use super::board::{Board, SAMPLE_EVERY};
use super::judge::{self, Judge, Limits, Verdict};
use super::last_words;
use super::segment;

/// How long it waits for the kernel to say how its rank ended.
const STATUS_WAIT_MAX: Duration = Duration::from_millis(300);
const STATUS_POLL: Duration = Duration::from_millis(5);
/// Of an end that only its traces show.
const UNSEEN: &str = "ended before its guardian looked";

/// What it was told on its command line.
#[derive(Debug, Clone)]
pub struct Orders {
    /// Its rank, which is its parent.
    pub pid: u32,
    /// What the rank is given time for.
    pub limits: Limits,
    /// Where to leave word of its end.
    pub last_words: PathBuf,
    /// Its rank in the world that an attempt begins with; none where it joins later.
    pub rank: Option<u32>,
}

/// Watches until the rank has ended; then cleans up and returns.
///
/// # Errors
/// There is nothing to watch: no rank, no shared words.
pub fn watch(orders: &Orders) -> io::Result<()> {
    process::close_files_from(3)?;
    stop_with_a_suspended_job()?;
    let rank = PidFd::open(orders.pid);
    // One that ended before it was taken hold of is not watched: the number may be a stranger's.
    let rank = if os::parent_pid() == orders.pid { Some(rank?) } else { None };
    let file = std::fs::File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let board = Board::over(SharedWords::map(&file)?);
    drop(file);
    let before = OomKills::now();
    rank.iter().for_each(|rank| sample_until_the_end(orders, rank, &board));
    if !board.ended() {
        if let Some(rank) = orders.rank.filter(|_| !board.has_met()) {
            // Before the status: whoever reads that an end came reads when it came.
            last_words::leave(&orders.last_words, last_words::UNMET, &rank.to_string());
        }
        match &rank {
            Some(rank) => {
                let status = status(rank);
                report(&orders.last_words, status, OomKills::now().words_since(before));
            }
            None => last_words::leave(&orders.last_words, last_words::STATUS, UNSEEN),
        }
    }
    if let Some(name) = board.segment() {
        segment::remove(&name);
    }
    Ok(())
}

/// SLURM suspends a job by SIGTSTP for each of its processes, and two seconds later by SIGSTOP. The
/// first one stops the ranks, but by default no process that leads a session: a guardian that went
/// on would take its rank for a stopped one. What it sees once it goes on is a jump of time.
fn stop_with_a_suspended_job() -> io::Result<()> {
    register_conditional_default(SIGTSTP, Arc::new(AtomicBool::new(true))).map(drop)
}

/// Ends because every process does.
fn sample_until_the_end(orders: &Orders, rank: &PidFd, board: &Board) {
    let mut judge = Judge::new(orders.limits, os::monotonic_time());
    let mut told = false;
    while !rank.has_ended_within(SAMPLE_EVERY) {
        let reading = board.read();
        let verdict = judge.on(os::monotonic_time(), reading);
        let Some(words) = condemned(verdict, orders.pid, board, reading.beat) else { continue };
        if !told {
            // Before the kill: the survivors look for it as soon as they have repaired the world.
            last_words::leave(&orders.last_words, last_words::VERDICT, &words);
            told = true;
        }
        // It may have ended in this moment; a process that the kernel holds is tried again.
        let _ = rank.send(Signal::Kill);
    }
}

/// The reason to kill the rank, if there is one; `beat`: the one that the verdict knows.
fn condemned(verdict: Verdict, pid: u32, board: &Board, beat: u64) -> Option<String> {
    match verdict {
        Verdict::Lives => None,
        Verdict::Silent(silence) => {
            let ticker = || board.ticker().and_then(|thread| Stat::of_thread(pid, thread)?.state());
            judge::silence_is_death(silence, ticker, || board.read().beat != beat).then(|| {
                let seconds = silence.as_secs_f64();
                format!("stopped: no beat for {seconds:.1} s, killed by its guardian")
            })
        }
        Verdict::Stuck(activity, still) => {
            let (seconds, name) = (still.as_secs_f64(), activity.name());
            Some(format!(
                "hung: no progress for {seconds:.1} s while {name}, killed by its guardian"
            ))
        }
    }
}

fn status(rank: &PidFd) -> Option<Ended> {
    let end = Instant::now() + STATUS_WAIT_MAX;
    loop {
        let status = rank.ended();
        if status.is_some() || Instant::now() >= end {
            return status;
        }
        std::thread::sleep(STATUS_POLL);
    }
}

/// `memory`: what the OOM killer did while the rank was watched.
fn report(path: &Path, status: Option<Ended>, memory: Option<String>) {
    let killed = status.is_none_or(|status| status == Ended::Signal(9));
    if let Some(words) = memory.filter(|_| killed) {
        last_words::leave(path, last_words::MEMORY, &words);
    }
    // Last: whoever finds it finds the whole.
    if let Some(status) = status {
        last_words::leave(path, last_words::STATUS, &status.to_string());
    }
}

/// Processes that the OOM killer has ended.
#[derive(Debug, Clone, Copy)]
struct OomKills {
    /// On this node, those of containers included.
    node: u64,
    /// In the rank's control groups, whose tightest limit of memory was met; the guardian is in
    /// them too.
    groups: Option<u64>,
}

impl OomKills {
    fn now() -> Self {
        let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        let node = line.and_then(|count| count.trim().parse().ok()).unwrap_or(0);
        Self { node, groups: cgroup::oom_kills() }
    }

    /// What a person should know of it; nothing where it did not strike.
    fn words_since(self, before: Self) -> Option<String> {
        let (killer, short) = ("the kernel's OOM killer struck", last_words::OUT_OF_MEMORY);
        if self.groups > before.groups {
            let most = cgroup::read().memory_bytes;
            let most =
                most.map_or_else(String::new, |most| format!(", which may use {}", amount(most)));
            return Some(format!("{short}: {killer} in this rank's control group{most}"));
        }
        let node = || format!("probably {short}: {killer} on this node meanwhile");
        (self.node > before.node).then(node)
    }
}
