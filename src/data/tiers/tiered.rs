//! Where a training sample's bytes come from: the node's cache, its staged copies, else the shared
//! store. It counts, and whatever is nearer may fail: the shared store is asked then.

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
        self.tally.fetched(tier?, into.len() as u64);
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

    fn look(&self, path: &Path) -> io::Result<Kind> {
        self.shared.look(path)
    }

    fn changed_ns(&self, path: &Path) -> io::Result<Option<i64>> {
        self.shared.changed_ns(path)
    }

    fn is_still(&self, path: &Path, listed: (u64, i64)) -> io::Result<bool> {
        self.shared.is_still(path, listed)
    }
}
