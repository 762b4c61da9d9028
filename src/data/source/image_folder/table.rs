//! What an image folder holds, as one block of bytes: in memory, or a saved file that all ranks of
//! a node map and so have once. A million names take a few allocations, not a million.
//!
//! Little-endian: `MAGIC`, XXH3-64 of all that follows, pictures, bytes of names, bytes of JSON (8
//! each); then for each picture where its name ends (4) and its size (8); the names; the JSON.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use kintsugi_ffi::mapping::Memory;
use kintsugi_ffi::private::{self, Access};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

/// Raised with the form or its meaning.
const MAGIC: &[u8; 8] = b"KNTSFLD1";
const HASHED_FROM: usize = 16;
const HEAD_BYTES: usize = 40;
const END_BYTES: usize = size_of::<u32>();
const SIZE_BYTES: usize = size_of::<u64>();

/// What is said of a set beside its pictures.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct About {
    /// When it was listed, by this machine's clock: nanoseconds since 1970.
    pub listed_ns: i64,
    /// Each folder that was read, and when it had changed. One that is not UTF-8 cannot be saved.
    pub folders: Vec<(PathBuf, Option<i64>)>,
    /// Class folders, and the number of the first picture of each.
    pub classes: Vec<(PathBuf, u64)>,
    /// See `Source::fingerprint`.
    pub fingerprint: u64,
    /// See `Source::remarks`.
    pub remarks: Vec<String>,
    /// Links to nothing: what they lead to may come back, and no folder's time says so.
    #[serde(skip)]
    pub dangling: u64,
}

/// Paths, labels and sizes of all pictures.
#[derive(Debug)]
pub struct Table {
    bytes: Bytes,
    count: usize,
    /// What the JSON holds.
    pub about: About,
}

#[derive(Debug)]
enum Bytes {
    Held(Vec<u8>),
    Mapped(Memory),
}

/// Takes pictures one by one.
#[derive(Default)]
pub struct Builder {
    names: Vec<u8>,
    ends: Vec<u8>,
    sizes: Vec<u8>,
}

impl Builder {
    /// Adds a picture; false: the names of a set may take 4 GiB, and these take more.
    #[must_use]
    pub fn push(&mut self, below: &Path, name: &[u8], bytes: u64) -> bool {
        let below = below.as_os_str().as_bytes();
        self.names.extend(below);
        if !below.is_empty() {
            self.names.push(b'/');
        }
        self.names.extend(name);
        let Ok(end) = u32::try_from(self.names.len()) else { return false };
        self.ends.extend(end.to_le_bytes());
        self.sizes.extend(bytes.to_le_bytes());
        true
    }

    /// Pictures so far.
    pub fn count(&self) -> u64 {
        (self.ends.len() / END_BYTES) as u64
    }

    /// The name that was added last.
    pub fn last(&self) -> &[u8] {
        let ends: Vec<usize> = (self.ends.rchunks_exact(END_BYTES).take(2))
            .map(|end| u32::from_le_bytes(end.try_into().unwrap_or_default()) as usize)
            .collect();
        let begin = ends.get(1).copied().unwrap_or(0);
        &self.names[begin..]
    }

    /// The table; the JSON is left out where what it says has none.
    pub fn finish(self, about: About) -> Table {
        let count = self.count() as usize;
        let json = serde_json::to_vec(&about).unwrap_or_default();
        let mut all = Vec::with_capacity(
            HEAD_BYTES + self.ends.len() + self.sizes.len() + self.names.len() + json.len(),
        );
        all.extend(MAGIC);
        all.extend(0u64.to_le_bytes());
        for number in [count, self.names.len(), json.len()] {
            all.extend((number as u64).to_le_bytes());
        }
        for part in [self.ends, self.sizes, self.names, json] {
            all.extend(part);
        }
        let hash = xxh3_64(&all[HASHED_FROM..]);
        all[MAGIC.len()..HASHED_FROM].copy_from_slice(&hash.to_le_bytes());
        Table { bytes: Bytes::Held(all), count, about }
    }
}

impl Table {
    /// Maps a saved one; nothing where there is none, or its bytes are not what was written.
    pub fn map(place: &Path) -> Option<Self> {
        let file = private::open_file(place, Access::ReadWrite).ok()?;
        let length = usize::try_from(file.metadata().ok()?.len()).ok()?;
        if length < HEAD_BYTES {
            return None;
        }
        let memory = Memory::of_file(&file, 0, length).ok()?;
        let all = memory.bytes();
        if all[..MAGIC.len()] != *MAGIC || word(all, MAGIC.len()) != xxh3_64(&all[HASHED_FROM..]) {
            return None;
        }
        let [count, names, json] = [0, 1, 2].map(|at| word(all, HASHED_FROM + at * 8) as usize);
        let before = HEAD_BYTES + count * (END_BYTES + SIZE_BYTES) + names;
        let about = serde_json::from_slice(all.get(before..before + json)?).ok()?;
        Some(Self { bytes: Bytes::Mapped(memory), count, about })
    }

    /// Its saved form.
    pub fn bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Held(bytes) => bytes,
            Bytes::Mapped(memory) => memory.bytes(),
        }
    }

    /// Pictures.
    pub fn count(&self) -> u64 {
        self.count as u64
    }

    /// A picture's name below its class folder.
    pub fn name(&self, number: u64) -> &Path {
        let end = |number: usize| {
            let at = HEAD_BYTES + number * END_BYTES;
            let bytes = self.bytes()[at..at + END_BYTES].try_into();
            u32::from_le_bytes(bytes.unwrap_or_default()) as usize
        };
        let number = number as usize;
        let names = HEAD_BYTES + self.count * (END_BYTES + SIZE_BYTES);
        let begin = number.checked_sub(1).map_or(0, end);
        Path::new(OsStr::from_bytes(&self.bytes()[names + begin..names + end(number)]))
    }

    /// A picture's size when its folder was listed; 0 for a link to nothing.
    pub fn size(&self, number: u64) -> u64 {
        word(self.bytes(), HEAD_BYTES + self.count * END_BYTES + number as usize * SIZE_BYTES)
    }

    /// The number of a picture's class.
    pub fn class(&self, number: u64) -> usize {
        self.about.classes.partition_point(|(_, first)| *first <= number).saturating_sub(1)
    }
}

fn word(all: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(all[at..at + SIZE_BYTES].try_into().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// What is saved and mapped is what was listed; a changed byte is found.
        #[test]
        fn a_table_reads_back(
            pictures in prop::collection::vec(("[a-z]{0,3}", "[^/\0]{1,12}", any::<u64>()), 1..40),
            changed: prop::sample::Index,
        ) {
            let mut builder = Builder::default();
            for (below, name, bytes) in &pictures {
                prop_assert!(builder.push(Path::new(below), name.as_bytes(), *bytes));
                let path = Path::new(below).join(name);
                prop_assert_eq!(builder.last(), path.as_os_str().as_bytes());
            }
            let half = pictures.len() as u64 / 2;
            let classes = vec![("a".into(), 0), ("b".into(), half)];
            let about = About { classes, fingerprint: u64::MAX, ..About::default() };
            let table = builder.finish(about.clone());
            let folder = tempfile::tempdir().expect("temporary folder");
            let place = folder.path().join("index");
            std::fs::write(&place, table.bytes()).expect("written");
            let mapped = Table::map(&place).expect("whole");
            prop_assert_eq!(&mapped.about, &about);
            for table in [&table, &mapped] {
                prop_assert_eq!(table.count(), pictures.len() as u64);
                for (number, (below, name, bytes)) in (0u64..).zip(&pictures) {
                    prop_assert_eq!(table.name(number), Path::new(below).join(name));
                    prop_assert_eq!(table.size(number), *bytes);
                    prop_assert_eq!(table.class(number), usize::from(number >= half));
                }
            }
            drop(mapped);
            let mut bytes = table.bytes().to_vec();
            bytes[changed.index(table.bytes().len())] ^= 1;
            std::fs::write(&place, &bytes).expect("written");
            prop_assert!(Table::map(&place).is_none());
            std::fs::write(&place, &table.bytes()[..table.bytes().len() - 1]).expect("written");
            prop_assert!(Table::map(&place).is_none());
        }
    }
}
