//! A data set as its users hold it: what its samples are, and what brings their bytes.

use std::sync::Arc;

use super::source::Source;
use super::store::{FetchError, Store};
use super::{DataError, Image};

/// A source and the store that fetches its samples. Copies share both.
#[derive(Clone)]
pub struct DataSet {
    /// What the samples are and where they lie.
    pub source: Arc<dyn Source>,
    /// Brings their bytes.
    pub store: Arc<dyn Store>,
}

impl DataSet {
    /// The picture of one sample. `bytes` is the caller's buffer, to be used again: afterwards it
    /// holds anything. A store that does not answer is [`DataError::Set`], whatever else fails is
    /// [`DataError::Sample`].
    pub fn read(&self, id: u64, bytes: &mut Vec<u8>) -> Result<Image, DataError> {
        let name = || self.source.name(id);
        bytes.clear();
        if let Some(location) = self.source.location(id) {
            self.store.fetch(&location, bytes).map_err(|error| match error {
                FetchError::Absent(reason) => DataError::Sample { name: name(), reason },
                FetchError::Unreachable(reason) => DataError::Set(format!("{}: {reason}", name())),
            })?;
        }
        let decoded = self.source.decode(id, bytes);
        decoded.map_err(|reason| DataError::Sample { name: name(), reason })
    }
}
