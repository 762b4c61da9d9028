//! What a supervisor needs of the kernel: a child that dies with it, signals to processes and
//! groups, an advisory lock that the kernel frees when its holder dies, free space.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// A signal that one process sends another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// SIGINT: Ctrl-C.
    Interrupt,
    /// SIGTERM: please end.
    Terminate,
    /// SIGKILL: end.
    Kill,
    /// SIGUSR1: checkpoint and stop.
    User1,
    /// SIGSTOP: freeze.
    Stop,
    /// SIGCONT: thaw.
    Continue,
}

impl Signal {
    fn number(self) -> libc::c_int {
        match self {
            Self::Interrupt => libc::SIGINT,
            Self::Terminate => libc::SIGTERM,
            Self::Kill => libc::SIGKILL,
            Self::User1 => libc::SIGUSR1,
            Self::Stop => libc::SIGSTOP,
            Self::Continue => libc::SIGCONT,
        }
    }
}

/// The child gets a process group of its own and receives `at_our_death` when the *thread* that
/// spawns it ends (prctl(2), PR_SET_PDEATHSIG): spawn it from one that lives as long as it should.
pub fn supervise(command: &mut Command, at_our_death: Signal) {
    let parent = std::process::id();
    let signal = at_our_death.number();
    command.process_group(0);
    // SAFETY: between fork and exec the closure only calls prctl, getppid and _exit, which are
    // async-signal-safe, and touches no memory but its two captured integers.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, signal as libc::c_ulong) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before the request was in place.
            if libc::getppid() as u32 != parent {
                libc::_exit(127);
            }
            Ok(())
        });
    }
}

/// Sends `signal` to one process. A process that is gone is an error of kind `NotFound`.
pub fn signal_process(pid: u32, signal: Signal) -> io::Result<()> {
    deliver(positive(pid)?, signal.number())
}

/// Sends `signal` to every process of a group.
pub fn signal_group(group: u32, signal: Signal) -> io::Result<()> {
    deliver(-positive(group)?, signal.number())
}

/// Whether a process with this number exists (a zombie does).
pub fn exists(pid: u32) -> bool {
    positive(pid).is_ok_and(|pid| match deliver(pid, 0) {
        Ok(()) => true,
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    })
}

/// 0, 1 and what does not fit would address groups or everybody.
fn positive(pid: u32) -> io::Result<libc::pid_t> {
    libc::pid_t::try_from(pid).ok().filter(|&pid| pid > 1).ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidInput, format!("{pid} is not a process to signal"))
    })
}

fn deliver(target: libc::pid_t, signal: libc::c_int) -> io::Result<()> {
    // SAFETY: kill takes two integers and touches no memory.
    if unsafe { libc::kill(target, signal) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::ESRCH) => Err(io::Error::new(io::ErrorKind::NotFound, error)),
        _ => Err(error),
    }
}

/// Tries to take the exclusive lock of an open file (flock(2)); `false` when somebody holds it.
/// It goes when the file is closed, and so at the latest when the process ends.
pub fn try_lock(file: &File) -> io::Result<bool> {
    // SAFETY: the descriptor is open for as long as `file` is borrowed.
    if unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::WouldBlock { Ok(false) } else { Err(error) }
}

/// Bytes an ordinary user may still write below `path`.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut answer = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: the path is a C string, and the kernel fills the structure when it returns 0.
    let answer = unsafe {
        if libc::statvfs(path.as_ptr(), answer.as_mut_ptr()) != 0 {
            return Err(io::Error::last_os_error());
        }
        answer.assume_init()
    };
    Ok(answer.f_bavail.saturating_mul(answer.f_frsize))
}

/// The effective user's number.
pub fn user_id() -> u32 {
    // SAFETY: geteuid takes nothing, cannot fail and touches no memory.
    unsafe { libc::geteuid() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_signalled_by_accident() {
        for pid in [0, 1, u32::MAX] {
            assert!(signal_process(pid, Signal::Kill).is_err());
            assert!(signal_group(pid, Signal::Kill).is_err());
            assert!(!exists(pid));
        }
    }

    #[test]
    fn a_supervised_child_leads_its_own_group_and_dies_by_it() {
        let mut command = Command::new("sleep");
        command.arg("60");
        supervise(&mut command, Signal::Kill);
        let mut child = command.spawn().unwrap();
        assert!(exists(child.id()));
        signal_group(child.id(), Signal::Kill).unwrap();
        assert!(!child.wait().unwrap().success());
        assert!(!exists(child.id()));
    }

    #[test]
    fn a_child_dies_with_the_thread_that_spawned_it() {
        let mut child = std::thread::spawn(|| {
            let mut command = Command::new("sleep");
            command.arg("60");
            supervise(&mut command, Signal::Terminate);
            command.spawn().unwrap()
        })
        .join()
        .unwrap();
        assert!(!child.wait().unwrap().success());
    }

    #[test]
    fn a_lock_is_exclusive_until_its_file_is_closed() {
        let path = std::env::temp_dir().join(format!("kintsugi-lock-{}", std::process::id()));
        let open = || File::options().create(true).append(true).open(&path).unwrap();
        let (first, second) = (open(), open());
        assert!(try_lock(&first).unwrap());
        assert!(!try_lock(&second).unwrap());
        drop(first);
        assert!(try_lock(&second).unwrap());
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn the_root_folder_has_a_size() {
        assert!(free_bytes(Path::new("/")).is_ok());
        assert!(free_bytes(Path::new("/no/such/folder")).is_err());
    }
}
