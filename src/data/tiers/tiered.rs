//! Where a training sample's bytes come from: the node's cache, its staged copies, else the shared
//! store. It counts, and whatever is nearer may fail: the shared store is asked then.

use std::cell::Cell;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::config::Shown;
use crate::data::staging::folder::{Folder, Found};
use crate::data::staging::key::Key;
use crate::data::staging::pace::Urgent;
use crate::data::store::tally::{Tally, Tier};
use crate::data::store::{Entry, FetchError, Kind, Location, Sight, Store};
use crate::observe::notice::act_on;

use super::cache::Cache;

thread_local! {
    /// Where what this thread asked for last came from.
    static LAST: Cell<Tier> = const { Cell::new(Tier::Shared) };
}

/// Cache, copies and shared store of one process.
pub struct Tiered {
    shared: Arc<dyn Store>,
    cache: Option<Arc<Cache>>,
    staged: Option<Arc<Folder>>,
    tally: Arc<Tally>,
    urgent: Arc<Urgent>,
    damage_said: AtomicBool,
}

impl Tiered {
    /// `urgent` knows of reads from `shared`.
    pub fn new(
        shared: Arc<dyn Store>,
        cache: Option<Arc<Cache>>,
        staged: Option<Arc<Folder>>,
        tally: Arc<Tally>,
        urgent: Arc<Urgent>,
    ) -> Self {
        Self { shared, cache, staged, tally, urgent, damage_said: AtomicBool::new(false) }
    }

    fn fetch_cached(
        &self,
        location: &Location<'_>,
        into: &mut Vec<u8>,
    ) -> Result<Tier, FetchError> {
        let Some(cache) = &self.cache else { return self.fetch_nearest(location, into) };
        let key = Key::of_location(location);
        if cache.fetch(key, into) {
            self.tally.hit();
            return Ok(Tier::Cache);
        }
        self.tally.missed();
        let tier = self.fetch_nearest(location, into)?;
        cache.offer(key, into);
        Ok(tier)
    }

    fn fetch_nearest(
        &self,
        location: &Location<'_>,
        into: &mut Vec<u8>,
    ) -> Result<Tier, FetchError> {
        if let Some(folder) = &self.staged {
            match folder.fetch(location, into) {
                Found::Here => return Ok(Tier::Local),
                Found::Not => {}
                Found::Damaged(reason) | Found::NotNow(reason) => {
                    self.report(folder, location, &reason);
                }
            }
        }
        let _reading = self.urgent.begin();
        self.shared.fetch(location, into).map(|()| Tier::Shared)
    }

    /// Each in the log; once on the console, in words that are the same on all ranks of the node.
    fn report(&self, folder: &Folder, location: &Location<'_>, reason: &str) {
        tracing::warn!("the staged copy of {} cannot be used: {reason}", location.file.shown());
        if !self.damage_said.swap(true, Ordering::Relaxed) {
            act_on(&format!(
                "staged copies in {} cannot be used: their files are read from the shared store; \
                 the ranks' logs name them",
                folder.root().shown()
            ));
        }
    }
}

impl Store for Tiered {
    fn fetch(&self, location: &Location<'_>, into: &mut Vec<u8>) -> Result<(), FetchError> {
        let begun = Instant::now();
        let tier = self.fetch_cached(location, into);
        self.tally.waited(begun.elapsed());
        let tier = tier?;
        LAST.set(tier);
        self.tally.fetched(tier, into.len() as u64);
        Ok(())
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>> {
        self.shared.list(folder)
    }

    fn visit(&self, folder: &Path, tell: &mut dyn FnMut(&OsStr, Kind)) -> io::Result<()> {
        self.shared.visit(folder, tell)
    }

    fn answers(&self, location: &Location<'_>, into: &mut Vec<u8>) -> bool {
        self.shared.answers(location, into)
    }

    fn sight(&self, file: &Path) -> Sight {
        self.shared.sight(file)
    }

    fn is_rewritten(&self, file: &Path) -> bool {
        self.staged.as_ref().is_some_and(|folder| folder.is_rewritten(file))
    }

    fn look(&self, path: &Path) -> io::Result<Kind> {
        self.shared.look(path)
    }

    fn changed_ns(&self, path: &Path) -> io::Result<Option<i64>> {
        self.shared.changed_ns(path)
    }

    /// The shared store is looked at only where it was read from: it may be gone. What a copy is of
    /// is known; what is in the cache is looked at in the end.
    fn is_still(&self, path: &Path, listed: (u64, i64)) -> Option<bool> {
        match (LAST.get(), &self.staged) {
            (Tier::Shared, _) => self.shared.is_still(path, listed),
            (Tier::Local, Some(folder)) => folder.is_of(path, listed),
            _ => None,
        }
    }

    /// What a copy is of is known. What was read before there was one was the same file, or the
    /// copy is not of it.
    fn was_still(&self, path: &Path, listed: (u64, i64)) -> Option<bool> {
        let copied = self.staged.as_ref().and_then(|folder| folder.is_of(path, listed));
        copied.or_else(|| self.shared.is_still(path, listed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::CachePolicy;
    use crate::data::Occasion;
    use crate::data::store::direct::Direct;

    /// A shard is replaced under its name, with its length, while this process holds it open.
    #[test]
    fn a_copy_of_another_file_than_was_listed_is_told_without_a_look_at_the_store() {
        let place = tempfile::tempdir().expect("temporary folder");
        let path = |name: &str| place.path().join(name);
        let (shard, shared) = (path("shard"), Arc::new(Direct::default()));
        std::fs::write(&shard, b"first").expect("written");
        let listed = shared.stamp(&shard).expect("there").expect("known");
        let range = Location::range(&*shard, 1, 2);
        shared.fetch(&range, &mut Vec::new()).expect("read");
        let folder = |name: &str| Arc::new(Folder::open(&path(name)).expect("opened"));
        let (before, after) = (folder("before"), folder("after"));
        before.copy(&Direct::default(), &shard).expect("copied");
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::write(path("new"), b"other").expect("written");
        std::fs::rename(path("new"), &shard).expect("replaced");
        after.copy(&Direct::default(), &shard).expect("copied");
        let tiers = |cache: Option<Arc<Cache>>, staged| {
            let store: Arc<dyn Store> = shared.clone();
            Tiered::new(store, cache, staged, Arc::default(), Arc::default())
        };
        let read = |tiers: &Tiered| {
            let mut bytes = Vec::new();
            tiers.fetch(&range, &mut bytes).expect("read");
            (bytes, tiers.is_still(&shard, listed))
        };
        assert_eq!(read(&tiers(None, Some(before))), (b"ir".to_vec(), Some(true)));
        assert_eq!(read(&tiers(None, None)), (b"ir".to_vec(), Some(true)), "it is open");
        let other = tiers(None, Some(after));
        assert_eq!(read(&other), (b"th".to_vec(), Some(false)));
        std::fs::remove_file(&shard).expect("removed");
        assert_eq!(read(&other), (b"th".to_vec(), Some(false)), "the store may be gone");
        let cache = Cache::open(&path("cache"), 1 << 20, CachePolicy::Keep, Occasion::Begins);
        let cached = tiers(Some(Arc::new(cache.expect("opened"))), None);
        assert_eq!(read(&cached), (b"ir".to_vec(), Some(true)), "from the store, on its way there");
        assert_eq!(read(&cached), (b"ir".to_vec(), None), "looked at when it came");
    }
}
