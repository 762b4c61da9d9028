//! The saved form of a shard's listing: a line with a hash of the rest, then JSON that says of
//! which shard it is. It is trusted where the shard has the size and the time that it names, and
//! lies beside it only where not everybody may write.

use std::borrow::Cow;
use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use kintsugi_ffi::private;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::data::index::{Index, Learned, learn, now_ns};
use crate::data::store::{FetchError, Stamp, Store};

use super::sample::{CLASSES_MAX, Sample};
use super::shard::{self, Listing};

/// Raised when the form or the meaning of what is saved changes.
const VERSION: u32 = 2;
/// Ends its name.
const ENDING: &str = "index";
/// Of its first line: a hash in hexadecimal digits, and the line's end.
const HASH_LINE_BYTES: usize = 17;
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

/// Everybody who may read the shards may read their index.
const MODE: u32 = 0o666;

/// How far apart two changes may be and have the same time: where a file system counts whole
/// seconds, or pairs of them, and where it takes the kernel's time, which ticks 100 times a second
/// at least.
const TICK_NS_MAX: i64 = 2 * WHOLE_SECOND_NS;
const TICK_NS: i64 = 20_000_000;
const WHOLE_SECOND_NS: i64 = 1_000_000_000;

/// A shard as it is now.
struct Shard<'a> {
    store: &'a dyn Store,
    path: &'a Path,
    /// Size and time before it is listed.
    now: (u64, i64),
    /// An index was there that is not to be trusted.
    stale: Cell<bool>,
}

impl Index for Shard<'_> {
    type Value = Listing;
    type Error = FetchError;

    fn read(&self, place: &Path) -> Option<Listing> {
        // One that cannot be read is no worse than none: the shard itself is listed.
        let found = read(place, self.now).ok()?;
        self.stale.set(self.stale.get() || found.is_none());
        found
    }

    fn make(&self) -> Result<Listing, FetchError> {
        settle(self.now.1);
        let listed = shard::list(self.store, self.path);
        match self.store.stamp(self.path)? == Some(self.now) {
            true => listed,
            false => Err(FetchError::not_now("it changes while it is listed")),
        }
    }

    fn bytes<'a>(&self, listing: &'a Listing) -> Result<Cow<'a, [u8]>, String> {
        let (bytes, changed_ns) = self.now;
        written(listing, bytes, changed_ns).map(Cow::Owned).map_err(|error| error.to_string())
    }

    fn mode(&self) -> u32 {
        MODE
    }
}

/// The listing of a shard that is so: saved beside it, else in `cache`, and trusted as long as the
/// shard does not change. With it, whether an older or damaged index was there.
///
/// # Errors
/// What is wrong with the shard, or that it cannot be read: nothing is saved of such a one.
pub fn listing(
    store: &dyn Store,
    path: &Path,
    now: Stamp,
    cache: Option<&Path>,
) -> Result<(Learned<Listing>, bool), FetchError> {
    let Some(now) = now else {
        let why = "the store does not know when the shard changed".to_owned();
        return shard::list(store, path).map(|listing| (Learned::Unsaved(listing, why), false));
    };
    let shard = Shard { store, path, now, stale: Cell::new(false) };
    let learned = learn(&shard, &places(path, cache))?;
    Ok((learned, shard.stale.get()))
}

/// Waits until whatever changes a file that had changed then gets another time: it is listed behind
/// that, so that a change since shows.
fn settle(changed_ns: i64) {
    let tick_ns = match changed_ns % WHOLE_SECOND_NS {
        0 => TICK_NS_MAX,
        _ => TICK_NS,
    };
    // Of a time yet to come nobody knows how long ago it was given.
    let ago_ns = now_ns().saturating_sub(changed_ns).max(0);
    if ago_ns < tick_ns {
        std::thread::sleep(Duration::from_nanos((tick_ns - ago_ns).unsigned_abs()));
    }
}

fn places(shard: &Path, cache: Option<&Path>) -> Vec<PathBuf> {
    let mut beside = shard.as_os_str().to_owned();
    beside.push(".");
    beside.push(ENDING);
    let mut places = vec![PathBuf::from(beside)];
    // Anybody could write an index there, or stand in the way of ours. What another program left
    // under that name is not ours to replace.
    places.retain(|place| !private::lies_open(place) && !is_foreign(place));
    places.extend(cache.map(|folder| {
        // Shards of two folders may have one name.
        let of = xxh3_128(shard.as_os_str().as_encoded_bytes());
        folder.join(format!("tar-{of:032x}.{ENDING}"))
    }));
    places
}

fn written(listing: &Listing, bytes: u64, changed_ns: i64) -> serde_json::Result<Vec<u8>> {
    let saved = Saved { version: VERSION, bytes, changed_ns, listing };
    let text = serde_json::to_vec(&saved)?;
    let mut all = format!("{:016x}\n", xxh3_64(&text)).into_bytes();
    all.extend(text);
    Ok(all)
}

/// Whether what lies there was never an index of ours, not even one that is cut or damaged: those
/// begin with the line of a hash, or are empty.
fn is_foreign(place: &Path) -> bool {
    let mut line = Vec::new();
    let read = |file: File| file.take(HASH_LINE_BYTES as u64).read_to_end(&mut line);
    match File::open(place).and_then(read) {
        Ok(_) => !line.iter().zip(1..).all(|(byte, number)| match number {
            HASH_LINE_BYTES => *byte == b'\n',
            _ => byte.is_ascii_hexdigit(),
        }),
        Err(error) => error.kind() == io::ErrorKind::IsADirectory,
    }
}

/// What is saved there; nothing where its bytes are not to be trusted.
fn read(place: &Path, now: (u64, i64)) -> io::Result<Option<Listing>> {
    if std::fs::metadata(place)?.len() > INDEX_BYTES_MAX {
        return Ok(None);
    }
    Ok(decoded(&std::fs::read(place)?, now))
}

fn decoded(all: &[u8], now: (u64, i64)) -> Option<Listing> {
    let (hash, text) = all.split_at_checked(HASH_LINE_BYTES)?;
    if hash != format!("{:016x}\n", xxh3_64(text)).as_bytes() {
        return None;
    }
    let saved: Saved<Listing> = serde_json::from_slice(text).ok()?;
    let inside = |sample: &Sample| {
        let end = sample.offset.checked_add(sample.length);
        end.is_some_and(|end| end <= saved.bytes) && sample.label < CLASSES_MAX
    };
    let fits = saved.version == VERSION
        && (saved.bytes, saved.changed_ns) == now
        && saved.listing.samples.iter().all(inside);
    fits.then_some(saved.listing)
}
