//! Nothing of an attempt outlives it, whoever dies: every process of it carries the job's name in
//! its environment, and a janitor process, in a session of its own, waits at a pipe from the
//! supervisor. When the pipe closes, because the attempt is over or because the supervisor was
//! killed, it ends whatever still carries the name and removes the job's folders.

use std::io::{self, BufRead, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kintsugi_ffi::os::{self, Signal};
use kintsugi_ffi::private;
use kintsugi_ffi::proc::command_line;

use crate::run_folder::variables;

use super::folders;
use super::job_name::{attempt_of, check_name, is_job_of, job_name};

/// How long mpirun may take to end in order once its supervisor is gone.
const ORDERLY_MAX: Duration = Duration::from_secs(1);
/// How often a wait looks again.
const POLL: Duration = Duration::from_millis(20);
/// Rounds of killing before the janitor gives up (a process in an uninterruptible call).
const KILL_ROUNDS_MAX: u32 = 250;
/// How long the supervisor waits for its janitor before it does the work itself.
const FINISH_MAX: Duration = Duration::from_secs(10);

/// A janitor at work.
#[derive(Debug)]
pub struct Janitor {
    child: Child,
    job: String,
}

impl Janitor {
    /// Starts `program sweep JOB` before anything else of the job exists.
    pub fn spawn(program: &Path, job: &str) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.args(["sweep", job]).stdin(Stdio::piped()).stdout(Stdio::null());
        command.stderr(Stdio::null()).env_remove(variables::JOB).current_dir("/");
        os::detach(&mut command);
        command.spawn().map(|child| Self { child, job: job.into() })
    }

    /// Tells it which process ends the others in order.
    pub fn record_mpirun(&mut self, pid: u32) -> io::Result<()> {
        self.child.stdin.as_mut().map_or(Ok(()), |pipe| writeln!(pipe, "{pid}"))
    }

    /// Lets it do its work and waits for it; does it, where the janitor does not.
    ///
    /// # Errors
    /// Something stays.
    pub fn finish(self) -> io::Result<()> {
        self.finish_within(FINISH_MAX)
    }

    fn finish_within(mut self, wait_max: Duration) -> io::Result<()> {
        drop(self.child.stdin.take());
        let end = Instant::now() + wait_max;
        loop {
            if let Some(status) = self.child.try_wait()? {
                if !status.success() {
                    // It died, or something stayed: what still does is told when the launch ends.
                    let _ = clear(&|name| name == self.job);
                }
                return Ok(());
            }
            if Instant::now() >= end {
                self.child.kill()?;
                self.child.wait()?;
                return clear(&|name| name == self.job);
            }
            std::thread::sleep(POLL / 4);
        }
    }
}

/// The janitor's own work: waits until `input` ends, then sweeps. An error when something stays.
pub fn work(job: &str, input: impl BufRead) -> io::Result<()> {
    check_name(job)?;
    // A read error is an end too: the supervisor is gone.
    let mpirun = input.lines().map_while(Result::ok).filter_map(|line| line.parse().ok()).last();
    if let Some(pid) = mpirun {
        let end = Instant::now() + ORDERLY_MAX;
        while os::process_is_alive(pid) && Instant::now() < end {
            std::thread::sleep(POLL);
        }
    }
    clear(&|name| name == job)
}

/// Ends what is left of jobs and removes their folders.
fn clear(matches: &dyn Fn(&str) -> bool) -> io::Result<()> {
    sweep(matches)?;
    folders::remove(matches)
}

/// Sweeps all that earlier attempts of a run left, whose supervisor and janitor were both killed.
pub fn clear_stale(run_id: &str) -> io::Result<()> {
    check_name(&job_name(run_id, 0))?;
    clear(&|job| is_job_of(job, run_id))
}

/// The same for the attempts up to this one: their janitors may have been killed with them. Later
/// attempts are another launch's.
pub fn clear_until(run_id: &str, last: u32) -> io::Result<()> {
    check_name(&job_name(run_id, 0))?;
    clear(&|job| is_job_of(job, run_id) && attempt_of(job).is_some_and(|attempt| attempt <= last))
}

/// What came of removing folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cleared {
    /// Folders that are gone.
    pub removed: usize,
    /// Folders that a process of their attempt still uses.
    pub in_use: usize,
}

/// Removes the folders of attempts that nobody is left of: supervisor and janitors were killed at
/// once, as `scancel` does. Guardians outlive their ranks by a moment, so those in use are looked
/// at again, for at most `wait_max`.
pub fn clear_abandoned(wait_max: Duration) -> Cleared {
    clear_abandoned_of(&|_| true, wait_max)
}

fn clear_abandoned_of(matches: &dyn Fn(&str) -> bool, wait_max: Duration) -> Cleared {
    let (end, mut removed) = (Instant::now() + wait_max, 0);
    loop {
        let look = clear_unused(matches);
        removed += look.removed;
        if look.in_use == 0 || Instant::now() >= end {
            return Cleared { removed, in_use: look.in_use };
        }
        std::thread::sleep(POLL);
    }
}

fn clear_unused(matches: &dyn Fn(&str) -> bool) -> Cleared {
    let mut cleared = Cleared::default();
    for (job, path) in folders::all().into_iter().filter(|(job, _)| matches(job)) {
        if is_in_use(&job) {
            cleared.in_use += 1;
        } else if private::remove_folder(&path).unwrap_or(false) {
            cleared.removed += 1;
        }
    }
    cleared
}

/// Whether a process belongs to the job or is its janitor, which is there before all others.
fn is_in_use(job: &str) -> bool {
    let named = |pid: u32| command_line(pid).iter().any(|argument| argument == job.as_bytes());
    let Some(pids) = own_processes() else { return true };
    pids.into_iter().any(|pid| named(pid) || job_of(pid).is_some_and(|other| other == job))
}

/// Processes of this user: whatever name another one gives to his, they are none of ours. `None`
/// without /proc.
fn own_processes() -> Option<Vec<u32>> {
    let entries = std::fs::read_dir("/proc").ok()?.flatten();
    let own = entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        is_ours(pid).then_some(pid)
    });
    Some(own.collect())
}

fn is_ours(pid: u32) -> bool {
    std::fs::metadata(format!("/proc/{pid}")).is_ok_and(|facts| private::is_ours(&facts))
}

/// Looks in a row that must find nothing.
const EMPTY_LOOKS: u32 = 2;

/// Kills every process of the jobs, also those that are being born meanwhile.
fn sweep(matches: &dyn Fn(&str) -> bool) -> io::Result<()> {
    // A process in the middle of exec has no environment for a moment: one look is not enough.
    let mut empty_looks = 0;
    for _ in 0..KILL_ROUNDS_MAX {
        let found = processes(matches);
        empty_looks = if found.is_empty() { empty_looks + 1 } else { 0 };
        if empty_looks == EMPTY_LOOKS {
            return Ok(());
        }
        for pid in found {
            // It may be gone already.
            let _ = os::kill(pid, Signal::Kill);
        }
        std::thread::sleep(POLL);
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "processes survive SIGKILL"))
}

/// Processes whose environment carries a matching job name.
fn processes(matches: &dyn Fn(&str) -> bool) -> Vec<u32> {
    let pids = own_processes().unwrap_or_default().into_iter();
    pids.filter(|&pid| pid != std::process::id() && job_of(pid).is_some_and(|job| matches(&job)))
        .collect()
}

/// Asks a job's ranks on this machine, its spares too, for a checkpoint and their end. mpirun would
/// hand the signal to all, and it ends who has only begun: the leader would wait in vain for the
/// replacement that it has spawned. One that hears it is enough, it asks the others.
pub fn ask_to_stop(job: &str) {
    for pid in ranks(job).into_iter().filter(|&pid| catches(pid, Signal::User1)) {
        // It may be gone already.
        let _ = os::kill(pid, Signal::User1);
    }
}

/// Whether a process has a handler of its own for this signal: SigCgt in proc(5).
fn catches(pid: u32, signal: Signal) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let caught = caught.and_then(|caught| u64::from_str_radix(caught.trim(), 16).ok());
    caught.is_some_and(|caught| caught >> (signal.number() - 1) & 1 == 1)
}

/// The processes of a job's ranks on this machine, its spares among them.
pub fn ranks(job: &str) -> Vec<u32> {
    let is_rank = |pid: &u32| trains(&command_line(*pid));
    processes(&|name| name == job).into_iter().filter(is_rank).collect()
}

/// Whether a command line is a rank's: its task stands behind the program, or behind a script and
/// what runs it.
pub fn trains(words: &[Vec<u8>]) -> bool {
    words.iter().skip(1).take(2).any(|word| word == b"train")
}

/// The job a process of this user belongs to.
pub fn job_of(pid: u32) -> Option<String> {
    // Root may read others' as well.
    if !is_ours(pid) {
        return None;
    }
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let key = format!("{}=", variables::JOB);
    let mut entries = environment.split(|&byte| byte == 0);
    let value = entries.find_map(|entry| entry.strip_prefix(key.as_bytes()))?;
    String::from_utf8(value.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use super::folders::Folders;
    use super::*;

    /// A run no other test has, here or in another process: `test` lies above all process ids.
    fn run(test: u32) -> String {
        format!("{:08x}", std::process::id() ^ test << 24)
    }

    fn sleeper(job: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' TERM INT; sleep 60 & wait; sleep 60"]);
        command.env(variables::JOB, job).spawn().unwrap()
    }

    #[test]
    fn whatever_carries_the_name_ends_and_nothing_else_does() {
        let run = run(1);
        let (ours, other) = (job_name(&run, 1), job_name(&run, 10));
        let (mut swept, mut spared) = (sleeper(&ours), sleeper(&other));
        let drawn = Folders::draw(&ours);
        drawn.make().unwrap();
        for folder in [&drawn.temporary, &drawn.shared_memory] {
            std::fs::create_dir(folder.join("deep")).unwrap();
        }
        work(&ours, io::Cursor::new("")).unwrap();
        assert!(!swept.wait().unwrap().success());
        assert!(!drawn.temporary.exists() && !drawn.shared_memory.exists());
        assert_eq!(spared.try_wait().unwrap(), None);
        clear_stale(&run).unwrap();
        assert!(!spared.wait().unwrap().success());
        assert!(processes(&|name| name == other).is_empty());
    }

    #[test]
    fn what_a_janitor_that_is_held_up_leaves_is_cleared_without_it() {
        let job = job_name(&run(4), 1);
        let mut swept = sleeper(&job);
        // Whatever it is told, it does not end.
        let janitor = Janitor::spawn(Path::new("yes"), &job).unwrap();
        janitor.finish_within(Duration::ZERO).unwrap();
        assert!(!swept.wait().unwrap().success());
        assert!(processes(&|name| name == job).is_empty());
    }

    #[test]
    fn folders_are_abandoned_when_no_process_names_their_job() {
        let run = run(2);
        let [held, named, left] = [20, 21, 22].map(|attempt| job_name(&run, attempt));
        let clear = |wait_max| clear_abandoned_of(&|job| is_job_of(job, &run), wait_max);
        let reader = |job: &str, name: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", "read line", name]).stdin(Stdio::piped());
            command.env(variables::JOB, job).spawn().unwrap()
        };
        let (mut sleeping, mut janitor) = (reader(&held, "sh"), reader("", &named));
        let [in_held, in_named, in_left] = [&held, &named, &left].map(|job| {
            let drawn = Folders::draw(job);
            private::make_folder(&drawn.shared_memory).unwrap();
            drawn.shared_memory
        });
        assert_eq!(clear(Duration::ZERO), Cleared { removed: 1, in_use: 2 });
        assert!(in_held.exists() && in_named.exists() && !in_left.exists());
        // Who ends meanwhile is waited for.
        let ending = std::thread::spawn(move || {
            std::thread::sleep(10 * POLL);
            for child in [&mut sleeping, &mut janitor] {
                child.kill().unwrap();
                child.wait().unwrap();
            }
        });
        let gone = || !in_held.exists() && !in_named.exists();
        let end = Instant::now() + Duration::from_secs(20);
        while !gone() && Instant::now() < end {
            clear(100 * POLL);
        }
        assert!(gone());
        ending.join().unwrap();
    }

    #[test]
    fn attempts_up_to_a_number_are_cleared_and_later_ones_are_not() {
        let run = run(3);
        let places = [2, 3, 4].map(|attempt| {
            let drawn = Folders::draw(&job_name(&run, attempt));
            drawn.make().unwrap();
            drawn.shared_memory
        });
        let mut left = sleeper(&job_name(&run, 3));
        clear_until(&run, 3).unwrap();
        assert!(!left.wait().unwrap().success());
        assert_eq!(places.each_ref().map(|place| place.exists()), [false, false, true]);
        clear_stale(&run).unwrap();
        assert_eq!(folders::of_run(&run), Vec::<std::path::PathBuf>::new());
    }

    #[test]
    fn a_name_that_reaches_further_is_refused() {
        for name in ["", "kintsugi-", "kintsugi-/", "kintsugi-../x", "other-00-1"] {
            assert!(work(name, io::Cursor::new("")).is_err(), "{name}");
        }
    }
}
