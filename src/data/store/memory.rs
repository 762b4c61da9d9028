//! Files that exist in memory only, for simulated runs and for tests. Folders are there where a
//! file lies below them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use super::{Entry, Extent, FetchError, FolderId, Kind, Location, Store};

/// The files, by path.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore {
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl MemoryStore {
    /// Puts a file there, in place of the one of the same path.
    pub fn put(&mut self, path: impl Into<PathBuf>, bytes: impl Into<Vec<u8>>) {
        self.files.insert(path.into(), bytes.into());
    }

    fn file(&self, path: &Path) -> io::Result<&[u8]> {
        let found = self.files.get(path).map(Vec::as_slice);
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Store for MemoryStore {
    fn fetch(&self, location: &Location<'_>, into: &mut Vec<u8>) -> Result<(), FetchError> {
        let file = self.file(&location.file);
        let file = file?;
        let bytes = match location.extent {
            Extent::Whole { .. } => Some(file),
            Extent::Range { offset, length } => {
                let (from, length) = (offset as usize, length as usize);
                file.get(from..).and_then(|rest| rest.get(..length))
            }
        };
        let few = || FetchError::damaged(format!("{} bytes are too few", file.len()));
        let bytes = bytes.ok_or_else(few)?;
        into.clear();
        into.extend_from_slice(bytes);
        Ok(())
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>> {
        let below = self.files.keys().filter_map(|path| path.strip_prefix(folder).ok());
        let first = |path: &Path| path.components().next().map(|part| part.as_os_str().to_owned());
        let mut names: Vec<OsString> = below.filter_map(first).collect();
        names.dedup();
        if names.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let entry = |name: OsString| {
            let kind = self.look(&folder.join(&name))?;
            Ok(Entry { name, kind })
        };
        names.into_iter().map(entry).collect()
    }

    fn look(&self, path: &Path) -> io::Result<Kind> {
        if let Ok(file) = self.file(path) {
            return Ok(Kind::File { bytes: file.len() as u64 });
        }
        if !self.files.keys().any(|file| file.starts_with(path)) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let number = xxh3_64(path.as_os_str().as_encoded_bytes());
        Ok(Kind::Folder(FolderId { device: 0, number }))
    }

    fn changed_ns(&self, _: &Path) -> io::Result<Option<i64>> {
        Ok(None)
    }
}
