//! The file system as it is mounted: every fetch reads the file itself.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use super::{Entry, Extent, FILE_BYTES_MAX, FetchError, FolderId, Kind, Location, Store};

/// Files of many samples that are held open, at most: far below a process's limit of 1024.
const OPEN_MAX: usize = 256;
const NS_PER_SECOND: i64 = 1_000_000_000;

/// Reads files in place. A file that holds many samples stays open from its first range on, so
/// that later ones cost one call each.
#[derive(Debug, Default)]
pub struct Direct {
    open: RwLock<HashMap<PathBuf, Arc<File>>>,
}

impl Direct {
    fn shared(&self, path: &Path) -> io::Result<Arc<File>> {
        if let Some(file) = self.open.read().unwrap_or_else(PoisonError::into_inner).get(path) {
            return Ok(Arc::clone(file));
        }
        let file = Arc::new(File::open(path)?);
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        // Two threads may open it at once; both read the same file.
        if open.len() < OPEN_MAX {
            open.insert(path.to_owned(), Arc::clone(&file));
        }
        Ok(file)
    }

    /// What is held open of a file is another one's from now on.
    pub fn close(&self, path: &Path) {
        self.open.write().unwrap_or_else(PoisonError::into_inner).remove(path);
    }

    fn range(&self, file: &Path, offset: u64, length: u64, into: &mut Vec<u8>) -> io::Result<()> {
        into.resize(length as usize, 0);
        let read = self.shared(file)?.read_exact_at(into, offset);
        if read.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::UnexpectedEof) {
            // What was open may be of a share that is gone: the next try opens it anew.
            self.close(file);
        }
        read
    }
}

fn whole(path: &Path, into: &mut Vec<u8>) -> Result<(), FetchError> {
    let file = File::open(path).map_err(failed)?;
    let size = file.metadata().map_or(0, |data| data.len());
    if size > FILE_BYTES_MAX {
        let text = format!("{size} bytes; files up to {FILE_BYTES_MAX} are read");
        return Err(FetchError::Absent(text));
    }
    into.clear();
    into.reserve(size as usize + 1);
    file.take(FILE_BYTES_MAX).read_to_end(into).map_err(failed)?;
    Ok(())
}

/// A mounted file system does not say whether it is gone or one file is: whoever knows the other
/// files tells. A file that is too short answers.
#[expect(clippy::needless_pass_by_value, reason = "the form that map_err takes")]
fn failed(error: io::Error) -> FetchError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => FetchError::Absent(error.to_string()),
        _ => FetchError::Unreachable(error.to_string()),
    }
}

fn kind(found: io::Result<Metadata>) -> Kind {
    match found {
        Ok(data) if data.is_dir() => {
            Kind::Folder(FolderId { device: data.dev(), number: data.ino() })
        }
        Ok(data) if data.is_file() => Kind::File { bytes: data.len() },
        Ok(_) => Kind::Other,
        Err(_) => Kind::Broken,
    }
}

impl Store for Direct {
    fn fetch(&self, location: &Location<'_>, into: &mut Vec<u8>) -> Result<(), FetchError> {
        match location.extent {
            Extent::Whole { .. } => whole(&location.file, into),
            Extent::Range { offset, length } => {
                self.range(&location.file, offset, length, into).map_err(failed)
            }
        }
    }

    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        self.visit(folder, &mut |name, kind| entries.push(Entry { name: name.to_owned(), kind }))?;
        Ok(entries)
    }

    fn visit(&self, folder: &Path, tell: &mut dyn FnMut(&OsStr, Kind)) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            // A link is followed; whatever else is looked at from its open folder, which is faster.
            let facts = match entry.file_type() {
                Ok(found) if !found.is_symlink() => entry.metadata(),
                _ => fs::metadata(entry.path()),
            };
            tell(&entry.file_name(), kind(facts));
        }
        Ok(())
    }

    /// Without a look at each of perhaps millions.
    fn is_inhabited(&self, folder: &Path) -> bool {
        fs::read_dir(folder).is_ok_and(|mut entries| matches!(entries.next(), Some(Ok(_))))
    }

    fn look(&self, path: &Path) -> io::Result<Kind> {
        fs::metadata(path).map(|data| kind(Ok(data)))
    }

    fn changed_ns(&self, path: &Path) -> Option<i64> {
        let facts = fs::metadata(path).ok()?;
        facts.mtime().checked_mul(NS_PER_SECOND)?.checked_add(facts.mtime_nsec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_read_into_the_same_buffer_and_a_short_file_is_an_error() {
        let root = tempfile::tempdir().expect("temporary folder");
        let path = root.path().join("many");
        fs::write(&path, b"0123456789").expect("written");
        let (store, mut bytes) = (Direct::default(), vec![7; 100]);
        store.fetch(&Location::range(&*path, 2, 3), &mut bytes).expect("there");
        assert_eq!(bytes, b"234");
        let short = store.fetch(&Location::range(&*path, 8, 3), &mut bytes).expect_err("short");
        assert_eq!(short, FetchError::Absent("failed to fill whole buffer".into()));
        // It stays open: what took its place under its name is another file.
        fs::remove_file(&path).expect("removed");
        store.fetch(&Location::range(&*path, 9, 1), &mut bytes).expect("open");
        assert_eq!(bytes, b"9");
    }

    #[test]
    fn more_files_than_are_held_open_can_be_read() {
        let root = tempfile::tempdir().expect("temporary folder");
        let (store, mut bytes) = (Direct::default(), Vec::new());
        for number in 0..OPEN_MAX + 3 {
            let path = root.path().join(number.to_string());
            fs::write(&path, [number as u8]).expect("written");
            store.fetch(&Location::range(path, 0, 1), &mut bytes).expect("there");
            assert_eq!(bytes, [number as u8]);
        }
        assert_eq!(store.open.read().expect("whole").len(), OPEN_MAX);
    }

    #[test]
    fn a_file_that_is_too_large_is_refused_unread() {
        let root = tempfile::tempdir().expect("temporary folder");
        let path = root.path().join("huge");
        File::create(&path).and_then(|f| f.set_len(FILE_BYTES_MAX + 1)).expect("sparse");
        let mut bytes = Vec::new();
        let refused = Direct::default().fetch(&Location::whole(path, 0), &mut bytes);
        assert!(refused.expect_err("huge").to_string().contains("files up to 268435456 are read"));
        assert_eq!(bytes.capacity(), 0);
    }

    #[test]
    fn a_listing_says_what_a_name_leads_to() {
        let root = tempfile::tempdir().expect("temporary folder");
        fs::write(root.path().join("file"), b"12").expect("written");
        fs::create_dir(root.path().join("folder")).expect("created");
        std::os::unix::fs::symlink("nowhere", root.path().join("link")).expect("linked");
        let folder = Direct::default().look(&root.path().join("folder/../folder")).expect("there");
        let mut found = Direct::default().list(root.path()).expect("there");
        found.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        let kinds: Vec<Kind> = found.iter().map(|entry| entry.kind).collect();
        assert_eq!(kinds, [Kind::File { bytes: 2 }, folder, Kind::Broken]);
        assert_ne!(folder, Direct::default().look(root.path()).expect("there"));
    }
}
