//! The file operations that a run's durable state needs, behind a trait so that torn files and
//! full disks can be simulated. Paths are relative to the storage's root (the run directory).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::config::Shown;

use super::refusal::naming;

mod memory;

pub use memory::{Fault, MemoryStorage, Operation};

/// Durable files. Every call may fail; none panics.
pub trait Storage: Send + Sync {
    /// Appends one line in one write, so that lines of several writers never interleave.
    fn append_line(&self, path: &Path, line: &str) -> io::Result<()>;
    /// Writes beside, syncs, renames, syncs the folder: a reader sees the old file or the new one.
    fn write_whole(&self, path: &Path, body: &[&[u8]]) -> io::Result<()>;
    /// The same without the syncs, for what may be lost with the machine's power.
    fn replace(&self, path: &Path, body: &[u8]) -> io::Result<()> {
        self.write_whole(path, &[body])
    }
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
    /// The last bytes of a file, at most so many; none where it is absent. Logs grow with the run,
    /// what is asked of them between two steps must not.
    fn read_end(&self, path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
        match self.read(path) {
            Ok(body) => Ok(body[body.len().saturating_sub(bytes_max)..].to_vec()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
    /// Why nothing is written any more: the root has another place, or is gone.
    fn moved(&self) -> Option<String> {
        None
    }
}

/// The file system below a root folder.
#[derive(Debug, Clone)]
pub struct FileSystem {
    /// Paths are relative to it.
    pub root: PathBuf,
    /// Device and inode of the only folder that is changed; `None`: whichever has the name.
    held: Option<(u64, u64)>,
}

/// How the name of a file that is not yet complete begins; `list` does not show such files.
pub const PARTIAL_PREFIX: &str = ".partial-";

impl FileSystem {
    /// Below `root`, which need not exist yet.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into(), held: None }
    }

    /// Below a folder that is there. Once its name is another folder's, or nobody's, changes are
    /// refused: nothing grows in the old place of a folder that was moved.
    ///
    /// # Errors
    /// There is no such folder.
    pub fn holding(root: impl Into<PathBuf>) -> io::Result<Self> {
        let root = root.into();
        let found = fs::metadata(&root).map_err(naming(&root))?;
        Ok(Self { held: Some(identity(&found)), root })
    }

    /// Where a change is made.
    fn place(&self, path: &Path) -> io::Result<PathBuf> {
        match self.moved() {
            None => Ok(self.resolve(path)),
            Some(why) => Err(io::Error::new(io::ErrorKind::NotFound, why)),
        }
    }

    fn resolve(&self, path: &Path) -> PathBuf {
        self.root.join(path)
    }
}

/// Device and inode: whose name a folder's or file's is.
pub fn identity(found: &fs::Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

/// Whether a path names something else than it did, or nothing. A path that cannot be looked at
/// just now is not known to.
pub fn names_another(path: &Path, before: (u64, u64)) -> bool {
    match fs::metadata(path) {
        Ok(found) => identity(&found) != before,
        Err(error) => {
            matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
        }
    }
}

/// The same for a file that was written beside.
fn given_up(partial: &Path, target: &Path) -> impl FnOnce(io::Error) -> io::Error {
    move |error| {
        // The partial file is ours alone; a failure to remove it costs space, not truth.
        let _ = fs::remove_file(partial);
        naming(target)(error)
    }
}

/// Makes a file or folder durable. Some file systems refuse that as a value that makes no sense.
fn sync(file: &File) -> io::Result<()> {
    file.sync_all().map_err(unable_to_sync)
}

fn unable_to_sync(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::InvalidInput => {
            io::Error::new(io::ErrorKind::Unsupported, format!("fsync: {error}"))
        }
        _ => error,
    }
}

/// Makes the names in a folder durable.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(folder).and_then(|folder| sync(&folder))
}

/// `.partial-NAME-PID` beside the target: two processes never write the same one.
fn beside(target: &Path) -> PathBuf {
    let name = target.file_name().map_or_else(String::new, |n| n.to_string_lossy().into_owned());
    target.with_file_name(format!("{PARTIAL_PREFIX}{name}-{}", std::process::id()))
}

/// Writes and syncs a file that nobody else sees yet.
fn write_synced(path: &Path, body: &[&[u8]]) -> io::Result<()> {
    let mut file = File::create(path)?;
    for part in body {
        file.write_all(part)?;
    }
    sync(&file)
}

impl Storage for FileSystem {
    fn moved(&self) -> Option<String> {
        let moved = names_another(&self.root, self.held?);
        moved.then(|| {
            format!(
                "{} was moved, removed or replaced under the run: put it back and start again, or \
                 name its new place with --run-dir",
                self.root.shown()
            )
        })
    }

    fn append_line(&self, path: &Path, line: &str) -> io::Result<()> {
        let target = self.place(path)?;
        let mut bytes = Vec::with_capacity(line.len() + 1);
        bytes.extend_from_slice(line.as_bytes());
        bytes.push(b'\n');
        let append = || {
            let mut file = OpenOptions::new().append(true).create(true).open(&target)?;
            // One write: a second one could land behind another writer's line.
            match file.write(&bytes)? {
                written if written == bytes.len() => Ok(()),
                _ => Err(io::Error::new(io::ErrorKind::WriteZero, "only part of the line fits")),
            }
        };
        append().map_err(naming(&target))
    }

    fn write_whole(&self, path: &Path, body: &[&[u8]]) -> io::Result<()> {
        let target = self.place(path)?;
        let partial = beside(&target);
        let publish = || {
            write_synced(&partial, body)?;
            fs::rename(&partial, &target)?;
            sync_folder(&target)
        };
        publish().map_err(given_up(&partial, &target))
    }

    fn replace(&self, path: &Path, body: &[u8]) -> io::Result<()> {
        let target = self.place(path)?;
        let partial = beside(&target);
        let publish = fs::write(&partial, body).and_then(|()| fs::rename(&partial, &target));
        publish.map_err(given_up(&partial, &target))
    }

    fn create_new(&self, path: &Path, body: &[u8]) -> io::Result<()> {
        let target = self.place(path)?;
        let create = || {
            let mut file = OpenOptions::new().write(true).create_new(true).open(&target)?;
            file.write_all(body)?;
            sync(&file)?;
            sync_folder(&target)
        };
        create().map_err(naming(&target))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let target = self.resolve(path);
        fs::read(&target).map_err(naming(&target))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let target = self.resolve(path);
        let entries = match fs::read_dir(&target) {
            Ok(entries) => entries,
            // A folder that is gone with the whole run was not listed.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return self.moved().map_or(Ok(Vec::new()), |why| Err(io::Error::other(why)));
            }
            Err(error) => return Err(naming(&target)(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let name = entry.map_err(naming(&target))?.file_name().to_string_lossy().into_owned();
            if !name.starts_with(PARTIAL_PREFIX) {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let (from, to) = (self.place(from)?, self.resolve(to));
        let rename = || {
            fs::rename(&from, &to)?;
            sync_folder(&to)
        };
        rename().map_err(naming(&from))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let target = self.place(path)?;
        let remove = || match fs::symlink_metadata(&target) {
            Ok(found) if found.is_dir() => fs::remove_dir_all(&target),
            Ok(_) => fs::remove_file(&target),
            Err(error) => Err(error),
        };
        match remove() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            outcome => outcome.map_err(naming(&target)),
        }
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let target = self.place(path)?;
        fs::create_dir_all(&target).map_err(naming(&target))
    }

    fn read_end(&self, path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
        let target = self.resolve(path);
        let end = || -> io::Result<Vec<u8>> {
            let mut file = File::open(&target)?;
            let start = file.metadata()?.len().saturating_sub(bytes_max as u64);
            file.seek(SeekFrom::Start(start))?;
            let mut body = Vec::new();
            // It may grow meanwhile; what comes later is not asked for.
            file.take(bytes_max as u64).read_to_end(&mut body)?;
            Ok(body)
        };
        match end() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            outcome => outcome.map_err(naming(&target)),
        }
    }
}

#[cfg(test)]
mod tests;
