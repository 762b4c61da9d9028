//! An experiment's folder: one experiment at a time works in it.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use kintsugi_ffi::os;

use crate::config::Shown;

/// In the folder; held while an experiment works, freed by the kernel whatever ends it.
const LOCK: &str = "experiment.lock";
/// What it says is a line.
const HOLDER_BYTES_MAX: u64 = 256;

/// The folder, for as long as this lives.
#[derive(Debug)]
pub struct Place {
    held: File,
}

impl Drop for Place {
    /// A child that is just being started holds a copy of the file until it runs its own program.
    fn drop(&mut self) {
        let _ = self.held.unlock();
    }
}

impl Place {
    /// Takes the folder, made if it is not there. `Ok(Err(_))`: who works in it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn take(folder: &Path) -> io::Result<Result<Self, String>> {
        std::fs::create_dir_all(folder)?;
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(folder.join(LOCK))?;
        if os::lock_file(&file)? == os::Lock::Busy {
            let mut holder = String::new();
            // Who has only just taken it has not written yet.
            let _ = file.take(HOLDER_BYTES_MAX).read_to_string(&mut holder);
            return Ok(Err(format!(
                "another experiment ({}) works in {}: wait for its end, or name another --out",
                holder.trim(),
                folder.shown()
            )));
        }
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "process {} on {}", std::process::id(), os::hostname())?;
        Ok(Ok(Self { held: file }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_experiments_do_not_work_in_one_folder() {
        let above = tempfile::tempdir().unwrap();
        let folder = above.path().join("out");
        let first = Place::take(&folder).unwrap().expect("nobody is there");
        let told = Place::take(&folder).unwrap().expect_err("somebody is");
        assert!(told.contains(&format!("process {} on ", std::process::id())), "{told}");
        assert!(told.contains("--out"), "{told}");
        drop(first);
        Place::take(&folder).unwrap().expect("nobody is there any more");
    }
}
