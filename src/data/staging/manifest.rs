//! `MANIFEST` of a staging folder: a JSON object a line for each file that is there whole. Several
//! processes append to it; a line is written in one call, and a torn one is passed over.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::key::Key;

/// Its name in the folder.
const NAME: &str = "MANIFEST";
/// Longest line that is read: a path has at most 4 KiB, escaped at most six times that.
const LINE_BYTES_MAX: usize = 64 << 10;

/// One copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// The file that it is a copy of.
    pub file: String,
    /// Its name in the folder, from the file's path.
    pub key: Key,
    /// Its length.
    pub bytes: u64,
    /// When its file had last changed, as it was copied: nanoseconds since 1970. `None`: its store
    /// does not know, or an earlier release copied it.
    #[serde(default)]
    pub changed_ns: Option<i64>,
    /// XXH3-64 of its bytes, in hexadecimal digits.
    pub xxh3: String,
    /// When a run made it, or found it to be of the file and used it: nanoseconds since 1970 by
    /// this node's clock; 0: by an earlier release. `None`: made ahead of a run.
    #[serde(default = "long_ago")]
    pub made_ns: Option<i64>,
}

fn long_ago() -> Option<i64> {
    Some(0)
}

impl Line {
    /// The hash as a number; `None` where it is none.
    pub fn hash(&self) -> Option<u64> {
        u64::from_str_radix(&self.xxh3, 16).ok()
    }
}

/// The open file.
#[derive(Debug)]
pub struct Manifest {
    path: PathBuf,
    file: File,
    /// What was read of it so far.
    read_bytes: u64,
}

impl Manifest {
    /// Opens it, made if it is not there.
    ///
    /// # Errors
    /// The kernel's.
    pub fn open(folder: &Path) -> io::Result<Self> {
        let path = folder.join(NAME);
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(0o600);
        let file = options.open(&path)?;
        Ok(Self { path, file, read_bytes: 0 })
    }

    /// The lines that came since the last call, whoever wrote them.
    ///
    /// # Errors
    /// The kernel's.
    pub fn news(&mut self) -> io::Result<Vec<Line>> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.read_bytes))?;
        let (mut reader, mut lines) = (BufReader::new(file), Vec::new());
        let (mut text, mut read_bytes) = (Vec::new(), 0);
        loop {
            text.clear();
            let length = reader.read_until(b'\n', &mut text)?;
            if length == 0 || text.last() != Some(&b'\n') {
                // Lines count as read once they are handed out.
                self.read_bytes += read_bytes;
                return Ok(lines);
            }
            read_bytes += length as u64;
            if length <= LINE_BYTES_MAX
                && let Ok(line) = serde_json::from_slice(&text)
            {
                lines.push(line);
            }
        }
    }

    /// Adds a line.
    ///
    /// # Errors
    /// The kernel's.
    pub fn append(&mut self, line: &Line) -> io::Result<()> {
        let mut text = serde_json::to_vec(line).map_err(io::Error::other)?;
        // What a killed process left of its last line ends here at the latest.
        text.insert(0, b'\n');
        text.push(b'\n');
        self.file.write_all(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str) -> Line {
        let key = Key::of(Path::new(name));
        let (file, xxh3) = (name.into(), "00ff".into());
        let (changed_ns, made_ns) = (Some(-1), Some(5));
        Line { file, key, bytes: 3, changed_ns, xxh3, made_ns }
    }

    #[test]
    fn two_processes_read_each_others_lines_and_pass_over_a_torn_one() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let mut one = Manifest::open(folder.path()).expect("opened");
        one.append(&line("/set/a")).expect("written");
        one.file.write_all(b"{\"file\": \"/set/tor").expect("written");
        let mut two = Manifest::open(folder.path()).expect("opened");
        assert_eq!(two.news().expect("read"), [line("/set/a")]);
        two.append(&line("/set/b")).expect("written");
        assert_eq!(two.news().expect("read"), [line("/set/b")]);
        assert_eq!(one.news().expect("read"), [line("/set/a"), line("/set/b")]);
        assert_eq!(one.news().expect("read"), []);
        assert_eq!(line("/set/a").hash(), Some(255));
    }
}
