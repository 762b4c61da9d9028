//! Makes sure that a number in `world.json` still means a rank of this run before it is struck:
//! ranks die, numbers are used again, and a process in the middle of exec shows no environment.

use std::io;
use std::path::Path;
use std::time::Duration;

use kintsugi_ffi::os::Signal;
use kintsugi_ffi::pidfd::PidFd;
use kintsugi_ffi::proc::command_line;

use crate::launch::traces::janitor;
use crate::launch::traces::job_name::is_job_of;

/// A process in the middle of exec is looked at so many times.
const LOOKS: u32 = 5;
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The run, as its processes know it.
#[derive(Debug, Clone, Copy)]
pub struct Run<'a> {
    /// `RunDir::id`: part of the job's name that ranks under `launch` carry.
    pub id: &'a str,
    /// Absolute: on the command line of ranks under a plain mpirun.
    pub path: &'a Path,
}

/// Why a process was not struck.
#[derive(Debug, thiserror::Error)]
pub enum Missed {
    /// It has ended, or cannot be reached.
    #[error("process {0} is gone: {1}")]
    Gone(u32, io::Error),
    /// The number means something else by now.
    #[error("process {0} is none of this run")]
    Stranger(u32),
}

/// Strikes the process if it is a rank of the run. It is held before it is looked at, so that the
/// one that is struck is the one that was seen.
pub fn strike(pid: u32, run: Run<'_>, signal: Signal) -> Result<(), Missed> {
    let held = PidFd::open(pid).map_err(|error| Missed::Gone(pid, error))?;
    if !belongs(pid, run) {
        return Err(Missed::Stranger(pid));
    }
    held.send(signal).map_err(|error| Missed::Gone(pid, error))
}

fn belongs(pid: u32, run: Run<'_>) -> bool {
    for look in 0..LOOKS {
        if look > 0 {
            std::thread::sleep(LOOK_AGAIN);
        }
        let words = command_line(pid);
        let job = janitor::job_of(pid);
        if words.is_empty() && job.is_none() {
            continue;
        }
        return is_rank(&words, job.as_deref(), run);
    }
    false
}

/// Only ranks train; guardians carry the same job.
fn is_rank(words: &[Vec<u8>], job: Option<&str>, run: Run<'_>) -> bool {
    let path = run.path.as_os_str().as_encoded_bytes();
    let named = words.windows(2).any(|pair| pair[0] == b"--run-dir" && pair[1] == path);
    let ours = job.is_some_and(|job| is_job_of(job, run.id));
    janitor::trains(words) && (named || ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &[&str]) -> Vec<Vec<u8>> {
        words.iter().map(|word| word.as_bytes().to_vec()).collect()
    }

    #[test]
    fn only_ranks_of_this_run_are_struck() {
        let run = Run { id: "0badcafe", path: Path::new("/runs/a") };
        let rank = line(&["kintsugi", "train", "/runs/a/config.toml", "--run-dir", "/runs/a"]);
        let other = line(&["kintsugi", "train", "/runs/b/config.toml", "--run-dir", "/runs/b"]);
        let guardian = line(&["/proc/self/exe", "guard", "77"]);
        for (line, job, expected) in [
            (&rank, None, true),
            (&other, Some("kintsugi-0badcafe-2"), true),
            (&other, Some("kintsugi-0badcafe0-2"), false),
            (&other, None, false),
            (&guardian, Some("kintsugi-0badcafe-2"), false),
            (&line(&["sh"]), Some("kintsugi-0badcafe-2"), false),
        ] {
            assert_eq!(is_rank(line, job, run), expected, "{job:?}");
        }
    }

    #[test]
    fn a_stranger_and_a_dead_process_are_left_alone() {
        let run = Run { id: "0badcafe", path: Path::new("/runs/a") };
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let missed = strike(child.id(), run, Signal::Kill);
        assert!(matches!(missed, Err(Missed::Stranger(_))), "{missed:?}");
        assert_eq!(child.try_wait().unwrap(), None, "it lives");
        child.kill().unwrap();
        child.wait().unwrap();
        let missed = strike(child.id(), run, Signal::Kill);
        assert!(matches!(missed, Err(Missed::Gone(..) | Missed::Stranger(_))), "{missed:?}");
    }
}
