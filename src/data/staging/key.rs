//! What a file is called in a staging folder and in a cache: 128 bits of a hash of its path, so
//! that a million of them take 16 MB.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use xxhash_rust::xxh3::{xxh3_128, xxh3_128_with_seed};

use crate::data::store::{Extent, Location};

/// The key of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(u128);

impl Key {
    /// Of a file.
    pub fn of(file: &Path) -> Self {
        Self(xxh3_128(file.as_os_str().as_encoded_bytes()))
    }

    /// Of the bytes of one sample.
    pub fn of_location(location: &Location<'_>) -> Self {
        let path = location.file.as_os_str().as_encoded_bytes();
        match location.extent {
            Extent::Whole { .. } => Self(xxh3_128(path)),
            Extent::Range { offset, .. } => Self(xxh3_128_with_seed(path, offset | (1 << 63))),
        }
    }

    /// Its path below a folder: 256 folders share the files.
    pub fn path(self, folder: &Path) -> PathBuf {
        let name = self.to_string();
        folder.join(&name[..2]).join(&name[2..])
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl std::str::FromStr for Key {
    type Err = std::num::ParseIntError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(text, 16).map(Self)
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <String as Deserialize>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_reads_back_and_samples_of_one_file_have_their_own() {
        let key = Key::of(Path::new("/set/a.jpg"));
        assert_eq!(key.to_string().parse(), Ok(key));
        assert_eq!(Key::of_location(&Location::whole(Path::new("/set/a.jpg"), 7)), key);
        let part = |offset| Key::of_location(&Location::range(Path::new("/set/a.jpg"), offset, 7));
        assert!(part(0) != key && part(0) != part(7));
        assert!(key.path(Path::new("/stage")).starts_with("/stage"));
    }
}
