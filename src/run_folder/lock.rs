//! `RUN/lock`: the attempt in force and who supervises it. The living supervisor holds the file's
//! flock, which the kernel frees when it dies; the attempt number cuts off whoever lives on without
//! it: every publication is checked against it first.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kintsugi_ffi::os::{self, Signal};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::config::{Shown, Span};
use crate::observe::refusal::{self, Meaning, if_there, insist, naming};
use crate::observe::storage::{self, Storage};

/// Why a run is not, or no longer, ours.
#[derive(Debug, Error)]
pub enum LockError {
    /// Another launch holds the run and does not let go.
    #[error(
        "{} is held by a launch that does not end (process {pid} on {host}); end it there, \
         then try again",
        path.shown()
    )]
    Held {
        /// The folder.
        path: PathBuf,
        /// The holder.
        pid: u32,
        /// Its host.
        host: String,
    },
    /// A later launch took the run over.
    #[error("another launch took this run over as attempt {attempt}")]
    Superseded {
        /// The attempt in force.
        attempt: u32,
    },
    /// Who waited for it was asked to stop.
    #[error("asked to stop before the ranks were started")]
    Stopped,
    /// The name of the run's folder, or of its lock, is another's or nobody's.
    #[error(
        "{} was moved, removed or replaced under the run (its lock is not there any more): put it \
         back and start again, or name its new place with --run-dir",
        path.shown()
    )]
    Moved {
        /// The folder.
        path: PathBuf,
    },
    /// The file itself.
    #[error("{what}: {source}{}", refusal::advice(source))]
    Io {
        /// What was tried.
        what: String,
        /// What the kernel said.
        source: io::Error,
    },
}

/// Names what was tried when the kernel refuses.
fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> LockError {
    let what = what.into();
    move |source| LockError::Io { what, source }
}

/// Who may open the file: its owner; where the group may write the run's folder, and so continue
/// the run, the group too; others never.
const MODE: u32 = 0o600;
const GROUP_MODE: u32 = 0o660;
const GROUP_WRITES: u32 = 0o020;
const PERMISSIONS: u32 = 0o777;
/// The file has this length from its first byte on: a reader never sees a mixture of two.
const LENGTH: usize = 256;
/// How often a wait looks again.
const POLL: Duration = Duration::from_millis(50);
/// Looks at a lock before somebody counts as its holder.
const LOOKS_MAX: u32 = 3;
/// How long a killed supervisor may take to be gone.
const KILLED_WAIT_MAX: Duration = Duration::from_secs(5);

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Holder {
    /// Starts of mpirun.
    pub attempt: u32,
    /// The process that supervises them.
    pub supervisor: u32,
    /// The leader of mpirun's process group; 0 between attempts.
    pub mpirun: u32,
    /// Where both live.
    pub host: String,
}

impl Holder {
    /// Whether it is the same launch, whatever it has done since.
    fn is_of(&self, other: &Self) -> bool {
        (self.supervisor, &self.host) == (other.supervisor, &other.host)
    }
}

/// The attempt in force in a run directory; `None` where no launch ever was. A process of an older
/// attempt must not publish anything any more.
///
/// # Errors
/// The lock cannot be read now: a later attempt may have begun.
pub fn current_attempt(run_dir: &Path) -> io::Result<Option<u32>> {
    let path = run_dir.join("lock");
    let file = if_there(insist(|| File::open(&path))).map_err(naming(&path))?;
    let holder = file.map_or(Ok(None), |file| insist(|| said(&file)));
    holder.map(|holder| holder.map(|holder| holder.attempt)).map_err(naming(&path))
}

/// Whether the launch that started the ranks of a run's newest attempt has ended, as far as this
/// machine knows. Not of ranks that hold their run themselves.
pub fn launch_is_gone(storage: &dyn Storage) -> bool {
    let text = storage.read(Path::new("lock")).unwrap_or_default();
    let holder: Holder = serde_json::from_slice(&text).unwrap_or_default();
    holder.mpirun != 0 && holder.host == os::hostname() && !os::process_is_alive(holder.supervisor)
}

/// Only those open it who may continue the run: who can read a file can lock it, and so keep every
/// launch out.
fn open(path: &Path) -> io::Result<File> {
    let folder = path.parent().unwrap_or(path).metadata()?.permissions().mode();
    let most = if folder & GROUP_WRITES != 0 { GROUP_MODE } else { MODE };
    let mut options = File::options();
    let file = options.read(true).write(true).create(true).truncate(false).mode(most).open(path)?;
    let mode = file.metadata()?.permissions().mode() & PERMISSIONS;
    if mode & !most != 0
        && let Err(error) = file.set_permissions(Permissions::from_mode(mode & most))
    {
        tracing::warn!("{}: others can lock it ({error})", path.shown());
    }
    Ok(file)
}

/// `None` while nothing is written yet.
fn read(file: &File) -> io::Result<Option<Holder>> {
    let mut bytes = [0; LENGTH];
    let mut filled = 0;
    while filled < LENGTH {
        match file.read_at(&mut bytes[filled..], filled as u64)? {
            0 => break,
            count => filled += count,
        }
    }
    if filled == 0 {
        return Ok(None);
    }
    serde_json::from_slice(&bytes[..filled])
        .map(Some)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("lock: {error}")))
}

/// The same, and `None` where it is torn or another program's: that must not stop a run for ever.
fn said(file: &File) -> io::Result<Option<Holder>> {
    match read(file) {
        Err(error) if Meaning::of(&error) == Meaning::Damaged => Ok(None),
        read => read,
    }
}

fn write(file: &File, holder: &Holder) -> io::Result<()> {
    let text = serde_json::to_string(holder)?;
    let line = format!("{text:<width$}\n", width = LENGTH - 1);
    if line.len() != LENGTH {
        let message = format!("lock: host name too long: {}", holder.host);
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    file.write_all_at(line.as_bytes(), 0)
}

/// The run is ours for as long as this lives.
#[derive(Debug)]
pub struct RunLock {
    file: File,
    path: PathBuf,
    held: Holder,
    unended: u32,
}

impl Drop for RunLock {
    /// A child that is just being started holds a copy of the file until it runs its own program.
    fn drop(&mut self) {
        let _ = self.file.unlock();
    }
}

impl RunLock {
    /// Takes the run. A launch that holds it is asked to stop, as by Ctrl-C, and given `patience`
    /// to write its checkpoint; then its attempt is cut off and it is killed. `stop` ends the wait.
    pub fn take(
        run_dir: &Path,
        patience: Duration,
        stop: &mut dyn FnMut() -> bool,
        say: &mut dyn FnMut(&str),
    ) -> Result<Self, LockError> {
        let path = run_dir.join("lock");
        let failed = |what: &str| io_error(format!("{what} {}", path.shown()));
        let file = open(&path).map_err(failed("opening"))?;
        if !is_locked_at_once(&file).map_err(failed("locking"))? {
            end_holders(&file, run_dir, patience, stop, say)?;
        }
        // Where nothing is said attempts start again at 1.
        let before = said(&file).map_err(failed("reading"))?.unwrap_or_default();
        let held = Holder {
            attempt: before.attempt,
            supervisor: std::process::id(),
            mpirun: 0,
            host: os::hostname(),
        };
        write(&file, &held).map_err(failed("writing"))?;
        let unended = if before.mpirun == 0 { 0 } else { before.attempt };
        Ok(Self { file, path, held, unended })
    }

    /// The attempt whose ranks an earlier launch had started and was not seen to end; else 0.
    pub fn unended_attempt(&self) -> u32 {
        self.unended
    }

    /// The newest attempt: before one is raised, that of an earlier launch.
    pub fn attempt(&self) -> u32 {
        self.held.attempt
    }

    /// Begins the next attempt: from here on all earlier ones are cut off.
    pub fn raise(&mut self) -> Result<u32, LockError> {
        self.check()?;
        self.held.attempt += 1;
        self.held.mpirun = 0;
        self.store()?;
        Ok(self.held.attempt)
    }

    /// Records whom to kill when we no longer can.
    pub fn record_mpirun(&mut self, pid: u32) -> Result<(), LockError> {
        self.check()?;
        self.held.mpirun = pid;
        self.store()
    }

    /// An error once a later launch has raised the attempt, or the run's folder is elsewhere.
    pub fn check(&self) -> Result<(), LockError> {
        let held = self.file.metadata().map(|found| storage::identity(&found));
        if held.is_ok_and(|held| storage::names_another(&self.path, held)) {
            let path = self.path.parent().unwrap_or(&self.path).to_owned();
            return Err(LockError::Moved { path });
        }
        let now = read(&self.file).map_err(io_error(format!("reading {}", self.path.shown())))?;
        match now {
            Some(now) if now.attempt > self.held.attempt => {
                Err(LockError::Superseded { attempt: now.attempt })
            }
            _ => Ok(()),
        }
    }

    fn store(&self) -> Result<(), LockError> {
        write(&self.file, &self.held).map_err(io_error(format!("writing {}", self.path.shown())))
    }
}

/// Whether nobody holds it, but for who looked just now whether anybody does.
fn is_locked_at_once(file: &File) -> io::Result<bool> {
    for _ in 0..LOOKS_MAX {
        if os::lock_file(file)? == os::Lock::Taken {
            return Ok(true);
        }
        std::thread::sleep(POLL);
    }
    Ok(false)
}

/// What came of waiting for a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waited {
    Locked,
    /// Another launch waited for it too, and has it now.
    Passed,
    InVain,
}

/// `holder`: whom the lock names while this wait begins.
fn wait_for_lock(
    file: &File,
    run_dir: &Path,
    holder: &Holder,
    wait: Duration,
    stop: &mut dyn FnMut() -> bool,
) -> Result<Waited, LockError> {
    let end = Instant::now() + wait;
    loop {
        let locked = os::lock_file(file);
        let locked = locked.map_err(io_error(format!("locking {}", run_dir.shown())))?;
        if locked == os::Lock::Taken {
            return Ok(Waited::Locked);
        }
        if said(file).is_ok_and(|now| now.is_some_and(|now| !now.is_of(holder))) {
            return Ok(Waited::Passed);
        }
        if stop() {
            return Err(LockError::Stopped);
        }
        if Instant::now() >= end {
            return Ok(Waited::InVain);
        }
        std::thread::sleep(POLL);
    }
}

/// Whether a process of this machine has a file open: a number in a file may be somebody else's.
fn has_open(pid: u32, path: &Path) -> bool {
    let Ok(path) = path.canonicalize() else { return false };
    let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    pid != std::process::id()
        && files.flatten().any(|file| std::fs::read_link(file.path()).is_ok_and(|to| to == path))
}

/// Ends whoever holds the lock, one launch after the other: those that wait for it too may get it
/// first.
fn end_holders(
    file: &File,
    run_dir: &Path,
    patience: Duration,
    stop: &mut dyn FnMut() -> bool,
    say: &mut dyn FnMut(&str),
) -> Result<(), LockError> {
    loop {
        // An attempt that nobody knows must not be lowered.
        let read = insist(|| said(file));
        let read = read.map_err(io_error(format!("reading the lock of {}", run_dir.shown())))?;
        let holder = read.unwrap_or_default();
        match end_holder(file, run_dir, &holder, patience, stop, say)? {
            Waited::Locked => return Ok(()),
            Waited::Passed => {}
            Waited::InVain => {
                let (pid, host) = (holder.supervisor, holder.host);
                return Err(LockError::Held { path: run_dir.to_owned(), pid, host });
            }
        }
    }
}

/// Gently first, where it can be asked.
fn end_holder(
    file: &File,
    run_dir: &Path,
    holder: &Holder,
    patience: Duration,
    stop: &mut dyn FnMut() -> bool,
    say: &mut dyn FnMut(&str),
) -> Result<Waited, LockError> {
    let ours = holder.host == os::hostname() && has_open(holder.supervisor, &run_dir.join("lock"));
    let done = if ours {
        "asking it to stop".to_owned()
    } else {
        let patience = Span(patience);
        format!(
            "it cannot be asked from here; it ends as soon as it sees that the run was taken from \
             it, and is waited for, at most {patience}"
        )
    };
    let (pid, host, run) = (holder.supervisor, &holder.host, run_dir.shown());
    say(&format!("another launch (process {pid} on {host}) holds {run}: {done}"));
    if ours {
        // It may have ended meanwhile: the lock tells.
        let _ = os::kill(pid, Signal::Terminate);
        let waited = wait_for_lock(file, run_dir, holder, patience, stop)?;
        if waited != Waited::InVain {
            return Ok(waited);
        }
    }
    // From here on nothing that the old attempt publishes counts.
    let last = insist(|| said(file)).map_err(io_error(format!("reading {}", run_dir.shown())))?;
    let last = last.unwrap_or_else(|| holder.clone());
    if !last.is_of(holder) {
        return Ok(Waited::Passed);
    }
    let raised = Holder { attempt: last.attempt + 1, ..last.clone() };
    write(file, &raised).map_err(io_error(format!("writing {}", run_dir.shown())))?;
    if ours {
        say("it does not stop: its processes are killed");
        let _ = os::kill_group(last.mpirun, Signal::Kill);
        let _ = os::kill(last.supervisor, Signal::Kill);
    }
    let wait = if ours { KILLED_WAIT_MAX } else { patience };
    wait_for_lock(file, run_dir, holder, wait, stop)
}

#[cfg(test)]
#[path = "lock_tests.rs"]
mod tests;
