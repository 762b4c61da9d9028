//! A file that is not whole yet: it is written under another name, which its writer locks, and
//! renamed when it is whole. Who finds it locked waits; the kernel frees the lock when its holder
//! dies.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use kintsugi_ffi::{lock, private};

/// Ends its name.
const PART: &str = ".part";

/// One file that is being written.
#[derive(Debug)]
pub struct Unfinished {
    /// What is written to.
    pub file: File,
    /// Its name until it is whole.
    pub path: PathBuf,
}

impl Unfinished {
    /// Opens it, with these rights if it is new, and waits for whoever writes it now.
    ///
    /// # Errors
    /// The kernel's: where it would lie nothing can be written, or locked.
    pub fn open(whole: &Path, mode: u32) -> io::Result<Self> {
        let mut path = whole.as_os_str().to_owned();
        path.push(PART);
        let path = PathBuf::from(path);
        let file = private::open_to_write(&path, mode)?;
        lock::await_lock(&file)?;
        Ok(Self { file, path })
    }

    /// Whether the file that is locked still has the name.
    pub fn is_there(&self) -> bool {
        let held = self.file.metadata().map(|facts| facts.ino());
        let named = fs::metadata(&self.path).map(|facts| facts.ino());
        matches!((held, named), (Ok(held), Ok(named)) if held == named)
    }

    /// It is not needed.
    pub fn discard(&self) {
        if self.is_there() {
            let _ = fs::remove_file(&self.path);
        }
    }
}
