//! The listing that a run began with, which its order of samples follows. It is kept for all who
//! come later: who joins a running world takes it as it is, whatever has come to the folder since,
//! and has the order that the others have. An attempt that goes on takes it where the folder still
//! holds all of it; else the set is not the run's any more.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_128;

use crate::config::Shown;
use crate::data::DataError;
use crate::data::index::{Cache, Occasion, save};
use crate::data::store::Store;
use crate::data::unfinished::Unfinished;

use super::table::Table;
use super::{saved, walk};

/// A run's listing, and how many pictures have come since.
pub struct Kept {
    pub table: Table,
    pub news: u64,
}

/// Where it lies.
fn place(root: &Path, folder: &Path) -> PathBuf {
    folder.join(format!("folder-{:032x}.run", xxh3_128(root.as_os_str().as_encoded_bytes())))
}

/// Keeps a listing as the run's, unless it is kept already.
///
/// # Errors
/// It cannot be written.
pub fn keep(table: &Table, root: &Path, folder: &Path) -> io::Result<()> {
    let place = place(root, folder);
    let fingerprint = |table: Table| table.about.fingerprint;
    if Table::map(&place).map(fingerprint) == Some(table.about.fingerprint) {
        return Ok(());
    }
    // What is in its way, opening the part says.
    let _ = fs::create_dir(folder);
    let part = Unfinished::open(&place, saved::MODE)?;
    save(&part, &place, table.bytes()).inspect_err(|_| part.discard())
}

/// The run's own listing, for a process that has to have it. `None`: there is none, or whoever asks
/// begins a run.
///
/// # Errors
/// The folder does not hold all of it any more, or cannot be listed.
pub fn listing(
    store: &dyn Store,
    root: &Path,
    key: &str,
    cache: Cache<'_>,
) -> Result<Option<Kept>, DataError> {
    if cache.occasion == Occasion::Begins {
        return Ok(None);
    }
    let Some(table) = Table::map(&place(root, cache.folder)) else { return Ok(None) };
    if cache.occasion == Occasion::Joins || saved::is_current(store, root, &table) {
        return Ok(Some(Kept { table, news: 0 }));
    }
    let now = walk::list(store, root, key)?;
    match missing(&table, &now) {
        None => Ok(Some(Kept { news: now.count() - table.count(), table })),
        Some(number) => Err(DataError::Set(format!(
            "{key}: {} is not the set that the run began with: {} is gone, or has another size; \
             put back what the run began with, or begin anew with `launch --fresh`",
            root.shown(),
            path(&table, number).shown(),
        ))),
    }
}

/// Below the root.
fn path(table: &Table, number: u64) -> PathBuf {
    table.about.classes[table.class(number)].0.join(table.name(number))
}

/// The first picture that a later listing lacks: both are in the order of names.
fn missing(then: &Table, now: &Table) -> Option<u64> {
    let folder = |table: &Table, number: u64| table.about.classes[table.class(number)].0.clone();
    let same = |number: u64, later: u64| {
        then.name(number) == now.name(later)
            && then.size(number) == now.size(later)
            && folder(then, number) == folder(now, later)
    };
    let mut later = 0..now.count();
    (0..then.count()).find(|number| !later.any(|later| same(*number, later)))
}

#[cfg(test)]
#[path = "kept_tests.rs"]
mod tests;
