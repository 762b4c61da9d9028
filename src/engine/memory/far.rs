//! The far tier: memory of its own, or a file that nobody sees.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kintsugi_ffi::arena::{Arena, Span};
use kintsugi_ffi::grants::{self, Resource};
use kintsugi_ffi::mapping::Memory;
use kintsugi_ffi::operation::Access;
use kintsugi_ffi::os;
use kintsugi_ffi::spill::{BLOCK_BYTES, Spill};
use kintsugi_ffi::stream;

use crate::config::Shown;
use crate::observe::spans::amount;

/// Where what does not fit the near tier lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Memory of this process.
    Ram,
    /// A file without a name in this folder.
    File(PathBuf),
}

/// Where a value may begin: what every disk takes.
pub const FAR_ALIGN_BYTES: usize = BLOCK_BYTES;
/// Bytes that go at once: whoever gives up waits for no more.
const PIECE_BYTES: usize = 1 << 20;
/// The same of a disk (measured: 510 MB/s against 370 with pieces of 1 MiB).
const DISK_PIECE_BYTES: usize = 4 << 20;

/// Bytes of this process that copies to and from there need besides those that lie there: each
/// direction's piece on its way to a disk.
pub fn held_bytes(place: &Place) -> u64 {
    match place {
        Place::Ram => 0,
        Place::File(_) => 2 * DISK_PIECE_BYTES as u64,
    }
}

/// Room for what does not fit the near tier. A clone is the same room.
#[derive(Debug, Clone)]
pub struct Far {
    bytes: usize,
    room: Room,
}

#[derive(Debug, Clone)]
enum Room {
    Ram(Arc<Arena>),
    File(Arc<Disk>),
}

#[derive(Debug)]
pub(super) struct Disk {
    file: Spill,
    folder: PathBuf,
}

impl Far {
    /// Room for so many bytes, all of it reserved now: later writes cannot lack room.
    ///
    /// # Errors
    /// There is no such room; the text says what to change.
    pub fn new(place: &Place, bytes: usize) -> io::Result<Self> {
        let room = match place {
            Place::Ram => Room::Ram(Arc::new(Arena::try_zeroed(bytes).map_err(|error| {
                let asked = amount(bytes as u64);
                let text = format!(
                    "memory.far: this machine does not give {asked} of memory: ask for less, or \
                     name a folder on a disk"
                );
                io::Error::new(error.kind(), text)
            })?)),
            Place::File(folder) => Room::File(Arc::new(Disk::new(folder, bytes as u64)?)),
        };
        Ok(Self { bytes, room })
    }

    /// Bytes that were asked for.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// What one thread needs to copy.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(super) fn carrier(&self) -> io::Result<Carrier> {
        Ok(match &self.room {
            Room::Ram(arena) => Carrier::Ram(Arc::clone(arena)),
            Room::File(disk) => {
                Carrier::File(Arc::clone(disk), Memory::anonymous(DISK_PIECE_BYTES)?)
            }
        })
    }
}

/// Carries pieces, for one thread.
pub(super) enum Carrier {
    /// From memory to memory.
    Ram(Arc<Arena>),
    /// Through memory that a disk takes.
    File(Arc<Disk>, Memory),
}

impl Carrier {
    /// Most bytes that go at once.
    pub fn piece_bytes(&self) -> usize {
        match self {
            Self::Ram(_) => PIECE_BYTES,
            Self::File(_, memory) => memory.len_bytes(),
        }
    }

    /// Takes a piece there. A disk's last block is filled with zeros.
    ///
    /// # Errors
    /// A disk's.
    pub fn put(&mut self, offset: usize, from: &[u8]) -> io::Result<()> {
        match self {
            Self::Ram(arena) => {
                let span = Span { offset, bytes: from.len() };
                stream::copy(from, arena.hold(span, Access::Write).bytes_mut());
                Ok(())
            }
            Self::File(disk, memory) => {
                let blocks = &mut memory.bytes_mut()[..from.len().next_multiple_of(BLOCK_BYTES)];
                let (bytes, rest) = blocks.split_at_mut(from.len());
                bytes.copy_from_slice(from);
                rest.fill(0);
                let written = disk.file.write(blocks, offset as u64);
                written.map_err(|error| disk.failed("written", offset, &error))
            }
        }
    }

    /// Brings a piece from there.
    ///
    /// # Errors
    /// A disk's.
    pub fn get(&mut self, offset: usize, into: &mut [u8]) -> io::Result<()> {
        match self {
            Self::Ram(arena) => {
                let span = Span { offset, bytes: into.len() };
                stream::copy(arena.hold(span, Access::Read).bytes(), into);
                Ok(())
            }
            Self::File(disk, memory) => {
                let blocks = &mut memory.bytes_mut()[..into.len().next_multiple_of(BLOCK_BYTES)];
                let read = disk.file.read(blocks, offset as u64);
                read.map_err(|error| disk.failed("read", offset, &error))?;
                into.copy_from_slice(&blocks[..into.len()]);
                Ok(())
            }
        }
    }
}

impl Disk {
    fn new(folder: &Path, bytes: u64) -> io::Result<Self> {
        // The kernel's answer would be a signal that ends the process.
        let limit = grants::limit(Resource::FileBytes);
        let whole = bytes.saturating_add(BLOCK_BYTES as u64);
        let made = match limit {
            Some(limit) if limit < whole => Err(ErrorKind::FileTooLarge.into()),
            _ => Spill::new(folder, bytes),
        };
        let file = made.map_err(|error| refused(folder, bytes, limit, &error))?;
        Ok(Self { file, folder: folder.to_owned() })
    }

    fn failed(&self, done: &str, offset: usize, error: &io::Error) -> io::Error {
        let folder = self.folder.shown();
        let text = format!(
            "memory.far: what lies in {folder} cannot be {done} at byte {offset}: {error}; name a \
             folder on another disk"
        );
        io::Error::new(error.kind(), text)
    }
}

/// Why there is no file of so many bytes, and what to change.
fn refused(folder: &Path, bytes: u64, limit: Option<u64>, error: &io::Error) -> io::Error {
    let (shown, asked) = (folder.shown(), amount(bytes));
    let text = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            let free = os::free_disk_bytes(folder)
                .map_or("less is".into(), |free| format!("{} are", amount(free)));
            format!("{shown} has no room for {asked} ({free} free; {error}): make room, or name")
        }
        ErrorKind::FileTooLarge => match limit {
            Some(limit) => format!(
                "no file in {shown} may have {asked}: the limit on files (ulimit -f) is {}: raise \
                 it, or name",
                amount(limit)
            ),
            None => format!("the file system of {shown} has no files of {asked}: name"),
        },
        ErrorKind::NotFound => format!("there is no folder {shown}: make it, or name"),
        ErrorKind::NotADirectory => format!("{shown} is no folder: name"),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => {
            format!("this user may make no file in {shown} ({error}): allow it, or name")
        }
        _ => format!("no file of {asked} can be made in {shown} ({error}): name"),
    };
    io::Error::new(error.kind(), format!("memory.far: {text} another folder"))
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Far {
        /// A file that ends before it should, as one on a disk that has failed.
        pub fn short(folder: &Path, bytes: usize) -> io::Result<Self> {
            let place = Place::File(folder.to_owned());
            Ok(Self { bytes, ..Self::new(&place, 1)? })
        }
    }

    #[test]
    fn each_refusal_names_the_key_the_folder_and_what_to_change() {
        let (folder, bytes) = (Path::new("/far\u{1b}"), 3 << 30);
        for (kind, limit, says) in [
            (ErrorKind::StorageFull, None, "has no room for 3.2 GB"),
            (ErrorKind::FileTooLarge, Some(5000), "(ulimit -f) is 5.0 kB: raise it, or"),
            (ErrorKind::FileTooLarge, None, "has no files of 3.2 GB: name"),
            (ErrorKind::NotFound, None, "there is no folder /far\\u{1b}: make it, or name"),
            (ErrorKind::NotADirectory, None, "/far\\u{1b} is no folder: name"),
            (ErrorKind::PermissionDenied, None, "may make no file in /far\\u{1b} (permission"),
            (ErrorKind::Other, None, "no file of 3.2 GB can be made in /far\\u{1b} (other"),
        ] {
            let error = refused(folder, bytes, limit, &kind.into());
            let text = error.to_string();
            assert!(text.starts_with("memory.far: ") && text.ends_with("another folder"), "{text}");
            assert!(text.contains(says) && text.contains("/far\\u{1b}"), "{text}");
            assert_eq!(error.kind(), kind);
        }
    }

    #[test]
    fn more_memory_than_there_is_is_an_error() {
        let error = Far::new(&Place::Ram, usize::MAX / 2).expect_err("nobody has so much");
        assert!(error.to_string().contains("memory.far: this machine does not give"), "{error}");
    }

    #[test]
    fn only_a_disk_needs_memory_besides() {
        assert_eq!(held_bytes(&Place::Ram), 0);
        assert_eq!(held_bytes(&Place::File("/".into())), 8 << 20);
    }
}
