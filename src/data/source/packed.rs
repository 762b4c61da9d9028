//! Sets whose samples have one size and lie one behind the other in a few files. Pixels stay in
//! the files, where the page cache is shared by all ranks of a node; those of a compressed file
//! are held. Labels are read once.

use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use crate::config::Shown;
use crate::data::store::{FetchError, Kind, Location, Stamp, Store};
use crate::data::{DataError, Image};
use crate::observe::refusal::Meaning;

use super::Source;
use super::listed::ListedFile;

/// How one format lies in its files.
#[derive(Debug, Clone, Copy)]
pub(super) struct Format {
    pub height: u32,
    pub width: u32,
    pub channels: u32,
    /// Bytes of one record.
    pub record: u64,
    /// Bytes of a record before its pixels.
    pub pixels: u64,
}

/// One file's samples.
pub(super) struct PackedFile {
    pub path: PathBuf,
    /// Bytes before its first record.
    pub header: u64,
    /// One a record.
    pub labels: Vec<u8>,
    /// Its records, where the file does not have them as they are.
    pub held: Option<Vec<u8>>,
    /// As it was before it was read.
    pub listed: Stamp,
}

/// A file and the id of its first sample.
struct BatchFile {
    path: PathBuf,
    first: u64,
    header: u64,
    held: Option<Vec<u8>>,
    listed: ListedFile,
}

/// Samples of one size in a few files.
pub struct Packed {
    format: Format,
    parts: Vec<BatchFile>,
    labels: Vec<u8>,
    classes: Vec<String>,
    fingerprint: u64,
    remarks: Vec<String>,
}

/// What is wrong with a file.
pub(super) fn wrong(path: &Path, text: impl std::fmt::Display) -> DataError {
    DataError::Set(format!("{}: {text}", path.shown()))
}

/// Why a file does not come.
fn refused(path: &Path, error: impl Into<FetchError>) -> DataError {
    error.into().about(path.shown()).into()
}

/// Whether there is a file of that name. Nobody knows where it cannot be looked at.
pub(super) fn is_file(store: &dyn Store, path: &Path) -> Result<bool, DataError> {
    match store.look(path) {
        Ok(kind) => Ok(matches!(kind, Kind::File { .. })),
        Err(error) if Meaning::of(&error) == Meaning::Absent => Ok(false),
        Err(error) => Err(refused(path, error)),
    }
}

/// The first of these names that is a file's.
pub(super) fn first_file(
    store: &dyn Store,
    paths: impl Iterator<Item = PathBuf>,
) -> Result<Option<PathBuf>, DataError> {
    for path in paths {
        if is_file(store, &path)? {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// A file's size and time.
pub(super) fn stamp(store: &dyn Store, path: &Path) -> Result<Stamp, DataError> {
    store.stamp(path).map_err(|error| refused(path, error))
}

/// A file's length.
pub(super) fn length(store: &dyn Store, path: &Path) -> Result<u64, DataError> {
    match store.look(path).map_err(|error| refused(path, error))? {
        Kind::File { bytes } => Ok(bytes),
        _ => Err(wrong(path, "no file")),
    }
}

/// A whole index file.
pub(super) fn index(store: &dyn Store, path: &Path) -> Result<Vec<u8>, DataError> {
    let mut bytes = Vec::new();
    let fetched = store.fetch(&Location::whole(path, 0), &mut bytes);
    fetched.map_err(|error| refused(path, error))?;
    Ok(bytes)
}

/// The first `length` bytes of a file of samples.
pub(super) fn start(store: &dyn Store, path: &Path, length: u64) -> Result<Vec<u8>, DataError> {
    let mut bytes = Vec::new();
    let fetched = store.fetch(&Location::range(path, 0, length), &mut bytes);
    fetched.map_err(|error| refused(path, error))?;
    Ok(bytes)
}

/// A file of samples, which lie in it by ranges: every byte.
pub(super) fn all(store: &dyn Store, path: &Path) -> Result<Vec<u8>, DataError> {
    start(store, path, length(store, path)?)
}

impl Packed {
    /// Puts the files' samples one behind the other; refuses labels that are no class.
    pub(super) fn new(
        format: Format,
        parts: Vec<PackedFile>,
        classes: Vec<String>,
        remarks: Vec<String>,
    ) -> Result<Self, DataError> {
        let (mut files, mut all) = (Vec::new(), Vec::new());
        for PackedFile { path, header, labels, held, listed } in parts {
            let known = |label: &u8| usize::from(*label) < classes.len();
            if let Some(at) = labels.iter().position(|label| !known(label)) {
                let (label, count) = (labels[at], classes.len());
                let text = format!("record {at} has label {label} of {count} (0 to {})", count - 1);
                return Err(wrong(&path, text));
            }
            let (first, listed) = (all.len() as u64, ListedFile::of(listed));
            files.push(BatchFile { path, first, header, held, listed });
            all.extend(labels);
        }
        let mut hash = Xxh3::new();
        hash.update(&all);
        hash.update(&format.record.to_le_bytes());
        let fingerprint = hash.digest();
        Ok(Self { format, parts: files, labels: all, classes, fingerprint, remarks })
    }

    fn part(&self, id: u64) -> &BatchFile {
        &self.parts[self.parts.partition_point(|part| part.first <= id) - 1]
    }

    /// Where the sample's pixels lie, from the start of the file or of what is held of it.
    fn offset(&self, part: &BatchFile, id: u64) -> u64 {
        let Format { record, pixels, .. } = self.format;
        part.header + (id - part.first) * record + pixels
    }

    /// The sample's pixels in what is held of its file.
    fn planes<'a>(&self, part: &BatchFile, held: &'a [u8], id: u64) -> Option<&'a [u8]> {
        let at = self.offset(part, id) as usize;
        held.get(at..at + (self.format.record - self.format.pixels) as usize)
    }
}

impl Source for Packed {
    fn listed(&self) -> Vec<(&Path, &ListedFile)> {
        self.parts.iter().map(|part| (&*part.path, &part.listed)).collect()
    }

    fn len(&self) -> u64 {
        self.labels.len() as u64
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn channels(&self) -> u32 {
        self.format.channels
    }

    fn label(&self, id: u64) -> u32 {
        u32::from(self.labels[id as usize])
    }

    fn location(&self, id: u64) -> Option<Location<'_>> {
        let Format { record, pixels, .. } = self.format;
        let part = self.part(id);
        let length = record - pixels;
        let in_file = || Location::range(&*part.path, self.offset(part, id), length);
        part.held.is_none().then(in_file)
    }

    fn is_rewritten(&self, id: u64, store: &dyn Store) -> bool {
        let part = self.part(id);
        match part.held {
            // What was read of it stays.
            Some(_) => part.listed.is_another(),
            None => part.listed.is_rewritten(store, &part.path),
        }
    }

    fn decode(&self, id: u64, fetched: &[u8]) -> Result<Image, String> {
        let Format { height, width, channels, .. } = self.format;
        let part = self.part(id);
        let planes = match &part.held {
            None => fetched,
            Some(held) => self.planes(part, held, id).ok_or("the file has too few bytes")?,
        };
        // The files hold one plane per channel; an image is interleaved.
        let area = (height * width) as usize;
        let pixels = match channels {
            1 => planes.to_vec(),
            _ => (0..area)
                .flat_map(|i| [planes[i], planes[area + i], planes[2 * area + i]])
                .collect(),
        };
        Ok(Image { height, width, channels, pixels })
    }

    fn held(&self, id: u64) -> u64 {
        let part = self.part(id);
        let planes = part.held.as_ref().and_then(|held| self.planes(part, held, id));
        planes.map_or(0, |planes| xxh3_64_with_seed(planes, id))
    }

    fn name(&self, id: u64) -> String {
        let part = self.part(id);
        format!("{}[{}]", part.path.shown(), id - part.first)
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    fn remarks(&self) -> &[String] {
        &self.remarks
    }
}

/// What the tests of all packed formats ask.
#[cfg(test)]
pub(super) mod asked {
    use super::*;
    use crate::data::store::memory::MemoryStore;

    /// The picture of a sample, as its bytes lie in the store.
    pub fn read(packed: &Packed, store: &MemoryStore, id: u64) -> Image {
        let mut bytes = Vec::new();
        if let Some(location) = packed.location(id) {
            store.fetch(&location, &mut bytes).expect("there");
        }
        packed.decode(id, &bytes).expect("decodes")
    }

    /// Why a set is not opened.
    pub fn refusal(result: Result<Packed, DataError>) -> String {
        match result {
            Ok(_) => panic!("opened"),
            Err(error) => error.to_string(),
        }
    }
}
