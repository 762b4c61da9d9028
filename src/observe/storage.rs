//! The file operations that a run's durable state needs, behind a trait so that torn files and
//! full disks can be simulated. Paths are relative to the storage's root (the run directory).

use std::io;
use std::path::{Path, PathBuf};

/// Durable files. Every call may fail; none panics.
pub trait Storage: Send + Sync {
    /// Appends one line in one write, so that lines of several writers never interleave.
    fn append_line(&self, path: &Path, line: &str) -> io::Result<()>;
    /// Writes beside, syncs, renames, syncs the folder: a reader sees the old file or the new one.
    fn write_whole(&self, path: &Path, body: &[&[u8]]) -> io::Result<()>;
    /// Creates the file, failing with `AlreadyExists` when somebody else did: claims a thing once.
    fn create_new(&self, path: &Path, body: &[u8]) -> io::Result<()>;
    /// The whole file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Names in a folder, sorted; empty when it does not exist.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Renames a file or folder and syncs the parent.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file or a whole folder; absent is success.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Creates a folder and its parents.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
}

/// The file system below a root folder.
#[derive(Debug, Clone)]
pub struct FileSystem {
    /// Paths are relative to it.
    pub root: PathBuf,
}
