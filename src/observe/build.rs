//! Which build of the program this process runs, and of libraries.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::OnceLock;

use xxhash_rust::xxh3::xxh3_64;

/// Tells builds apart, also where the program's file was replaced since this process started. 0
/// where it cannot be read.
pub fn id() -> u64 {
    static ID: OnceLock<u64> = OnceLock::new();
    *ID.get_or_init(|| of(Path::new("/proc/self/exe")).unwrap_or(0))
}

/// Tells builds of a program or library apart without reading all of it: its length, its first
/// page, which holds the linker's build id or where all else lies, and its last one.
///
/// # Errors
/// It cannot be read.
pub fn of(path: &Path) -> io::Result<u64> {
    const PAGE_BYTES: u64 = 4096;
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    let mut known = length.to_le_bytes().to_vec();
    file.by_ref().take(PAGE_BYTES).read_to_end(&mut known)?;
    file.seek(SeekFrom::Start(length.saturating_sub(PAGE_BYTES)))?;
    file.take(PAGE_BYTES).read_to_end(&mut known)?;
    Ok(xxh3_64(&known))
}
