//! A storage in memory, for simulation and tests: the same promises as the file system's, and
//! faults on request (a full disk, a line torn in the middle).

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::config::Shown;

use super::Storage;

/// What is asked of the storage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Operation {
    AppendLine,
    WriteWhole,
    CreateNew,
    Read,
    List,
    Rename,
    Remove,
    CreateDir,
}

/// How one operation goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It fails and changes nothing.
    Fails(io::ErrorKind),
    /// `append_line` and `create_new` leave this many bytes behind and fail; others just fail.
    Tears(usize),
}

type FaultPlan = Box<dyn Fn(Operation, &Path) -> Option<Fault> + Send + Sync>;

#[derive(Default)]
struct Tree {
    files: BTreeMap<PathBuf, Vec<u8>>,
    folders: BTreeSet<PathBuf>,
}

/// Files of a simulated run. Share it in an `Arc`: every simulated rank sees the same files.
#[derive(Default)]
pub struct MemoryStorage {
    tree: Mutex<Tree>,
    faults: Option<FaultPlan>,
}

impl MemoryStorage {
    /// Empty and fault-free.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks `faults` before every operation.
    pub fn with_faults(
        faults: impl Fn(Operation, &Path) -> Option<Fault> + Send + Sync + 'static,
    ) -> Self {
        Self { faults: Some(Box::new(faults)), ..Self::default() }
    }

    fn tree(&self) -> MutexGuard<'_, Tree> {
        // No operation leaves the tree half changed, so a panic elsewhere does not spoil it.
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn fault(&self, operation: Operation, path: &Path) -> Option<Fault> {
        self.faults.as_ref().and_then(|faults| faults(operation, path))
    }

    /// Fails where a fault is due that leaves nothing behind.
    fn check(&self, operation: Operation, path: &Path) -> io::Result<()> {
        match self.fault(operation, path) {
            None => Ok(()),
            Some(Fault::Fails(kind)) => Err(error(kind, path, "injected")),
            Some(Fault::Tears(_)) => Err(error(io::ErrorKind::StorageFull, path, "injected")),
        }
    }
}

fn error(kind: io::ErrorKind, path: &Path, what: &str) -> io::Error {
    io::Error::new(kind, format!("{}: {what}", path.shown()))
}

impl Tree {
    fn exists(&self, path: &Path) -> bool {
        self.files.contains_key(path) || self.is_folder(path)
    }

    fn is_folder(&self, path: &Path) -> bool {
        path.as_os_str().is_empty() || self.folders.contains(path)
    }

    /// As the file system does: a file needs its folder.
    fn needs_parent(&self, path: &Path) -> io::Result<()> {
        match path.parent() {
            Some(parent) if !self.is_folder(parent) => {
                Err(error(io::ErrorKind::NotFound, path, "its folder does not exist"))
            }
            _ => Ok(()),
        }
    }

    fn add_folders(&mut self, path: &Path) {
        let above = path.ancestors().filter(|folder| !folder.as_os_str().is_empty());
        self.folders.extend(above.map(Path::to_path_buf));
    }
}

impl Storage for MemoryStorage {
    fn append_line(&self, path: &Path, line: &str) -> io::Result<()> {
        let fault = self.fault(Operation::AppendLine, path);
        if let Some(Fault::Fails(kind)) = fault {
            return Err(error(kind, path, "injected"));
        }
        let mut tree = self.tree();
        tree.needs_parent(path)?;
        let file = tree.files.entry(path.to_path_buf()).or_default();
        let bytes = line.as_bytes().iter().chain(b"\n");
        match fault {
            Some(Fault::Tears(kept)) => {
                file.extend(bytes.take(kept));
                Err(error(io::ErrorKind::StorageFull, path, "injected: torn line"))
            }
            _ => {
                file.extend(bytes);
                Ok(())
            }
        }
    }

    fn write_whole(&self, path: &Path, body: &[&[u8]]) -> io::Result<()> {
        self.check(Operation::WriteWhole, path)?;
        let mut tree = self.tree();
        tree.needs_parent(path)?;
        tree.files.insert(path.to_path_buf(), body.concat());
        Ok(())
    }

    fn create_new(&self, path: &Path, body: &[u8]) -> io::Result<()> {
        let fault = self.fault(Operation::CreateNew, path);
        if let Some(Fault::Fails(kind)) = fault {
            return Err(error(kind, path, "injected"));
        }
        let mut tree = self.tree();
        tree.needs_parent(path)?;
        if tree.exists(path) {
            return Err(error(io::ErrorKind::AlreadyExists, path, "somebody else made it"));
        }
        let kept = match fault {
            Some(Fault::Tears(kept)) => kept.min(body.len()),
            _ => body.len(),
        };
        tree.files.insert(path.to_path_buf(), body[..kept].to_vec());
        match fault {
            Some(_) => Err(error(io::ErrorKind::StorageFull, path, "injected: torn file")),
            None => Ok(()),
        }
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.check(Operation::Read, path)?;
        let found = self.tree().files.get(path).cloned();
        found.ok_or_else(|| error(io::ErrorKind::NotFound, path, "no such file"))
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.check(Operation::List, path)?;
        let tree = self.tree();
        let all = tree.files.keys().chain(&tree.folders);
        let mut names: Vec<String> = all
            .filter(|entry| entry.parent() == Some(path))
            .filter_map(|entry| Some(entry.file_name()?.to_string_lossy().into_owned()))
            .collect();
        names.sort();
        Ok(names)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check(Operation::Rename, from)?;
        let mut tree = self.tree();
        tree.needs_parent(to)?;
        if let Some(body) = tree.files.remove(from) {
            tree.files.insert(to.to_path_buf(), body);
            return Ok(());
        }
        if !tree.folders.contains(from) {
            return Err(error(io::ErrorKind::NotFound, from, "no such file or folder"));
        }
        let inside = |entry: &PathBuf| entry.starts_with(to) && entry != to;
        if tree.files.keys().any(inside) || tree.folders.iter().any(inside) {
            return Err(error(io::ErrorKind::DirectoryNotEmpty, to, "the target is in use"));
        }
        let moved = |entry: &PathBuf| match entry.strip_prefix(from) {
            Ok(rest) if rest.as_os_str().is_empty() => to.to_path_buf(),
            Ok(rest) => to.join(rest),
            Err(_) => entry.clone(),
        };
        tree.folders = tree.folders.iter().map(moved).collect();
        let files = std::mem::take(&mut tree.files);
        tree.files = files.into_iter().map(|(path, body)| (moved(&path), body)).collect();
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.check(Operation::Remove, path)?;
        let mut tree = self.tree();
        tree.files.retain(|entry, _| !entry.starts_with(path));
        tree.folders.retain(|entry| !entry.starts_with(path));
        Ok(())
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.check(Operation::CreateDir, path)?;
        self.tree().add_folders(path);
        Ok(())
    }
}
