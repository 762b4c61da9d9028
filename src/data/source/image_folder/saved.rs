//! The saved listing of an image folder: a later start trusts it after a look at the folders'
//! times, which change with any name in them. A file that is written anew under its old name
//! changes none: its bytes are read as they are, its size is that of the listing.

use std::borrow::Cow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use xxhash_rust::xxh3::xxh3_128;

use crate::data::DataError;
use crate::data::index::{Index, Learned, learn};
use crate::data::store::Store;
use crate::observe::threads;

use super::crawl::THREADS;
use super::table::Table;
use super::walk;

/// A folder that changed so shortly before it was listed may change again without another time:
/// file systems have coarse clocks. Two seconds is the coarsest in use.
const UNSETTLED_NS: i64 = 2_000_000_000;
/// Folders whose times are looked at, at most; a set of more is listed at every start.
const FOLDERS_MAX: usize = 200_000;
/// It is the run's owner's.
pub const MODE: u32 = 0o600;

struct Folder<'a> {
    store: &'a dyn Store,
    root: &'a Path,
    key: &'a str,
}

impl Index for Folder<'_> {
    type Value = Table;
    type Error = DataError;

    fn read(&self, place: &Path) -> Option<Table> {
        Table::map(place).filter(|table| is_current(self.store, self.root, table))
    }

    fn make(&self) -> Result<Table, DataError> {
        walk::list(self.store, self.root, self.key)
    }

    fn bytes<'a>(&self, table: &'a Table) -> Result<Cow<'a, [u8]>, String> {
        let about = &table.about;
        let settled = |(_, changed): &(PathBuf, Option<i64>)| {
            changed.is_some_and(|changed| changed < about.listed_ns - UNSETTLED_NS)
        };
        if about.dangling > 0 {
            let count = about.dangling;
            return Err(format!("{count} links lead to nothing, and what they led to may be back"));
        }
        if about.folders.len() > FOLDERS_MAX {
            return Err(format!("it has more than {FOLDERS_MAX} folders"));
        }
        if about.folders.iter().any(|(folder, _)| folder.to_str().is_none()) {
            return Err("a folder's name is not UTF-8".into());
        }
        match about.folders.iter().all(settled) {
            true => Ok(table.bytes().into()),
            false => Err("a folder has changed just now".into()),
        }
    }

    fn mode(&self) -> u32 {
        MODE
    }
}

/// Whether every folder is as it was when it was listed.
pub fn is_current(store: &dyn Store, root: &Path, table: &Table) -> bool {
    let folders = &table.about.folders;
    if folders.first().is_none_or(|(first, _)| first != root) {
        return false;
    }
    let (next, changed) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        while let Some((folder, was)) = folders.get(next.fetch_add(1, Ordering::Relaxed)) {
            // One that cannot be looked at is listed, which says why.
            if was.is_none() || store.changed_ns(folder).ok() != Some(*was) {
                changed.fetch_add(1, Ordering::Relaxed);
            }
        }
    };
    std::thread::scope(|scope| threads::share(scope, THREADS.min(folders.len()), work));
    changed.into_inner() == 0
}

/// The listing of an image folder: of all processes that share `cache` one lists it, the others
/// map what it saved.
///
/// # Errors
/// What is wrong with it.
pub fn listing(
    store: &dyn Store,
    root: &Path,
    key: &str,
    cache: Option<&Path>,
) -> Result<Table, DataError> {
    let places: Vec<PathBuf> = (cache.into_iter())
        .map(|folder| {
            let of = xxh3_128(root.as_os_str().as_encoded_bytes());
            folder.join(format!("folder-{of:032x}.index"))
        })
        .collect();
    let folder = Folder { store, root, key };
    match learn(&folder, &places)? {
        // Mapped, it is in memory once for all ranks of the node.
        Learned::Saved(table, place) => {
            drop(table);
            folder.read(&place).map_or_else(|| folder.make(), Ok)
        }
        Learned::Read(table) => Ok(table),
        Learned::Unsaved(table, reason) => {
            tracing::info!("{key}: the listing is not saved, so each start lists: {reason}");
            Ok(table)
        }
    }
}

#[cfg(test)]
mod tests;
