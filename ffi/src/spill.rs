//! A file for what does not fit memory. It has no name, so nothing is left of it when its process
//! has ended, however it ended. Its bytes go past the kernel's cache, which would fill with what
//! was just sent away to make room.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use crate::mapping::{self, Memory};
use crate::private;

/// What is read and written is whole blocks, in memory and on disk: every disk takes such.
pub const BLOCK_BYTES: usize = 4096;
/// The owner reads and writes, nobody else does anything.
const FILE_MODE: u32 = 0o600;
/// Calls in a row that a signal may interrupt.
const INTERRUPTIONS_MAX: u32 = 1000;

/// How bytes reach the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Passage {
    /// From memory (O_DIRECT).
    Direct,
    /// Through the kernel's cache, which is told to forget them.
    Cached,
}

/// A file without a name.
#[derive(Debug)]
pub struct Spill {
    file: File,
    passage: Passage,
}

impl Spill {
    /// A file in this folder, with room for so many bytes, which nobody can take from it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn new(folder: &Path, bytes: u64) -> io::Result<Self> {
        let file = nameless(folder)?;
        // Before it is direct: where the C library does the file system's work, it writes bytes.
        mapping::reserve(&file, bytes.max(1).next_multiple_of(BLOCK_BYTES as u64))?;
        let mut spill = Self { file, passage: Passage::Direct };
        if !(make_direct(&spill.file) && spill.takes_a_block()) {
            make_cached(&spill.file)?;
            spill.passage = Passage::Cached;
        }
        Ok(spill)
    }

    /// Some file systems say only then that they cannot.
    fn takes_a_block(&self) -> bool {
        let Ok(mut block) = Memory::anonymous(BLOCK_BYTES) else { return false };
        self.write(block.bytes(), 0).is_ok() && self.read(block.bytes_mut(), 0).is_ok()
    }

    /// Whether the kernel's cache is passed by.
    pub fn is_direct(&self) -> bool {
        self.passage == Passage::Direct
    }

    /// Writes whole blocks from memory that begins with a page. They are on their disk afterwards,
    /// or in its cache.
    ///
    /// # Errors
    /// The kernel's.
    ///
    /// # Panics
    /// When they are none.
    pub fn write(&self, blocks: &[u8], offset: u64) -> io::Result<()> {
        assert_blocks(blocks, offset);
        self.all(blocks.len(), |done| self.file.write_at(&blocks[done..], offset + done as u64))?;
        match self.passage {
            Passage::Direct => Ok(()),
            Passage::Cached => {
                write_back(&self.file, offset, blocks.len())?;
                forget(&self.file, offset, blocks.len())
            }
        }
    }

    /// Reads whole blocks into memory that begins with a page.
    ///
    /// # Errors
    /// The kernel's; `UnexpectedEof`.
    ///
    /// # Panics
    /// When they are none.
    pub fn read(&self, blocks: &mut [u8], offset: u64) -> io::Result<()> {
        assert_blocks(blocks, offset);
        let bytes = blocks.len();
        self.all(bytes, |done| self.file.read_at(&mut blocks[done..], offset + done as u64))?;
        match self.passage {
            Passage::Direct => Ok(()),
            Passage::Cached => forget(&self.file, offset, bytes),
        }
    }

    /// Has `some` done what is left until nothing is.
    fn all(
        &self,
        bytes: usize,
        mut some: impl FnMut(usize) -> io::Result<usize>,
    ) -> io::Result<()> {
        let (mut done, mut interruptions) = (0, 0);
        while done < bytes {
            match some(done) {
                Ok(more) => {
                    // The kernel takes no half blocks, whatever it gave.
                    let whole = if self.is_direct() { more - more % BLOCK_BYTES } else { more };
                    if whole == 0 {
                        let text = format!("the file ends after {done} of {bytes} bytes");
                        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
                    }
                    done += whole;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {
                    interruptions += 1;
                    if interruptions > INTERRUPTIONS_MAX {
                        return Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn assert_blocks(bytes: &[u8], offset: u64) {
    let whole =
        bytes.len().is_multiple_of(BLOCK_BYTES) && offset.is_multiple_of(BLOCK_BYTES as u64);
    assert!(whole && bytes.as_ptr().addr().is_multiple_of(BLOCK_BYTES), "whole blocks only");
}

fn nameless(folder: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(FILE_MODE);
    // O_EXCL: nobody can give it a name later.
    match options.custom_flags(libc::O_TMPFILE | libc::O_EXCL).open(folder) {
        // What file systems say that know no such files.
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EOPNOTSUPP | libc::EISDIR | libc::EINVAL)
            ) =>
        {
            unnamed(folder)
        }
        made => made,
    }
}

/// The same with a name that is gone at once.
fn unnamed(folder: &Path) -> io::Result<File> {
    let path = folder.join(format!(".kintsugi-far-{}", private::word()));
    let file = private::make_file(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

fn flags(file: &File) -> io::Result<libc::c_int> {
    // SAFETY: the descriptor is open; no memory is involved.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 { Err(io::Error::last_os_error()) } else { Ok(flags) }
}

fn set_flags(file: &File, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open; no memory is involved.
    let code = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, flags) };
    if code < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn make_direct(file: &File) -> bool {
    flags(file).and_then(|flags| set_flags(file, flags | libc::O_DIRECT)).is_ok()
}

fn make_cached(file: &File) -> io::Result<()> {
    flags(file).and_then(|flags| set_flags(file, flags & !libc::O_DIRECT))
}

/// Waits until these bytes have been given to the disk.
fn write_back(file: &File, offset: u64, bytes: usize) -> io::Result<()> {
    let (offset, length) = range(offset, bytes)?;
    let whole = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the descriptor is open; no memory is involved.
    if unsafe { libc::sync_file_range(file.as_raw_fd(), offset, length, whole) } == 0 {
        return Ok(());
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        // It cannot be asked for there; the kernel does it in its own time.
        Some(libc::ENOSYS | libc::EINVAL | libc::ESPIPE) => Ok(()),
        _ => Err(error),
    }
}

/// The kernel forgets what it has of these bytes in memory.
fn forget(file: &File, offset: u64, bytes: usize) -> io::Result<()> {
    let (offset, length) = range(offset, bytes)?;
    // Advice: where it is not taken, memory is all that is lost.
    // SAFETY: the descriptor is open; no memory is involved.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, length, libc::POSIX_FADV_DONTNEED) };
    Ok(())
}

fn range(offset: u64, bytes: usize) -> io::Result<(libc::off_t, libc::off_t)> {
    let wrong = |_| io::Error::new(io::ErrorKind::InvalidInput, "an offset beyond off_t");
    Ok((
        libc::off_t::try_from(offset).map_err(wrong)?,
        libc::off_t::try_from(bytes).map_err(wrong)?,
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;
    use std::path::PathBuf;

    use super::*;

    fn folder() -> PathBuf {
        let folder = std::env::temp_dir().join(format!("kintsugi-spill-{}", private::word()));
        private::make_folder(&folder).expect("a new folder");
        folder
    }

    fn memory(blocks: usize, value: u8) -> Memory {
        let mut memory = Memory::anonymous(blocks * BLOCK_BYTES).expect("memory");
        memory.bytes_mut().fill(value);
        memory
    }

    fn is_empty(folder: &Path) -> bool {
        std::fs::read_dir(folder).expect("there").next().is_none()
    }

    #[test]
    fn what_was_written_is_read_in_either_passage_and_has_no_name() {
        let folder = folder();
        for passage in [Passage::Direct, Passage::Cached] {
            let mut spill = Spill::new(&folder, 10_000).expect("room");
            if passage == Passage::Cached {
                make_cached(&spill.file).expect("possible everywhere");
                spill.passage = passage;
            }
            assert!(is_empty(&folder));
            let facts = spill.file.metadata().expect("open");
            assert_eq!((facts.len(), facts.mode() & 0o777, facts.nlink()), (12_288, 0o600, 0));
            assert!(facts.blocks() * 512 >= 12_288);
            spill.write(memory(2, 7).bytes(), 4096).expect("written");
            let mut read = memory(3, 9);
            spill.read(read.bytes_mut(), 0).expect("read");
            assert!(read.bytes()[..4096].iter().all(|byte| *byte == 0));
            assert!(read.bytes()[4096..].iter().all(|byte| *byte == 7));
            let beyond = spill.read(read.bytes_mut(), 4096).expect_err("short");
            assert_eq!(beyond.to_string(), "the file ends after 8192 of 12288 bytes");
        }
        std::fs::remove_dir(&folder).expect("empty");
    }

    #[test]
    fn a_file_system_without_nameless_files_gives_one_whose_name_is_gone() {
        let folder = folder();
        let file = unnamed(&folder).expect("made");
        assert!(is_empty(&folder));
        assert_eq!(file.metadata().expect("open").mode() & 0o777, 0o600);
        std::fs::remove_dir(&folder).expect("empty");
        assert_eq!(nameless(&folder).expect_err("gone").kind(), io::ErrorKind::NotFound);
    }

    #[test]
    #[should_panic(expected = "whole blocks only")]
    fn half_a_block_is_refused() {
        assert_blocks(&memory(1, 0).bytes()[..512], 0);
    }
}
