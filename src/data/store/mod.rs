//! Stores bring bytes. A source says where the bytes of a sample lie; a store fetches them from
//! there. What a store is made of does not show in the bytes: a run has the same bits over any.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;

use thiserror::Error;

pub mod bucket;
pub mod direct;
pub mod memory;
pub mod throttled;
pub mod tiered;

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

/// Why bytes did not come.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FetchError {
    /// The store answers, but does not have these bytes: one sample's loss.
    #[error("{0}")]
    Absent(String),
    /// The store does not answer, or does not know these bytes now: their loss alone, or that of
    /// all samples beside them.
    #[error("{0}")]
    Unreachable(String),
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
    /// A link to nothing, or what cannot be looked at.
    Broken,
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
    /// What is in a folder, in any order.
    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>>;
    /// Tells what is in a folder one by one, in any order: a million names need not be held.
    ///
    /// # Errors
    /// As `list`, whatever was told before.
    fn visit(&self, folder: &Path, tell: &mut dyn FnMut(&OsStr, Kind)) -> io::Result<()> {
        self.list(folder)?.iter().for_each(|entry| tell(&entry.name, entry.kind));
        Ok(())
    }
    /// Whether a folder can be listed and holds anything.
    fn is_inhabited(&self, folder: &Path) -> bool {
        self.list(folder).is_ok_and(|entries| !entries.is_empty())
    }
    /// What a path leads to; an error where it leads nowhere.
    fn look(&self, path: &Path) -> io::Result<Kind>;
    /// When a file's bytes, or a folder's names, last changed: nanoseconds since 1970. `None`: the
    /// store does not know, so that nothing learned of them is trusted later.
    fn changed_ns(&self, path: &Path) -> Option<i64>;
}
