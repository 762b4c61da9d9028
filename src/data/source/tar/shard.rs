//! What is in one shard: which of its members belong to one sample, where its picture lies and
//! what its label is. Only headers and labels are read. Names are WebDataset's: what comes before
//! the first dot of the file name is the sample's key, what comes after it says what the member is.

use std::cell::RefCell;
use std::collections::HashSet;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::config::Shown;
use crate::data::source::leftovers::{Leftovers, is_picture};
use crate::data::store::{FetchError, Kind, Location, Store};

/// What is read of a shard at a time: many headers where samples are small.
const PIECE_BYTES: u64 = 64 << 10;
/// An archive is made of such blocks; one of zeros ends it.
const BLOCK_BYTES: u64 = 512;
/// The member that holds the label.
const LABEL: &str = "cls";
/// Longest label that is read.
const LABEL_BYTES_MAX: u64 = 64;
/// Labels are below this.
pub const CLASSES_MAX: u32 = 1 << 20;

/// One sample.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// The member with its picture, as the archive names it.
    pub name: String,
    /// Where the picture begins in the shard.
    pub offset: u64,
    /// Its bytes.
    pub length: u64,
    /// Its class.
    pub label: u32,
}

/// All of a shard.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Listing {
    /// In the order of the shard.
    pub samples: Vec<Sample>,
    /// What is not read.
    pub left: Leftovers,
}

/// Lists a shard.
///
/// # Errors
/// What is wrong with it, and with which member; or that it cannot be read whole, whatever was read
/// of it.
pub fn list(store: &dyn Store, path: &Path) -> Result<Listing, FetchError> {
    let Kind::File { bytes } = store.look(path)? else {
        return Err(FetchError::damaged("no file"));
    };
    let (failed, piece) = (RefCell::new(None), Vec::new());
    let reader = Reader { store, path, bytes, at: 0, piece, piece_at: 0, failed: &failed };
    let listed = members(reader);
    // What is not read is no end of the archive, no label, no fault of the shard.
    match failed.take() {
        Some(failure) => Err(failure),
        None => listed.map_err(FetchError::damaged),
    }
}

/// Goes through a shard. A read that failed may look like anything: `Reader::failed` has it.
fn members(mut reader: Reader<'_>) -> Result<Listing, String> {
    let bytes = reader.bytes;
    if reader.is_compressed() {
        return Err(
            "it is compressed, which allows no reading by offset: unpack it (gunzip)".into()
        );
    }
    let mut archive = tar::Archive::new(reader);
    let (mut listing, mut group) = (Listing::default(), Group::default());
    let (mut met, mut end, mut before) = (HashSet::new(), 0, "its beginning".to_owned());
    let cut = |what: String| format!("it was cut: {what}, and it has {bytes} bytes");
    for entry in archive.entries_with_seek().map_err(|error| error.to_string())? {
        let mut entry =
            entry.map_err(|error| match end + BLOCK_BYTES > bytes || lacks_rest(&error) {
                true => cut(format!("after {before} there is no whole header at byte {end}")),
                false => format!("after {before} (byte {end}): {error}"),
            })?;
        let name = String::from_utf8_lossy(&entry.path_bytes()).into_owned();
        let (offset, length) = (entry.raw_file_position(), entry.size());
        let last = offset.saturating_add(length);
        if last > bytes {
            return Err(cut(format!("{} ends at byte {last}", name.shown())));
        }
        end = last.next_multiple_of(BLOCK_BYTES);
        before = name.shown();
        let kind = entry.header().entry_type();
        if kind.is_gnu_sparse() {
            return Err(format!("{} is stored as a sparse file: store it whole", name.shown()));
        }
        if !kind.is_file() && !kind.is_contiguous() {
            continue;
        }
        let file = Path::new(&name);
        let (Some(base), Some((key, what))) = (file.file_name(), key_of(&name)) else {
            listing.left.file(file);
            continue;
        };
        if listing.left.takes(base) {
            continue;
        }
        if group.key != key {
            listing.samples.extend(std::mem::take(&mut group).sample()?);
            if !met.insert(key.to_owned()) {
                return Err(format!("the key {} comes twice: {} again", key.shown(), name.shown()));
            }
            key.clone_into(&mut group.key);
        }
        if what.eq_ignore_ascii_case(LABEL) {
            group.take_label(&name, length, &mut entry)?;
        } else if is_picture(Path::new(&format!("x.{what}"))) && !what.contains('.') {
            group.take_picture(name, offset, length)?;
        } else {
            listing.left.file(file);
        }
    }
    listing.samples.extend(group.sample()?);
    match archive.into_inner().is_zero(end) {
        true => Ok(listing),
        false => Err(cut(format!("there is no end of the archive at byte {end}"))),
    }
}

/// Whether a header announced a member and none came.
fn lacks_rest(error: &io::Error) -> bool {
    error.to_string().contains("no future member")
}

/// Key and rest of a member's name; a name without a dot has none.
fn key_of(name: &str) -> Option<(&str, &str)> {
    let base = name.rfind('/').map_or(0, |slash| slash + 1);
    let dot = base + name[base..].find('.')?;
    Some((name[..dot].trim_start_matches("./"), &name[dot + 1..]))
}

/// The members of one key that have come.
#[derive(Default)]
struct Group {
    key: String,
    picture: Option<(String, u64, u64)>,
    label: Option<u32>,
}

impl Group {
    fn take_picture(&mut self, name: String, offset: u64, length: u64) -> Result<(), String> {
        match &self.picture {
            Some((first, ..)) => {
                let (first, second) = (first.shown(), name.shown());
                Err(format!("the key {} has two pictures, {first} and {second}", self.key.shown()))
            }
            None => {
                self.picture = Some((name, offset, length));
                Ok(())
            }
        }
    }

    fn take_label(&mut self, name: &str, length: u64, from: &mut dyn Read) -> Result<(), String> {
        let wrong = |what: String| {
            format!("{}: {what}; it must hold one number below {CLASSES_MAX}", name.shown())
        };
        if self.label.is_some() {
            return Err(format!("the key {} has two labels: {}", self.key.shown(), name.shown()));
        }
        if length > LABEL_BYTES_MAX {
            return Err(wrong(format!("{length} bytes are no label")));
        }
        let mut text = String::new();
        from.read_to_string(&mut text).map_err(|error| wrong(error.to_string()))?;
        let label = text.trim().parse().ok().filter(|label| *label < CLASSES_MAX);
        self.label = Some(label.ok_or_else(|| wrong(format!("{:?} is no label", text.trim())))?);
        Ok(())
    }

    /// What has a label and no picture is no sample.
    fn sample(self) -> Result<Option<Sample>, String> {
        let Some((name, offset, length)) = self.picture else { return Ok(None) };
        let Some(label) = self.label else {
            let lacks = format!("{} has no label: {}.{LABEL} ", name.shown(), self.key.shown());
            return Err(lacks + "is not beside it");
        };
        Ok(Some(Sample { name, offset, length, label }))
    }
}

/// A file of a store, read in pieces where it is looked at.
struct Reader<'a> {
    store: &'a dyn Store,
    path: &'a Path,
    bytes: u64,
    at: u64,
    piece: Vec<u8>,
    piece_at: u64,
    /// The first read that failed. None is tried behind it.
    failed: &'a RefCell<Option<FetchError>>,
}

impl Reader<'_> {
    /// Holds the next so many bytes; nothing where they do not come.
    fn fetch(&mut self, length: u64) -> io::Result<()> {
        let mut failed = self.failed.borrow_mut();
        if failed.is_none() {
            let location = Location::range(self.path, self.at, length);
            match self.store.fetch(&location, &mut self.piece) {
                Ok(()) => {
                    self.piece_at = self.at;
                    return Ok(());
                }
                Err(error) => *failed = Some(error),
            }
        }
        self.piece.clear();
        Err(io::Error::other("it cannot be read"))
    }

    /// Whether it begins as gzip's files do.
    fn is_compressed(&mut self) -> bool {
        let mut magic = [0; 2];
        let read = self.read_exact(&mut magic);
        self.at = 0;
        read.is_ok() && magic == [0x1F, 0x8B]
    }

    /// Whether there is a block of zeros.
    fn is_zero(&mut self, at: u64) -> bool {
        let mut block = [1; BLOCK_BYTES as usize];
        self.at = at;
        self.read_exact(&mut block).is_ok() && block == [0; BLOCK_BYTES as usize]
    }
}

impl Read for Reader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let held = self.piece_at..self.piece_at + self.piece.len() as u64;
        if !held.contains(&self.at) {
            let length = PIECE_BYTES.min(self.bytes.saturating_sub(self.at));
            if length == 0 {
                return Ok(0);
            }
            self.fetch(length)?;
        }
        let from = &self.piece[(self.at - self.piece_at) as usize..];
        let count = from.len().min(into.len());
        into[..count].copy_from_slice(&from[..count]);
        self.at += count as u64;
        Ok(count)
    }
}

impl Seek for Reader<'_> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
            SeekFrom::End(by) => self.bytes.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests;
