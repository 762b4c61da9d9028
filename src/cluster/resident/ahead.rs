//! Slot files of others, mapped before anybody knows whose slots this process will take over. To
//! map the pages of a state takes the kernel as long as to read them, and a newcomer has no time
//! for it: it is done while a spare waits. (Not by a respawned rank: it would take the core from
//! MPI's start, which everybody waits for.) Nobody looks into what is mapped here: a file is used
//! only once it is claimed (`SlotFile`).

use std::io;
use std::path::Path;

use kintsugi_ffi::mapping::{Memory, Words};
use kintsugi_ffi::private::{self, Access};

use super::file;
use super::folder::Folder;

/// Files of one node that are mapped ahead. Each gigabyte takes the kernel two megabytes.
const BYTES_MAX: u64 = 16 << 30;

/// Files that are mapped and not used yet.
#[derive(Debug, Default)]
pub struct Ahead(Vec<Mapped>);

#[derive(Debug)]
struct Mapped {
    /// Device and inode: names change.
    identity: (u64, u64),
    words: Words,
    memory: Memory,
}

impl Ahead {
    /// Maps the run's files. What cannot be mapped is left out: it is mapped when it is needed.
    pub fn of(folder: &Folder) -> Self {
        let mut left = BYTES_MAX;
        let mut mapped = Vec::new();
        for path in folder.files().unwrap_or_default() {
            let Ok(Some(found)) = map(&path, left) else { continue };
            left = left.saturating_sub(found.memory.len_bytes() as u64);
            mapped.push(found);
        }
        Self(mapped)
    }

    /// What the file of this device and inode is mapped to. None when it was not there, or has
    /// another size.
    pub(super) fn take(
        &mut self,
        identity: (u64, u64),
        body_bytes: usize,
    ) -> Option<(Words, Memory)> {
        let bytes = 2 * body_bytes;
        let fits = |found: &Mapped| found.identity == identity && found.memory.len_bytes() == bytes;
        let found = self.0.iter().position(fits)?;
        let Mapped { words, memory, .. } = self.0.swap_remove(found);
        Some((words, memory))
    }
}

fn map(path: &Path, left: u64) -> io::Result<Option<Mapped>> {
    let opened = private::open_file(path, Access::ReadWrite)?;
    let bytes = opened.metadata()?.len();
    let Some(body_bytes) = file::body_bytes(bytes).filter(|_| bytes <= left) else {
        return Ok(None);
    };
    let (words, memory) = file::map(&opened, body_bytes)?;
    memory.populate_to_read();
    Ok(Some(Mapped { identity: file::identity(&opened)?, words, memory }))
}
