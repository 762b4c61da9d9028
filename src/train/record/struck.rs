//! The storage of the rank that writes checkpoints: faults planned for `in_persist` strike in it.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use crate::cluster::faults::{Injector, Standing};
use crate::config::Point;
use crate::observe::storage::Storage;

/// The writer's storage, through which `in_persist` faults strike.
pub(in crate::train) struct Struck {
    pub inner: Arc<dyn Storage>,
    pub injector: Arc<Injector>,
    pub standing: Arc<Mutex<Standing>>,
}

impl Storage for Struck {
    fn append_line(&self, path: &Path, line: &str) -> io::Result<()> {
        self.inner.append_line(path, line)
    }
    fn write_whole(&self, path: &Path, body: &[&[u8]]) -> io::Result<()> {
        self.inner.write_whole(path, body)?;
        let standing = *self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        self.injector.at(Point::InPersist, &standing);
        Ok(())
    }
    fn create_new(&self, path: &Path, body: &[u8]) -> io::Result<()> {
        self.inner.create_new(path, body)
    }
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.inner.read(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.inner.list(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.inner.remove(path)
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.create_dir(path)
    }
}
