//! The nodes of a simulated run: folders for copies and caches, real ones in memory, which the
//! production code makes, fills and reads. What happens to the copies between two starts of the
//! world, and whether they are what they should be at the end.

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kintsugi_ffi::private;
use xxhash_rust::xxh3::xxh3_64;

use crate::config::Shown;
use crate::config::seed::{Stream, purpose};
use crate::data::set::DataSet;
use crate::data::staging::folder::Folder;
use crate::data::staging::key::Key;
use crate::data::staging::place;
use crate::data::store::{Entry, FetchError, Kind, Location, Store};
use crate::data::tiers::cache;

use super::broken::Rule;
use super::plane::{NODES_MAX, Plane};
use super::scenario::{Fault, SAMPLES};
use super::slots::Room;
use super::stand_in::{self, Listing};

/// The nodes' folders of one run; they go when it is over.
pub struct Nodes {
    plane: Plane,
    room: Room,
    /// Begins the names of this run's folders.
    name: String,
    /// What was done to the copies of each node's folder.
    damages: BTreeMap<PathBuf, u64>,
}

/// What became of the copies on one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copies {
    /// Its folder.
    pub node: String,
    /// How often each file was copied, by its name in the folder.
    pub made: BTreeMap<String, u64>,
    /// How often copies were damaged on purpose, or room was taken.
    pub damages: u64,
    /// Copies that are listed and are not what the set holds.
    pub wrong: Vec<String>,
}

impl Nodes {
    /// Without any folder yet.
    ///
    /// # Errors
    /// There is no place for them.
    pub fn new(plane: Plane) -> io::Result<Self> {
        let name = format!("simulated-{}-{}", std::process::id(), private::word());
        Ok(Self { plane, room: Room::new()?, name, damages: BTreeMap::new() })
    }

    /// For `staging.folder`.
    pub fn path(&self) -> &Path {
        self.room.path()
    }

    /// What the folders of a process's node are named after.
    pub fn local(&self, process: usize) -> String {
        format!("{}-{}", self.name, self.plane.node(process))
    }

    fn files(&self) -> Vec<PathBuf> {
        stand_in::files(SAMPLES, 0, self.plane.layout).into_keys().collect()
    }

    /// The training set, some of whose files cannot be copied where a fault says so.
    pub fn samples(&self, faults: &[Fault], listing: Listing) -> DataSet {
        let set = stand_in::samples(SAMPLES, 0, self.plane.layout, listing);
        let files = self.files();
        let unread = faults.iter().filter_map(|fault| match fault {
            Fault::Unread { draw } => Some(files[(draw % files.len() as u64) as usize].clone()),
            _ => None,
        });
        let store = Arc::new(Partial { inner: Arc::clone(&set.store), unread: unread.collect() });
        DataSet { store, ..set }
    }

    /// Folders with copies, by name.
    fn folders(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.path()).into_iter().flatten().flatten();
        let mut folders: Vec<PathBuf> =
            entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
        folders.sort_unstable();
        folders
    }

    /// Damages copies, or takes the room for some, before an attempt; what was done, for the trace.
    pub fn strike(&mut self, faults: &[Fault], number: u32, rule: Rule) -> Vec<String> {
        let mut told = Vec::new();
        for fault in faults {
            let done = match fault {
                Fault::Copies { attempt, draw } if *attempt == number => self.damage(*draw, rule),
                Fault::NoRoom { attempt, draw } if *attempt == number => self.fill(*draw),
                _ => None,
            };
            if let Some((folder, what)) = done {
                let node = self.node_of(&folder);
                *self.damages.entry(folder).or_default() += 1;
                told.push(format!("attempt {number}: node {node}: {what}"));
            }
        }
        told
    }

    /// Without the run's name, which is another one in every play.
    fn node_of(&self, folder: &Path) -> String {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let rest = name.split_once(&self.name).map_or("", |(_, rest)| rest);
        rest.trim_start_matches('-').split('-').next().unwrap_or_default().to_owned()
    }

    fn damage(&self, draw: u64, rule: Rule) -> Option<(PathBuf, String)> {
        let mut draws = Stream::new(&[draw, purpose::SIMULATE, 6]);
        let folders = self.folders();
        let folder = pick(&mut draws, &folders)?.clone();
        let copies = copies(&folder);
        let what = draws.below(7);
        if what == 0 {
            std::fs::remove_dir_all(&folder).ok()?;
            return Some((folder, "its copies are gone".into()));
        }
        let path = match what {
            1 => folder.join("MANIFEST"),
            _ => pick(&mut draws, &copies)?.clone(),
        };
        let mut body = std::fs::read(&path).ok()?;
        let at = draws.below(body.len().max(1) as u64) as usize;
        let told = match what {
            1 | 2 => {
                body.truncate(at);
                "torn"
            }
            3 => {
                std::fs::remove_file(&path).ok()?;
                return Some((folder, format!("{} is gone", name_of(&path))));
            }
            4 => {
                // What a killed writer leaves, and the copy is not there.
                std::fs::rename(&path, path.with_extension("part")).ok()?;
                return Some((folder, format!("{} is not whole", name_of(&path))));
            }
            _ => {
                *body.get_mut(at)? ^= 1 << draws.below(8);
                "a flipped bit"
            }
        };
        std::fs::write(&path, &body).ok()?;
        if rule == Rule::Believing && what > 1 {
            relist(&folder, &path, &body)?;
        }
        Some((folder, format!("{}: {told}", name_of(&path))))
    }

    /// Takes the place of the folder for some copies: none of them can be written.
    fn fill(&self, draw: u64) -> Option<(PathBuf, String)> {
        let mut draws = Stream::new(&[draw, purpose::SIMULATE, 7]);
        let process = draws.below(NODES_MAX) as usize;
        let files = self.files();
        let file = pick(&mut draws, &files)?;
        let staging = crate::config::Staging {
            folder: Some(self.path().to_owned()),
            ..crate::config::Staging::default()
        };
        let print = stand_in::fingerprint(SAMPLES, 0);
        let folder = place::folder(&staging, &self.local(process), print);
        private::enter_folder(&folder).ok()?;
        let taken = Key::of(file).path(&folder).parent()?.to_owned();
        // What is there already stays.
        std::fs::OpenOptions::new().write(true).create_new(true).open(&taken).ok()?;
        Some((folder, format!("no room for {}", file.shown())))
    }

    /// What became of all copies; the folders go.
    pub fn finish(self) -> Vec<Copies> {
        let right = stand_in::files(SAMPLES, 0, self.plane.layout);
        let right: BTreeMap<Key, Vec<u8>> =
            right.into_iter().map(|(file, bytes)| (Key::of(&file), bytes)).collect();
        let all = self.folders().into_iter().map(|folder| Copies {
            node: self.node_of(&folder),
            made: made(&folder),
            damages: self.damages.get(&folder).copied().unwrap_or(0),
            wrong: wrong(&folder, &right),
        });
        let all: Vec<Copies> = all.collect();
        // As many names as there ever were processes.
        for process in 0..PROCESSES_SWEPT {
            cache::sweep(&self.local(process));
        }
        all
    }
}

/// Processes of one attempt whose caches are looked for.
const PROCESSES_SWEPT: usize = 64;

/// A store of which some files cannot be looked at, which only copying does.
struct Partial {
    inner: Arc<dyn Store>,
    unread: Vec<PathBuf>,
}

impl Store for Partial {
    fn fetch(&self, location: &Location<'_>, into: &mut Vec<u8>) -> Result<(), FetchError> {
        self.inner.fetch(location, into)
    }
    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>> {
        self.inner.list(folder)
    }
    fn look(&self, path: &Path) -> io::Result<Kind> {
        match self.unread.iter().any(|file| file == path) {
            true => Err(io::ErrorKind::PermissionDenied.into()),
            false => self.inner.look(path),
        }
    }
    fn changed_ns(&self, path: &Path) -> io::Result<Option<i64>> {
        self.inner.changed_ns(path)
    }
}

fn pick<'a, T>(draws: &mut Stream, from: &'a [T]) -> Option<&'a T> {
    (!from.is_empty()).then(|| &from[draws.below(from.len() as u64) as usize])
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Whole copies below a node's folder.
fn copies(folder: &Path) -> Vec<PathBuf> {
    let below = |folder: &Path| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let inner = below(folder).filter(|entry| entry.path().is_dir());
    let files = inner.flat_map(|entry| below(&entry.path()).map(|file| file.path()));
    let mut files: Vec<PathBuf> = files.filter(|path| path.extension().is_none()).collect();
    files.sort_unstable();
    files
}

/// Makes the manifest say that a copy is as it is now.
fn relist(folder: &Path, path: &Path, body: &[u8]) -> Option<()> {
    let (manifest, hash) = (folder.join("MANIFEST"), format!("{:016x}", xxh3_64(body)));
    let key = format!("{}{}", name_of(path.parent()?), name_of(path));
    let mut text = String::new();
    for line in std::fs::read_to_string(&manifest).ok()?.lines() {
        let Ok(mut line) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        if line["key"] == key.as_str() {
            (line["xxh3"], line["bytes"]) = (hash.as_str().into(), body.len().into());
        }
        text.push_str(&format!("{line}\n"));
    }
    std::fs::write(manifest, text).ok()
}

/// How often the manifest says that a file was copied.
fn made(folder: &Path) -> BTreeMap<String, u64> {
    let text = std::fs::read(folder.join("MANIFEST")).unwrap_or_default();
    let mut made = BTreeMap::new();
    for line in text.split(|byte| *byte == b'\n') {
        let line: Option<serde_json::Value> = serde_json::from_slice(line).ok();
        if let Some(file) = line.as_ref().and_then(|line| line["file"].as_str()) {
            *made.entry(file.to_owned()).or_default() += 1;
        }
    }
    made
}

/// Copies that production takes for whole and whose bytes are not the set's.
fn wrong(folder: &Path, right: &BTreeMap<Key, Vec<u8>>) -> Vec<String> {
    let Ok(opened) = Folder::open(folder) else { return Vec::new() };
    opened.verify(&mut |_| ControlFlow::Continue(()));
    let listed = right.iter().filter(|(key, _)| opened.copy_of(**key).is_some());
    let wrong = listed.filter(|(key, bytes)| {
        std::fs::read(key.path(folder)).map_or(true, |found| found != **bytes)
    });
    wrong.map(|(key, _)| key.to_string()).collect()
}
