//! The slot files of one run on one node: `kintsugi-RUN-MEMBER.slots` in `recovery.resident_dir`,
//! RUN being the run directory's short name, the same for every attempt.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use kintsugi_ffi::private;

use crate::config::Shown;
use crate::observe::refusal::{Meaning, advice, if_there, insist};

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
        self.files().ok().and_then(|files| files.into_iter().find(its)).unwrap_or_else(plain)
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
    ///
    /// # Errors
    /// Nobody knows which there are: the folder cannot be listed now.
    pub fn files(&self) -> io::Result<Vec<PathBuf>> {
        let start = format!("{PREFIX}{}-", self.run);
        files(&self.path, |name| name.starts_with(&start))
    }

    /// The newest state that any of them holds.
    ///
    /// # Errors
    /// One of them cannot be read now: it may hold a newer one.
    pub fn newest(&self) -> io::Result<Option<Key>> {
        let mut newest = None;
        for path in self.files()? {
            match look_at(&path) {
                Ok(headers) => {
                    let keys = headers.into_iter().flatten().map(|header| header.key);
                    newest = newest.max(keys.max());
                }
                Err(error) if is_unknown(&error) => return Err(error),
                Err(_) => {}
            }
        }
        Ok(newest)
    }

    /// Takes every file whose owner is gone; an error for each of which that cannot be told now.
    pub fn take_free(&self) -> impl Iterator<Item = io::Result<SlotFile>> + use<> {
        self.open_all(SlotFile::take)
    }

    /// Every file whose owner is gone or ends; an error for each of which that cannot be told now.
    pub fn inherit(&self) -> impl Iterator<Item = io::Result<SlotFile>> + use<> {
        self.open_all(SlotFile::inherit)
    }

    fn open_all(
        &self,
        open: fn(&Path) -> io::Result<Option<SlotFile>>,
    ) -> impl Iterator<Item = io::Result<SlotFile>> + use<> {
        let (files, unlisted) = match self.files() {
            Ok(files) => (files, None),
            // No start of the run was ever allowed to find one there.
            Err(error) if Meaning::of(&error) == Meaning::NotAllowed => {
                tracing::warn!("resident state: {error}{}", advice(&error));
                (Vec::new(), None)
            }
            Err(error) => (Vec::new(), Some(error)),
        };
        let opened = files.into_iter().filter_map(move |path| {
            insist(|| open(&path)).map_err(naming("opening", &path)).transpose()
        });
        unlisted.map(Err).into_iter().chain(opened)
    }

    /// Removes every file of the run on this node, whoever holds it: the run is over.
    pub fn clear(&self) {
        self.remove(|_| true);
    }

    /// Removes the files to which nothing was ever committed: they would only take room. To be
    /// asked when no rank is there.
    pub fn clear_empty(&self) {
        self.remove(|path| {
            let empty = |one: &Result<Header, Refusal>| *one == Err(Refusal::Uncommitted);
            look_at(path).is_ok_and(|headers| headers.iter().all(empty))
        });
    }

    fn remove(&self, wanted: impl Fn(&Path) -> bool) {
        match self.files() {
            Ok(files) => remove(files.into_iter().filter(|path| wanted(path))),
            Err(error) => tracing::warn!("resident state that is not needed stays: {error}"),
        }
    }

    /// Removes the files whose owners are dead.
    pub fn clear_free(&self) {
        for file in self.inherit() {
            match file {
                Ok(file) => file.discard(),
                Err(error) => tracing::warn!("resident state that is not needed stays: {error}"),
            }
        }
    }
}

/// What a file's slots hold by their headers, whoever's it is.
///
/// # Errors
/// The kernel's, with the path; see `is_unknown`.
pub fn look_at(path: &Path) -> io::Result<[Result<Header, Refusal>; 2]> {
    insist(|| Look::at(path)?.headers()).map_err(naming("reading", path))
}

/// Whether a file that could not be read may hold anything. One that is gone, or too short for what
/// it should be, holds nothing.
pub fn is_unknown(error: &io::Error) -> bool {
    !matches!(Meaning::of(error), Meaning::Absent | Meaning::Damaged)
}

/// Says what was being done to which file.
pub fn naming(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{what} {}: {error}", path.shown()))
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
fn files(folder: &Path, wanted: impl Fn(&str) -> bool) -> io::Result<Vec<PathBuf>> {
    let named = |name: &str| name.ends_with(SUFFIX) && wanted(name);
    let list = || {
        let Some(entries) = if_there(std::fs::read_dir(folder))? else { return Ok(Vec::new()) };
        let mut paths = Vec::new();
        for entry in entries {
            let entry = entry?;
            if !entry.file_name().to_str().is_some_and(named) {
                continue;
            }
            // Not through a link: what it names may be anything. One may be removed meanwhile.
            let facts = if_there(entry.metadata())?;
            if facts.is_some_and(|facts| facts.is_file() && private::is_ours(&facts)) {
                paths.push(entry.path());
            }
        }
        paths.sort();
        Ok(paths)
    };
    insist(list).map_err(naming("listing", folder))
}

/// Where a run lay that left something in `folder` before its run directory was moved: it has the
/// run's number. It may be a copy's that lies elsewhere just now, so nothing is removed. `lies_at`
/// knows those that lie where they did.
pub fn former_places(folder: &Path, run: u64, lies_at: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let found = inventory(folder).unwrap_or_else(|error| {
        tracing::warn!("what lies in memory cannot be listed: {error}");
        Vec::new()
    });
    let of_run = |found: &Found| found.newest.as_ref().is_ok_and(|of| of.identity.run == run);
    let left = found.into_iter().filter(|found| {
        let labelled = !found.run_dir.is_empty() && !lies_at(Path::new(&found.run_dir));
        labelled && of_run(found) && !found.held
    });
    let mut places: Vec<_> = left.map(|found| PathBuf::from(found.run_dir)).collect();
    places.dedup();
    places
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
///
/// # Errors
/// The folder cannot be listed now.
pub fn inventory(folder: &Path) -> io::Result<Vec<Found>> {
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
    Ok(files(folder, |name| name.starts_with(PREFIX))?.into_iter().filter_map(found).collect())
}
