//! Resident state that `kintsugi doctor` finds on a machine: whose it is, whether a run still uses
//! it, and its removal. State of an unfinished run is worth keeping: `launch` goes on from it.

use std::io;
use std::path::Path;

use serde::Serialize;

use crate::cluster::resident::folder::{Found, inventory};
use crate::launch::start::run_dir::RunDir;
use crate::observe::result::Status;
use crate::run_folder::is_supervised;

/// Who needs a file of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Use {
    /// A rank has it open, or a launch is between two attempts of its run.
    Held,
    /// Its run can go on from it.
    Waiting,
    /// Its run is complete or gone, or nothing can be read from it.
    Stale,
}

/// The files of one run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Slots {
    /// The run directory; empty when the files do not say.
    pub run_dir: String,
    /// How many.
    pub files: usize,
    /// Memory that they take.
    pub bytes: u64,
    /// The newest committed step among them.
    pub step: Option<u64>,
    /// Who needs them.
    pub used: Use,
}

/// What lies in a folder, run by run.
///
/// # Errors
/// The folder cannot be listed now.
pub fn listing(folder: &Path) -> io::Result<Vec<Slots>> {
    let mut runs: Vec<Slots> = Vec::new();
    for found in inventory(folder)? {
        let used = used(&found);
        let step = found.newest.as_ref().ok().map(|header| header.key.step);
        match runs.iter_mut().find(|run| run.run_dir == found.run_dir) {
            Some(run) => {
                run.files += 1;
                run.bytes += found.bytes;
                run.step = run.step.max(step);
                run.used = if run.used == Use::Held { Use::Held } else { used };
            }
            None => {
                let (run_dir, bytes) = (found.run_dir, found.bytes);
                runs.push(Slots { run_dir, files: 1, bytes, step, used });
            }
        }
    }
    Ok(runs)
}

/// Removes what no process uses; returns the files and bytes that are gone.
///
/// # Errors
/// The folder cannot be listed now.
pub fn clear(folder: &Path) -> io::Result<(usize, u64)> {
    let unused = inventory(folder)?.into_iter().filter(|found| used(found) != Use::Held);
    let removed = unused.filter(|found| std::fs::remove_file(&found.path).is_ok());
    Ok(removed.fold((0, 0), |(files, bytes), found| (files + 1, bytes + found.bytes)))
}

fn used(found: &Found) -> Use {
    let run = Path::new(&found.run_dir);
    if found.held || is_supervised(run) {
        return Use::Held;
    }
    let known = RunDir::at(run).ok().filter(|run| run.join("config.toml").exists());
    match known {
        Some(run) if found.newest.is_ok() => match run.result() {
            Some(result) if result.status == Status::Completed => Use::Stale,
            _ => Use::Waiting,
        },
        _ => Use::Stale,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use kintsugi_ffi::os::{self, Lock};

    use super::*;
    use crate::cluster::resident::{Folder, Shape, Slots as Memory};

    fn state(folder: &Folder, run_dir: &Path) -> Memory {
        let mut slots = Memory::vacant(Shape::of(&[("weights", 9)]));
        let label = run_dir.to_string_lossy().into_owned();
        slots.move_to(folder.create(slots.file_bytes(), &label).unwrap()).unwrap();
        slots.begin();
        slots.commit(7, 0, b"");
        slots
    }

    #[test]
    fn state_is_held_then_waits_then_is_stale() {
        let place = tempfile::tempdir().unwrap();
        let run = place.path().join("run");
        std::fs::create_dir(&run).unwrap();
        std::fs::write(run.join("config.toml"), "").unwrap();
        let slots = state(&Folder::new(place.path(), "0badcafe"), &run);
        let used = || listing(place.path()).unwrap()[0].used;
        assert_eq!((used(), listing(place.path()).unwrap()[0].step), (Use::Held, Some(7)));
        assert_eq!(clear(place.path()).unwrap().0, 0);
        drop(slots);
        assert_eq!(used(), Use::Waiting);
        let lock = File::create(run.join("lock")).unwrap();
        assert_eq!(os::lock_file(&lock).unwrap(), Lock::Taken);
        assert_eq!(used(), Use::Held, "its supervisor is about to start it again");
        drop(lock);
        std::fs::remove_dir_all(&run).unwrap();
        assert_eq!(used(), Use::Stale);
        assert_eq!(clear(place.path()).unwrap().0, 1);
        assert_eq!(listing(place.path()).unwrap(), vec![]);
    }
}
