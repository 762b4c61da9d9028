//! How fast files are copied beside training: at a set rate, or as fast as leaves room to those
//! whom a run waits for.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kintsugi_ffi::lock::{self, Lock};

use crate::config::Pace as Wanted;
use crate::data::store::{Entry, FetchError, Kind, Location, Store};

/// How long a copy steps aside at most for each file, or piece of a large one, in turns of so long.
const ASIDE_TURN: Duration = Duration::from_millis(5);
const ASIDE_TURNS_MAX: u32 = 40;

/// Times that the node's sign is tried to be put up: others only look at it, which is soon over.
const SIGN_TRIES: u32 = 20;
const SIGN_PAUSE: Duration = Duration::from_millis(1);

/// How many are at work that copying gives way to: this rank's reads that training waits for, and
/// checkpoints, of any rank of the node.
#[derive(Debug, Default)]
pub struct Urgent {
    here: AtomicUsize,
    /// A file of the node. It is locked while something is urgent for all its ranks: the kernel
    /// takes the sign down when its holder dies.
    sign: Option<PathBuf>,
}

/// Ends one urgent piece of work.
pub struct Done<'a> {
    urgent: &'a Urgent,
    sign: Option<File>,
}

impl Urgent {
    /// Of a rank whose node has such a sign.
    pub fn of_node(sign: Option<PathBuf>) -> Self {
        Self { here: AtomicUsize::new(0), sign }
    }

    /// Begins one of this rank.
    pub fn begin(&self) -> Done<'_> {
        self.begun(None)
    }

    fn begun(&self, sign: Option<File>) -> Done<'_> {
        self.here.fetch_add(1, Ordering::Relaxed);
        Done { urgent: self, sign }
    }

    /// Begins one that all ranks of the node give way to.
    pub fn begin_for_node(&self) -> Done<'_> {
        self.begun(self.put_up())
    }

    /// Without it only this rank gives way.
    fn put_up(&self) -> Option<File> {
        let file = File::open(self.sign.as_ref()?).ok()?;
        for _ in 0..SIGN_TRIES {
            match lock::lock_file(&file) {
                Ok(Lock::Taken) => return Some(file),
                Ok(Lock::Busy) => std::thread::sleep(SIGN_PAUSE),
                Err(_) => return None,
            }
        }
        None
    }

    /// Whether there is any.
    pub fn is_at_work(&self) -> bool {
        self.here.load(Ordering::Relaxed) > 0 || self.sign.as_deref().is_some_and(is_up)
    }
}

fn is_up(sign: &Path) -> bool {
    File::open(sign).is_ok_and(|file| matches!(lock::share_file(&file), Ok(Lock::Busy)))
}

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.urgent.here.fetch_sub(1, Ordering::Relaxed);
        // A child that is just being started holds a copy until it runs its own program.
        let _ = self.sign.as_ref().map(File::unlock);
    }
}

/// The pace of all copy workers of a rank.
#[derive(Debug)]
pub struct Pace {
    wanted: Wanted,
    /// When the bytes copied so far are due, at a set rate.
    due: Mutex<Option<Instant>>,
    urgent: Arc<Urgent>,
}

impl Pace {
    /// `urgent`: whom "auto" gives way to.
    pub fn new(wanted: Wanted, urgent: Arc<Urgent>) -> Self {
        Self { wanted, due: Mutex::new(None), urgent }
    }

    /// Returns when the next file, or piece of one, may be copied.
    pub fn await_turn(&self) {
        match self.wanted {
            Wanted::Auto => {
                for _ in 0..ASIDE_TURNS_MAX {
                    if !self.urgent.is_at_work() {
                        return;
                    }
                    std::thread::sleep(ASIDE_TURN);
                }
            }
            Wanted::Rate(_) => {
                let due = *self.due.lock().unwrap_or_else(PoisonError::into_inner);
                let left = due.map(|due| due.saturating_duration_since(Instant::now()));
                std::thread::sleep(left.unwrap_or_default());
            }
        }
    }

    /// So many bytes have been copied.
    pub fn copied(&self, bytes: u64) {
        if let Wanted::Rate(rate) = self.wanted {
            let time = Duration::from_secs_f64(bytes as f64 / rate.0 as f64);
            let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            *due = Some(due.map_or(now, |due| due.max(now)) + time);
        }
    }
}

/// A store at that pace: each piece of a large file waits for its turn.
pub struct Paced<'a> {
    /// What is read.
    pub store: &'a dyn Store,
    /// How fast.
    pub pace: &'a Pace,
}

impl Store for Paced<'_> {
    fn fetch(&self, location: &Location<'_>, into: &mut Vec<u8>) -> Result<(), FetchError> {
        self.pace.await_turn();
        self.store.fetch(location, into)?;
        self.pace.copied(into.len() as u64);
        Ok(())
    }
    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>> {
        self.store.list(folder)
    }
    fn look(&self, path: &Path) -> io::Result<Kind> {
        self.store.look(path)
    }
    fn changed_ns(&self, path: &Path) -> io::Result<Option<i64>> {
        self.store.changed_ns(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Rate;

    #[test]
    fn a_set_rate_is_kept_and_urgent_work_is_counted() {
        let urgent = Arc::new(Urgent::default());
        let pace = Pace::new(Wanted::Rate(Rate(1_000_000)), Arc::clone(&urgent));
        let begun = Instant::now();
        for _ in 0..5 {
            pace.await_turn();
            pace.copied(10_000);
        }
        assert!(begun.elapsed() >= Duration::from_millis(40), "{:?}", begun.elapsed());
        let one = urgent.begin();
        drop(urgent.begin());
        assert!(urgent.is_at_work());
        drop(one);
        assert!(!urgent.is_at_work());
        Pace::new(Wanted::Auto, urgent).await_turn();
    }

    #[test]
    fn what_is_urgent_for_a_node_is_so_for_all_its_ranks_until_it_is_done() {
        let place = tempfile::tempdir().expect("temporary folder");
        let sign = place.path().join("URGENT");
        File::create(&sign).expect("made");
        let [one, two] = [(); 2].map(|()| Urgent::of_node(Some(sign.clone())));
        drop(two.begin());
        let own = two.begin();
        assert!(two.is_at_work() && !one.is_at_work(), "one rank's reads are its own matter");
        drop(own);
        let all = one.begin_for_node();
        assert!(two.is_at_work() && one.is_at_work());
        drop(all);
        assert!(!two.is_at_work() && !one.is_at_work());
        std::fs::remove_file(&sign).expect("removed");
        let alone = one.begin_for_node();
        assert!(one.is_at_work() && !two.is_at_work(), "a folder that is gone holds nobody up");
        drop(alone);
    }

    #[test]
    fn pieces_of_a_file_are_paced_one_by_one() {
        let mut store = crate::data::store::memory::MemoryStore::default();
        store.put("shard", vec![7; 100_000]);
        let pace = Pace::new(Wanted::Rate(Rate(1_000_000)), Arc::default());
        let paced = Paced { store: &store, pace: &pace };
        let (mut bytes, begun) = (Vec::new(), Instant::now());
        for piece in 0..3 {
            let location = Location::range(Path::new("shard"), piece * 30_000, 30_000);
            paced.fetch(&location, &mut bytes).expect("there");
            assert_eq!(bytes.len(), 30_000);
        }
        // The third waits for what the first two took. Only ever longer.
        assert!(begun.elapsed() >= Duration::from_millis(59), "{:?}", begun.elapsed());
    }
}
