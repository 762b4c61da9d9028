//! Starts a rank's guardian, before MPI is: a process of its own session with closed standard
//! streams, which learns from its arguments whom to watch and gets the shared words as its stdin.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use kintsugi_ffi::shared::SharedWords;
use kintsugi_ffi::{mpi, os, process};

use crate::observe::panics::vital;

use super::board::{BEAT_EVERY, Board};
use super::forgotten::Forgotten;
use super::judge::{Joins, Limits};
use super::{last_words, report};
use crate::observe::notice::act_on;

/// Beats between two looks at the guardian itself.
const LOOK_AT_GUARDIAN: u64 = 10;
/// This program, also where its file was replaced by a new build since it started.
const PROGRAM: &str = "/proc/self/exe";

/// What a guardian is told.
#[derive(Debug, Clone)]
pub struct Charge {
    /// The run directory.
    pub run_dir: PathBuf,
    /// Which start of mpirun this is.
    pub attempt: u32,
    /// What its rank is given time for.
    pub limits: Limits,
    /// How it came into the world.
    pub joins: Joins,
}

/// Starts the guardian of this process, and the thread that beats for it.
///
/// # Errors
/// No process, no thread or no shared memory could be had: the rank can go on without.
pub fn start(charge: &Charge) -> io::Result<()> {
    let (words, file) = SharedWords::create(c"kintsugi-guard")?;
    let board = Arc::new(Board::over(words));
    let pid = std::process::id();
    let run_dir = std::path::absolute(&charge.run_dir)?;
    let words_file = last_words::file_name(charge.attempt, &os::hostname(), pid);
    let words_file = run_dir.join("logs").join(words_file);
    let mut command = Command::new(PROGRAM);
    command.args(arguments(pid, &charge.limits, &words_file)).current_dir("/");
    if let Some(rank) = first_rank(charge.joins) {
        command.args(["--rank".to_owned(), rank.to_string()]);
    }
    command.stdin(Stdio::from(file)).stdout(Stdio::null()).stderr(Stdio::null());
    os::detach(&mut command);
    let guardian = command.spawn()?;
    offer_as_victim();
    let (ticking, forgotten) = (Arc::clone(&board), Forgotten::new(charge.joins));
    let ticker = std::thread::Builder::new().name("ticker".into());
    ticker.spawn(move || vital(|| tick(&ticking, guardian, forgotten)))?;
    report::begin(board, words_file);
    Ok(())
}

/// Where memory is short, the kernel is to take a rank, which can be replaced, and not launch,
/// mpirun or a guardian. Everybody may raise this number, and a rank is as good without.
fn offer_as_victim() {
    const SCORE: &str = "/proc/self/oom_score_adj";
    const VICTIM: i32 = 500;
    let score = std::fs::read_to_string(SCORE).ok().and_then(|text| text.trim().parse().ok());
    if score.is_some_and(|score: i32| score < VICTIM) {
        let _ = std::fs::write(SCORE, VICTIM.to_string());
    }
}

/// As mpirun numbers those that it starts together; replacements are numbered anew.
fn first_rank(joins: Joins) -> Option<u32> {
    let rank = std::env::var("OMPI_COMM_WORLD_RANK").ok().filter(|_| joins == Joins::First);
    rank.and_then(|rank| rank.parse().ok())
}

/// The command line of `cli::guard`.
fn arguments(pid: u32, limits: &Limits, last_words: &Path) -> Vec<String> {
    let milliseconds = |time: Duration| format!("{}ms", time.as_millis());
    vec![
        "guard".into(),
        pid.to_string(),
        "--step".into(),
        limits.step.to_string(),
        "--start".into(),
        milliseconds(limits.start),
        "--time".into(),
        milliseconds(limits.time),
        "--last-words".into(),
        last_words.to_string_lossy().into_owned(),
    ]
}

/// Beats for as long as the process lives.
fn tick(board: &Board, mut guardian: Child, mut forgotten: Forgotten) {
    board.set_ticker(process::thread_id());
    let mut watched = true;
    for beat in 1_u64.. {
        board.beat();
        std::thread::sleep(BEAT_EVERY);
        if forgotten.looks(mpi::waits_for_launcher) {
            forgotten.start_again(PROGRAM, &mut guardian);
        }
        if watched
            && beat.is_multiple_of(LOOK_AT_GUARDIAN)
            && let Ok(Some(status)) = guardian.try_wait()
        {
            watched = false;
            let ended = format!("this rank's guardian ended ({status})");
            act_on(&format!("{ended}: nobody notices if the rank hangs now"));
        }
    }
}
