//! The staging folder of a node: whole copies of files, by the key of their path, and a manifest.
//! All ranks of the node share it; each file is copied once. A copy becomes visible whole: it is
//! written under another name, which its writer locks, and renamed. Its hash is checked when it is
//! read. One that lay there before is compared with its file once, by the time of that.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};

use kintsugi_ffi::lock;
use kintsugi_ffi::private::{self, Access};
use thiserror::Error;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use crate::config::Shown;
use crate::data::store::direct::Direct;
use crate::data::store::{Extent, FILE_BYTES_MAX, FetchError, Kind, Location, Store};
use crate::data::unfinished::Unfinished;
use crate::observe::refusal::Meaning;

use super::key::Key;
use super::manifest::{Line, Manifest};

/// A large file is copied in pieces of so many bytes.
const PIECE_BYTES: u64 = 8 << 20;
/// What is read at a time to be hashed.
const HASHED_BYTES: usize = 256 << 10;
/// A copy is its owner's alone.
const COPY_MODE: u32 = 0o600;
/// In the folder: what is locked while something is urgent for the node.
const URGENT: &str = "URGENT";
/// Other processes whose copy of one file is waited for, each in turn.
const TURNS_MAX: usize = 64;

/// Why a file was not copied.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum CopyError {
    /// It cannot be read: its readers will be told the same.
    #[error("{0}")]
    Source(String),
    /// The folder cannot take it.
    #[error("{0}")]
    Folder(String),
}

/// How a copy came to be there; its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// This call made it.
    Made(u64),
    /// Another process, or thread, was before.
    Found(u64),
}

/// What a copy is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Copied {
    bytes: u64,
    hash: u64,
    /// When its file had last changed, if its store knows.
    changed_ns: Option<i64>,
    /// Nobody has looked yet whether its file is still the one that was copied.
    unseen: bool,
    /// Its bytes were hashed by this process; one of many samples is hashed only once.
    verified: bool,
}

/// What the folder says to a reader.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// These are the bytes.
    Here,
    /// It has no copy of the file.
    Not,
    /// It had one that cannot be used; it is forgotten.
    Damaged(String),
    /// It has one that cannot be read now.
    NotNow(String),
}

/// One set's staging folder.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    copies: RwLock<HashMap<Key, Copied>>,
    manifest: Mutex<Manifest>,
    /// Held while the folder is in use.
    lock: File,
    /// This process is done with it.
    retired: AtomicBool,
    local: Direct,
}

fn poisoned<T>(poison: PoisonError<T>) -> T {
    poison.into_inner()
}

impl Folder {
    /// Opens the folder, made if it is not there, and takes what its manifest lists.
    ///
    /// # Errors
    /// It cannot be made, or is another user's.
    pub fn open(root: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let held = options.open(lock_name(root))?;
        // Held before the folder is there: whoever removes it now is waited for.
        lock::await_share(&held)?;
        private::enter_folder(root)?;
        options.open(root.join(URGENT))?;
        let manifest = Mutex::new(Manifest::open(root)?);
        let copies = RwLock::default();
        let root = root.to_owned();
        let (retired, local) = (AtomicBool::new(false), Direct::default());
        let folder = Self { root, copies, manifest, lock: held, retired, local };
        folder.learn(Since::Opening);
        Ok(folder)
    }

    /// This process is done with it; the last one removes it.
    pub fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        // Where others hold it, the own lock is gone after the try, too.
        remove_if_alone(&self.root, &self.lock);
    }

    /// Where it is.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// What is locked while something is urgent for all ranks of the node.
    pub fn urgent_sign(&self) -> PathBuf {
        self.root.join(URGENT)
    }

    /// Learns of the copies that other processes made.
    pub fn catch_up(&self) {
        self.learn(Since::Now);
    }

    fn learn(&self, since: Since) {
        let lines = self.manifest.lock().unwrap_or_else(poisoned).news().unwrap_or_default();
        let mut copies = self.copies.write().unwrap_or_else(poisoned);
        for line in lines {
            let Some(hash) = line.hash() else { continue };
            let unseen = since == Since::Opening;
            let (bytes, changed_ns) = (line.bytes, line.changed_ns);
            let copied = Copied { bytes, hash, changed_ns, unseen, verified: false };
            match copies.entry(line.key) {
                // This process made it, or has read it.
                Entry::Occupied(held) if held.get().is_of(&copied) => {}
                // A file that was copied twice is what it was the second time.
                Entry::Occupied(mut held) => drop(held.insert(copied)),
                Entry::Vacant(none) => drop(none.insert(copied)),
            }
        }
    }

    /// Length of the copy of a file, where there is one that is of the file as it is.
    pub fn copy_of(&self, key: Key) -> Option<u64> {
        self.known(key).filter(|copied| !copied.unseen).map(|copied| copied.bytes)
    }

    fn known(&self, key: Key) -> Option<Copied> {
        self.copies.read().unwrap_or_else(poisoned).get(&key).copied()
    }

    /// The copy of a file is of the file as it is: this process looked, or one that works for it.
    pub fn seen(&self, key: Key) {
        if let Some(copied) = self.copies.write().unwrap_or_else(poisoned).get_mut(&key) {
            copied.unseen = false;
        }
    }

    /// Whether the copy of a file is of the one that had this size and time, where that is known.
    pub fn is_of(&self, file: &Path, (bytes, changed_ns): (u64, i64)) -> Option<bool> {
        let copied = self.known(Key::of(file))?;
        Some((copied.bytes, copied.changed_ns?) == (bytes, changed_ns))
    }

    /// Bytes of all copies.
    pub fn bytes(&self) -> u64 {
        self.copies.read().unwrap_or_else(poisoned).values().map(|copied| copied.bytes).sum()
    }

    /// Replaces what is in `into` with the bytes of `location`, if the folder has its file.
    pub fn fetch(&self, location: &Location<'_>, into: &mut Vec<u8>) -> Found {
        let key = Key::of(&location.file);
        let copied = self.known(key).filter(|copied| !copied.unseen);
        let Some(copied) = copied else { return Found::Not };
        match self.read(key, copied, location.extent, into) {
            Ok(()) => Found::Here,
            // Who still reads ahead may find the folder gone.
            Err(_) if self.retired.load(Ordering::Acquire) => Found::Not,
            Err(error) if is_unusable(&error) => {
                self.forget(key);
                Found::Damaged(error.reason)
            }
            Err(error) => Found::NotNow(error.reason),
        }
    }

    fn read(
        &self,
        key: Key,
        copied: Copied,
        extent: Extent,
        into: &mut Vec<u8>,
    ) -> Result<(), FetchError> {
        let path = key.path(&self.root);
        match extent {
            Extent::Whole { .. } => {
                self.local.fetch(&Location::whole(&*path, copied.bytes), into)?;
                Ok(check(copied, into.len() as u64, xxh3_64(into))?)
            }
            Extent::Range { offset, length } => {
                if !copied.verified {
                    let (bytes, hash) = hash_file(&path)?;
                    check(copied, bytes, hash)?;
                    let mut copies = self.copies.write().unwrap_or_else(poisoned);
                    copies.insert(key, Copied { verified: true, ..copied });
                }
                self.local.fetch(&Location::range(&*path, offset, length), into)
            }
        }
    }

    /// A copy that cannot be used is nobody's any more.
    fn forget(&self, key: Key) {
        self.copies.write().unwrap_or_else(poisoned).remove(&key);
        let path = key.path(&self.root);
        let _ = fs::remove_file(&path);
        self.local.close(&path);
    }

    /// Copies a file from the store, unless another process does: then waits for that. A copy that
    /// lay there before is made anew where the file has changed since.
    ///
    /// # Errors
    /// Either side's.
    pub fn copy(&self, store: &dyn Store, file: &Path, generation: u32) -> Result<Done, CopyError> {
        let key = Key::of(file);
        let path = key.path(&self.root);
        let ours = |error: io::Error| no_copies(&self.root, &error);
        if let Some(parent) = path.parent()
            && let Err(error) = private::make_folder(parent)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(ours(error));
        }
        for _ in 0..TURNS_MAX {
            let part = Unfinished::open(&path, COPY_MODE).map_err(ours)?;
            // Who held it has renamed it, or died and left it.
            if fs::symlink_metadata(&path).is_ok() {
                self.catch_up();
                match self.known(key) {
                    Some(copied) if !copied.unseen || self.is_still(copied, store, file) => {
                        self.seen(key);
                        part.discard();
                        return Ok(Done::Found(copied.bytes));
                    }
                    Some(_) => self.forget(key),
                    None => {}
                }
            }
            if !part.is_there() {
                continue;
            }
            let copied = write(store, file, &part.file).inspect_err(|error| {
                if matches!(error, Unwritten::Here(_)) {
                    // Half a file only takes room.
                    let _ = fs::remove_file(&part.path);
                }
            });
            let copied = copied.map_err(|error| match error {
                Unwritten::Here(error) => ours(error),
                Unwritten::There(text) => CopyError::Source(text),
            })?;
            fs::rename(&part.path, &path).map_err(ours)?;
            self.enter(file, key, copied, generation).map_err(ours)?;
            return Ok(Done::Made(copied.bytes));
        }
        Err(CopyError::Folder(format!("{}: others never finish it", path.shown())))
    }

    /// Whether the file has not changed since it was copied. A storage that does not answer now is
    /// no reason to lose a copy: that is said, in the same words for every file.
    fn is_still(&self, copied: Copied, store: &dyn Store, file: &Path) -> bool {
        match store.changed_ns(file) {
            Ok(changed_ns) => changed_ns == copied.changed_ns,
            Err(error) => {
                tracing::warn!(
                    "{}: copies are used although their files cannot be looked at: {error}",
                    self.root.shown()
                );
                true
            }
        }
    }

    fn enter(&self, file: &Path, key: Key, copied: Copied, generation: u32) -> io::Result<()> {
        let line = Line {
            file: file.to_string_lossy().into_owned(),
            key,
            bytes: copied.bytes,
            changed_ns: copied.changed_ns,
            xxh3: format!("{:016x}", copied.hash),
            generation,
        };
        self.manifest.lock().unwrap_or_else(poisoned).append(&line)?;
        self.copies.write().unwrap_or_else(poisoned).insert(key, copied);
        Ok(())
    }

    /// Files that have a copy.
    pub fn files(&self) -> u64 {
        self.copies.read().unwrap_or_else(poisoned).len() as u64
    }

    /// Hashes every copy; the keys of those that cannot be used, which are removed, and of those
    /// that cannot be read now. `progress` is
    /// told the bytes of each, and may end it.
    pub fn verify(&self, progress: &mut dyn FnMut(u64) -> ControlFlow<()>) -> Vec<Key> {
        let all: Vec<(Key, Copied)> =
            self.copies.read().unwrap_or_else(poisoned).iter().map(|(k, c)| (*k, *c)).collect();
        let mut damaged = Vec::new();
        for (key, copied) in all {
            let hashed = hash_file(&key.path(&self.root)).map_err(FetchError::from);
            if let Err(error) = hashed.and_then(|(bytes, hash)| Ok(check(copied, bytes, hash)?)) {
                if is_unusable(&error) {
                    self.forget(key);
                }
                damaged.push(key);
            }
            if progress(copied.bytes).is_break() {
                break;
            }
        }
        damaged
    }
}

impl Copied {
    /// Whether both are one copy, whatever is known of it beside.
    fn is_of(&self, other: &Self) -> bool {
        let what = |copied: &Self| (copied.bytes, copied.hash, copied.changed_ns);
        what(self) == what(other)
    }
}

/// When a copy was made that is learned of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Since {
    /// At any time before the folder was opened.
    Opening,
    /// By others that use the folder now.
    Now,
}

/// A copy is no loss, and one that cannot be read just now is no bad one.
fn is_unusable(error: &FetchError) -> bool {
    error.meaning != Meaning::NotNow
}

fn remove_if_alone(root: &Path, held: &File) {
    if matches!(lock::lock_file(held), Ok(lock::Lock::Taken)) {
        let _ = private::remove_folder(root);
        let _ = fs::remove_file(lock_name(root));
    }
}

/// Removes a folder that no process uses any more.
pub fn remove_unused(root: &Path) {
    if let Ok(held) = private::open_file(&lock_name(root), Access::Read) {
        remove_if_alone(root, &held);
    }
}

/// The lock lies beside the folder, so that it stays while the folder is removed.
fn lock_name(root: &Path) -> PathBuf {
    let mut name = root.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

fn check(copied: Copied, bytes: u64, hash: u64) -> Result<(), String> {
    if bytes != copied.bytes {
        return Err(format!("{bytes} bytes instead of {}", copied.bytes));
    }
    if hash != copied.hash {
        return Err("its bytes have changed".into());
    }
    Ok(())
}

fn hash_file(path: &Path) -> io::Result<(u64, u64)> {
    let (mut hasher, mut file, mut bytes) = (Xxh3::new(), File::open(path)?, 0);
    let mut piece = vec![0; HASHED_BYTES];
    loop {
        let read = file.read(&mut piece)?;
        if read == 0 {
            return Ok((bytes, hasher.digest()));
        }
        hasher.update(&piece[..read]);
        bytes += read as u64;
    }
}

/// Names the folder and no file in it: all ranks of a node say the same then, and one warning is
/// shown.
fn no_copies(root: &Path, error: &io::Error) -> CopyError {
    let advice = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "; set staging.folder to a larger local disk"
        }
        _ => "",
    };
    CopyError::Folder(format!("{}: {error}{advice}", root.shown()))
}

/// Why a copy is not whole.
#[derive(Debug)]
enum Unwritten {
    /// The folder's disk.
    Here(io::Error),
    /// What is copied.
    There(String),
}

fn write(store: &dyn Store, from: &Path, to: &File) -> Result<Copied, Unwritten> {
    let source = |error: FetchError| Unwritten::There(format!("{}: {error}", from.shown()));
    let folder = Unwritten::Here;
    to.set_len(0).map_err(folder)?;
    let bytes = match store.look(from) {
        Ok(Kind::File { bytes }) => bytes,
        Ok(_) => return Err(Unwritten::There(format!("{}: no file", from.shown()))),
        Err(error) => return Err(Unwritten::There(format!("{}: {error}", from.shown()))),
    };
    // Asked first: a file that changes while it is read is another one later.
    let changed_ns = store.changed_ns(from).map_err(|error| source(error.into()))?;
    let (mut hasher, mut buffer, mut done) = (Xxh3::new(), Vec::new(), 0);
    if bytes <= PIECE_BYTES.min(FILE_BYTES_MAX) {
        store.fetch(&Location::whole(from, bytes), &mut buffer).map_err(source)?;
        hasher.update(&buffer);
        (&*to).write_all(&buffer).map_err(folder)?;
        done = buffer.len() as u64;
    } else {
        while done < bytes {
            let length = PIECE_BYTES.min(bytes - done);
            store.fetch(&Location::range(from, done, length), &mut buffer).map_err(source)?;
            hasher.update(&buffer);
            (&*to).write_all(&buffer).map_err(folder)?;
            done += length;
        }
    }
    let hash = hasher.digest();
    Ok(Copied { bytes: done, hash, changed_ns, unseen: false, verified: true })
}

#[cfg(test)]
mod tests;
