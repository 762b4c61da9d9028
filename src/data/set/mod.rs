//! A data set as its users hold it: what its samples are, and what brings their bytes.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use crate::cluster::recovery::set::{Listed, SetIdentity};
use crate::config::{Shown, seed};
use crate::observe::refusal::Meaning;

use super::source::{Source, Wanted};
use super::store::{Extent, FetchError, Location, Sight, Store};
use super::{Cut, DataError, Image};

pub mod open;

/// A source and the store that fetches its samples. Copies share both.
#[derive(Clone)]
pub struct DataSet {
    /// What the samples are and where they lie.
    pub source: Arc<dyn Source>,
    /// Brings their bytes.
    pub store: Arc<dyn Store>,
}

/// What ranks compare of the sets that they have listed.
pub fn identity(train: &dyn Source, validation: Option<&dyn Source>) -> SetIdentity {
    SetIdentity { train: listed(train), validation: validation.map(listed).unwrap_or_default() }
}

/// What is to be said of two sets that are one, by their names, sizes and labels, or that share
/// files of many samples.
pub fn remark(train: &dyn Source, validation: Option<&dyn Source>) -> Option<String> {
    let set = identity(train, validation);
    let shared = if set.train == set.validation && set.train.samples > 0 {
        format!("the samples of data.train ({})", set.train.samples)
    } else {
        let known: HashSet<PathBuf> = train.files().into_iter().map(whole).collect();
        let measured = validation.map(Source::files).unwrap_or_default();
        let both: Vec<_> =
            measured.into_iter().filter(|file| known.contains(&whole(file))).collect();
        let first = both.first()?.shown();
        format!("{} of the files of data.train ({first})", both.len())
    };
    Some(format!(
        "data.validation has {shared}: its errors are of what was learned, and say nothing about \
         other pictures"
    ))
}

/// A file by a path without links, as far as it can be told.
fn whole(file: &Path) -> PathBuf {
    file.canonicalize().unwrap_or_else(|_| file.to_owned())
}

fn listed(set: &dyn Source) -> Listed {
    let mut classes = Xxh3::new();
    for name in set.classes() {
        classes.update(name.as_bytes());
        classes.update(&[0]);
    }
    let samples = set.len();
    Listed { hash: seed::key(&[set.fingerprint(), samples, classes.digest()]), samples }
}

/// What a sample's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetched {
    /// A hash of them and of the sample's number; 0 where it has none of its own, or is lost.
    pub contents: u64,
    /// How many there are.
    pub length: Length,
}

/// How many bytes a sample has beside what its set was listed with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// As many.
    AsListed,
    /// More or fewer, or in a file of many samples that was written since.
    Otherwise,
}

/// Other samples that are asked for, to know whether one file is missing or its storage.
const NEIGHBOURS_MAX: usize = 4;
/// How often a sample that seems to be lost is asked for once more.
const TRIES_MAX: usize = 2;
/// How far from a sample they are looked for.
const NEIGHBOURS_REACH: u64 = 16;

impl DataSet {
    /// The picture of one sample. `bytes` is the caller's buffer, to be used again: afterwards it
    /// holds anything. Storage that does not answer is [`DataError::Store`]; a sample that is gone,
    /// or cannot be read any more, is [`DataError::Lost`]; whatever else fails is
    /// [`DataError::Sample`].
    pub fn read(&self, id: u64, bytes: &mut Vec<u8>) -> Result<Image, DataError> {
        self.fetch(id, bytes)?;
        self.source.decode(id, bytes).map_err(|reason| self.sample_error(id, reason))
    }

    /// At least what is wanted of the picture whose bytes these are.
    pub fn cut(&self, id: u64, bytes: &[u8], wanted: Wanted<'_>) -> Result<Cut, DataError> {
        let decoded = self.source.decode_part(id, bytes, wanted);
        decoded.map_err(|reason| self.sample_error(id, reason))
    }

    fn sample_error(&self, id: u64, reason: String) -> DataError {
        DataError::Sample { name: self.source.name(id), reason }
    }

    /// The sample's bytes; none where it has no location. One is lost only where the storage around
    /// it answers before and after it was asked for once more. Errors are as of `read`.
    pub fn fetch(&self, id: u64, bytes: &mut Vec<u8>) -> Result<Fetched, DataError> {
        bytes.clear();
        let Some(location) = self.source.location(id) else {
            let length = match self.source.is_rewritten(id, &*self.store) {
                true => Length::Otherwise,
                false => Length::AsListed,
            };
            return Ok(Fetched { contents: self.source.held(id), length });
        };
        self.bring(id, &location, bytes)?;
        let length = match location.extent {
            Extent::Whole { listed } if listed != bytes.len() as u64 => Length::Otherwise,
            Extent::Whole { .. } if self.store.is_rewritten(&location.file) => Length::Otherwise,
            // After its bytes were read: it was as listed until then.
            Extent::Range { .. } if self.source.is_rewritten(id, &*self.store) => Length::Otherwise,
            _ => Length::AsListed,
        };
        Ok(Fetched { contents: xxh3_64_with_seed(bytes, id), length })
    }

    fn bring(
        &self,
        id: u64,
        location: &Location<'_>,
        bytes: &mut Vec<u8>,
    ) -> Result<(), DataError> {
        let Err(mut error) = self.store.fetch(location, bytes) else { return Ok(()) };
        for _ in 0..TRIES_MAX {
            if !self.is_lost(id, location, error.meaning, bytes) {
                return Err(DataError::Store(format!("{}: {error}", self.source.name(id))));
            }
            match self.store.fetch(location, bytes) {
                Ok(()) => return Ok(()),
                Err(again) => error = again,
            }
        }
        Err(match (self.is_lost(id, location, error.meaning, bytes), was_so(location, &error)) {
            (true, true) => self.sample_error(id, error.reason),
            (true, false) => DataError::Lost { name: self.source.name(id), reason: error.reason },
            (false, _) => DataError::Store(format!("{}: {error}", self.source.name(id))),
        })
    }

    /// Whether it is one sample that fails, and provably not the storage.
    fn is_lost(
        &self,
        id: u64,
        location: &Location<'_>,
        meaning: Meaning,
        bytes: &mut Vec<u8>,
    ) -> bool {
        match (meaning, location.extent) {
            // It was read.
            (Meaning::Damaged, _) => true,
            // A file of many samples does not go for one of them.
            (Meaning::Absent, Extent::Range { .. }) => false,
            (Meaning::Absent, Extent::Whole { listed }) => {
                match self.store.sight(&location.file) {
                    Sight::Lacking => true,
                    // As it was when the set was listed.
                    Sight::Dangling => listed == 0,
                    // The only file of its folder leaves that empty, and so does a mount that goes.
                    Sight::Empty => self.beside(id, location).next().is_none(),
                    Sight::Unknown => false,
                }
            }
            (Meaning::NotNow | Meaning::NotAllowed, _) => {
                let mut beside = self.beside(id, location).take(NEIGHBOURS_MAX);
                beside.any(|other| self.store.answers(&other, bytes))
            }
        }
    }

    /// Samples that go where this one goes: those of its file, or of files in its folder.
    fn beside<'a>(
        &'a self,
        id: u64,
        location: &'a Location<'_>,
    ) -> impl Iterator<Item = Location<'a>> {
        let both =
            (1..=NEIGHBOURS_REACH).flat_map(move |far| [id.checked_sub(far), id.checked_add(far)]);
        let others = both.flatten().filter(move |other| *other < self.source.len());
        let beside = others.filter_map(move |other| self.source.location(other));
        beside.filter(move |other| match location.extent {
            Extent::Whole { .. } => other.file.parent() == location.file.parent(),
            Extent::Range { .. } => other.file == location.file,
        })
    }
}

/// Whether a sample that cannot be had could not be had when its set was listed, as far as that can
/// be said: a link that led nowhere, a file larger than any that is read, and one that nobody may
/// read. (Where it could be read in another epoch, the sums of their contents differ.)
fn was_so(location: &Location<'_>, error: &FetchError) -> bool {
    match location.extent {
        Extent::Whole { listed: 0 } if error.meaning == Meaning::Absent => true,
        Extent::Whole { .. } => matches!(error.meaning, Meaning::Damaged | Meaning::NotAllowed),
        Extent::Range { .. } => false,
    }
}
