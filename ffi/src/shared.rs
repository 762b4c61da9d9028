//! A few words of memory that two processes see: an anonymous file (memfd), mapped by both. It has
//! no name, so nothing is left of it when both have ended, however they ended.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicU64, Ordering};

/// Words in a mapping: one page.
pub const WORDS: usize = 512;

/// One page of words, zero at first.
#[derive(Debug)]
pub struct SharedWords {
    page: *mut AtomicU64,
}

// SAFETY: the page is only ever used as atomics, which any thread may touch.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// A new page and its file, to be handed to the other process; `name` shows in /proc only.
    ///
    /// # Errors
    /// The kernel's, for example too many open files.
    pub fn create(name: &CStr) -> io::Result<(Self, File)> {
        // SAFETY: the name is zero-terminated; the result is a new descriptor or -1.
        let file = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) };
        if file < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor; nobody else owns it.
        let file = unsafe { File::from_raw_fd(file) };
        file.set_len(Self::BYTES as u64)?;
        Ok((Self::map(&file)?, file))
    }

    const BYTES: usize = WORDS * size_of::<u64>();

    /// The page of a file that another process made.
    ///
    /// # Errors
    /// It is no file of one page.
    pub fn map(file: &File) -> io::Result<Self> {
        if file.metadata()?.len() != Self::BYTES as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a page of shared words"));
        }
        let (access, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping of a whole open file; where it lies is the kernel's choice.
        let page = unsafe {
            libc::mmap(std::ptr::null_mut(), Self::BYTES, access, shared, file.as_raw_fd(), 0)
        };
        if page == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { page: page.cast() })
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the page is mapped for as long as self lives, aligned, of WORDS words; any bits
        // are a valid atomic.
        unsafe { std::slice::from_raw_parts(self.page, WORDS) }
    }

    /// Reads a word (acquire).
    pub fn get(&self, word: usize) -> u64 {
        self.words()[word].load(Ordering::Acquire)
    }

    /// Writes a word (release).
    pub fn set(&self, word: usize, value: u64) {
        self.words()[word].store(value, Ordering::Release);
    }

    /// Replaces a word by what `change` makes of it; what was there before. `change` may be asked
    /// again where another process was faster.
    pub fn update(&self, word: usize, change: impl Fn(u64) -> u64) -> u64 {
        let word = &self.words()[word];
        let change = |value| Some(change(value));
        word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).unwrap_or_else(|old| old)
    }

    /// Adds to a word.
    pub fn add(&self, word: usize, value: u64) {
        self.words()[word].fetch_add(value, Ordering::AcqRel);
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length; nothing borrows from it any more.
        unsafe { libc::munmap(self.page.cast(), Self::BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_mappings_of_one_file_are_the_same_words() {
        let (mine, file) = SharedWords::create(c"test").unwrap();
        let other = SharedWords::map(&file).unwrap();
        mine.set(3, 7);
        other.add(3, 2);
        assert_eq!((mine.get(3), other.get(3), other.get(0)), (9, 9, 0));
        assert_eq!((mine.update(0, |old| old + 5), other.get(0)), (0, 5));
        drop(mine);
        assert_eq!(other.get(3), 9);
    }

    #[test]
    fn another_file_is_refused() {
        let file = File::open("/proc/self/exe").unwrap();
        assert!(SharedWords::map(&file).is_err());
    }
}
