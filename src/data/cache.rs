//! Encoded samples in the memory of a node, shared by its ranks: a file each in `/dev/shm`, whole
//! from the moment it is seen, so that a rank which takes a dead one's place finds them warm. What
//! counts against the budget is what memory holds: whole pages.
//!
//! Samples stay with their owners, so each is used by one rank of the node as a rule: a rank
//! remembers the order of what it used, and makes room from that alone.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use kintsugi_ffi::lock::{self, Lock};
use kintsugi_ffi::mapping::PAGE_BYTES;
use kintsugi_ffi::private::{self, Access};
use kintsugi_ffi::shared::{SharedWords, WORDS};

use crate::config::CachePolicy;

use super::staging::key::Key;
use super::staging::place::of_run;

/// Where caches lie.
const MEMORY: &str = "/dev/shm";
/// Their names begin so.
pub const PREFIX: &str = "kintsugi-cache-";
/// The page of words that the ranks of a node share, and who holds the folder.
const COUNTS: &str = "COUNTS";
/// The word: bytes in use.
const USED: usize = 0;
/// Ends the name of a sample that is not whole.
const PART: &str = "part";

/// See the module.
#[derive(Debug)]
pub struct Cache {
    root: PathBuf,
    budget_bytes: u64,
    policy: CachePolicy,
    counts: SharedWords,
    /// Locked by all who use the folder.
    held: File,
    used: Mutex<Used>,
}

/// What this rank used, and in which order.
#[derive(Debug, Default)]
struct Used {
    clock: u64,
    last: HashMap<Key, (u64, u64)>,
    by_age: BTreeMap<u64, Key>,
}

impl Used {
    fn touch(&mut self, key: Key, bytes: u64) {
        self.clock += 1;
        if let Some((before, _)) = self.last.insert(key, (self.clock, bytes)) {
            self.by_age.remove(&before);
        }
        self.by_age.insert(self.clock, key);
    }

    fn oldest(&mut self) -> Option<(Key, u64)> {
        let (_, key) = self.by_age.pop_first()?;
        self.last.remove(&key).map(|(_, bytes)| (key, bytes))
    }
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
    pub fn open(root: &Path, budget_bytes: u64, policy: CachePolicy) -> io::Result<Self> {
        private::enter_folder(root)?;
        let (held, counts) = counts(&root.join(COUNTS))?;
        let (root, used) = (root.to_owned(), Mutex::default());
        let cache = Self { root, budget_bytes, policy, counts, held, used };
        cache.take_stock()?;
        Ok(cache)
    }

    /// What is there when a rank comes; the first of a node counts it anew, since one that was
    /// killed may have counted what it never wrote.
    fn take_stock(&self) -> io::Result<()> {
        let alone = lock::lock_file(&self.held)? == Lock::Taken;
        let (mut all, mut bytes) = (Vec::new(), 0);
        for entry in fs::read_dir(&self.root)?.flatten() {
            let (Some(name), Ok(facts)) =
                (entry.file_name().to_str().map(str::to_owned), entry.metadata())
            else {
                continue;
            };
            match name.parse::<Key>() {
                Ok(key) => {
                    bytes += cost(facts.len());
                    all.push((facts.modified().ok(), key, facts.len()));
                }
                Err(_) if alone && name.ends_with(PART) => drop(fs::remove_file(entry.path())),
                Err(_) => {}
            }
        }
        if alone {
            self.counts.set(USED, bytes);
            // What is left of earlier ranks is this one's to remove.
            all.sort_unstable_by_key(|(modified, key, _)| (*modified, *key));
            let mut used = self.used();
            all.into_iter().for_each(|(_, key, bytes)| used.touch(key, bytes));
        }
        // Another rank may take stock now: it is soon done.
        lock::await_share(&self.held)
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
            self.used().touch(key, into.len() as u64);
        }
        read
    }

    /// Keeps the bytes of a sample, if there is room or the policy makes some.
    pub fn offer(&self, key: Key, bytes: &[u8]) {
        let (length, path) = (bytes.len() as u64, self.path(key));
        if cost(length) > self.budget_bytes || !self.make_room(cost(length)) {
            return;
        }
        let part = self.root.join(format!("{key}.{}.{PART}", std::process::id()));
        let written = write(&part, bytes).and_then(|()| match path.exists() {
            // Another thread or rank was faster.
            true => Err(io::ErrorKind::AlreadyExists.into()),
            false => fs::rename(&part, &path),
        });
        match written {
            Ok(()) => self.used().touch(key, length),
            Err(_) => {
                let _ = fs::remove_file(&part);
                self.give_back(cost(length));
            }
        }
    }

    /// Takes so many bytes of the budget; whether there are so many.
    fn make_room(&self, bytes: u64) -> bool {
        let mut used = self.used();
        loop {
            let before = self.counts.update(USED, |now| match now + bytes <= self.budget_bytes {
                true => now + bytes,
                false => now,
            });
            if before + bytes <= self.budget_bytes {
                return true;
            }
            let oldest = match self.policy {
                CachePolicy::Keep => None,
                CachePolicy::Lru => used.oldest(),
            };
            let Some((key, length)) = oldest else { return false };
            // Another rank may have removed it.
            if fs::remove_file(self.path(key)).is_ok() {
                self.give_back(cost(length));
            }
        }
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

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(path)?.write_all(bytes)
}

/// The shared page, made if it is not there, locked beside its other users.
fn counts(path: &Path) -> io::Result<(File, SharedWords)> {
    let file = match private::make_file(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            private::open_file(path, Access::ReadWrite)?
        }
        made => made?,
    };
    // The same length from whoever is first; the words are 0 until then.
    file.set_len((WORDS * size_of::<u64>()) as u64)?;
    lock::await_share(&file)?;
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
mod tests {
    use super::*;

    const PAGE: u64 = PAGE_BYTES as u64;

    fn key(number: u64) -> Key {
        Key::of(Path::new(&number.to_string()))
    }

    fn open(place: &tempfile::TempDir, pages: u64, policy: CachePolicy) -> Cache {
        Cache::open(&place.path().join("cache"), pages * PAGE, policy).expect("opened")
    }

    fn has(cache: &Cache, number: u64) -> bool {
        let mut bytes = Vec::new();
        let found = cache.fetch(key(number), &mut bytes);
        assert!(!found || bytes == number.to_string().as_bytes());
        found
    }

    fn offer(cache: &Cache, number: u64) {
        cache.offer(key(number), number.to_string().as_bytes());
    }

    #[test]
    fn one_that_keeps_takes_what_fits_and_never_gives_it_up() {
        let place = tempfile::tempdir().expect("temporary folder");
        let cache = open(&place, 3, CachePolicy::Keep);
        (0..5).for_each(|number| offer(&cache, number));
        offer(&cache, 1);
        assert_eq!(
            (0..5).map(|n| has(&cache, n)).collect::<Vec<_>>(),
            [true, true, true, false, false]
        );
        assert_eq!(cache.used_bytes(), 3 * PAGE);
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        let place = tempfile::tempdir().expect("temporary folder");
        let cache = open(&place, 3, CachePolicy::Lru);
        (0..3).for_each(|number| offer(&cache, number));
        assert!(has(&cache, 0));
        offer(&cache, 3);
        assert!(!has(&cache, 1) && has(&cache, 0) && has(&cache, 2) && has(&cache, 3));
        cache.offer(key(9), &vec![1; 4 * PAGE_BYTES]);
        assert!(has(&cache, 3), "what never fits displaces nothing");
    }

    #[test]
    fn ranks_of_a_node_share_one_budget_and_a_newcomer_finds_it_warm() {
        let place = tempfile::tempdir().expect("temporary folder");
        let one = open(&place, 3, CachePolicy::Lru);
        let two = open(&place, 3, CachePolicy::Lru);
        offer(&one, 0);
        offer(&two, 1);
        offer(&two, 2);
        assert!(has(&one, 1) && has(&two, 0));
        // It is dead: nothing of it is said or written.
        drop(two);
        let newcomer = open(&place, 3, CachePolicy::Lru);
        assert!(has(&newcomer, 1) && has(&newcomer, 2));
        offer(&newcomer, 3);
        assert_eq!(newcomer.used_bytes(), 3 * PAGE);
        assert!(has(&one, 0), "another rank's are its own");
    }

    #[test]
    fn what_killed_ranks_counted_wrong_is_counted_anew_by_the_next_start() {
        let place = tempfile::tempdir().expect("temporary folder");
        let cache = open(&place, 4, CachePolicy::Lru);
        (0..2).for_each(|number| offer(&cache, number));
        cache.counts.set(USED, 4 * PAGE);
        fs::write(place.path().join("cache/x.part"), b"torn").expect("written");
        drop(cache);
        let cache = open(&place, 4, CachePolicy::Lru);
        assert_eq!(cache.used_bytes(), 2 * PAGE);
        assert!(!place.path().join("cache/x.part").exists());
        (2..5).for_each(|number| offer(&cache, number));
        assert!(!has(&cache, 0) && has(&cache, 1) && has(&cache, 4));
        cache.retire();
        assert!(!place.path().join("cache").exists());
    }
}
