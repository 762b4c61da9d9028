//! Lists folders in several threads: each once, whatever links lead to it. What is met where, and
//! in which order, is decided later, by whoever walks through what was listed.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::data::source::leftovers::{Leftovers, is_picture};
use crate::data::store::{FolderId, Kind, Store};
use crate::observe::threads;

/// Threads that list: more than there are processors, since they wait for storage.
pub const THREADS: usize = 8;
/// Folders below a class folder that are followed.
pub const DEPTH_MAX: usize = 64;

/// What is in one folder, sorted by name: a million names take few allocations.
#[derive(Debug, Default)]
pub struct Listed {
    /// When its names last changed, before it was listed.
    pub changed_ns: Option<i64>,
    /// Names of pictures, one behind the other.
    names: Vec<u8>,
    pictures: Vec<Picture>,
    /// Folders in it.
    pub folders: Vec<(OsString, FolderId)>,
    /// What of it is not read, folders aside.
    pub left: Leftovers,
    /// Links to nothing.
    pub dangling: u64,
}

/// A name in `Listed::names`, and the file's size; 0 for a link to nothing.
#[derive(Debug, Clone, Copy)]
struct Picture {
    start: usize,
    length: u32,
    bytes: u64,
}

impl Listed {
    /// Lists a folder.
    ///
    /// # Errors
    /// The store's.
    pub fn of(store: &dyn Store, folder: &Path) -> io::Result<Self> {
        let mut listed = Self { changed_ns: store.changed_ns(folder)?, ..Self::default() };
        store.visit(folder, &mut |name, kind| listed.take(name, kind))?;
        let Self { names, pictures, folders, .. } = &mut listed;
        names.shrink_to_fit();
        pictures.shrink_to_fit();
        pictures.sort_unstable_by(|a, b| name_of(names, *a).cmp(name_of(names, *b)));
        folders.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        Ok(listed)
    }

    fn take(&mut self, name: &OsStr, kind: Kind) {
        let picture = is_picture(Path::new(name));
        self.dangling += u64::from(kind == Kind::Dangling);
        // Links are followed, so that a set may be made of links into another; one to nothing
        // keeps its place in the order and is a bad image when it is read.
        match kind {
            _ if self.left.takes(name) => {}
            Kind::Folder(id) => self.folders.push((name.to_owned(), id)),
            Kind::File { bytes } if picture => self.picture(name, bytes),
            Kind::Dangling if picture => self.picture(name, 0),
            Kind::Dangling => self.left.broken(),
            _ => self.left.file(Path::new(name)),
        }
    }

    fn picture(&mut self, name: &OsStr, bytes: u64) {
        let (start, name) = (self.names.len(), name.as_bytes());
        self.names.extend(name);
        self.pictures.push(Picture { start, length: name.len() as u32, bytes });
    }

    /// Its pictures with their sizes, by name.
    pub fn pictures(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.pictures.iter().map(|picture| (name_of(&self.names, *picture), picture.bytes))
    }
}

fn name_of(names: &[u8], picture: Picture) -> &[u8] {
    &names[picture.start..][..picture.length as usize]
}

/// Lists these folders and all below them, except `known` ones: level by level, in threads.
pub fn crawl(
    store: &dyn Store,
    starts: Vec<(PathBuf, FolderId)>,
    known: &HashMap<FolderId, PathBuf>,
) -> HashMap<FolderId, io::Result<Listed>> {
    let (mut all, mut level) = (HashMap::new(), starts);
    let mut met: HashSet<FolderId> = known.keys().copied().collect();
    met.extend(level.iter().map(|(_, id)| *id));
    for _ in 0..=DEPTH_MAX {
        let mut below = Vec::new();
        if level.is_empty() {
            break;
        }
        for (at, listed) in list_all(store, &level) {
            let (folder, id) = &level[at];
            let inner = listed.as_ref().map_or(&[][..], |listed| &listed.folders[..]);
            let news = inner.iter().filter(|(_, inner)| met.insert(*inner));
            below.extend(news.map(|(name, inner)| (folder.join(name), *inner)));
            all.insert(*id, listed);
        }
        level = below;
    }
    all
}

/// Lists folders, in whatever order threads come to them; each with its place in `folders`.
fn list_all(
    store: &dyn Store,
    folders: &[(PathBuf, FolderId)],
) -> Vec<(usize, io::Result<Listed>)> {
    let (next, all) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((folder, _)) = folders.get(at) else { return };
            let listed = Listed::of(store, folder);
            all.lock().unwrap_or_else(PoisonError::into_inner).push((at, listed));
        }
    };
    std::thread::scope(|scope| threads::share(scope, THREADS.min(folders.len()), work));
    all.into_inner().unwrap_or_else(PoisonError::into_inner)
}
