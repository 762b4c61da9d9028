//! A file that holds the slots of one member: three pages (two headers, and the run's folder as
//! text for whoever finds the file), then the two bodies. The process whose slots they are holds
//! the file's lock, which the kernel frees when it dies: who gets the lock may map the file.
//!
//! The kernel frees it late, after the process's memory, and a successor has no time for that. So
//! the owner's mark stands in the file too. Whoever sees that the owner *ends* may put its own mark
//! there instead (by compare and exchange: one does) and takes the lock later, when it is free.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use kintsugi_ffi::life::{Life, Mark};
use kintsugi_ffi::mapping::{self, Memory, PAGE_BYTES, Words};
use kintsugi_ffi::os::{self, Lock};
use kintsugi_ffi::private::{self, Access};

use crate::config::Shown;
use crate::observe::refusal::{if_there, naming};

use super::header::{HEADER_WORDS, Header, Refusal};
use super::name;

/// Headers and label.
const HEAD_BYTES: usize = 3 * PAGE_BYTES;
/// Where the run's folder stands.
const LABEL_AT: u64 = 2 * PAGE_BYTES as u64;
/// Words of the label's page; the owner's mark is the last.
const LABEL_WORDS: usize = PAGE_BYTES / size_of::<u64>();
const LABEL_BYTES_MAX: usize = PAGE_BYTES - size_of::<u64>();

/// Bytes of a file whose slots have bodies of `body_bytes`.
pub fn bytes(body_bytes: usize) -> u64 {
    (HEAD_BYTES + 2 * body_bytes) as u64
}

/// Where a slot's body begins.
pub fn body_at(slot: usize, body_bytes: usize) -> u64 {
    (HEAD_BYTES + slot * body_bytes) as u64
}

/// What `bytes` was asked for; `None` for a length that no file of slots has.
pub fn body_bytes(bytes: u64) -> Option<usize> {
    let both = usize::try_from(bytes).ok()?.checked_sub(HEAD_BYTES)?;
    let page_pairs = both.is_multiple_of(2 * PAGE_BYTES);
    page_pairs.then_some(both / 2)
}

/// Headers and bodies. Only who has claimed the file may look into them.
pub(super) fn map(file: &File, body_bytes: usize) -> io::Result<(Words, Memory)> {
    let words = Words::of_file(file, 0, 2 * HEADER_WORDS)?;
    let memory = Memory::of_file(file, HEAD_BYTES as u64, 2 * body_bytes)?;
    Ok((words, memory))
}

/// Device and inode.
pub(super) fn identity(file: &File) -> io::Result<(u64, u64)> {
    file.metadata().map(|facts| (facts.dev(), facts.ino()))
}

/// An open file of slots that no other process uses.
#[derive(Debug)]
pub struct SlotFile {
    file: File,
    path: PathBuf,
    /// The label's page; `None` when the file is too short to have one.
    label: Option<Words>,
    /// What was found, until it is this process's.
    owner: Mark,
    lock: Lock,
}

impl SlotFile {
    /// Makes one of `bytes` at `path`, locked before anybody can find it half made: until it is
    /// named after its member it has a name that nobody takes for a member's.
    ///
    /// # Errors
    /// The kernel's: no such folder, no permission, no room.
    pub(super) fn create(path: PathBuf, bytes: u64, label: &str) -> io::Result<Self> {
        let file = private::make_file(&path)?;
        let mut made = Self { file, path, label: None, owner: Mark::NONE, lock: Lock::Busy };
        let filled = os::lock_file(&made.file).and_then(|lock| {
            made.lock = lock;
            mapping::reserve(&made.file, bytes)?;
            let label = &label.as_bytes()[..label.len().min(LABEL_BYTES_MAX - 1)];
            made.file.write_all_at(label, LABEL_AT)?;
            made.label = Some(Words::of_file(&made.file, LABEL_AT, LABEL_WORDS)?);
            made.claim()
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
        Ok(Self::open(path)?.filter(|found| found.lock == Lock::Taken))
    }

    /// The same; also the file of a process that ends but is not gone yet. Others may find that one
    /// at the same time: who uses it shows when it is claimed.
    ///
    /// # Errors
    /// The kernel's.
    pub fn inherit(path: &Path) -> io::Result<Option<Self>> {
        Self::open(path)
    }

    fn open(path: &Path) -> io::Result<Option<Self>> {
        let file = match private::open_file(path, Access::ReadWrite) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let lock = os::lock_file(&file)?;
        let label = Words::of_file(&file, LABEL_AT, LABEL_WORDS).ok();
        let owner = label.as_ref().map_or(Mark::NONE, |words| mark_of(words.get()));
        // Its maker has neither locked nor marked it yet.
        let half_made = owner == Mark::NONE && name::maker_of(path).is_some_and(is_there);
        let free = match (lock, owner.life()) {
            _ if half_made => false,
            // Without the lock yet, but in use.
            (Lock::Taken, Life::Lives) => false,
            (Lock::Taken, _) | (Lock::Busy, Life::Ends) => true,
            (Lock::Busy, _) => false,
        };
        if !free {
            return Ok(None);
        }
        // Between opening and locking its owner may have renamed or removed it.
        let named = if_there(std::fs::symlink_metadata(path))?;
        let named = named.map(|found| (found.dev(), found.ino()));
        let opened = file.metadata()?;
        let same = named == Some((opened.dev(), opened.ino()));
        Ok(same.then(|| Self { file, path: path.to_owned(), label, owner, lock }))
    }

    /// From now on it is this process's.
    ///
    /// # Errors
    /// Another process was faster.
    pub(super) fn claim(&mut self) -> io::Result<()> {
        let own = Mark::own();
        if let Some(label) = &self.label {
            let word = &label.get()[LABEL_WORDS - 1];
            let (before, after) = (self.owner.word(), own.word());
            word.compare_exchange(before, after, Ordering::AcqRel, Ordering::Acquire).map_err(
                |_| io::Error::new(io::ErrorKind::WouldBlock, "another process took the file"),
            )?;
            self.owner = own;
        }
        Ok(())
    }

    /// Takes the lock, if the process that had it is gone by now.
    pub(super) fn settle(&mut self) {
        if self.lock == Lock::Busy
            && let Ok(lock) = os::lock_file(&self.file)
        {
            self.lock = lock;
        }
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

    /// Headers and bodies.
    pub(super) fn map(&self, body_bytes: usize) -> io::Result<(Words, Memory)> {
        map(&self.file, body_bytes)
    }

    /// Device and inode, which stay where names change.
    pub(super) fn identity(&self) -> io::Result<(u64, u64)> {
        identity(&self.file)
    }

    /// Gives it its member's name. Where that is another user's it gets one that is like it.
    pub(super) fn name_after(&mut self, member: u32) -> io::Result<()> {
        let now = self.path.file_name().and_then(|now| now.to_str()).unwrap_or_default();
        let Some(wanted) = name::name_of_member(now, member) else { return Ok(()) };
        if name::member_of(&self.path) == Some(member) {
            return Ok(());
        }
        let plain = self.path.with_file_name(&wanted);
        let theirs = std::fs::symlink_metadata(&plain).is_ok_and(|facts| !private::is_ours(&facts));
        let renamed =
            if theirs { Err(io::ErrorKind::AlreadyExists.into()) } else { self.rename(plain) };
        let Err(error) = renamed else { return Ok(()) };
        if error.kind() == io::ErrorKind::NotFound {
            return Err(error);
        }
        let beside = self.path.with_file_name(name::beside(&wanted));
        tracing::warn!(
            "{wanted} in {} is not this user's ({error}): the state lies in {}",
            self.path.parent().unwrap_or(Path::new("")).shown(),
            beside.shown()
        );
        self.rename(beside)
    }

    fn rename(&mut self, path: PathBuf) -> io::Result<()> {
        std::fs::rename(&self.path, &path).map_err(naming(&self.path))?;
        self.path = path;
        Ok(())
    }

    /// Removes it; the memory goes when nobody maps it any more.
    pub fn discard(self) {
        self.unlink();
    }

    pub(super) fn unlink(&self) {
        if let Err(error) = std::fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("cannot remove {}: {error}", self.path.shown());
        }
    }
}

impl Drop for SlotFile {
    /// What this process let go is free although the process lives.
    fn drop(&mut self) {
        let own = Mark::own();
        if let (Some(label), true) = (&self.label, self.owner == own && own != Mark::NONE) {
            let word = &label.get()[LABEL_WORDS - 1];
            let (before, free) = (own.word(), Mark::NONE.word());
            // Whoever has another mark there by now uses it.
            let _ = word.compare_exchange(before, free, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

fn mark_of(label: &[AtomicU64]) -> Mark {
    Mark::from_word(label[LABEL_WORDS - 1].load(Ordering::Acquire))
}

/// A look at a file that may be somebody else's: never through a mapping.
#[derive(Debug)]
pub struct Look {
    file: File,
}

/// Whether this machine has a process of this number.
fn is_there(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

impl Look {
    /// Opens it to read.
    ///
    /// # Errors
    /// The kernel's.
    pub fn at(path: &Path) -> io::Result<Self> {
        Ok(Self { file: private::open_file(path, Access::Read)? })
    }

    /// Its length.
    ///
    /// # Errors
    /// The kernel's.
    pub fn bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
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
        let mut text = vec![0; LABEL_BYTES_MAX];
        if self.file.read_exact_at(&mut text, LABEL_AT).is_err() {
            return String::new();
        }
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        String::from_utf8_lossy(&text[..end]).into_owned()
    }

    /// Whether its owner lives.
    pub fn is_held(&self) -> bool {
        // Freed again when this look is over.
        if os::lock_file(&self.file).is_ok_and(|lock| lock == Lock::Busy) {
            return true;
        }
        let mut word = [0; 1];
        let at = LABEL_AT + LABEL_BYTES_MAX as u64;
        let read = self.file.read_exact_at(bytemuck::cast_slice_mut(&mut word), at);
        read.is_ok() && Mark::from_word(word[0]).life() == Life::Lives
    }

    /// Copies floats from an offset on.
    ///
    /// # Errors
    /// The kernel's.
    pub fn copy(&self, into: &mut [f32], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(bytemuck::cast_slice_mut(into), offset)
    }
}
