//! The slot files of one run on one node: `kintsugi-RUN-MEMBER.slots` in `recovery.resident_dir`,
//! RUN being the run directory's short name, the same for every attempt.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use kintsugi_ffi::private;

use crate::config::Shown;

use super::file::{Look, SlotFile};
use super::header::{Header, Key, Refusal};
use super::name::{self, NEW, PREFIX, SUFFIX};

pub use super::name::member_of;

/// Where a run keeps its slots on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Folder {
    path: PathBuf,
    run: String,
}

impl Folder {
    /// `run` is the run directory's short name (`RunDir::id`).
    pub fn new(path: &Path, run: &str) -> Self {
        Self { path: path.to_owned(), run: run.to_owned() }
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// A member's file, or where it would lie.
    pub fn of_member(&self, member: u32) -> PathBuf {
        let its = |path: &PathBuf| member_of(path) == Some(member);
        let plain = || self.path.join(format!("{PREFIX}{}-{member}{SUFFIX}", self.run));
        self.files().into_iter().find(its).unwrap_or_else(plain)
    }

    /// Makes a file for this process.
    ///
    /// # Errors
    /// The kernel's: no such folder, no permission, no room.
    pub fn create(&self, bytes: u64, label: &str) -> io::Result<SlotFile> {
        // Of the simulated ranks of one process each needs its own.
        static MADE: AtomicU64 = AtomicU64::new(0);
        let (process, made) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let name = format!("{PREFIX}{}-{NEW}-{process}-{made}{SUFFIX}", self.run);
        let path = self.path.join(&name);
        // A process of another pid namespace, or a dead one, may have had this number.
        if std::fs::symlink_metadata(&path).is_ok_and(|facts| private::is_ours(&facts)) {
            let _ = std::fs::remove_file(&path);
        }
        match SlotFile::create(path, bytes, label) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                SlotFile::create(self.path.join(name::beside(&name)), bytes, label)
            }
            made => made,
        }
    }

    /// The run's files, in a fixed order.
    pub fn files(&self) -> Vec<PathBuf> {
        let start = format!("{PREFIX}{}-", self.run);
        files(&self.path, |name| name.starts_with(&start))
    }

    /// The newest state that any of them holds.
    pub fn newest(&self) -> Option<Key> {
        let headers = |path: PathBuf| Look::at(&path).and_then(|look| look.headers()).ok();
        let all = self.files().into_iter().filter_map(headers).flatten().flatten();
        all.map(|header| header.key).max()
    }

    /// Takes every file whose owner is gone.
    pub fn take_free(&self) -> impl Iterator<Item = SlotFile> + use<> {
        self.open_all(SlotFile::take)
    }

    /// Every file whose owner is gone or ends.
    pub fn inherit(&self) -> impl Iterator<Item = SlotFile> + use<> {
        self.open_all(SlotFile::inherit)
    }

    fn open_all(
        &self,
        open: fn(&Path) -> io::Result<Option<SlotFile>>,
    ) -> impl Iterator<Item = SlotFile> + use<> {
        self.files().into_iter().filter_map(move |path| {
            open(&path).unwrap_or_else(|error| {
                tracing::warn!("resident state: cannot open {}: {error}", path.shown());
                None
            })
        })
    }

    /// Removes every file of the run on this node, whoever holds it: the run is over.
    pub fn clear(&self) {
        remove(self.files());
    }

    /// Removes the files to which nothing was ever committed: they would only take room. To be
    /// asked when no rank is there.
    pub fn clear_empty(&self) {
        let empty = |path: &PathBuf| {
            let headers = Look::at(path).and_then(|look| look.headers());
            headers.is_ok_and(|both| both.iter().all(|one| *one == Err(Refusal::Uncommitted)))
        };
        remove(self.files().into_iter().filter(empty));
    }

    /// Removes the files whose owners are dead.
    pub fn clear_free(&self) {
        self.inherit().for_each(SlotFile::discard);
    }
}

fn remove(paths: impl IntoIterator<Item = PathBuf>) {
    for path in paths {
        if let Err(error) = std::fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("cannot remove {}: {error}", path.shown());
        }
    }
}

/// This user's files with names of slots.
fn files(folder: &Path, wanted: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| {
            entry.file_name().to_str().is_some_and(|name| name.ends_with(SUFFIX) && wanted(name))
        })
        // Not through a link: what it names may be anything.
        .filter(|entry| {
            entry.metadata().is_ok_and(|facts| facts.is_file() && private::is_ours(&facts))
        })
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    paths
}

/// A file that was found, for people.
#[derive(Debug, Clone, PartialEq)]
pub struct Found {
    /// Where.
    pub path: PathBuf,
    /// How large.
    pub bytes: u64,
    /// The run directory it belongs to; empty when the file does not say.
    pub run_dir: String,
    /// The newest state in it.
    pub newest: Result<Header, Refusal>,
    /// Whether a living process uses it.
    pub held: bool,
}

/// Every slot file of this user in a folder, whatever run it belongs to.
pub fn inventory(folder: &Path) -> Vec<Found> {
    let found = |path: PathBuf| {
        let look = Look::at(&path).ok()?;
        let bytes = look.bytes().ok()?;
        let newest = match look.headers() {
            Ok(headers) => {
                let newest = headers.iter().flatten().max_by_key(|header| header.key).copied();
                newest.ok_or_else(|| headers[0].clone().err().unwrap_or(Refusal::Uncommitted))
            }
            Err(_) => Err(Refusal::Foreign),
        };
        Some(Found { bytes, run_dir: look.label(), newest, held: look.is_held(), path })
    };
    files(folder, |name| name.starts_with(PREFIX)).into_iter().filter_map(found).collect()
}
