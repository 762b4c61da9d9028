//! What a copy is known by, how it is written, and how its bytes are checked: a file that holds one
//! sample as a whole, one that holds many part by part, since they are read one by one.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::config::Shown;
use crate::data::store::{FILE_BYTES_MAX, FetchError, Kind, Location, Store};

/// A large file is copied in pieces of so many bytes.
const PIECE_BYTES: u64 = 8 << 20;
/// A part of a copy that has a hash of its own: a sample is read with the rest of its first and
/// last part.
const PART_BYTES: u64 = 16 << 10;
/// A copy from which many samples may be read part by part: its writer keeps the hashes.
const LARGE_BYTES: u64 = 1 << 20;

/// What a copy is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Copied {
    pub bytes: u64,
    pub hash: u64,
    /// When its file had last changed, if its store knows.
    pub changed_ns: Option<i64>,
    /// When a run made or took it, as its line says.
    pub made_ns: Option<i64>,
    /// Nobody has looked yet whether its file is still the one that was copied.
    pub unseen: bool,
}

impl Copied {
    /// Whether both are one copy, whatever is known of it beside.
    pub fn is_of(&self, other: &Self) -> bool {
        self.has_bytes_of(other) && self.changed_ns == other.changed_ns
    }

    /// Whether both hold the same.
    pub fn has_bytes_of(&self, other: &Self) -> bool {
        (self.bytes, self.hash) == (other.bytes, other.hash)
    }
}

pub(super) fn check(copied: Copied, bytes: u64, hash: u64) -> Result<(), String> {
    if bytes != copied.bytes {
        return Err(format!("{bytes} bytes instead of {}", copied.bytes));
    }
    if hash != copied.hash {
        return Err(CHANGED.into());
    }
    Ok(())
}

const CHANGED: &str = "its bytes have changed";

/// The hashes of a file, and of its parts.
#[derive(Debug)]
pub(super) struct Hashed {
    pub bytes: u64,
    pub hash: u64,
    /// The low half of each part's: a terabyte has 250 MB of them.
    parts: Vec<u32>,
}

impl Hashed {
    /// Whether these are the hashes of that copy.
    pub fn is_of(&self, copied: &Copied) -> bool {
        (self.bytes, self.hash) == (copied.bytes, copied.hash)
    }

    /// Offset and length of the whole parts that hold so many bytes behind an offset.
    pub fn covering(&self, offset: u64, length: u64) -> Result<(u64, u64), String> {
        let end = offset.checked_add(length).filter(|end| *end <= self.bytes);
        let end = end.ok_or_else(|| format!("{} bytes end before a sample does", self.bytes))?;
        let from = offset - offset % PART_BYTES;
        Ok((from, end.next_multiple_of(PART_BYTES).min(self.bytes) - from))
    }

    /// Whole parts from an offset on are what they were.
    pub fn check(&self, from: u64, bytes: &[u8]) -> Result<(), String> {
        let parts = &self.parts[(from / PART_BYTES) as usize..];
        let same = bytes.chunks(PART_BYTES as usize).zip(parts).all(|(b, h)| of_part(b) == *h);
        if same { Ok(()) } else { Err(CHANGED.into()) }
    }
}

fn of_part(bytes: &[u8]) -> u32 {
    xxh3_64(bytes) as u32
}

pub(super) fn hash_file(path: &Path) -> io::Result<Hashed> {
    let (mut hasher, mut file, mut bytes) = (Xxh3::new(), File::open(path)?, 0);
    let (mut part, mut parts) = (Vec::with_capacity(PART_BYTES as usize), Vec::new());
    loop {
        part.clear();
        let read = Read::by_ref(&mut file).take(PART_BYTES).read_to_end(&mut part)?;
        if read == 0 {
            return Ok(Hashed { bytes, hash: hasher.digest(), parts });
        }
        hasher.update(&part);
        parts.push(of_part(&part));
        bytes += read as u64;
    }
}

/// Why a copy is not whole.
#[derive(Debug)]
pub(super) enum Unwritten {
    /// The folder's disk.
    Here(io::Error),
    /// What is copied.
    There(String),
}

/// The copy, and of a large one its hashes.
pub(super) fn write(
    store: &dyn Store,
    from: &Path,
    to: &File,
) -> Result<(Copied, Option<Hashed>), Unwritten> {
    let source = |error: FetchError| Unwritten::There(format!("{}: {error}", from.shown()));
    let folder = Unwritten::Here;
    to.set_len(0).map_err(folder)?;
    let bytes = match store.look(from) {
        Ok(Kind::File { bytes }) => bytes,
        Ok(_) => return Err(Unwritten::There(format!("{}: no file", from.shown()))),
        Err(error) => return Err(Unwritten::There(format!("{}: {error}", from.shown()))),
    };
    // Asked first: a file that changes while it is read is another one later.
    let changed_ns = store.changed_ns(from).map_err(|error| source(error.into()))?;
    let (mut hasher, mut buffer, mut done) = (Xxh3::new(), Vec::new(), 0);
    let mut parts = Vec::new();
    // Pieces are cut between parts.
    let of_parts =
        |piece: &[u8]| piece.chunks(PART_BYTES as usize).map(of_part).collect::<Vec<_>>();
    if bytes <= PIECE_BYTES.min(FILE_BYTES_MAX) {
        store.fetch(&Location::whole(from, bytes), &mut buffer).map_err(source)?;
        hasher.update(&buffer);
        parts.extend(of_parts(&buffer));
        (&*to).write_all(&buffer).map_err(folder)?;
        done = buffer.len() as u64;
    } else {
        while done < bytes {
            let length = PIECE_BYTES.min(bytes - done);
            store.fetch(&Location::range(from, done, length), &mut buffer).map_err(source)?;
            hasher.update(&buffer);
            parts.extend(of_parts(&buffer));
            (&*to).write_all(&buffer).map_err(folder)?;
            done += length;
        }
    }
    let hash = hasher.digest();
    parts.shrink_to_fit();
    let hashed = (done > LARGE_BYTES).then_some(Hashed { bytes: done, hash, parts });
    Ok((Copied { bytes: done, hash, changed_ns, made_ns: None, unseen: false }, hashed))
}
