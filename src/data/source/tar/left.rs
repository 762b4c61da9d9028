//! What of a shard is not read, by kind: each is counted, and the first of it is named.

use serde::{Deserialize, Serialize};

use crate::data::source::leftovers::Leftovers;

use super::name::Name;

/// Members that are left for a reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Reason {
    /// A symbolic link.
    Link,
    /// A hard link to what does not come before it.
    Lost,
    /// A pipe, a device.
    Special,
    /// A label of no picture.
    Pictureless,
    /// A picture or label whose key would end within what its writer took for the key.
    Dotted,
    /// Bytes behind the end of the archive.
    Behind,
}

/// How many, and the first.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Counted {
    count: u64,
    first: String,
}

/// All that is left of a shard, or of several.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Left {
    /// Files that are neither pictures nor labels.
    pub files: Leftovers,
    kinds: std::collections::BTreeMap<Reason, Counted>,
}

impl Left {
    /// One more member.
    pub fn member(&mut self, reason: Reason, name: &Name) {
        self.count(reason, 1, name.shown());
    }

    /// So many bytes of an archive.
    pub fn bytes(&mut self, count: u64) {
        self.count(Reason::Behind, count, String::new());
    }

    fn count(&mut self, reason: Reason, count: u64, first: String) {
        let counted = self.kinds.entry(reason).or_insert(Counted { count: 0, first });
        counted.count += count;
    }

    /// What is left of another shard, whose name stands before those of its members.
    pub fn add(&mut self, other: Self, shard: &str) {
        self.files.add(other.files);
        for (reason, Counted { count, first }) in other.kinds {
            let first =
                if first.is_empty() { shard.to_owned() } else { format!("{shard}/{first}") };
            self.count(reason, count, first);
        }
    }

    /// The sentences; `key` is the configuration key of the set.
    pub fn remarks(&self, key: &str) -> Vec<String> {
        let of_kind = |(reason, counted): (&Reason, &Counted)| {
            let Counted { count, first } = counted;
            let what = match reason {
                Reason::Link => "symbolic links are not followed",
                Reason::Lost => "hard links lead to no file before them and are not read",
                Reason::Special => "members are pipes, devices and the like and are not read",
                Reason::Pictureless => "labels have no picture and are left out",
                Reason::Dotted => {
                    "pictures and labels have another dot in their names and are not read, since a \
                     key ends at its first dot (rename them)"
                }
                Reason::Behind => "bytes lie behind the end of the archive and are not read",
            };
            format!("{key}: {count} {what}: {first}")
        };
        let mut remarks = self.files.remarks(key);
        remarks.extend(self.kinds.iter().map(of_kind));
        remarks
    }
}
