//! The saved form of a shard's listing: a line with a hash of the rest, then JSON that says of
//! which shard it is. It is trusted where the shard has the size and the time that it names.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::data::index::{Learned, learn};
use crate::data::store::{Kind, Store};

use super::shard::{self, Listing};

/// Raised when the form or the meaning of what is saved changes.
const VERSION: u32 = 1;
/// Ends its name.
const ENDING: &str = "index";
/// Largest index that is read, in bytes.
const INDEX_BYTES_MAX: u64 = 4 << 30;

#[derive(Serialize, Deserialize)]
struct Saved<L> {
    version: u32,
    /// The shard's.
    bytes: u64,
    changed_ns: i64,
    listing: L,
}

/// The listing of a shard: saved beside it, else in `cache`, and trusted as long as the shard does
/// not change. With it, whether an older or damaged index was there.
///
/// # Errors
/// What is wrong with the shard.
pub fn listing(
    store: &dyn Store,
    shard: &Path,
    cache: Option<&Path>,
) -> Result<(Learned<Listing>, bool), String> {
    let now = now(store, shard);
    let make = || shard::list(store, shard);
    let Some(now) = now else {
        let why = "the store does not know when the shard changed".to_owned();
        return make().map(|listing| (Learned::Unsaved(listing, why), false));
    };
    let places = places(shard, cache);
    let stale = Cell::new(false);
    let trusted = |place: &Path| {
        let found = read(place, now);
        stale.set(stale.get() || (found.is_none() && place.exists()));
        found
    };
    // A shard that changes meanwhile has another size or time at its end: nobody trusts the index.
    let learned = learn(&places, trusted, make, |listing| written(listing, now))?;
    Ok((learned, stale.get()))
}

/// Size and time of a shard.
fn now(store: &dyn Store, shard: &Path) -> Option<(u64, i64)> {
    match store.look(shard) {
        Ok(Kind::File { bytes }) => store.changed_ns(shard).map(|changed| (bytes, changed)),
        _ => None,
    }
}

fn places(shard: &Path, cache: Option<&Path>) -> Vec<PathBuf> {
    let mut beside = shard.as_os_str().to_owned();
    beside.push(".");
    beside.push(ENDING);
    let mut places = vec![PathBuf::from(beside)];
    places.extend(cache.map(|folder| {
        // Shards of two folders may have one name.
        let of = xxh3_128(shard.as_os_str().as_encoded_bytes());
        folder.join(format!("tar-{of:032x}.{ENDING}"))
    }));
    places
}

fn written(listing: &Listing, (bytes, changed_ns): (u64, i64)) -> Vec<u8> {
    let saved = Saved { version: VERSION, bytes, changed_ns, listing };
    // Plain numbers and texts: it has a JSON form.
    let text = serde_json::to_vec(&saved).unwrap_or_default();
    let mut all = format!("{:016x}\n", xxh3_64(&text)).into_bytes();
    all.extend(text);
    all
}

fn read(place: &Path, now: (u64, i64)) -> Option<Listing> {
    if std::fs::metadata(place).ok()?.len() > INDEX_BYTES_MAX {
        return None;
    }
    let all = std::fs::read(place).ok()?;
    let (hash, text) = all.split_at_checked(17)?;
    if hash != format!("{:016x}\n", xxh3_64(text)).as_bytes() {
        return None;
    }
    let saved: Saved<Listing> = serde_json::from_slice(text).ok()?;
    let fits = saved.version == VERSION && (saved.bytes, saved.changed_ns) == now;
    fits.then_some(saved.listing)
}
