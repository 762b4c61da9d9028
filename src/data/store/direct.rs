//! The file system as it is mounted: every fetch reads the file itself.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, DirEntry, File, Metadata};
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use crate::config::Shown;
use crate::observe::refusal::Meaning;

use super::{Entry, Extent, FILE_BYTES_MAX, FetchError, FolderId, Kind, Location, Sight, Store};

/// Files of many samples that are held open, at most: far below a process's limit of 1024.
const OPEN_MAX: usize = 256;
/// No more files can be open: of this process, of the machine.
const EMFILE: i32 = 24;
const ENFILE: i32 = 23;
/// Links behind one another that are followed to where a file was.
const LINKS_MAX: u32 = 8;
const NS_PER_SECOND: i64 = 1_000_000_000;

/// Reads files in place. A file that holds many samples stays open from its first range on, so
/// that later ones cost one call each.
#[derive(Debug, Default)]
pub struct Direct {
    open: RwLock<Open>,
}

/// Files that are held open, so many at most.
#[derive(Debug)]
struct Open {
    files: HashMap<PathBuf, Arc<File>>,
    most: usize,
}

impl Default for Open {
    fn default() -> Self {
        Self { files: HashMap::new(), most: OPEN_MAX }
    }
}

impl Direct {
    fn shared(&self, path: &Path) -> io::Result<Arc<File>> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.files.get(path) {
            return Ok(Arc::clone(file));
        }
        drop(open);
        let file = Arc::new(self.file(path)?);
        let mut open = self.write();
        // Two threads may open it at once; both read the same file.
        if open.files.len() < open.most {
            open.files.insert(path.to_owned(), Arc::clone(&file));
        }
        Ok(file)
    }

    /// Opens a file. Where no more can be open, those that are held go, and fewer are from then on.
    fn file(&self, path: &Path) -> io::Result<File> {
        File::open(path).or_else(|error| {
            if !matches!(error.raw_os_error(), Some(EMFILE | ENFILE)) {
                return Err(error);
            }
            let mut open = self.write();
            open.most = open.most.min(open.files.len() / 2);
            open.files.clear();
            drop(open);
            File::open(path)
        })
    }

    fn write(&self) -> RwLockWriteGuard<'_, Open> {
        self.open.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is held open of a file is another one's from now on.
    pub fn close(&self, path: &Path) {
        self.write().files.remove(path);
    }

    fn range(&self, file: &Path, offset: u64, length: u64, into: &mut Vec<u8>) -> io::Result<()> {
        let read = self.shared(file).and_then(|file| read_at(&file, offset, length, into));
        if read.as_ref().is_err_and(|error| Meaning::of(error) != Meaning::Damaged) {
            // What was open may be of a share that is gone: the next try opens it anew.
            self.close(file);
        }
        read
    }
}

/// Leaves nothing in `into` where the bytes do not come: zeros would be taken for some.
fn read_at(file: &File, offset: u64, length: u64, into: &mut Vec<u8>) -> io::Result<()> {
    into.clear();
    into.resize(length as usize, 0);
    file.read_exact_at(into, offset).inspect_err(|_| into.clear())
}

fn whole(file: File, into: &mut Vec<u8>) -> Result<(), FetchError> {
    let size = file.metadata()?.len();
    if size > FILE_BYTES_MAX {
        let text = format!("{size} bytes; files up to {FILE_BYTES_MAX} are read");
        return Err(FetchError::damaged(text));
    }
    into.clear();
    into.reserve(size as usize + 1);
    file.take(FILE_BYTES_MAX).read_to_end(into)?;
    Ok(())
}

fn kind(facts: &Metadata) -> Kind {
    if facts.is_dir() {
        Kind::Folder(FolderId { device: facts.dev(), number: facts.ino() })
    } else if facts.is_file() {
        Kind::File { bytes: facts.len() }
    } else {
        Kind::Other
    }
}

/// A link is followed; whatever else is looked at from its open folder, which is faster.
fn facts(entry: &DirEntry) -> io::Result<Metadata> {
    match entry.file_type()?.is_symlink() {
        true => fs::metadata(entry.path()),
        false => entry.metadata(),
    }
}

/// Asks the open folder: what it says holds, wherever its name leads meanwhile.
fn sight(file: &Path, links: u32) -> io::Result<Sight> {
    let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else {
        return Ok(Sight::Unknown);
    };
    let named = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let open = File::open(named)?;
    let held = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
    let found = match fs::symlink_metadata(held.join(name)) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let first = fs::read_dir(&held)?.next().transpose()?;
            return Ok(if first.is_some() { Sight::Lacking } else { Sight::Empty });
        }
        Err(error) => return Err(error),
    };
    if !found.is_symlink() {
        return Ok(Sight::Unknown);
    }
    let target = folder.join(fs::read_link(held.join(name))?);
    if links > 0 && sight(&target, links - 1).is_ok_and(|seen| seen == Sight::Lacking) {
        return Ok(Sight::Lacking);
    }
    let leads = fs::metadata(held.join(name));
    let nowhere = leads.is_err_and(|error| Meaning::of(&error) == Meaning::Absent);
    Ok(if nowhere { Sight::Dangling } else { Sight::Unknown })
}

impl Store for Direct {
    fn fetch(&self, location: &Location<'_>, into: &mut Vec<u8>) -> Result<(), FetchError> {
        match location.extent {
            Extent::Whole { .. } => whole(self.file(&location.file)?, into),
            Extent::Range { offset, length } => {
                self.range(&location.file, offset, length, into).map_err(FetchError::from)
            }
        }
    }

    fn answers(&self, location: &Location<'_>, into: &mut Vec<u8>) -> bool {
        let Ok(file) = self.file(&location.file) else { return false };
        match location.extent {
            Extent::Whole { .. } => whole(file, into).is_ok(),
            Extent::Range { offset, length } => read_at(&file, offset, length, into).is_ok(),
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
            let name = entry.file_name();
            let kind = match facts(&entry) {
                Ok(facts) => kind(&facts),
                Err(error) if Meaning::of(&error) == Meaning::Absent => Kind::Dangling,
                Err(error) => {
                    let text = format!("{}: {error}", name.shown());
                    return Err(io::Error::new(error.kind(), text));
                }
            };
            tell(&name, kind);
        }
        Ok(())
    }

    /// Without a look at each of perhaps millions.
    fn sight(&self, file: &Path) -> Sight {
        sight(file, LINKS_MAX).unwrap_or(Sight::Unknown)
    }

    fn look(&self, path: &Path) -> io::Result<Kind> {
        fs::metadata(path).map(|facts| kind(&facts))
    }

    fn changed_ns(&self, path: &Path) -> io::Result<Option<i64>> {
        Ok(changed_ns(&fs::metadata(path)?))
    }

    /// What is open is still read when another file has taken its name.
    fn is_still(&self, path: &Path, listed: (u64, i64)) -> Option<bool> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        let file = open.files.get(path).map(Arc::clone);
        drop(open);
        let facts = match file {
            Some(file) => file.metadata(),
            None => fs::metadata(path),
        };
        let facts = facts.ok()?;
        Some(match facts.nlink() {
            // To lose its last name is a change of the file, though not of its bytes.
            0 => facts.len() == listed.0 && written_ns(&facts) <= Some(listed.1),
            _ => (facts.len(), changed_ns(&facts)) == (listed.0, Some(listed.1)),
        })
    }
}

fn written_ns(facts: &Metadata) -> Option<i64> {
    facts.mtime().checked_mul(NS_PER_SECOND)?.checked_add(facts.mtime_nsec())
}

fn changed_ns(facts: &Metadata) -> Option<i64> {
    let written = written_ns(facts);
    if !facts.is_file() {
        return written;
    }
    // Tools that copy and unpack files give them the time of others, but not this one.
    let seconds = facts.ctime().checked_mul(NS_PER_SECOND);
    let changed = seconds.and_then(|seconds| seconds.checked_add(facts.ctime_nsec()));
    match (written, changed) {
        // A time yet to come, or a file system without the other: neither must hide the other.
        (Some(written), Some(changed)) if written > changed => Some(written.wrapping_add(changed)),
        _ => changed,
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
        assert_eq!(short, FetchError::damaged("failed to fill whole buffer"));
        // It stays open: what took its place under its name is another file.
        fs::remove_file(&path).expect("removed");
        store.fetch(&Location::range(&*path, 9, 1), &mut bytes).expect("open");
        assert_eq!(bytes, b"9");
    }

    #[test]
    fn a_time_yet_to_come_hides_no_change() {
        let root = tempfile::tempdir().expect("temporary folder");
        let path = root.path().join("ahead");
        let later = std::time::SystemTime::now() + std::time::Duration::from_secs(1 << 30);
        let written = |bytes: &[u8]| {
            // Longer than a tick of the clock of files.
            std::thread::sleep(std::time::Duration::from_millis(20));
            fs::write(&path, bytes).expect("written");
            File::options()
                .write(true)
                .open(&path)
                .and_then(|f| f.set_modified(later))
                .expect("set");
            Direct::default().stamp(&path).expect("there")
        };
        let first = written(b"one");
        assert_eq!(Direct::default().stamp(&path).expect("there"), first);
        assert_ne!(written(b"two"), first);
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
        assert_eq!(store.open.read().expect("whole").files.len(), OPEN_MAX);
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
        assert_eq!(kinds, [Kind::File { bytes: 2 }, folder, Kind::Dangling]);
        assert_ne!(folder, Direct::default().look(root.path()).expect("there"));
    }
}
