//! Writes to a stream that others read: whatever became of the reader, it returns.

use std::io::{self, ErrorKind};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use kintsugi_ffi::descriptor;

/// How long work is held up by a reader that takes nothing (a stopped terminal, a full pipe).
const BESIDE_WAIT_MAX: Duration = Duration::from_secs(1);
/// How long a command's result waits for its reader: a pager may stay open for days.
const RESULT_WAIT_MAX: Duration = Duration::from_secs(7 * 24 * 3600);
/// A pipe that is ready takes as many bytes without waiting (POSIX, PIPE_BUF).
const PIECE_BYTES: usize = 4096;

/// Who waits for whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// Words beside the work: a reader that takes nothing misses them.
    Work,
    /// The result is the work: the reader sets the pace.
    Reader,
}

/// What is known of a stream's reader.
#[derive(Debug)]
pub(super) struct Outlet {
    /// It took nothing for [`BESIDE_WAIT_MAX`]: it is not waited for until it takes something.
    stalled: bool,
    /// Texts that it missed since it took the last one.
    missed: u64,
}

impl Outlet {
    /// Its reader is not known yet.
    pub(super) const fn new() -> Self {
        Self { stalled: false, missed: 0 }
    }

    /// Writes `text` whole, or says why it is lost.
    ///
    /// # Errors
    /// The kernel's, and `TimedOut`.
    pub(super) fn write(&mut self, to: BorrowedFd<'_>, text: &str, pace: Pace) -> io::Result<()> {
        let patience = match (pace, self.stalled) {
            (Pace::Work, true) => Duration::ZERO,
            (Pace::Work, false) => BESIDE_WAIT_MAX,
            (Pace::Reader, _) => RESULT_WAIT_MAX,
        };
        let written = match self.missed {
            0 => write_all(to, text.as_bytes(), patience),
            missed => {
                let note = format!("({missed} lines are missing here: they were not taken)\n");
                write_all(to, (note + text).as_bytes(), patience)
            }
        };
        self.stalled = written.as_ref().is_err_and(|error| error.kind() == ErrorKind::TimedOut);
        self.missed = if written.is_ok() { 0 } else { self.missed + 1 };
        written
    }
}

fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8], patience: Duration) -> io::Result<()> {
    let until = Instant::now() + patience;
    while !bytes.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if !descriptor::wait_writable(to, left) {
            match until > Instant::now() {
                // A signal: its handler has noted it.
                true => continue,
                false => return Err(ErrorKind::TimedOut.into()),
            }
        }
        match descriptor::write(to, &bytes[..bytes.len().min(PIECE_BYTES)]) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(taken) => bytes = &bytes[taken..],
            // Another writer of the same pipe was faster.
            Err(error)
                if matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    /// A stream that nobody has read from and that takes nothing more.
    fn full(non_blocking: bool) -> (UnixStream, UnixStream) {
        let (reader, writer) = UnixStream::pair().unwrap();
        writer.set_nonblocking(true).unwrap();
        let filled = write_all(writer.as_fd(), &[b'x'; 1 << 22], Duration::ZERO);
        assert_eq!(filled.unwrap_err().kind(), ErrorKind::TimedOut);
        writer.set_nonblocking(non_blocking).unwrap();
        (reader, writer)
    }

    #[test]
    fn a_reader_that_takes_nothing_holds_work_up_once_and_learns_what_it_missed() {
        for non_blocking in [true, false] {
            let (mut reader, writer) = full(non_blocking);
            let mut outlet = Outlet::new();
            for _ in 0..100 {
                let lost = outlet.write(writer.as_fd(), "lost\n", Pace::Work).unwrap_err();
                assert_eq!(lost.kind(), ErrorKind::TimedOut);
            }
            let drained = reader.read(&mut vec![0; 1 << 22]).unwrap();
            assert!(drained > 0);
            while !descriptor::wait_writable(writer.as_fd(), Duration::ZERO) {
                assert!(reader.read(&mut vec![0; 1 << 22]).unwrap() > 0);
            }
            outlet.write(writer.as_fd(), "heard\n", Pace::Work).unwrap();
            drop(writer);
            let mut rest = String::new();
            reader.read_to_string(&mut rest).unwrap();
            let told = "(100 lines are missing here: they were not taken)\nheard\n";
            assert_eq!(rest.trim_start_matches('x'), told);
        }
    }

    #[test]
    fn a_result_waits_for_its_reader() {
        let (mut reader, writer) = full(true);
        let read = std::thread::spawn(move || {
            let mut all = String::new();
            reader.read_to_string(&mut all).unwrap();
            all
        });
        let long = "y".repeat(1 << 20);
        Outlet::new().write(writer.as_fd(), &long, Pace::Reader).unwrap();
        drop(writer);
        assert_eq!(read.join().unwrap().trim_start_matches('x'), long);
    }

    #[test]
    fn a_closed_pipe_and_a_full_disk_are_errors_and_no_more() {
        let (reader, writer) = UnixStream::pair().unwrap();
        drop(reader);
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let cases =
            [(writer.as_fd(), ErrorKind::BrokenPipe), (full.as_fd(), ErrorKind::StorageFull)];
        for (to, expected) in cases {
            for pace in [Pace::Work, Pace::Reader] {
                let lost = Outlet::new().write(to, "a line\n", pace).unwrap_err();
                assert_eq!(lost.kind(), expected);
            }
        }
    }
}
