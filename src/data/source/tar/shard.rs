//! What is in one shard: which of its members belong to one sample, where its picture lies and
//! what its label is. Only headers and labels are read. Names are WebDataset's: what comes before
//! the first dot of the file name is the sample's key, what comes after it says what the member is.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::data::store::{FetchError, Kind, Location, Store};

use super::group::{Group, LABEL_BYTES_MAX};
use super::left::{Left, Reason};
use super::name::{MemberKind, Name};
use super::sample::{Place, Sample};

/// What is read of a shard at a time: many headers where samples are small.
const PIECE_BYTES: u64 = 64 << 10;
/// An archive is made of such blocks; one of zeros ends it.
const BLOCK_BYTES: u64 = 512;

/// All of a shard.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Listing {
    /// In the order of the shard.
    pub samples: Vec<Sample>,
    /// What is not read.
    pub left: Left,
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
    if reader.is_compressed() {
        return Err(
            "it is compressed, which allows no reading by offset: unpack it (gunzip)".into()
        );
    }
    let mut lister = Lister::new(reader.again());
    let mut archive = tar::Archive::new(reader);
    // Archives that were put one behind the other are read on, as `tar --ignore-zeros` does.
    archive.set_ignore_zeros(true);
    let mut broken = None;
    for entry in archive.entries_with_seek().map_err(|error| error.to_string())? {
        match entry {
            Ok(mut entry) => lister.take(&mut entry)?,
            Err(error) => broken = Some(error),
        }
    }
    lister.ended(archive.into_inner(), broken)
}

/// What is known of a shard, as far as it was read.
struct Lister<'a> {
    listing: Listing,
    group: Group,
    /// Keys that were met.
    met: HashSet<Name>,
    /// Files that were met, for hard links to them.
    files: HashMap<Name, Place>,
    /// Where the next header is, and behind which member.
    end: u64,
    before: Option<String>,
    /// Reads labels that hard links lead to.
    beside: Reader<'a>,
}

impl<'a> Lister<'a> {
    fn new(beside: Reader<'a>) -> Self {
        let (listing, group) = (Listing::default(), Group::default());
        let (met, files) = (HashSet::new(), HashMap::new());
        Self { listing, group, met, files, end: 0, before: None, beside }
    }

    fn take(&mut self, entry: &mut tar::Entry<'_, Reader<'a>>) -> Result<(), String> {
        let name = Name::from(&*entry.path_bytes());
        let place = Place { offset: entry.raw_file_position(), length: entry.size() };
        let last = place.offset.saturating_add(place.length);
        if last > self.beside.bytes {
            return Err(self.cut(&format!("{} ends at byte {last}", name.shown())));
        }
        self.end = last.next_multiple_of(BLOCK_BYTES);
        self.before = Some(name.shown());
        let kind = entry.header().entry_type();
        if kind.is_gnu_sparse() || is_sparse(entry) {
            return Err(format!("{} is stored as a sparse file: store it whole", name.shown()));
        }
        let reason = match kind {
            // What an archiver writes of a file that has two names: the other one holds the bytes.
            kind if kind.is_hard_link() && place.length == 0 => {
                let target = entry.link_name_bytes().map(|target| Name::from(&*target).plain());
                match target.and_then(|target| self.files.get(&target).copied()) {
                    Some(place) => return self.file(name, place, None),
                    None => Reason::Lost,
                }
            }
            kind if kind.is_file() || kind.is_contiguous() || kind.is_hard_link() => {
                return self.file(name, place, Some(entry));
            }
            kind if kind.is_dir() || kind.is_pax_global_extensions() => return Ok(()),
            kind if kind.is_symlink() => Reason::Link,
            _ => Reason::Special,
        };
        self.listing.left.member(reason, &name);
        Ok(())
    }

    /// A file whose bytes `from` gives; without it they lie elsewhere in the shard.
    fn file(
        &mut self,
        name: Name,
        place: Place,
        from: Option<&mut dyn Read>,
    ) -> Result<(), String> {
        self.files.insert(name.plain(), place);
        let left = &mut self.listing.left;
        let (Some(base), Some((key, kind))) = (name.path().file_name(), name.key_and_kind()) else {
            left.files.file(name.path());
            return Ok(());
        };
        if left.files.takes(base) {
            return Ok(());
        }
        match kind {
            MemberKind::Dotted => left.member(Reason::Dotted, &name),
            MemberKind::Other => left.files.file(name.path()),
            MemberKind::Picture => self.group_of(key, &name)?.take_picture(name, place)?,
            MemberKind::Label => {
                let label = match from {
                    Some(from) => label_of(from, place),
                    None => label_of(self.beside.starting_at(place.offset), place),
                };
                self.group_of(key, &name)?.take_label(name, place.length, label)?;
            }
        }
        Ok(())
    }

    /// The group that the member of this name belongs to. The one before it is over.
    fn group_of(&mut self, key: Name, name: &Name) -> Result<&mut Group, String> {
        if self.group.key != key {
            self.close()?;
            if !self.met.insert(key.clone()) {
                return Err(format!("the key {} comes twice: {} again", key.shown(), name.shown()));
            }
            self.group = Group::of(key);
        }
        Ok(&mut self.group)
    }

    fn close(&mut self) -> Result<(), String> {
        let Listing { samples, left } = &mut self.listing;
        samples.extend(std::mem::take(&mut self.group).sample(left)?);
        Ok(())
    }

    fn cut(&self, what: &str) -> String {
        format!("it was cut: {what}, and it has {} bytes", self.beside.bytes)
    }

    /// The listing, where the archive is whole. `broken`: why the next header is none.
    fn ended(
        mut self,
        mut reader: Reader<'_>,
        broken: Option<io::Error>,
    ) -> Result<Listing, String> {
        let read_to = reader.at;
        let (end, bytes) = (self.end, reader.bytes);
        let no_header = broken.as_ref().is_some_and(|error| !lacks_rest(error));
        if self.before.is_none() && no_header && !reader.is_zero(0) {
            return Err("it is no tar archive: it does not begin with the header of a file".into());
        }
        let before = self.before.as_deref().unwrap_or("its beginning").to_owned();
        if !reader.is_zero(end) {
            return Err(match broken {
                Some(error) if end + BLOCK_BYTES <= bytes && !lacks_rest(&error) => {
                    format!("after {before} (byte {end}): {error}")
                }
                Some(_) => {
                    self.cut(&format!("after {before} there is no whole header at byte {end}"))
                }
                None => self.cut(&format!("there is no end of the archive at byte {end}")),
            });
        }
        // Behind the end of an archive there may be another one, nothing, or something else.
        if let (Some(error), Some(behind)) = (broken, reader.first_written(end)) {
            if read_to > behind + BLOCK_BYTES {
                return Err(format!("in the archive at byte {behind}: {error}"));
            }
            self.listing.left.bytes(bytes - behind);
        }
        self.close()?;
        Ok(self.listing)
    }
}

/// The bytes of a label. Whatever is longer is none.
fn label_of(from: &mut dyn Read, place: Place) -> io::Result<Vec<u8>> {
    let mut label = Vec::new();
    from.take(place.length.min(LABEL_BYTES_MAX)).read_to_end(&mut label)?;
    Ok(label)
}

/// Whether a header announced a member and none came.
fn lacks_rest(error: &io::Error) -> bool {
    error.to_string().contains("no future member")
}

/// Whether the bytes of an entry are only what is not zero of its file, as newer archives say it.
fn is_sparse(entry: &mut tar::Entry<'_, Reader<'_>>) -> bool {
    let Ok(Some(said)) = entry.pax_extensions() else { return false };
    said.flatten().any(|said| said.key_bytes().starts_with(b"GNU.sparse."))
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

impl<'a> Reader<'a> {
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

    /// Another one of the same shard.
    fn again(&self) -> Self {
        Self { at: 0, piece: Vec::new(), piece_at: 0, ..*self }
    }

    /// The bytes from here on.
    fn starting_at(&mut self, offset: u64) -> &mut dyn Read {
        self.at = offset;
        self
    }

    /// The first block from here on that is not zeros, by its place.
    fn first_written(&mut self, from: u64) -> Option<u64> {
        // Zeros end with the file at the latest.
        let starts = (from..self.bytes).step_by(BLOCK_BYTES as usize);
        starts.into_iter().find(|at| !self.is_zero(*at))
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
