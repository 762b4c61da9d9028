//! Which build of the program this process runs.

use std::fs::File;
use std::io::{self, Read};
use std::sync::OnceLock;

use xxhash_rust::xxh3::xxh3_64;

/// Tells builds apart, also where the program's file was replaced since this process started: its
/// length and its first page, which holds the linker's build id. 0 where it cannot be read.
pub fn id() -> u64 {
    static ID: OnceLock<u64> = OnceLock::new();
    *ID.get_or_init(|| read().unwrap_or(0))
}

fn read() -> io::Result<u64> {
    const PAGE_BYTES: u64 = 4096;
    let file = File::open("/proc/self/exe")?;
    let mut page = file.metadata()?.len().to_le_bytes().to_vec();
    file.take(PAGE_BYTES).read_to_end(&mut page)?;
    Ok(xxh3_64(&page))
}
