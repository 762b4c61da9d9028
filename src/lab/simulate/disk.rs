//! The run directory of a simulated run: files in memory that all simulated processes share, and
//! processes that die in the middle of changing them. What a reader may see is what the real
//! storage promises: whole files appear at once, appended lines may be torn, folders may be half
//! removed, a full disk tears lines and refuses the rest.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::cluster::comm::sim::SimStrike;
use crate::cluster::faults::{FAULTS_FOLDER, Strike};
use crate::config::{FaultKind, Point, Shown};
use crate::observe::storage::{MemoryStorage, Storage};

use super::scenario::{Fault, Moment};

/// What a claim on a planned flip of a bit says.
const BIT_FLIP: &str = "BitFlip";

#[derive(Debug, Clone, Copy)]
enum Trouble {
    Dies(Moment, u64),
    Full(u64),
}

/// What all processes of a run share.
pub struct Files {
    /// The files themselves: changes made here meet no fault.
    pub memory: MemoryStorage,
    changes: AtomicU64,
    troubles: Mutex<BTreeMap<u64, Trouble>>,
    fired: AtomicU64,
}

impl Files {
    /// Empty, with the disk's part of the faults.
    pub fn new(faults: &[Fault]) -> Self {
        let mut troubles = BTreeMap::new();
        for fault in faults {
            match fault {
                Fault::Write { change, moment, draw } => {
                    troubles.insert(*change, Trouble::Dies(*moment, *draw));
                }
                Fault::Full { change, changes, draw } => {
                    for at in *change..change + changes {
                        troubles.entry(at).or_insert(Trouble::Full(draw.wrapping_add(at)));
                    }
                }
                _ => {}
            }
        }
        Self {
            memory: MemoryStorage::new(),
            changes: AtomicU64::new(0),
            troubles: Mutex::new(troubles),
            fired: AtomicU64::new(0),
        }
    }

    /// Troubles met so far.
    pub fn fired(&self) -> u64 {
        self.fired.load(Ordering::Relaxed)
    }

    /// Planned flips of a bit that have been claimed so far.
    pub fn flips(&self) -> u64 {
        let folder = Path::new(FAULTS_FOLDER);
        let claims = self.memory.list(folder).unwrap_or_default();
        let is_one = |name: &String| {
            let body = self.memory.read(&folder.join(name)).unwrap_or_default();
            String::from_utf8_lossy(&body).contains(BIT_FLIP)
        };
        claims.iter().filter(|name| is_one(name)).count() as u64
    }

    /// What the change that comes now meets.
    fn next(&self) -> Option<Trouble> {
        let change = self.changes.fetch_add(1, Ordering::Relaxed);
        let mut troubles = self.troubles.lock().unwrap_or_else(PoisonError::into_inner);
        let trouble = troubles.remove(&change)?;
        self.fired.fetch_add(1, Ordering::Relaxed);
        Some(trouble)
    }

    /// What is in a file now, with more behind it.
    fn extend(&self, path: &Path, more: &[u8]) {
        let before = self.memory.read(path).unwrap_or_default();
        // Fails only where the folder is missing: then there is nothing to tear.
        let _ = self.memory.write_whole(path, &[&before, more]);
    }
}

/// One simulated process's view of the run directory.
pub struct Disk {
    files: Arc<Files>,
    process: SimStrike,
}

impl Disk {
    /// For the process that `strike` kills.
    pub fn new(files: Arc<Files>, process: SimStrike) -> Self {
        Self { files, process }
    }

    fn die(&self, what: &str, moment: Moment) {
        self.process.note(&format!("dies {moment:?} it changes the disk: {what}"));
        self.process.strike(FaultKind::Kill, Point::InPersist);
    }

    /// Makes a change that is whole or not at all; `half` is what is left when it is neither.
    fn change<T>(
        &self,
        what: &str,
        whole: impl FnOnce(&MemoryStorage) -> io::Result<T>,
        half: impl FnOnce(&Files, u64),
    ) -> io::Result<T> {
        match self.files.next() {
            None => whole(&self.files.memory),
            Some(Trouble::Full(_)) => {
                self.process.note(&format!("finds the disk full: {what}"));
                Err(full(what))
            }
            Some(Trouble::Dies(moment, draw)) => {
                match moment {
                    Moment::Before => {}
                    Moment::Middle => half(&self.files, draw),
                    // It dies whatever came of the change.
                    Moment::After => drop(whole(&self.files.memory)),
                }
                self.die(what, moment);
                Err(full(what))
            }
        }
    }
}

fn full(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::StorageFull, format!("{what}: simulated"))
}

fn cut(line: &[u8], draw: u64) -> &[u8] {
    &line[..(draw % (line.len() as u64 + 1)) as usize]
}

impl Storage for Disk {
    fn append_line(&self, path: &Path, line: &str) -> io::Result<()> {
        let what = format!("append to {}", path.shown());
        let whole = format!("{line}\n");
        match self.files.next() {
            None => self.files.memory.append_line(path, line),
            Some(Trouble::Full(draw)) => {
                self.process.note(&format!("finds the disk full: {what}"));
                // A line is never whole on a full disk.
                self.files.extend(path, cut(line.as_bytes(), draw));
                Err(full(&what))
            }
            Some(Trouble::Dies(moment, draw)) => {
                match moment {
                    Moment::Before => {}
                    Moment::Middle => self.files.extend(path, cut(whole.as_bytes(), draw)),
                    Moment::After => self.files.extend(path, whole.as_bytes()),
                }
                self.die(&what, moment);
                Err(full(&what))
            }
        }
    }

    fn write_whole(&self, path: &Path, body: &[&[u8]]) -> io::Result<()> {
        let what = format!("write {}", path.shown());
        self.change(&what, |memory| memory.write_whole(path, body), |_, _| {})
    }

    fn create_new(&self, path: &Path, body: &[u8]) -> io::Result<()> {
        let what = format!("create {}", path.shown());
        self.change(
            &what,
            |memory| memory.create_new(path, body),
            |files, draw| drop(files.memory.create_new(path, cut(body, draw))),
        )
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.files.memory.read(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.files.memory.list(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let what = format!("rename {} to {}", from.shown(), to.shown());
        self.change(&what, |memory| memory.rename(from, to), |_, _| {})
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let what = format!("remove {}", path.shown());
        self.change(
            &what,
            |memory| memory.remove(path),
            |files, draw| {
                let names = files.memory.list(path).unwrap_or_default();
                for (at, name) in names.iter().enumerate() {
                    if draw >> (at % 64) & 1 == 1 {
                        // Present a moment ago, and nobody else runs.
                        drop(files.memory.remove(&path.join(name)));
                    }
                }
            },
        )
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        // Present folders are no change, and are asked for all the time.
        if self.files.memory.list(path).is_ok_and(|names| !names.is_empty()) {
            return Ok(());
        }
        let what = format!("create folder {}", path.shown());
        self.change(&what, |memory| memory.create_dir(path), |_, _| {})
    }
}
