//! Pages of a file, or of nothing, mapped into this process as bytes or as 64-bit words. A file in
//! a tmpfs keeps what was written through its mapping when the process dies, whatever killed it:
//! that is how state outlives processes.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Bytes of a page on every machine that this program runs on (x86-64).
pub const PAGE_BYTES: usize = 4096;

/// Calls of `posix_fallocate` that a signal may interrupt.
const RESERVE_TRIES_MAX: u32 = 1000;

/// Mapped pages; unmapped when dropped.
#[derive(Debug)]
struct Pages {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: memory of the process, not of a thread; access to it is guarded by borrows (`Memory`) or
// is atomic (`Words`).
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// `len` bytes of the file from `offset` on, which it must have; without a file, zeros.
    fn map(file: Option<(&File, u64)>, len: usize) -> io::Result<Self> {
        let (flags, descriptor, offset) = match file {
            Some((file, offset)) => {
                let end = offset + len as u64;
                let size = file.metadata()?.len();
                if size < end {
                    let text = format!("the file has {size} bytes, {end} are mapped");
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
                }
                (libc::MAP_SHARED, file.as_raw_fd(), offset)
            }
            None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0),
        };
        let wrong = |_| io::Error::new(io::ErrorKind::InvalidInput, "an offset beyond off_t");
        let offset = libc::off_t::try_from(offset).map_err(wrong)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice overlaps nothing.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), len, protection, flags, descriptor, offset) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { base, len })
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this length, and nothing borrows it any more.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Mapped bytes. Page-aligned, unless cut elsewhere. Its pieces are unmapped together, with the
/// last.
///
/// A shared file must not be written by anybody else meanwhile: its users lock it, and everything
/// that is read from it is plain numbers, for which every bit pattern is a value.
#[derive(Debug)]
pub struct Memory {
    pages: Arc<Pages>,
    /// Nobody else has these bytes of the pages: whoever makes a second `Memory` of them gives them
    /// away (`cut`).
    range: Range<usize>,
}

/// The pages of a memory, whoever has its pieces now.
#[derive(Debug, Clone)]
pub struct Presence(Arc<Pages>);

impl Presence {
    /// Makes every page present, so that no later write waits for one. Kernels before Linux 5.14
    /// cannot: there the first writes do it.
    pub fn populate(&self) {
        let (base, len) = (self.0.base.as_ptr().cast(), self.0.len);
        // SAFETY: the pages are mapped as long as this lives; changes no byte, whoever writes
        // meanwhile; an error leaves the pages as they are.
        unsafe { libc::madvise(base, len, libc::MADV_POPULATE_WRITE) };
    }

    /// Where they begin, and their bytes.
    pub(crate) fn span(&self) -> (NonNull<u8>, usize) {
        (self.0.base, self.0.len)
    }
}

impl Memory {
    /// Zeros that belong to this process alone.
    ///
    /// # Errors
    /// The kernel's: no memory.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        Pages::map(None, len).map(Self::whole)
    }

    /// `len` bytes of a file from `offset` on, a multiple of the page.
    ///
    /// # Errors
    /// The kernel's; a file that is too short.
    pub fn of_file(file: &File, offset: u64, len: usize) -> io::Result<Self> {
        Pages::map(Some((file, offset)), len).map(Self::whole)
    }

    fn whole(pages: Pages) -> Self {
        let range = 0..pages.len;
        Self { pages: Arc::new(pages), range }
    }

    fn start(&self) -> NonNull<u8> {
        // SAFETY: the range lies within the pages.
        unsafe { self.pages.base.add(self.range.start) }
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped for as long as `self` lives, and no other `Memory` has these bytes;
        // `bytes_mut` needs a unique borrow.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.range.len()) }
    }

    /// All of it, to write.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and the borrow is unique.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.range.len()) }
    }

    /// Bytes of it.
    pub fn len_bytes(&self) -> usize {
        self.range.len()
    }

    /// Pieces that end at these bytes, ascending, and one with the rest: each can be written by a
    /// thread of its own.
    ///
    /// # Panics
    /// When the ends do not ascend, or are beyond its own.
    pub fn cut(self, ends: impl IntoIterator<Item = usize>) -> Vec<Self> {
        let Range { start, end } = self.range;
        let mut from = start;
        let mut piece = |to: usize| {
            assert!(from <= to && to <= end, "pieces follow each other");
            Self { pages: Arc::clone(&self.pages), range: std::mem::replace(&mut from, to)..to }
        };
        let mut pieces: Vec<_> = ends.into_iter().map(|to| piece(start + to)).collect();
        pieces.push(piece(end));
        pieces
    }

    /// What was cut, in any order, as one again.
    ///
    /// # Panics
    /// When they do not lie side by side in the same pages.
    pub fn join(mut pieces: Vec<Self>) -> Self {
        pieces.sort_by_key(|piece| (piece.range.start, piece.range.end));
        let joined = pieces.into_iter().reduce(|before, piece| {
            let beside = before.range.end == piece.range.start;
            assert!(beside && Arc::ptr_eq(&before.pages, &piece.pages), "pieces of one memory");
            Self { range: before.range.start..piece.range.end, pages: before.pages }
        });
        joined.expect("at least one piece")
    }

    /// Makes every page present that the file has, so that no later read waits for one; of a tmpfs
    /// no write either. Looks into none of them. Kernels before Linux 5.14 cannot.
    pub fn populate_to_read(&self) {
        // SAFETY: changes no byte; an error leaves the pages as they are.
        unsafe {
            libc::madvise(self.start().as_ptr().cast(), self.range.len(), libc::MADV_POPULATE_READ)
        };
    }

    /// The pages that it is a piece of.
    pub fn presence(&self) -> Presence {
        Presence(Arc::clone(&self.pages))
    }
}

/// Mapped 64-bit words.
#[derive(Debug)]
pub struct Words(Pages);

impl Words {
    /// So many words of zero that belong to this process alone.
    ///
    /// # Errors
    /// The kernel's: no memory.
    pub fn anonymous(count: usize) -> io::Result<Self> {
        Pages::map(None, count * size_of::<u64>()).map(Self)
    }

    /// `count` words of a file from `offset` on, a multiple of the page.
    ///
    /// # Errors
    /// The kernel's; a file that is too short.
    pub fn of_file(file: &File, offset: u64, count: usize) -> io::Result<Self> {
        Pages::map(Some((file, offset)), count * size_of::<u64>()).map(Self)
    }

    /// All of them.
    pub fn get(&self) -> &[AtomicU64] {
        let count = self.0.len / size_of::<u64>();
        // SAFETY: page-aligned and mapped for as long as `self` lives; all access is atomic.
        unsafe { std::slice::from_raw_parts(self.0.base.as_ptr().cast(), count) }
    }
}

/// Gives a file `len` bytes that are really there: without them a full tmpfs kills who writes to
/// its mapping.
///
/// # Errors
/// The kernel's: `StorageFull` where the file system is too small.
pub fn reserve(file: &File, len: u64) -> io::Result<()> {
    let wrong = |_| io::Error::new(io::ErrorKind::InvalidInput, "a length beyond off_t");
    let length = libc::off_t::try_from(len).map_err(wrong)?;
    for _ in 0..RESERVE_TRIES_MAX {
        // SAFETY: the descriptor is open; no memory is involved.
        match unsafe { libc::posix_fallocate(file.as_raw_fd(), 0, length) } {
            0 => return Ok(()),
            libc::EINTR => {}
            code => return Err(io::Error::from_raw_os_error(code)),
        }
    }
    Err(io::ErrorKind::Interrupted.into())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    fn file() -> File {
        let name =
            format!("kintsugi-mapping-{}-{:?}", std::process::id(), std::thread::current().id());
        let path = std::env::temp_dir().join(name);
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        std::fs::remove_file(&path).expect("ours");
        file.expect("a temporary file")
    }

    #[test]
    fn pieces_are_written_apart_and_joined_in_any_order() {
        let memory = Memory::anonymous(2 * PAGE_BYTES).expect("memory");
        let mut pieces = memory.cut([8, 8, PAGE_BYTES + 4]);
        assert_eq!(
            pieces.iter().map(Memory::len_bytes).collect::<Vec<_>>(),
            [8, 0, PAGE_BYTES - 4, PAGE_BYTES - 4]
        );
        std::thread::scope(|scope| {
            for (number, piece) in pieces.iter_mut().enumerate() {
                scope.spawn(move || piece.bytes_mut().fill(number as u8 + 1));
            }
        });
        pieces.rotate_left(2);
        let joined = Memory::join(pieces);
        let expected = |at: usize| if at < 8 { 1 } else { 3 + u8::from(at >= PAGE_BYTES + 4) };
        assert!(joined.bytes().iter().enumerate().all(|(at, &byte)| byte == expected(at)));
    }

    #[test]
    #[should_panic(expected = "pieces of one memory")]
    fn pieces_with_a_gap_are_not_joined() {
        let mut pieces = Memory::anonymous(PAGE_BYTES).expect("memory").cut([8, 16]);
        pieces.remove(1);
        Memory::join(pieces);
    }

    #[test]
    fn what_is_written_through_a_mapping_is_in_the_file() {
        use std::os::unix::fs::FileExt;
        let file = file();
        reserve(&file, 3 * PAGE_BYTES as u64).expect("room for three pages");
        let words = Words::of_file(&file, 0, 512).expect("a mapping");
        let mut memory = Memory::of_file(&file, PAGE_BYTES as u64, PAGE_BYTES).expect("a mapping");
        memory.presence().populate();
        memory.bytes_mut()[7] = 9;
        words.get()[1].store(5, Ordering::Release);
        let mut read = [0; 2];
        file.read_exact_at(&mut read[..1], PAGE_BYTES as u64 + 7).expect("there");
        file.read_exact_at(&mut read[1..], 8).expect("there");
        assert_eq!((read, memory.bytes()[7]), ([9, 5], 9));
    }

    #[test]
    fn a_short_file_is_refused_and_not_a_death_later() {
        assert!(Memory::of_file(&file(), 0, PAGE_BYTES).is_err());
        assert!(Words::of_file(&file(), 0, 1).is_err());
    }

    #[test]
    fn memory_without_a_file_begins_with_zeros() {
        let mut memory = Memory::anonymous(2 * PAGE_BYTES).expect("two pages");
        assert!(memory.bytes().iter().all(|&byte| byte == 0));
        memory.bytes_mut().fill(1);
        assert_eq!(memory.bytes()[PAGE_BYTES], 1);
        assert_eq!(Words::anonymous(4).expect("a page").get().len(), 4);
    }
}
