//! What lies in an image folder and is not read: counted by kind, and said in a few sentences.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::config::Shown;

use super::decode;

/// Endings that are named; the rest is summed up.
const ENDINGS_NAMED_MAX: usize = 8;
/// The folder that macOS puts into its archives, full of files that are no pictures.
const ARCHIVE_FOLDER: &str = "__MACOSX";

/// Whether the file's name says that it is a picture which is read.
pub(super) fn is_picture(name: &Path) -> bool {
    name.extension().is_some_and(|extension| {
        decode::EXTENSIONS.iter().any(|known| extension.eq_ignore_ascii_case(known))
    })
}

/// What is read, for messages.
pub(super) fn endings_read() -> String {
    decode::EXTENSIONS.map(|extension| format!(".{extension}")).join(" ")
}

/// Counts of what is not read.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Leftovers {
    /// Files by ending, in small letters.
    endings: BTreeMap<String, u64>,
    hidden: u64,
    archive_folders: u64,
    /// Pictures in the root, which belong to no class.
    classless: u64,
    deep: u64,
    /// Links to nothing whose names are not those of pictures.
    broken: u64,
    again: u64,
    /// The first folder that is met again.
    again_first: Option<PathBuf>,
}

impl Leftovers {
    /// Whether the name is one that no set means: hidden, or an archive tool's folder. Counts it.
    pub(super) fn takes(&mut self, name: &OsStr) -> bool {
        if name == ARCHIVE_FOLDER {
            self.archive_folders += 1;
            return true;
        }
        let hidden = name.as_encoded_bytes().starts_with(b".");
        self.hidden += u64::from(hidden);
        hidden
    }

    /// A file that is no picture.
    pub(super) fn file(&mut self, name: &Path) {
        let ending = name.extension().map_or_else(
            || "without an ending".to_owned(),
            |extension| format!(".{}", extension.to_ascii_lowercase().shown()),
        );
        *self.endings.entry(ending).or_default() += 1;
    }

    /// Those of another part of the set.
    pub(super) fn add(&mut self, other: Self) {
        for (ending, count) in other.endings {
            *self.endings.entry(ending).or_default() += count;
        }
        self.hidden += other.hidden;
        self.archive_folders += other.archive_folders;
        self.classless += other.classless;
        self.deep += other.deep;
        self.broken += other.broken;
        self.again += other.again;
        self.again_first = self.again_first.take().or(other.again_first);
    }

    /// A picture that lies in no class folder.
    pub(super) fn classless(&mut self) {
        self.classless += 1;
    }

    /// A link to nothing that may have been a folder.
    pub(super) fn broken(&mut self) {
        self.broken += 1;
    }

    /// A folder below the deepest that is looked into.
    pub(super) fn too_deep(&mut self) {
        self.deep += 1;
    }

    /// A way to a folder that is read elsewhere, or that holds the set.
    pub(super) fn met_again(&mut self, folder: PathBuf) {
        self.again += 1;
        self.again_first.get_or_insert(folder);
    }

    /// `20 .heic, 2 .txt`; the most frequent first. Empty where every file is read.
    pub(super) fn by_ending(&self) -> String {
        let mut endings: Vec<(&String, &u64)> = self.endings.iter().collect();
        endings.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let rest: u64 = endings.iter().skip(ENDINGS_NAMED_MAX).map(|(_, count)| **count).sum();
        let named = endings.iter().take(ENDINGS_NAMED_MAX);
        let mut parts: Vec<String> =
            named.map(|(ending, count)| format!("{count} {ending}")).collect();
        if rest > 0 {
            parts.push(format!("{rest} others"));
        }
        parts.join(", ")
    }

    /// The sentences; `key` is the configuration key of the set.
    pub(super) fn remarks(&self, key: &str) -> Vec<String> {
        let files: u64 = self.endings.values().sum();
        let mut remarks = Vec::new();
        let mut say = |count: u64, text: String| {
            if count > 0 {
                remarks.push(format!("{key}: {text}"));
            }
        };
        let (unread, read) = (self.by_ending(), endings_read());
        say(files, format!("{files} files are not read: {unread} (read are {read})"));
        let count = self.classless;
        say(count, format!("{count} pictures lie beside the class folders and are not read"));
        let count = self.hidden;
        say(count, format!("{count} hidden names (they begin with a dot) are left out"));
        let count = self.archive_folders;
        say(count, format!("{count} folders {ARCHIVE_FOLDER} of an archive are left out"));
        let (count, first) = (self.again, self.again_first.as_deref().unwrap_or(Path::new("")));
        let first = first.shown();
        say(
            count,
            format!(
                "{count} links lead to folders that are read elsewhere or hold the set, and are \
                 not followed: {first}"
            ),
        );
        let count = self.broken;
        say(count, format!("{count} links lead to nothing; what they led to is left out"));
        say(self.deep, format!("{} folders lie too deep and are not read", self.deep));
        remarks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_read_is_counted_by_ending_the_most_frequent_first() {
        let mut left = Leftovers::default();
        assert!(left.remarks("data.train").is_empty());
        for (count, ending) in (1..12).zip('a'..) {
            (0..count).for_each(|_| left.file(Path::new(&format!("x.{ending}"))));
        }
        left.file(Path::new("K.K"));
        left.file(Path::new("README"));
        let text = &left.remarks("data.train")[0];
        let expected = "data.train: 68 files are not read: 12 .k, 10 .j, 9 .i, 8 .h, 7 .g, 6 .f, \
                        5 .e, 4 .d, 7 others (read are .jpg";
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn torchvisions_endings_are_pictures_whatever_their_case() {
        for name in ["a.jpg", "a.JPEG", "a.Png", "a.ppm", "a.bmp", "a.pgm", "a.tif", "a.tiff"] {
            assert!(is_picture(Path::new(name)), "{name}");
        }
        assert!(is_picture(Path::new("b.webp")) && is_picture(Path::new("b.gif")));
        assert!(!is_picture(Path::new("jpg")) && !is_picture(Path::new("a.heic")));
    }
}
