//! Walks through an image folder in the order of names, class by class: which folder is read
//! where, and which pictures there are. What the folders hold was listed before, in threads.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use crate::config::Shown;
use crate::data::DataError;
use crate::data::index::now_ns;
use crate::data::source::leftovers::{Leftovers, endings_read};
use crate::data::store::{FetchError, FolderId, Store};

use super::classes::{Class, classes, holders};
use super::crawl::{DEPTH_MAX, Listed, crawl};
use super::table::{About, Builder, Table};

/// A walk through the class folders that reads no folder twice, whatever links lead to it.
struct Walk<'a> {
    store: &'a dyn Store,
    /// What was listed ahead, until it is used.
    listed: HashMap<FolderId, io::Result<Listed>>,
    /// Folders that are read, or that hold the set.
    met: HashMap<FolderId, PathBuf>,
    /// Of the class at hand.
    left: Leftovers,
    builder: Builder,
    hash: Xxh3,
    folders: Vec<(PathBuf, Option<i64>)>,
    dangling: u64,
}

/// Lists an image folder; nothing is decoded. `key` is the configuration key that named it.
///
/// # Errors
/// What is wrong with it.
pub fn list(store: &dyn Store, root: &Path, key: &str) -> Result<Table, DataError> {
    let failed = |error: io::Error| FetchError::from(error).about(root.shown()).about(key);
    let listed_ns = now_ns();
    // Why it cannot be looked at, listing it says.
    let changed_ns = store.changed_ns(root);
    let mut left = Leftovers::default();
    let classes = classes(store, root, key, &mut left)?;
    let changed_ns = changed_ns.map_err(failed)?;
    let met = meet(root, &classes, key, holders(store, root).map_err(failed)?)?;
    let starts = classes.iter().map(|class| (root.join(&class.folder), class.id)).collect();
    let mut walk = Walk {
        store,
        listed: crawl(store, starts, &met),
        met,
        left: Leftovers::default(),
        builder: Builder::default(),
        hash: Xxh3::new(),
        folders: vec![(root.to_owned(), changed_ns)],
        dangling: 0,
    };
    let mut firsts = Vec::with_capacity(classes.len());
    for class in &classes {
        let (folder, first) = (root.join(&class.folder), walk.builder.count());
        walk.hash.update(class.name().as_bytes());
        walk.collect(&folder, Path::new(""), 0, class.id)?;
        if walk.builder.count() == first {
            return Err(walk.empty(&folder, key));
        }
        left.add(std::mem::take(&mut walk.left));
        firsts.push((PathBuf::from(&class.folder), first));
    }
    let about = About {
        listed_ns,
        folders: walk.folders,
        classes: firsts,
        fingerprint: walk.hash.digest(),
        remarks: left.remarks(key),
        dangling: walk.dangling,
    };
    Ok(walk.builder.finish(about))
}

/// Knows the class folders before any is read: a link from one into another is not followed.
fn meet(
    root: &Path,
    classes: &[Class],
    key: &str,
    mut met: HashMap<FolderId, PathBuf>,
) -> Result<HashMap<FolderId, PathBuf>, DataError> {
    for class in classes {
        let folder = root.join(&class.folder);
        if let Some(other) = met.insert(class.id, folder.clone()) {
            return Err(DataError::Set(format!(
                "{key}: the class folder {} is the folder {}: a picture has one class; remove the \
                 link",
                folder.shown(),
                other.shown()
            )));
        }
    }
    Ok(met)
}

impl Walk<'_> {
    /// Adds the pictures below a folder, each with its size: by name, folders in their places.
    fn collect(
        &mut self,
        class: &Path,
        below: &Path,
        depth: usize,
        id: FolderId,
    ) -> Result<(), DataError> {
        let folder = class.join(below);
        // What was not listed ahead lies deeper by one way than by another.
        let listed = self.listed.remove(&id).unwrap_or_else(|| Listed::of(self.store, &folder));
        let mut listed = listed.map_err(|error| FetchError::from(error).about(folder.shown()))?;
        self.dangling += listed.dangling;
        self.left.add(std::mem::take(&mut listed.left));
        let mut inner = std::mem::take(&mut listed.folders).into_iter().peekable();
        for (name, bytes) in listed.pictures() {
            while let Some((before, id)) =
                inner.next_if(|(folder, _)| folder.as_encoded_bytes() < name)
            {
                self.enter(class, &below.join(before), depth, id)?;
            }
            self.add(below, name, bytes)?;
        }
        for (name, id) in inner {
            self.enter(class, &below.join(name), depth, id)?;
        }
        self.folders.push((folder, listed.changed_ns));
        Ok(())
    }

    fn enter(
        &mut self,
        class: &Path,
        below: &Path,
        depth: usize,
        id: FolderId,
    ) -> Result<(), DataError> {
        if depth == DEPTH_MAX {
            self.left.too_deep();
            return Ok(());
        }
        match self.met.entry(id) {
            Entry::Occupied(_) => self.left.met_again(class.join(below)),
            Entry::Vacant(place) => {
                place.insert(class.join(below));
                self.collect(class, below, depth + 1, id)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, below: &Path, name: &[u8], bytes: u64) -> Result<(), DataError> {
        if !self.builder.push(below, name, bytes) {
            let text = "the names of the set take more than 4 GiB: pack it into tar shards";
            return Err(DataError::Set(text.into()));
        }
        self.hash.update(self.builder.last());
        self.hash.update(&bytes.to_le_bytes());
        Ok(())
    }

    /// What to say of a class without a picture.
    fn empty(&self, folder: &Path, key: &str) -> DataError {
        let unread = match self.left.by_ending() {
            unread if unread.is_empty() => String::new(),
            unread => format!(", not {unread}"),
        };
        DataError::Set(format!(
            "{key}: the class folder {} holds no picture (read are {}{unread}); fill it or remove \
             it",
            folder.shown(),
            endings_read(),
        ))
    }
}
