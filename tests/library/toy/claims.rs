//! A run directory in memory, as far as claims of faults need one.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use kintsugi::observe::storage::Storage;

use super::lock;

/// Files by path.
#[derive(Debug, Default)]
pub struct Claims {
    files: Mutex<BTreeMap<PathBuf, Vec<u8>>>,
}

impl Claims {
    /// Everything that was written.
    pub fn files(&self) -> Vec<PathBuf> {
        lock(&self.files).keys().cloned().collect()
    }
}

impl Storage for Claims {
    fn append_line(&self, path: &Path, line: &str) -> io::Result<()> {
        let mut files = lock(&self.files);
        let file = files.entry(path.into()).or_default();
        file.extend_from_slice(line.as_bytes());
        file.push(b'\n');
        Ok(())
    }

    fn write_whole(&self, path: &Path, body: &[&[u8]]) -> io::Result<()> {
        lock(&self.files).insert(path.into(), body.concat());
        Ok(())
    }

    fn create_new(&self, path: &Path, body: &[u8]) -> io::Result<()> {
        let mut files = lock(&self.files);
        if files.contains_key(path) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        files.insert(path.into(), body.to_vec());
        Ok(())
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        lock(&self.files).get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let files = lock(&self.files);
        let inside = files.keys().filter_map(|file| file.strip_prefix(path).ok());
        Ok(inside.map(|name| name.to_string_lossy().into_owned()).collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut files = lock(&self.files);
        let body = files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        files.insert(to.into(), body);
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        lock(&self.files).retain(|file, _| !file.starts_with(path));
        Ok(())
    }

    fn create_dir(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }
}
