//! Writing to a descriptor that another program opened, and may have filled, closed or made
//! non-blocking. std's own streams keep what they could not write and try it again much later.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// One write(2): how many of the bytes were taken.
pub fn write(descriptor: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: the bytes are borrowed for the call, which only reads them.
    let taken = unsafe { libc::write(descriptor.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
    usize::try_from(taken).map_err(|_| io::Error::last_os_error())
}

/// Waits until a write would not wait (up to 4 KiB, for a pipe); false when `limit` came first or a
/// signal did. A reader that is gone counts as ready: the write says so.
pub fn wait_writable(descriptor: BorrowedFd<'_>, limit: Duration) -> bool {
    let milliseconds = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
    let mut poll = libc::pollfd { fd: descriptor.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry, borrowed for the call.
    unsafe { libc::poll(&mut poll, 1, milliseconds) == 1 }
}
