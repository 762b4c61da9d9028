//! Nothing of an attempt outlives it, whoever dies: every process of it carries the job's name in
//! its environment, and a janitor process, in a session of its own, waits at a pipe from the
//! supervisor. When the pipe closes, because the attempt is over or because the supervisor was
//! killed, it ends whatever still carries the name and removes the job's folders.

use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use kintsugi_ffi::os::{self, Signal};

use super::mpirun::JOB_VARIABLE;

/// How long mpirun may take to end in order once its supervisor is gone.
const ORDERLY_MAX: Duration = Duration::from_secs(1);
/// How often a wait looks again.
const POLL: Duration = Duration::from_millis(20);
/// Rounds of killing before the janitor gives up (a process in an uninterruptible call).
const KILL_ROUNDS_MAX: u32 = 250;
/// How long the supervisor waits for its janitor.
const FINISH_MAX: Duration = Duration::from_secs(10);

/// The job of one attempt of one run directory.
pub fn job_name(run_id: &str, attempt: u32) -> String {
    format!("{PREFIX}{run_id}-{attempt}")
}

const PREFIX: &str = "kintsugi-";

/// Where private folders lie: the same path on every node, since mpirun hands its environment on,
/// and short, for the name of a socket has at most 107 bytes. So it is not the user's `TMPDIR`.
const TEMPORARY: &str = "/tmp";
const MEMORY: &str = "/dev/shm";

/// Sockets and session files. Daemons of several nodes must not meet in one folder: they name
/// theirs after process ids, which repeat between nodes, and mpirun then hangs.
pub fn temporary_folder(job: &str) -> PathBuf {
    Path::new(temporary_root(shared_by(Path::new(TEMPORARY)))).join(job)
}

fn temporary_root(shared_by: Option<&str>) -> &'static str {
    if shared_by.is_some() { MEMORY } else { TEMPORARY }
}

/// The network file system that a folder lies on; where the kernel does not say, it is taken for a
/// local one.
pub fn shared_by(folder: &Path) -> Option<&'static str> {
    os::network_file_system(folder).unwrap_or_default()
}

/// What people should know of that; nothing where `/tmp` is this machine's own.
pub fn detour() -> Option<String> {
    detour_around(shared_by(Path::new(TEMPORARY)))
}

fn detour_around(shared_by: Option<&str>) -> Option<String> {
    shared_by.map(|name| {
        format!(
            "{TEMPORARY} is on a network file system ({name}), where daemons of several nodes \
             would meet: private folders of attempts lie in {MEMORY} instead (TMPDIR is not \
             looked at, since all nodes need the same short path)"
        )
    })
}

/// The ranks' shared memory segments.
pub fn segments_folder(job: &str) -> PathBuf {
    Path::new(MEMORY).join(job)
}

/// A janitor at work.
#[derive(Debug)]
pub struct Janitor {
    child: Child,
}

impl Janitor {
    /// Starts `program sweep JOB` before anything else of the job exists.
    pub fn spawn(program: &Path, job: &str) -> io::Result<Self> {
        let mut command = Command::new(program);
        command.args(["sweep", job]).stdin(Stdio::piped()).stdout(Stdio::null());
        command.stderr(Stdio::null()).env_remove(JOB_VARIABLE).current_dir("/");
        os::detach(&mut command);
        command.spawn().map(|child| Self { child })
    }

    /// Tells it which process ends the others in order.
    pub fn record_mpirun(&mut self, pid: u32) -> io::Result<()> {
        self.child.stdin.as_mut().map_or(Ok(()), |pipe| writeln!(pipe, "{pid}"))
    }

    /// Lets it do its work and waits for it.
    pub fn finish(mut self) -> io::Result<()> {
        drop(self.child.stdin.take());
        let end = Instant::now() + FINISH_MAX;
        while self.child.try_wait()?.is_none() {
            if Instant::now() >= end {
                self.child.kill()?;
                self.child.wait()?;
                return Err(io::Error::new(io::ErrorKind::TimedOut, "processes do not end"));
            }
            std::thread::sleep(POLL / 4);
        }
        Ok(())
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
    sweep(&|name| name == job)?;
    remove_folders(&|name| name == job)
}

/// Sweeps all that earlier attempts of a run left, whose supervisor and janitor were both killed.
pub fn clear_stale(run_id: &str) -> io::Result<()> {
    let prefix = format!("{PREFIX}{run_id}-");
    check_name(&prefix)?;
    sweep(&|name| name.starts_with(&prefix))?;
    remove_folders(&|name| name.starts_with(&prefix))
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
    let (end, mut removed) = (Instant::now() + wait_max, 0);
    loop {
        let look = clear_unused();
        removed += look.removed;
        if look.in_use == 0 || Instant::now() >= end {
            return Cleared { removed, in_use: look.in_use };
        }
        std::thread::sleep(POLL);
    }
}

fn clear_unused() -> Cleared {
    let mut cleared = Cleared::default();
    for root in [temporary_folder(""), segments_folder("")] {
        let Ok(entries) = std::fs::read_dir(&root) else { continue };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let Some(job) = name.to_str().filter(|name| is_job(name)) else { continue };
            if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                continue;
            }
            if is_in_use(job) {
                cleared.in_use += 1;
            } else if std::fs::remove_dir_all(entry.path()).is_ok() {
                // Another user's cannot be removed, and is none of ours.
                cleared.removed += 1;
            }
        }
    }
    cleared
}

fn is_job(name: &str) -> bool {
    let attempt = name.rsplit_once('-').map(|(_, attempt)| attempt.parse::<u32>());
    check_name(name).is_ok() && attempt.is_some_and(|attempt| attempt.is_ok())
}

/// Whether a process belongs to the job or is its janitor, which is there before all others.
fn is_in_use(job: &str) -> bool {
    let named = |pid: u32| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        arguments.split(|byte| *byte == 0).any(|argument| argument == job.as_bytes())
    };
    let Ok(entries) = std::fs::read_dir("/proc") else { return true };
    let mut pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.any(|pid: u32| named(pid) || job_of(pid).is_some_and(|other| other == job))
}

/// A name that could mean other folders or processes is refused.
fn check_name(job: &str) -> io::Result<()> {
    let rest = job.strip_prefix(PREFIX).unwrap_or_default();
    let plain = rest.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
    if rest.len() < 2 || !plain {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{job} is not a job")));
    }
    Ok(())
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
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|&pid| pid != std::process::id() && job_of(pid).is_some_and(|job| matches(&job)))
        .collect()
}

/// Asks a job's ranks on this machine, its spares too, for a checkpoint and their end: for
/// launchers that do not hand the signal on.
pub fn ask_to_stop(job: &str) {
    let rank = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|&byte| byte == 0).nth(1) == Some(&b"train"[..])
    };
    for pid in processes(&|name| name == job).into_iter().filter(rank) {
        // It may be gone already.
        let _ = os::kill(pid, Signal::User1);
    }
}

/// Whether a job is an attempt of this run.
pub fn is_job_of(job: &str, run_id: &str) -> bool {
    let rest = job.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix(run_id));
    rest.and_then(|rest| rest.strip_prefix('-')).is_some_and(|n| n.parse::<u32>().is_ok())
}

/// The job a process belongs to; others' processes are unreadable and none of ours.
pub fn job_of(pid: u32) -> Option<String> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
    let key = format!("{JOB_VARIABLE}=");
    let mut entries = environment.split(|&byte| byte == 0);
    let value = entries.find_map(|entry| entry.strip_prefix(key.as_bytes()))?;
    String::from_utf8(value.to_vec()).ok()
}

fn remove_folders(matches: &dyn Fn(&str) -> bool) -> io::Result<()> {
    for root in [temporary_folder(""), segments_folder("")] {
        let Ok(entries) = std::fs::read_dir(&root) else { continue };
        for entry in entries.flatten() {
            if entry.file_name().to_str().is_some_and(matches)
                && entry.file_type().is_ok_and(|kind| kind.is_dir())
            {
                std::fs::remove_dir_all(entry.path())?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A job no other test has: named after this process.
    fn job(number: u32) -> String {
        job_name(&format!("{:08x}", std::process::id()), number)
    }

    fn sleeper(job: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", "trap '' TERM INT; sleep 60 & wait; sleep 60"]);
        command.env(JOB_VARIABLE, job).spawn().unwrap()
    }

    #[test]
    fn whatever_carries_the_name_ends_and_nothing_else_does() {
        let (ours, other) = (job(1), job(10));
        let (mut swept, mut spared) = (sleeper(&ours), sleeper(&other));
        for folder in [temporary_folder(&ours), segments_folder(&ours)] {
            std::fs::create_dir_all(folder.join("deep")).unwrap();
        }
        work(&ours, io::Cursor::new("")).unwrap();
        assert!(!swept.wait().unwrap().success());
        assert!(!temporary_folder(&ours).exists() && !segments_folder(&ours).exists());
        assert_eq!(spared.try_wait().unwrap(), None);
        clear_stale(&format!("{:08x}", std::process::id())).unwrap();
        assert!(!spared.wait().unwrap().success());
        assert!(processes(&|name| name == other).is_empty());
    }

    #[test]
    fn folders_are_abandoned_when_no_process_names_their_job() {
        let (held, named, left) = (job(20), job(21), job(22));
        let reader = |job: &str, name: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", "read line", name]).stdin(Stdio::piped());
            command.env(JOB_VARIABLE, job).spawn().unwrap()
        };
        let (mut sleeping, mut janitor) = (reader(&held, "sh"), reader("", &named));
        for job in [&held, &named, &left] {
            std::fs::create_dir_all(segments_folder(job)).unwrap();
        }
        // Other tests may leave some at the same time, and use some.
        let cleared = clear_abandoned(Duration::ZERO);
        assert!(cleared.removed >= 1 && cleared.in_use >= 2, "{cleared:?}");
        assert!(segments_folder(&held).exists() && segments_folder(&named).exists());
        assert!(!segments_folder(&left).exists());
        // Who ends meanwhile is waited for.
        let ending = std::thread::spawn(move || {
            std::thread::sleep(10 * POLL);
            for child in [&mut sleeping, &mut janitor] {
                child.kill().unwrap();
                child.wait().unwrap();
            }
        });
        let gone = || [&held, &named].iter().all(|job| !segments_folder(job).exists());
        let end = Instant::now() + Duration::from_secs(20);
        while !gone() && Instant::now() < end {
            clear_abandoned(100 * POLL);
        }
        assert!(gone());
        ending.join().unwrap();
        assert!(!is_job("kintsugi-0badcafe-x") && !is_job("kintsugi-0badcafe-1.slots"));
    }

    #[test]
    fn no_folder_is_made_where_other_machines_see_it() {
        assert_eq!((temporary_root(None), detour_around(None)), ("/tmp", None));
        assert_eq!(temporary_root(Some("nfs")), "/dev/shm");
        let told = detour_around(Some("nfs")).unwrap();
        assert!(told.contains("/tmp") && told.contains("(nfs)") && told.contains("/dev/shm"));
    }

    #[test]
    fn a_name_that_reaches_further_is_refused() {
        for name in ["", "kintsugi-", "kintsugi-/", "kintsugi-../x", "other-00-1"] {
            assert!(work(name, io::Cursor::new("")).is_err(), "{name}");
        }
    }
}
