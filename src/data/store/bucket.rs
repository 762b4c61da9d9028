//! A token bucket that all processes of a machine share: one word in `/dev/shm` that says until
//! when the emulated device is busy. A process that is killed leaves its own reservation behind,
//! which passes, and nothing else.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kintsugi_ffi::lock::{self, Lock};
use kintsugi_ffi::os;
use kintsugi_ffi::private::{self, Access};
use kintsugi_ffi::shared::SharedWords;

use crate::config::Shown;

/// Where the word lies.
const FOLDER: &str = "/dev/shm";
/// Its name begins so.
pub const PREFIX: &str = "kintsugi-throttle-";
/// Bytes of the file: one page of words.
const FILE_BYTES: u64 = (kintsugi_ffi::shared::WORDS * size_of::<u64>()) as u64;
/// The word: nanoseconds of the machine's monotonic clock.
const BUSY_UNTIL: usize = 0;
/// A device that was idle makes up for so much of it: who sleeps a little too long loses nothing.
const CREDIT: Duration = Duration::from_millis(5);
/// A large file is asked for in pieces, so that others come between.
const PIECE_BYTES: u64 = 64 << 10;
/// Tries to open a file that another process is making, or has just removed.
const OPEN_TRIES: usize = 200;
const OPEN_PAUSE: Duration = Duration::from_millis(5);

/// An emulated device: so many bytes a second over all who use it.
#[derive(Debug)]
pub struct Bucket {
    words: SharedWords,
    /// Locked by all who use it; the last one removes it.
    file: File,
    path: PathBuf,
    bytes_per_second: u64,
}

impl Bucket {
    /// The device of this name; `name` is the same in all processes that share it.
    ///
    /// # Errors
    /// The kernel's, with the path.
    pub fn open(name: u64, bytes_per_second: u64) -> io::Result<Self> {
        let path = Path::new(FOLDER).join(format!("{PREFIX}{name:016x}"));
        let failed =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.shown()));
        let mut last = io::Error::from(io::ErrorKind::TimedOut);
        for _ in 0..OPEN_TRIES {
            match attach(&path) {
                Ok((file, words)) => {
                    let path = path.clone();
                    return Ok(Self { words, file, path, bytes_per_second });
                }
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(failed(error));
                }
                Err(error) => last = error,
            }
            std::thread::sleep(OPEN_PAUSE);
        }
        Err(failed(last))
    }

    /// Returns when the device has moved so many bytes for this caller.
    pub fn take(&self, bytes: u64) {
        let mut left = bytes;
        while left > 0 {
            let piece = left.min(PIECE_BYTES);
            left -= piece;
            let until = self.reserve(piece, os::monotonic_time());
            std::thread::sleep(until.saturating_sub(os::monotonic_time()));
        }
    }

    /// When the device is done with so many bytes that are asked for now.
    fn reserve(&self, bytes: u64, now: Duration) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second.max(1));
        let cost = u64::try_from(nanos).unwrap_or(u64::MAX);
        let earliest = now.saturating_sub(CREDIT).as_nanos() as u64;
        let end = |busy_until: u64| busy_until.max(earliest).saturating_add(cost);
        Duration::from_nanos(end(self.words.update(BUSY_UNTIL, end)))
    }
}

/// The file, made if it is not there, locked beside its other users, and its words.
fn attach(path: &Path) -> io::Result<(File, SharedWords)> {
    let file = match private::make_file(path) {
        Ok(file) => {
            file.set_len(FILE_BYTES)?;
            file
        }
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            private::open_file(path, Access::ReadWrite)?
        }
        Err(error) => return Err(error),
    };
    if lock::share_file(&file)? == Lock::Busy {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    // Its last user may have removed the name between the two calls.
    if std::fs::metadata(path)?.ino() != file.metadata()?.ino() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let words = SharedWords::map(&file)?;
    Ok((file, words))
}

/// Removes those that no process uses any more.
pub fn sweep() {
    for entry in std::fs::read_dir(FOLDER).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX))
            && let Ok(file) = private::open_file(&path, Access::Read)
            && matches!(lock::lock_file(&file), Ok(Lock::Taken))
        {
            let _ = std::fs::remove_file(&path);
        }
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        if matches!(lock::lock_file(&self.file), Ok(Lock::Taken)) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(test: u64) -> u64 {
        (u64::from(std::process::id()) << 8) | test
    }

    #[test]
    fn all_who_open_a_device_share_its_rate_and_the_last_removes_it() {
        let one = Bucket::open(name(1), 1_000_000).expect("opened");
        let two = Bucket::open(name(1), 1_000_000).expect("opened");
        let now = Duration::from_secs(1_000_000);
        let ms = |until: Duration| until.saturating_sub(now).as_millis();
        assert_eq!(ms(one.reserve(100_000, now)), 95, "5 ms of idleness are made up for");
        assert_eq!(ms(two.reserve(100_000, now)), 195);
        assert_eq!(ms(one.reserve(100_000, now)), 295);
        let later = now + Duration::from_secs(10);
        assert_eq!(two.reserve(100_000, later).saturating_sub(later).as_millis(), 95);
        let path = one.path.clone();
        drop(one);
        assert!(path.exists());
        drop(two);
        assert!(!path.exists());
    }

    #[test]
    fn one_that_a_killed_process_left_behind_is_used_again() {
        let path = Path::new(FOLDER).join(format!("{PREFIX}{:016x}", name(2)));
        let file = private::make_file(&path).expect("made");
        file.set_len(FILE_BYTES).expect("long");
        drop(file);
        drop(Bucket::open(name(2), 1000).expect("opened"));
        assert!(!path.exists());
    }
}
