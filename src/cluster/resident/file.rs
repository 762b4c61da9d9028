//! A file that holds the slots of one member: three pages (two headers, and the run's folder as
//! text for whoever finds the file), then the two bodies. The process whose slots they are holds
//! the file's lock, which the kernel frees when it dies: who gets the lock may map the file.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use kintsugi_ffi::mapping::{self, Memory, PAGE_BYTES, Words};
use kintsugi_ffi::os::{self, Lock};

use super::header::{HEADER_WORDS, Header, Refusal};

/// Headers and label.
const HEAD_BYTES: usize = 3 * PAGE_BYTES;
/// Where the run's folder stands.
const LABEL_AT: u64 = 2 * PAGE_BYTES as u64;

/// Bytes of a file whose slots have bodies of `body_bytes`.
pub fn bytes(body_bytes: usize) -> u64 {
    (HEAD_BYTES + 2 * body_bytes) as u64
}

/// Where a slot's body begins.
pub fn body_at(slot: usize, body_bytes: usize) -> u64 {
    (HEAD_BYTES + slot * body_bytes) as u64
}

/// An open and locked file of slots.
#[derive(Debug)]
pub struct SlotFile {
    file: File,
    path: PathBuf,
}

impl SlotFile {
    /// Makes one of `bytes` at `path`, locked before anybody can find it half made: until it is
    /// named after its member it has a name that nobody takes for a member's.
    ///
    /// # Errors
    /// The kernel's: no such folder, no permission, no room.
    pub(super) fn create(path: PathBuf, bytes: u64, label: &str) -> io::Result<Self> {
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        let made = Self { file, path };
        let filled = os::lock_file(&made.file).and_then(|_| {
            mapping::reserve(&made.file, bytes)?;
            let label = &label.as_bytes()[..label.len().min(PAGE_BYTES - 1)];
            made.file.write_all_at(label, LABEL_AT)
        });
        match filled {
            Ok(()) => Ok(made),
            Err(error) => {
                made.discard();
                Err(error)
            }
        }
    }

    /// Takes the file of a dead process; `None` while its owner lives, or when it is gone.
    ///
    /// # Errors
    /// The kernel's.
    pub fn take(path: &Path) -> io::Result<Option<Self>> {
        let file = match File::options().read(true).write(true).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if os::lock_file(&file)? == Lock::Busy {
            return Ok(None);
        }
        // Between opening and locking its owner may have renamed or removed it.
        let named = std::fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
        let opened = file.metadata()?;
        let same = named == Some((opened.dev(), opened.ino()));
        Ok(same.then(|| Self { file, path: path.to_owned() }))
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length.
    ///
    /// # Errors
    /// The kernel's.
    pub fn size(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    pub(super) fn map(&self, body_bytes: usize) -> io::Result<(Words, Memory)> {
        let words = Words::of_file(&self.file, 0, 2 * HEADER_WORDS)?;
        let memory = Memory::of_file(&self.file, HEAD_BYTES as u64, 2 * body_bytes)?;
        Ok((words, memory))
    }

    pub(super) fn name_after(&mut self, member: u32) -> io::Result<()> {
        let name = self.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let Some(name) = super::folder::name_of_member(name, member) else { return Ok(()) };
        let path = self.path.with_file_name(name);
        if path != self.path {
            std::fs::rename(&self.path, &path)?;
            self.path = path;
        }
        Ok(())
    }

    /// Removes it; the memory goes when nobody maps it any more.
    pub fn discard(self) {
        if let Err(error) = std::fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// A look at a file that may be somebody else's: never through a mapping.
#[derive(Debug)]
pub struct Look {
    file: File,
}

impl Look {
    /// Opens it to read.
    ///
    /// # Errors
    /// The kernel's.
    pub fn at(path: &Path) -> io::Result<Self> {
        Ok(Self { file: File::open(path)? })
    }

    /// What its slots hold by their headers.
    ///
    /// # Errors
    /// The kernel's.
    pub fn headers(&self) -> io::Result<[Result<Header, Refusal>; 2]> {
        let mut words = vec![0u64; 2 * HEADER_WORDS];
        self.file.read_exact_at(bytemuck::cast_slice_mut(&mut words), 0)?;
        let (first, second) = words.split_at(HEADER_WORDS);
        Ok([first, second].map(Header::read))
    }

    /// The run's folder.
    pub fn label(&self) -> String {
        let mut text = vec![0; PAGE_BYTES];
        if self.file.read_exact_at(&mut text, LABEL_AT).is_err() {
            return String::new();
        }
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        String::from_utf8_lossy(&text[..end]).into_owned()
    }

    /// Whether its owner lives.
    pub fn is_held(&self) -> bool {
        // Freed again when this look is over.
        os::lock_file(&self.file).is_ok_and(|lock| lock == Lock::Busy)
    }

    /// Copies floats from an offset on.
    ///
    /// # Errors
    /// The kernel's.
    pub fn copy(&self, into: &mut [f32], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(bytemuck::cast_slice_mut(into), offset)
    }
}
