//! Encoded samples in the memory of a node, shared by its ranks: a file each in `/dev/shm`, whole
//! from the moment it is seen, so that a rank which takes a dead one's place finds them warm. What
//! counts against the budget is what memory holds: whole pages.
//!
//! In which order the node's ranks used samples stands in the files, as the time of their last
//! change: ticks of a counter that the ranks share, of no clock. So whoever makes room gives up
//! what any of them used least recently, and the ranks need not part the cache. When owners move, a
//! rank finds what nobody on this node uses any more, which goes first.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use kintsugi_ffi::lock::{self, Lock};
use kintsugi_ffi::mapping::PAGE_BYTES;
use kintsugi_ffi::private::{self, Access};
use kintsugi_ffi::shared::{SharedWords, WORDS};

use crate::config::CachePolicy;
use crate::data::Occasion;
use crate::data::staging::key::Key;
use crate::data::staging::place::of_run;

mod used;

pub use used::{Holdings, Keys};
use used::{Kept, Used};

/// Where caches lie.
const MEMORY: &str = "/dev/shm";
/// Their names begin so.
pub const PREFIX: &str = "kintsugi-cache-";
/// The page of words that the ranks of a node share, and who holds the folder.
const COUNTS: &str = "COUNTS";
/// The word: bytes in use.
const USED: usize = 0;
/// The word: ticks so far, one for each use.
const TICKS: usize = 1;
/// Ends the name of a sample that is not whole.
const PART: &str = "part";
/// Samples given up for one that comes, at the most.
const GIVEN_UP_MAX: usize = 1 << 20;

/// One node's cache, as one process sees it.
#[derive(Debug)]
pub struct Cache {
    root: PathBuf,
    budget_bytes: u64,
    policy: CachePolicy,
    counts: SharedWords,
    /// Locked by all who use the folder.
    held: File,
    used: Mutex<Used>,
    /// Files that this process has begun to write.
    parts: AtomicU64,
}

/// As its file says it.
fn kept(facts: &fs::Metadata) -> Kept {
    let changed = facts.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
    Kept { tick: changed.map_or(0, |since| since.as_micros() as u64), bytes: facts.len() }
}

/// What a sample of so many bytes takes.
pub fn cost(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(PAGE_BYTES as u64)
}

/// The folder of a run's set: the same for all ranks of a node, and for all starts of the run.
pub fn folder(run_id: &str, fingerprint: u64) -> PathBuf {
    Path::new(MEMORY).join(format!("{PREFIX}{run_id}-{fingerprint:016x}"))
}

impl Cache {
    /// Opens the folder, made if it is not there.
    ///
    /// # Errors
    /// It cannot be made, or is another user's.
    pub fn open(
        root: &Path,
        budget_bytes: u64,
        policy: CachePolicy,
        occasion: Occasion,
    ) -> io::Result<Self> {
        private::enter_folder(root)?;
        let (held, counts) = counts(&root.join(COUNTS))?;
        let (root, used) = (root.to_owned(), Mutex::default());
        let parts = AtomicU64::new(0);
        let cache = Self { root, budget_bytes, policy, counts, held, used, parts };
        cache.take_stock(occasion)?;
        Ok(cache)
    }

    /// What is there when a rank comes; the first of a node counts it anew, since one that was
    /// killed may have counted what it never wrote. Of a run that begins nothing may be there: an
    /// earlier one of its folder, killed with all that would have swept it, read other bytes.
    fn take_stock(&self, occasion: Occasion) -> io::Result<()> {
        let alone = lock::lock_file(&self.held)? == Lock::Taken;
        if alone {
            if occasion == Occasion::Begins {
                for key in self.listing().into_keys() {
                    fs::remove_file(self.path(key))?;
                }
            }
            let all = self.listing();
            self.counts.set(USED, all.values().map(|kept| cost(kept.bytes)).sum());
            // Ticks may have been lost with a page that somebody cut.
            let latest = all.values().map(|kept| kept.tick).max().unwrap_or(0);
            self.counts.update(TICKS, |now| now.max(latest));
            for entry in fs::read_dir(&self.root)?.flatten() {
                if entry.file_name().to_string_lossy().ends_with(PART) {
                    let _ = fs::remove_file(entry.path());
                }
            }
        }
        // Another rank may take stock now: it is soon done.
        lock::await_share(&self.held)
    }

    /// Whole samples in the folder.
    fn listing(&self) -> HashMap<Key, Kept> {
        let entries = fs::read_dir(&self.root).into_iter().flatten().flatten();
        let whole = entries.filter_map(|entry| {
            let key = entry.file_name().to_str()?.parse::<Key>().ok()?;
            Some((key, kept(&entry.metadata().ok()?)))
        });
        whole.collect()
    }

    /// From now on this rank uses the samples of some owners, and others of its node those of
    /// others. Nothing is looked at before room has to be made.
    pub fn plan(&self, holdings: Holdings) {
        self.used().plan(holdings);
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, key: Key) -> PathBuf {
        self.root.join(key.to_string())
    }

    /// Replaces what is in `into` with the bytes of a sample, if they are here.
    pub fn fetch(&self, key: Key, into: &mut Vec<u8>) -> bool {
        let Ok(mut file) = File::open(self.path(key)) else { return false };
        into.clear();
        let read = file.read_to_end(into).is_ok();
        if read && self.policy == CachePolicy::Lru {
            self.tick(&file);
        }
        read
    }

    /// Writes down that a sample is used now. One that was dropped meanwhile is nobody's file.
    fn tick(&self, file: &File) {
        let tick = self.counts.update(TICKS, |now| now + 1) + 1;
        let _ = file.set_modified(UNIX_EPOCH + Duration::from_micros(tick));
    }

    /// Keeps the bytes of a sample, if there is room or the policy makes some.
    pub fn offer(&self, key: Key, bytes: &[u8]) {
        let (length, path) = (bytes.len() as u64, self.path(key));
        if cost(length) > self.budget_bytes || !self.make_room(cost(length)) {
            return;
        }
        // Threads of this rank may offer one sample at a time.
        let number = self.parts.fetch_add(1, Ordering::Relaxed);
        let part = self.root.join(format!("{key}.{}.{number}.{PART}", std::process::id()));
        let written = self.write(&part, bytes).and_then(|()| match path.exists() {
            // Another thread or rank was faster.
            true => Err(io::ErrorKind::AlreadyExists.into()),
            false => fs::rename(&part, &path),
        });
        if written.is_err() {
            let _ = fs::remove_file(&part);
            self.give_back(cost(length));
        }
    }

    /// Writes a sample's file, used now.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(path)?;
        file.write_all(bytes)?;
        self.tick(&file);
        Ok(())
    }

    /// Takes so many bytes of the budget; whether there are so many.
    fn make_room(&self, bytes: u64) -> bool {
        let mut used = self.used();
        for _ in 0..GIVEN_UP_MAX {
            let before = self.counts.update(USED, |now| match now + bytes <= self.budget_bytes {
                true => now + bytes,
                false => now,
            });
            if before + bytes <= self.budget_bytes {
                return true;
            }
            used.settle(|| self.listing());
            let goes = match self.policy {
                CachePolicy::Keep => used.unused(),
                CachePolicy::Lru => used.unused().or_else(|| self.least_recent(&mut used)),
            };
            let Some((key, length)) = goes else { return false };
            // Another rank may have removed it.
            if fs::remove_file(self.path(key)).is_ok() {
                self.give_back(cost(length));
            }
        }
        false
    }

    /// What any rank of the node used least recently. Since the listing it may have been used, or
    /// have gone: then the next one of it is asked.
    fn least_recent(&self, used: &mut Used) -> Option<(Key, u64)> {
        for _ in 0..GIVEN_UP_MAX {
            let (key, was) = used.oldest(|| self.listing())?;
            if fs::metadata(self.path(key)).is_ok_and(|facts| kept(&facts) == was) {
                return Some((key, was.bytes));
            }
        }
        None
    }

    fn give_back(&self, bytes: u64) {
        self.counts.update(USED, |now| now.saturating_sub(bytes));
    }

    /// Bytes that it may use.
    pub fn budget_bytes(&self) -> u64 {
        self.budget_bytes
    }

    /// Bytes in use, of all ranks of the node.
    pub fn used_bytes(&self) -> u64 {
        self.counts.get(USED)
    }

    /// This process is done with it; the last one removes it.
    pub fn retire(&self) {
        // Where others hold it, the own lock is gone after the try, too.
        if matches!(lock::lock_file(&self.held), Ok(Lock::Taken)) {
            let _ = private::remove_folder(&self.root);
        }
    }
}

impl Drop for Cache {
    /// A child that is just being started holds a copy of the file until it runs its own program.
    fn drop(&mut self) {
        let _ = self.held.unlock();
    }
}

/// The shared page, made if it is not there. Nobody has locked it for that: of ranks that come at
/// once the first one is to be alone.
fn counts(path: &Path) -> io::Result<(File, SharedWords)> {
    let file = match private::make_file(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            private::open_file(path, Access::ReadWrite)?
        }
        made => made?,
    };
    // The same length from whoever is first; the words are 0 until then.
    file.set_len((WORDS * size_of::<u64>()) as u64)?;
    let words = SharedWords::map(&file)?;
    Ok((file, words))
}

/// Removes the caches of a run that no process uses any more.
pub fn sweep(run_id: &str) {
    for root in of_run(Path::new(MEMORY), PREFIX, run_id) {
        if let Ok(held) = private::open_file(&root.join(COUNTS), Access::Read)
            && matches!(lock::lock_file(&held), Ok(Lock::Taken))
        {
            let _ = private::remove_folder(&root);
        }
    }
}

#[cfg(test)]
mod tests;
