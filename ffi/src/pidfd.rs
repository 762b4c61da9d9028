//! A handle on one process that no other process can inherit: signals sent through it never reach
//! a stranger that got the same number, and its end can be waited for without being its parent.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::os::{Ended, Signal};
use crate::proc::Stat;

/// `_IOWR(0xFF, 11, struct pidfd_info)` with the structure's first size (linux/pidfd.h, 6.13).
const PIDFD_GET_INFO: libc::c_ulong = 0xC040_FF0B;

/// Asks for the wait status of a process that was reaped (6.15).
const PIDFD_INFO_EXIT: u64 = 1 << 3;

/// `struct pidfd_info`, version 0 (linux/pidfd.h).
#[repr(C)]
#[derive(Default)]
struct Info {
    mask: u64,
    cgroup: u64,
    /// Process, group, parent and eight user and group numbers.
    numbers: [u32; 11],
    exit_code: i32,
}

const _: () = assert!(size_of::<Info>() == 64);

/// A process, for as long as this handle is kept: its number cannot come to mean another one.
#[derive(Debug)]
pub struct PidFd {
    file: OwnedFd,
    pid: u32,
}

impl PidFd {
    /// Takes hold of a process.
    ///
    /// # Errors
    /// There is no such process.
    pub fn open(pid: u32) -> io::Result<Self> {
        let number = libc::pid_t::try_from(pid).unwrap_or(0);
        if number == 0 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{pid} is no pid")));
        }
        // SAFETY: no memory is involved; the result is a new descriptor or -1.
        let file = unsafe { libc::syscall(libc::SYS_pidfd_open, number, 0) };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        let file = i32::try_from(file).map_err(io::Error::other)?;
        // SAFETY: the kernel has just made this descriptor; nobody else owns it.
        Ok(Self { file: unsafe { OwnedFd::from_raw_fd(file) }, pid })
    }

    /// Its number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// It has ended, or belongs to another user.
    pub fn send(&self, signal: Signal) -> io::Result<()> {
        let (file, none) = (self.file.as_raw_fd(), std::ptr::null::<libc::siginfo_t>());
        // SAFETY: the descriptor is open; a null siginfo means an ordinary signal.
        let code =
            unsafe { libc::syscall(libc::SYS_pidfd_send_signal, file, signal.number(), none, 0) };
        if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Waits at most so long for its end; true once it has ended (reaped or not).
    pub fn has_ended_within(&self, limit: Duration) -> bool {
        let milliseconds = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
        let mut poll = libc::pollfd { fd: self.file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one structure, whose descriptor is open.
        unsafe { libc::poll(&mut poll, 1, milliseconds) == 1 }
    }

    /// How it ended, where the kernel says so to others than its parent: of a zombie always, of a
    /// reaped process since Linux 6.15.
    pub fn ended(&self) -> Option<Ended> {
        let mut info = Info { mask: PIDFD_INFO_EXIT, ..Info::default() };
        // SAFETY: the structure has the size that the request's number carries.
        let code = unsafe { libc::ioctl(self.file.as_raw_fd(), PIDFD_GET_INFO, &mut info) };
        if code == 0 && info.mask & PIDFD_INFO_EXIT != 0 {
            return Some(Ended::from_wait_status(info.exit_code));
        }
        zombie_status(self.pid).map(Ended::from_wait_status)
    }
}

/// The wait status of a process that its parent has not reaped. The number cannot mean another
/// process while this one is a zombie.
fn zombie_status(pid: u32) -> Option<i32> {
    let stat = Stat::of(pid).filter(|stat| stat.state() == Some('Z'))?;
    stat.wait_status()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    const LONG: Duration = Duration::from_secs(20);

    fn child(script: &str) -> (std::process::Child, PidFd) {
        let child = Command::new("sh").args(["-c", script]).spawn().unwrap();
        let handle = PidFd::open(child.id()).unwrap();
        (child, handle)
    }

    #[test]
    fn an_end_is_seen_and_its_cause_is_told_of_a_zombie() {
        let (mut killed, handle) = child("sleep 60");
        assert!(!handle.has_ended_within(Duration::ZERO));
        handle.send(Signal::Kill).unwrap();
        assert!(handle.has_ended_within(LONG));
        assert_eq!(handle.ended(), Some(Ended::Signal(9)));
        killed.wait().unwrap();
        assert!(handle.send(Signal::Kill).is_err(), "a reaped process takes no signal");
        let (mut left, handle) = child("exit 7");
        assert!(handle.has_ended_within(LONG));
        assert_eq!(handle.ended(), Some(Ended::Code(7)));
        left.wait().unwrap();
    }

    #[test]
    fn the_cause_of_a_reaped_process_is_right_where_the_kernel_tells_it() {
        let (mut left, handle) = child("exit 7");
        left.wait().unwrap();
        let told = handle.ended();
        assert!(told.is_none() || told == Some(Ended::Code(7)), "{told:?}");
    }

    #[test]
    fn what_is_no_process_is_refused() {
        assert!(PidFd::open(0).is_err());
        assert!(PidFd::open(u32::MAX).is_err());
    }
}
