//! Locks of whole files (`flock`): the kernel frees them when their holder dies.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::os::result;

/// What became of an attempt to lock a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lock {
    /// Ours until the file is closed or this process dies.
    Taken,
    /// Another process holds it.
    Busy,
}

/// Tries to take an exclusive `flock`; never waits.
pub fn lock_file(file: &File) -> io::Result<Lock> {
    try_flock(file, libc::LOCK_EX)
}

/// Tries to take a `flock` that others may hold beside us; never waits.
pub fn share_file(file: &File) -> io::Result<Lock> {
    try_flock(file, libc::LOCK_SH)
}

/// Takes an exclusive `flock` as soon as whoever holds it has closed the file or died.
pub fn await_lock(file: &File) -> io::Result<()> {
    flock(file, libc::LOCK_EX)
}

/// Takes a `flock` that others may hold beside us as soon as nobody holds it alone.
pub fn await_share(file: &File) -> io::Result<()> {
    flock(file, libc::LOCK_SH)
}

fn flock(file: &File, kind: i32) -> io::Result<()> {
    loop {
        // SAFETY: the descriptor is open.
        match result(unsafe { libc::flock(file.as_raw_fd(), kind) }) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

fn try_flock(file: &File, kind: i32) -> io::Result<Lock> {
    // SAFETY: the descriptor is open.
    match result(unsafe { libc::flock(file.as_raw_fd(), kind | libc::LOCK_NB) }) {
        Ok(()) => Ok(Lock::Taken),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Lock::Busy),
        Err(error) => Err(error),
    }
}
