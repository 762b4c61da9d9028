//! Stores bring bytes. A source says where the bytes of a sample lie; a store fetches them from
//! there. What a store is made of does not show in the bytes: a run has the same bits over any.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

use thiserror::Error;

use crate::observe::refusal::Meaning;

pub mod bucket;
pub mod direct;
pub mod memory;
pub mod tally;
pub mod throttled;

/// Where bytes lie. The file is named as the source names it, wherever a store keeps its copy.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Location<'a> {
    /// The file.
    pub file: Cow<'a, Path>,
    /// Which bytes of it.
    pub extent: Extent,
}

/// Which bytes of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Extent {
    /// The whole file, as long as it is when it is fetched. It holds one sample.
    Whole {
        /// Its bytes when the set was opened, for estimates.
        listed: u64,
    },
    /// One range of it. Other samples lie in the same file.
    Range {
        /// Bytes before it.
        offset: u64,
        /// Bytes of it.
        length: u64,
    },
}

impl Extent {
    /// Bytes, as far as the source knows.
    pub fn length(&self) -> u64 {
        match *self {
            Self::Whole { listed } => listed,
            Self::Range { length, .. } => length,
        }
    }
}

impl<'a> Location<'a> {
    /// A whole file of so many bytes.
    pub fn whole(file: impl Into<Cow<'a, Path>>, listed: u64) -> Self {
        Self { file: file.into(), extent: Extent::Whole { listed } }
    }

    /// `length` bytes of a file, after the first `offset`.
    pub fn range(file: impl Into<Cow<'a, Path>>, offset: u64, length: u64) -> Self {
        Self { file: file.into(), extent: Extent::Range { offset, length } }
    }
}

/// Largest whole file that is fetched, in bytes.
pub const FILE_BYTES_MAX: u64 = 256 << 20;

/// Why bytes did not come, or are not what they should be.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{reason}")]
pub struct FetchError {
    /// What it says of them.
    pub meaning: Meaning,
    /// For people.
    pub reason: String,
}

impl FetchError {
    /// The bytes came, and are wrong.
    pub fn damaged(reason: impl Into<String>) -> Self {
        Self { meaning: Meaning::Damaged, reason: reason.into() }
    }

    /// Nothing is known of them until a later try.
    pub fn not_now(reason: impl Into<String>) -> Self {
        Self { meaning: Meaning::NotNow, reason: reason.into() }
    }

    /// The same, with the name of what was asked for before it.
    #[must_use]
    pub fn about(self, what: impl std::fmt::Display) -> Self {
        Self { reason: format!("{what}: {}", self.reason), ..self }
    }
}

impl From<io::Error> for FetchError {
    fn from(error: io::Error) -> Self {
        Self { meaning: Meaning::of(&error), reason: error.to_string() }
    }
}

/// What is said of contents.
impl From<String> for FetchError {
    fn from(reason: String) -> Self {
        Self::damaged(reason)
    }
}

/// Which folder it is: paths that lead to one folder give one number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FolderId {
    /// What it lies on.
    pub device: u64,
    /// Its number there.
    pub number: u64,
}

/// What a path leads to, links followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A file.
    File {
        /// Its size.
        bytes: u64,
    },
    /// A folder.
    Folder(FolderId),
    /// A pipe, a device, a socket.
    Other,
    /// A link to nothing, or a name that went while its folder was listed.
    Dangling,
}

/// What the folder of a file says of it, where the file cannot be found by its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// The folder holds other names, and not this one: it was removed.
    Lacking,
    /// The folder is empty, as what is left of a mount is.
    Empty,
    /// The name is there, as a link to nothing that is known.
    Dangling,
    /// The folder is not to be had, or the file is there.
    Unknown,
}

/// One name in a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Its name in the folder.
    pub name: OsString,
    /// What it leads to.
    pub kind: Kind,
}

/// Something that keeps files. Several threads use it at once; each call may block for as long as
/// the storage takes.
pub trait Store: Send + Sync {
    /// Replaces what is in `into` with the bytes of `location`. After an error `into` holds
    /// anything.
    fn fetch(&self, location: &Location<'_>, into: &mut Vec<u8>) -> Result<(), FetchError>;
    /// Whether the storage itself, behind every copy and open file, brings the bytes now.
    fn answers(&self, location: &Location<'_>, into: &mut Vec<u8>) -> bool {
        self.fetch(location, into).is_ok()
    }
    /// What is in a folder, in any order.
    ///
    /// # Errors
    /// It cannot be listed, or one of its names cannot be looked at: a part of it is no listing.
    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>>;
    /// Tells what is in a folder one by one, in any order: a million names need not be held.
    ///
    /// # Errors
    /// As `list`, whatever was told before.
    fn visit(&self, folder: &Path, tell: &mut dyn FnMut(&OsStr, Kind)) -> io::Result<()> {
        self.list(folder)?.iter().for_each(|entry| tell(&entry.name, entry.kind));
        Ok(())
    }
    /// Whether the folder of a file that is not found by its path proves that it was removed.
    fn sight(&self, file: &Path) -> Sight {
        let listed = file.parent().map(|folder| self.list(folder));
        match listed {
            Some(Ok(entries)) if entries.is_empty() => Sight::Empty,
            Some(Ok(entries)) if entries.iter().all(|e| Some(&*e.name) != file.file_name()) => {
                Sight::Lacking
            }
            _ => Sight::Unknown,
        }
    }
    /// Whether a file's bytes are known to have become others while the run went on.
    fn is_rewritten(&self, _file: &Path) -> bool {
        false
    }
    /// What a path leads to; an error where it leads nowhere.
    fn look(&self, path: &Path) -> io::Result<Kind>;
    /// When a file's bytes, or a folder's names, last changed: nanoseconds since 1970. A file that
    /// was put in another's place counts as changed, whatever time it was given. `None`: the store
    /// does not know, so that nothing learned of them is trusted later.
    fn changed_ns(&self, path: &Path) -> io::Result<Option<i64>>;
    /// Size and time of a file, where both are known.
    ///
    /// # Errors
    /// It cannot be looked at.
    fn stamp(&self, path: &Path) -> io::Result<Stamp> {
        let Kind::File { bytes } = self.look(path)? else { return Ok(None) };
        Ok(self.changed_ns(path)?.map(|changed| (bytes, changed)))
    }
    /// Whether the file from which this thread has just read a range is the one that had this size
    /// and time, and was not written since. `None`: it cannot be said now.
    fn is_still(&self, path: &Path, listed: (u64, i64)) -> Option<bool> {
        self.stamp(path).ok().flatten().map(|now| now == listed)
    }
    /// The same of the file from which this process has read, whatever it has read since.
    fn was_still(&self, path: &Path, listed: (u64, i64)) -> Option<bool> {
        self.is_still(path, listed)
    }
}

/// Size and time of a file, as of [`Store::changed_ns`].
pub type Stamp = Option<(u64, i64)>;
