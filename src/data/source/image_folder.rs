//! ImageFolder (torchvision's layout): one folder per class, images anywhere below it. Classes
//! and images are sorted by name.

use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::Xxh3;

use crate::data::store::{Kind, Location, Store};
use crate::data::{DataError, Image};

use super::{Source, decode};

/// Folders below a class folder that are followed.
const DEPTH_MAX: usize = 8;
/// Folder names that mean a data set's root was given in place of one of its splits.
const SPLIT_NAMES: [&str; 5] = ["train", "training", "val", "validation", "test"];

struct Entry {
    class: u32,
    /// Relative to the class folder.
    file: Box<Path>,
    /// When the folder was listed; 0 for a link to nothing.
    bytes: u64,
}

/// A folder of class folders of JPEG and PNG files.
pub struct ImageFolder {
    root: PathBuf,
    classes: Vec<String>,
    entries: Vec<Entry>,
    fingerprint: u64,
}

fn failed(path: &Path, error: &std::io::Error) -> DataError {
    DataError::Set(format!("{}: {error}", path.display()))
}

/// The names of the class folders under `root`, sorted. `key` is the configuration key that
/// named the folder.
pub fn class_names(store: &dyn Store, root: &Path, key: &str) -> Result<Vec<String>, DataError> {
    let refuse = |text: String| Err(DataError::Set(format!("{key}: {}{text}", root.display())));
    let entries = match store.list(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return refuse(" does not exist; give a folder that holds one folder per class".into());
        }
        Err(error) => return refuse(format!(": {error}")),
    };
    let folders = entries.iter().filter(|entry| entry.kind == Kind::Folder);
    let names = folders.map(|entry| entry.name.to_string_lossy().into_owned());
    let mut names: Vec<String> = names.filter(|name| !name.starts_with('.')).collect();
    names.sort_unstable();
    if names.is_empty() {
        return refuse(" holds no class folders; image_folder needs one folder per class".into());
    }
    if names.iter().all(|name| SPLIT_NAMES.contains(&name.to_lowercase().as_str())) {
        return refuse(format!(" holds {}: give one of these folders itself", names.join(", ")));
    }
    Ok(names)
}

/// Appends the images below `folder` (relative paths), each with its size.
fn collect(
    store: &dyn Store,
    class: &Path,
    below: &Path,
    depth: usize,
    found: &mut Vec<(PathBuf, u64)>,
) -> Result<(), DataError> {
    let folder = class.join(below);
    for entry in store.list(&folder).map_err(|error| failed(&folder, &error))? {
        let relative = below.join(&entry.name);
        let is_image = relative.extension().is_some_and(|extension| {
            ["jpg", "jpeg", "png"].iter().any(|known| extension.eq_ignore_ascii_case(known))
        });
        if entry.name.to_string_lossy().starts_with('.') {
            continue;
        }
        // Links are followed, so that a set may be made of links into another; one to nothing
        // keeps its place in the order and is a bad image when it is read.
        match entry.kind {
            Kind::Folder if depth < DEPTH_MAX => {
                collect(store, class, &relative, depth + 1, found)?;
            }
            Kind::File { bytes } if is_image => found.push((relative, bytes)),
            Kind::Broken if is_image => found.push((relative, 0)),
            _ => {}
        }
    }
    Ok(())
}

impl ImageFolder {
    /// Lists the folder; nothing is decoded. `key` is the configuration key that named it.
    pub fn open(store: &dyn Store, root: &Path, key: &str) -> Result<Self, DataError> {
        let classes = class_names(store, root, key)?;
        let mut entries = Vec::new();
        let mut hash = Xxh3::new();
        for (class, name) in (0u32..).zip(&classes) {
            let folder = root.join(name);
            let mut found = Vec::new();
            collect(store, &folder, Path::new(""), 0, &mut found)?;
            if found.is_empty() {
                return Err(DataError::Set(format!(
                    "{key}: the class folder {} holds no JPEG or PNG file; fill it or remove it",
                    folder.display()
                )));
            }
            found.sort_unstable();
            hash.update(name.as_bytes());
            for (file, bytes) in found {
                hash.update(file.as_os_str().as_encoded_bytes());
                hash.update(&bytes.to_le_bytes());
                entries.push(Entry { class, file: file.into_boxed_path(), bytes });
            }
        }
        Ok(Self { root: root.to_owned(), classes, entries, fingerprint: hash.digest() })
    }

    fn path(&self, id: u64) -> PathBuf {
        let entry = &self.entries[id as usize];
        self.root.join(&self.classes[entry.class as usize]).join(&entry.file)
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
        self.path(id).display().to_string()
    }

    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}
