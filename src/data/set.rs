//! A data set as its users hold it: what its samples are, and what brings their bytes.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use super::source::{Source, Wanted};
use super::store::{Extent, FetchError, Kind, Location, Store};
use super::{Cut, DataError, Image};

/// A source and the store that fetches its samples. Copies share both.
#[derive(Clone)]
pub struct DataSet {
    /// What the samples are and where they lie.
    pub source: Arc<dyn Source>,
    /// Brings their bytes.
    pub store: Arc<dyn Store>,
}

/// Other samples that are asked for, to know whether one file is missing or its storage.
const NEIGHBOURS_MAX: usize = 4;
/// How far from a sample they are looked for.
const NEIGHBOURS_REACH: u64 = 16;

impl DataSet {
    /// The picture of one sample. `bytes` is the caller's buffer, to be used again: afterwards it
    /// holds anything. Storage that does not answer is [`DataError::Store`], whatever else fails is
    /// [`DataError::Sample`].
    pub fn read(&self, id: u64, bytes: &mut Vec<u8>) -> Result<Image, DataError> {
        self.fetch(id, bytes)?;
        self.source.decode(id, bytes).map_err(|reason| self.sample_error(id, reason))
    }

    /// The same, and at least what is wanted of the picture.
    pub fn read_part(
        &self,
        id: u64,
        bytes: &mut Vec<u8>,
        wanted: Wanted<'_>,
    ) -> Result<Cut, DataError> {
        self.fetch(id, bytes)?;
        let decoded = self.source.decode_part(id, bytes, wanted);
        decoded.map_err(|reason| self.sample_error(id, reason))
    }

    fn sample_error(&self, id: u64, reason: String) -> DataError {
        DataError::Sample { name: self.source.name(id), reason }
    }

    /// The sample's bytes; none where it has no location.
    fn fetch(&self, id: u64, bytes: &mut Vec<u8>) -> Result<(), DataError> {
        bytes.clear();
        if let Some(location) = self.source.location(id) {
            self.store.fetch(&location, bytes).map_err(|error| match error {
                FetchError::Unreachable(reason) if self.is_unreachable(id, &location, bytes) => {
                    DataError::Store(format!("{}: {reason}", self.source.name(id)))
                }
                FetchError::Unreachable(reason) | FetchError::Absent(reason) => {
                    self.sample_error(id, reason)
                }
            })?;
        }
        Ok(())
    }

    /// Whether it is the storage that fails, and not one sample: others beside it cannot be had
    /// either. One that was missing when the set was listed, or has been removed, is its own loss.
    fn is_unreachable(&self, id: u64, location: &Location<'_>, bytes: &mut Vec<u8>) -> bool {
        let folder = location.file.parent();
        if let Extent::Whole { listed } = location.extent
            && (listed == 0 || self.was_removed(&location.file))
        {
            return false;
        }
        let both =
            (1..=NEIGHBOURS_REACH).flat_map(|far| [id.checked_sub(far), id.checked_add(far)]);
        let others = both.flatten().filter(|other| *other < self.source.len());
        let beside = others.filter_map(|other| self.source.location(other));
        let mut beside = beside.filter(|other| other.file.parent() == folder).peekable();
        if beside.peek().is_none() {
            let found = folder.map(|folder| self.store.look(folder));
            return !matches!(found, Some(Ok(Kind::Folder(_))));
        }
        !beside.take(NEIGHBOURS_MAX).any(|other| self.store.fetch(&other, bytes).is_ok())
    }

    /// Whether a file is not there, where its folder is and holds others: so the storage answers.
    fn was_removed(&self, file: &Path) -> bool {
        let missing =
            matches!(self.store.look(file), Err(error) if error.kind() == ErrorKind::NotFound);
        missing && file.parent().is_some_and(|folder| self.store.is_inhabited(folder))
    }
}
