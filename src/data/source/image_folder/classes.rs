//! The class folders of an image folder, and the folders that hold it.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use crate::config::Shown;
use crate::data::DataError;
use crate::data::source::leftovers::{Leftovers, is_picture};
use crate::data::store::{FetchError, FolderId, Kind, Store};
use crate::observe::refusal::Meaning;

/// Folders above the set's root that are known by their identity, so that a link to one of them
/// is not followed.
const ABOVE_MAX: usize = 64;
/// Folder names that mean a data set's root was given in place of one of its splits.
const SPLIT_NAMES: [&str; 5] = ["train", "training", "val", "validation", "test"];

/// A class: its folder, which may be a link, and what that leads to.
pub struct Class {
    /// Its name as the file system has it.
    pub folder: OsString,
    /// What it leads to.
    pub id: FolderId,
}

impl Class {
    /// What people call it.
    pub fn name(&self) -> String {
        name(Path::new(&self.folder))
    }
}

/// A class by its folder; a name that is not UTF-8 is told by its bytes.
pub fn name(folder: &Path) -> String {
    folder.to_str().map_or_else(|| folder.shown(), str::to_owned)
}

/// The names of the class folders under `root`, sorted. `key` is the configuration key that
/// named the folder.
pub fn class_names(store: &dyn Store, root: &Path, key: &str) -> Result<Vec<String>, DataError> {
    let classes = classes(store, root, key, &mut Leftovers::default())?;
    Ok(classes.iter().map(Class::name).collect())
}

/// The class folders, sorted by name; what else lies in the root is counted.
pub fn classes(
    store: &dyn Store,
    root: &Path,
    key: &str,
    left: &mut Leftovers,
) -> Result<Vec<Class>, DataError> {
    let refuse = |text: String| Err(DataError::Set(format!("{key}: {}{text}", root.shown())));
    let failed = |error: io::Error| FetchError::from(error).about(root.shown()).about(key);
    let entries = match store.list(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return refuse(" does not exist; give a folder that holds one folder per class".into());
        }
        Err(error) => return Err(failed(error).into()),
    };
    let (mut classes, holders) = (Vec::new(), holders(store, root).map_err(failed)?);
    for entry in entries {
        match entry.kind {
            _ if left.takes(&entry.name) => {}
            Kind::Folder(id) if holders.contains_key(&id) => {
                left.met_again(root.join(&entry.name));
            }
            Kind::Folder(id) => classes.push(Class { folder: entry.name, id }),
            _ if is_picture(Path::new(&entry.name)) => left.classless(),
            // It may be a class on a share that is away: a set without it is another one.
            Kind::Dangling => {
                let name = root.join(&entry.name);
                let text = format!("{key}: {} is a link to nothing", name.shown());
                let advice = "mount or restore what it leads to, or remove the link";
                return Err(DataError::Store(format!("{text}: {advice}")));
            }
            _ => left.file(Path::new(&entry.name)),
        }
    }
    classes.sort_unstable_by(|a, b| a.folder.cmp(&b.folder));
    let is_split = |class: &Class| {
        SPLIT_NAMES.iter().any(|name| class.folder.eq_ignore_ascii_case(OsStr::new(name)))
    };
    if classes.is_empty() {
        let text = " holds no class folders; image_folder needs one folder per class (labels in a \
                    CSV file are not read: src/data/README.md sorts pictures by one)";
        return refuse(text.into());
    }
    if classes.iter().all(is_split) {
        let names = classes.iter().map(Class::name).collect::<Vec<_>>().join(", ");
        return refuse(format!(" holds {names}: give one of these folders itself"));
    }
    Ok(classes)
}

/// The root and the folders it lies in, as far as this user may look.
pub fn holders(store: &dyn Store, root: &Path) -> io::Result<HashMap<FolderId, PathBuf>> {
    let (mut met, mut above) = (HashMap::new(), root.to_owned());
    for _ in 0..ABOVE_MAX {
        match store.look(&above) {
            Ok(Kind::Folder(id)) if met.insert(id, above.clone()).is_none() => {}
            Err(error) if Meaning::of(&error) == Meaning::NotNow => return Err(error),
            _ => break,
        }
        above.push("..");
    }
    Ok(met)
}
