//! A data set as its users hold it: what its samples are, and what brings their bytes.

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use super::source::Source;
use super::store::{Extent, FetchError, Kind, Location, Store};
use super::{DataError, Image};

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
        let name = || self.source.name(id);
        bytes.clear();
        if let Some(location) = self.source.location(id) {
            self.store.fetch(&location, bytes).map_err(|error| match error {
                FetchError::Unreachable(reason) if self.is_unreachable(id, &location, bytes) => {
                    DataError::Store(format!("{}: {reason}", name()))
                }
                FetchError::Unreachable(reason) | FetchError::Absent(reason) => {
                    DataError::Sample { name: name(), reason }
                }
            })?;
        }
        let decoded = self.source.decode(id, bytes);
        decoded.map_err(|reason| DataError::Sample { name: name(), reason })
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
