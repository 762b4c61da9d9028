//! ImageFolder (torchvision's layout): one folder per class, images anywhere below it. Classes
//! and images are sorted by name.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use crate::config::Shown;
use crate::data::store::{FolderId, Kind, Location, Store};
use crate::data::{DataError, Image};

use super::leftovers::{Leftovers, endings_read, is_picture};
use super::{Source, decode};

/// Folders below a class folder that are followed.
const DEPTH_MAX: usize = 64;
/// Folders above the set's root that are known by their identity, so that a link to one of them
/// is not followed.
const ABOVE_MAX: usize = 64;
/// Folder names that mean a data set's root was given in place of one of its splits.
const SPLIT_NAMES: [&str; 5] = ["train", "training", "val", "validation", "test"];

struct Entry {
    class: u32,
    /// Relative to the class folder.
    file: Box<Path>,
    /// When the folder was listed; 0 for a link to nothing.
    bytes: u64,
}

/// A folder of class folders of pictures.
pub struct ImageFolder {
    root: PathBuf,
    classes: Vec<String>,
    /// The class folders, by their names as the file system has them.
    folders: Vec<OsString>,
    entries: Vec<Entry>,
    fingerprint: u64,
    remarks: Vec<String>,
}

fn failed(path: &Path, error: &std::io::Error) -> DataError {
    DataError::Set(format!("{}: {error}", path.shown()))
}

/// A class: its folder, which may be a link, and what that leads to.
struct Class {
    folder: OsString,
    id: FolderId,
}

impl Class {
    /// A name that is not UTF-8 is told by its bytes.
    fn name(&self) -> String {
        self.folder.to_str().map_or_else(|| self.folder.shown(), str::to_owned)
    }
}

/// The names of the class folders under `root`, sorted. `key` is the configuration key that
/// named the folder.
pub fn class_names(store: &dyn Store, root: &Path, key: &str) -> Result<Vec<String>, DataError> {
    let classes = classes(store, root, key, &mut Leftovers::default())?;
    Ok(classes.iter().map(Class::name).collect())
}

/// The class folders, sorted by name; what else lies in the root is counted.
fn classes(
    store: &dyn Store,
    root: &Path,
    key: &str,
    left: &mut Leftovers,
) -> Result<Vec<Class>, DataError> {
    let refuse = |text: String| Err(DataError::Set(format!("{key}: {}{text}", root.shown())));
    let entries = match store.list(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return refuse(" does not exist; give a folder that holds one folder per class".into());
        }
        Err(error) => return refuse(format!(": {error}")),
    };
    let (mut classes, holders) = (Vec::new(), holders(store, root));
    for entry in entries {
        match entry.kind {
            _ if left.takes(&entry.name) => {}
            Kind::Folder(id) if holders.contains_key(&id) => {
                left.met_again(root.join(&entry.name));
            }
            Kind::Folder(id) => classes.push(Class { folder: entry.name, id }),
            _ if is_picture(Path::new(&entry.name)) => left.classless(),
            Kind::Broken => left.broken(),
            _ => left.file(Path::new(&entry.name)),
        }
    }
    classes.sort_unstable_by(|a, b| a.folder.cmp(&b.folder));
    let is_split = |class: &Class| {
        SPLIT_NAMES.iter().any(|name| class.folder.eq_ignore_ascii_case(OsStr::new(name)))
    };
    if classes.is_empty() {
        return refuse(" holds no class folders; image_folder needs one folder per class".into());
    }
    if classes.iter().all(is_split) {
        let names = classes.iter().map(Class::name).collect::<Vec<_>>().join(", ");
        return refuse(format!(" holds {names}: give one of these folders itself"));
    }
    Ok(classes)
}

/// A walk through the class folders that reads no folder twice, whatever links lead to it.
struct Walk<'a> {
    store: &'a dyn Store,
    /// Folders that are read, or that hold the set.
    met: HashMap<FolderId, PathBuf>,
    left: Leftovers,
}

/// The root and the folders it lies in.
fn holders(store: &dyn Store, root: &Path) -> HashMap<FolderId, PathBuf> {
    let (mut met, mut above) = (HashMap::new(), root.to_owned());
    for _ in 0..ABOVE_MAX {
        match store.look(&above) {
            Ok(Kind::Folder(id)) if met.insert(id, above.clone()).is_none() => {}
            _ => break,
        }
        above.push("..");
    }
    met
}

impl Walk<'_> {
    /// Knows the class folders before any is read: a link from one into another is not followed.
    fn meet(&mut self, root: &Path, classes: &[Class], key: &str) -> Result<(), DataError> {
        for class in classes {
            let folder = root.join(&class.folder);
            if let Some(other) = self.met.insert(class.id, folder.clone()) {
                return Err(DataError::Set(format!(
                    "{key}: the class folder {} is the folder {}: a picture has one class; \
                     remove the link",
                    folder.shown(),
                    other.shown()
                )));
            }
        }
        Ok(())
    }

    /// Appends the pictures below `folder` (relative paths), each with its size.
    fn collect(
        &mut self,
        class: &Path,
        below: &Path,
        depth: usize,
        found: &mut Vec<(PathBuf, u64)>,
    ) -> Result<(), DataError> {
        let folder = class.join(below);
        let mut entries = self.store.list(&folder).map_err(|error| failed(&folder, &error))?;
        // Which of two ways to a folder is taken must not depend on the file system's order.
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        for entry in entries {
            let relative = below.join(&entry.name);
            let picture = is_picture(&relative);
            // Links are followed, so that a set may be made of links into another; one to nothing
            // keeps its place in the order and is a bad image when it is read.
            match entry.kind {
                _ if self.left.takes(&entry.name) => {}
                Kind::Folder(_) if depth == DEPTH_MAX => self.left.too_deep(),
                Kind::Folder(id) if self.met.contains_key(&id) => {
                    self.left.met_again(class.join(&relative));
                }
                Kind::Folder(id) => {
                    self.met.insert(id, class.join(&relative));
                    self.collect(class, &relative, depth + 1, found)?;
                }
                Kind::File { bytes } if picture => found.push((relative, bytes)),
                Kind::Broken if picture => found.push((relative, 0)),
                Kind::Broken => self.left.broken(),
                _ => self.left.file(&relative),
            }
        }
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

impl ImageFolder {
    /// Lists the folder; nothing is decoded. `key` is the configuration key that named it.
    pub fn open(store: &dyn Store, root: &Path, key: &str) -> Result<Self, DataError> {
        let mut left = Leftovers::default();
        let classes = classes(store, root, key, &mut left)?;
        let mut walk = Walk { store, met: holders(store, root), left };
        walk.meet(root, &classes, key)?;
        let mut entries = Vec::new();
        let mut hash = Xxh3::new();
        for (number, class) in (0u32..).zip(&classes) {
            let folder = root.join(&class.folder);
            let mut found = Vec::new();
            walk.collect(&folder, Path::new(""), 0, &mut found)?;
            if found.is_empty() {
                return Err(walk.empty(&folder, key));
            }
            found.sort_unstable();
            hash.update(class.name().as_bytes());
            for (file, bytes) in found {
                hash.update(file.as_os_str().as_encoded_bytes());
                hash.update(&bytes.to_le_bytes());
                entries.push(Entry { class: number, file: file.into_boxed_path(), bytes });
            }
        }
        Ok(Self {
            root: root.to_owned(),
            classes: classes.iter().map(Class::name).collect(),
            folders: classes.into_iter().map(|class| class.folder).collect(),
            entries,
            fingerprint: hash.digest(),
            remarks: walk.left.remarks(key),
        })
    }

    fn path(&self, id: u64) -> PathBuf {
        let entry = &self.entries[id as usize];
        self.root.join(&self.folders[entry.class as usize]).join(&entry.file)
    }
}

impl Source for ImageFolder {
    fn len(&self) -> u64 {
        self.entries.len() as u64
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn channels(&self) -> u32 {
        3
    }

    fn label(&self, id: u64) -> u32 {
        self.entries[id as usize].class
    }

    fn location(&self, id: u64) -> Option<Location<'_>> {
        Some(Location::whole(self.path(id), self.entries[id as usize].bytes))
    }

    fn decode(&self, _: u64, bytes: &[u8]) -> Result<Image, String> {
        decode::rgb(bytes)
    }

    fn name(&self, id: u64) -> String {
        self.path(id).shown()
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    fn remarks(&self) -> &[String] {
        &self.remarks
    }
}
