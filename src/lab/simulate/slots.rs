//! Resident state of a simulated run: slot files in a folder in memory that the production code
//! makes, locks, maps and takes over, and what happens to them between two starts of the world.
//! A simulated process that dies lets go of its file as a killed one does; the file stays.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Once;

use kintsugi_ffi::mapping::PAGE_BYTES;
use kintsugi_ffi::{os, private};

use crate::cluster::resident::header::Key;
use crate::cluster::resident::{EXTRA_BYTES_MAX, Folder, Look};
use crate::config::Shown;
use crate::config::seed::{Stream, purpose};
use crate::launch::start::run_dir::RunDir;

use super::scenario::RUN_ID;

/// Named after this process, so that a later one can tell whose it was.
const PREFIX: &str = "kintsugi-simulate-";
/// Headers and label of a file, before its two bodies.
const HEAD_BYTES: u64 = 3 * PAGE_BYTES as u64;
/// Bytes of a header that its checksum covers.
const HEADER_BYTES: u64 = 13 * 8;
/// Where the first tensor of a body begins.
const TENSORS_AT: u64 = (EXTRA_BYTES_MAX + PAGE_BYTES / 2) as u64;
/// The stand-in's first layer: less than any model has.
const TENSOR_BYTES: u64 = 18 * 4;
/// Holders of a state among which a flipped weight is found by majority.
const HOLDERS_MIN: usize = 3;

/// The folder of one run; it goes when the run is over.
pub struct Room {
    path: PathBuf,
    /// Its files before the attempt at hand.
    before: Vec<(PathBuf, Vec<u8>)>,
}

impl Room {
    /// In shared memory where there is some, else where temporary files lie.
    pub fn new() -> io::Result<Self> {
        static CLEARED: Once = Once::new();
        let shared = Path::new("/dev/shm");
        let base = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
        CLEARED.call_once(|| clear_abandoned(&base));
        let path = base.join(format!("{PREFIX}{}-{}", std::process::id(), private::word()));
        private::make_folder(&path)?;
        Ok(Self { path, before: Vec::new() })
    }

    /// For `recovery.resident_dir`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn files(&self) -> Vec<PathBuf> {
        let id = RunDir::at(Path::new(RUN_ID)).map(|run| run.id()).unwrap_or_default();
        Folder::new(&self.path, &id).files().unwrap_or_default()
    }

    /// Keeps a copy of every file, to be put back as an old one later.
    pub fn remember(&mut self) {
        let read = |path: PathBuf| std::fs::read(&path).ok().map(|body| (path, body));
        self.before = self.files().into_iter().filter_map(read).collect();
    }

    /// Damages one file; what was done, for the trace.
    pub fn damage(&self, draw: u64) -> Option<String> {
        let mut draws = Stream::new(&[draw, purpose::SIMULATE, 3]);
        let files = self.files();
        if files.is_empty() {
            return None;
        }
        let path = &files[draws.below(files.len() as u64) as usize];
        let mut body = std::fs::read(path).ok()?;
        let slot = draws.below(2);
        let body_bytes = (body.len() as u64).saturating_sub(HEAD_BYTES) / 2;
        let body_at = HEAD_BYTES + slot * body_bytes;
        let old = self.before.iter().find(|(name, _)| name == path);
        let (what, at) = match draws.below(6) {
            0 => {
                body.truncate(draws.below(body.len().max(1) as u64) as usize);
                ("torn", None)
            }
            1 if old.is_some() => {
                body.clone_from(&old.expect("matched").1);
                ("an old one", None)
            }
            1 | 2 => {
                std::fs::remove_file(path).ok()?;
                return Some(format!("removed slots {}", name_of(path)));
            }
            3 => ("a flipped position", Some(body_at + draws.below(64))),
            4 if self.holders(path, slot as usize) >= HOLDERS_MIN => {
                ("a flipped weight", Some(body_at + TENSORS_AT + draws.below(TENSOR_BYTES)))
            }
            _ => {
                let header = slot * PAGE_BYTES as u64;
                ("a flipped header", Some(header + draws.below(HEADER_BYTES)))
            }
        };
        if let Some(byte) = at.and_then(|at| body.get_mut(at as usize)) {
            *byte ^= 1 << draws.below(8);
        }
        // In place: it stays the file that it was.
        std::fs::write(path, body).ok()?;
        Some(format!("damaged slots {}, slot {slot}: {what}", name_of(path)))
    }

    /// How many files hold the state of this slot.
    fn holders(&self, path: &Path, slot: usize) -> usize {
        let Some(key) = keys(path)[slot] else { return 0 };
        self.files().iter().filter(|file| keys(file).contains(&Some(key))).count()
    }
}

/// Without the folder, which has another name in every play.
fn name_of(path: &Path) -> std::borrow::Cow<'_, str> {
    path.file_name().unwrap_or_default().to_string_lossy()
}

fn keys(path: &Path) -> [Option<Key>; 2] {
    let headers = Look::at(path).and_then(|look| look.headers());
    headers.map_or([None, None], |headers| headers.map(|header| header.ok().map(|h| h.key)))
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!("{} stays behind: {error}", self.path.shown());
        }
    }
}

/// Folders of processes that were killed.
fn clear_abandoned(base: &Path) {
    for entry in std::fs::read_dir(base).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse().ok());
        if owner.is_some_and(|pid: u32| !os::process_is_alive(pid)) {
            let _ = private::remove_folder(&entry.path());
        }
    }
}
