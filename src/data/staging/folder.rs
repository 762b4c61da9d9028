//! The staging folder of a node: whole copies of files, by the key of their path, and a manifest.
//! All ranks of the node share it; each file is copied once. A copy becomes visible whole: it is
//! written under another name, which its writer locks, and renamed. Its hashes are checked at every
//! read. One that lay there before is compared with its file once, by the time of that.

mod copied;
mod of_run;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::ops::ControlFlow;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use kintsugi_ffi::lock;
use kintsugi_ffi::private::{self, Access};
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

use crate::config::Shown;
use crate::data::Occasion;
use crate::data::store::direct::Direct;
use crate::data::store::{Extent, FetchError, Location, Store};
use crate::data::unfinished::Unfinished;
use crate::observe::refusal::Meaning;

use super::key::Key;
use super::manifest::{Line, Manifest};
use copied::{Copied, Hashed, Unwritten, check, hash_file, write};
use of_run::{Company, OfRun};

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
    /// Hashes of the parts of copies that hold many samples, which are read one by one.
    hashed: RwLock<HashMap<Key, Arc<Hashed>>>,
    /// Held by who hashes a copy that others of this process want to read, too.
    hashing: Mutex<()>,
    of_run: OfRun,
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
        let company = match lock::lock_file(&held) {
            Ok(lock::Lock::Taken) => Company::None,
            _ => Company::Others,
        };
        // Held before the folder is there: whoever removes it now is waited for.
        lock::await_share(&held)?;
        private::enter_folder(root)?;
        options.open(root.join(URGENT))?;
        let manifest = Mutex::new(Manifest::open(root)?);
        let folder = Self {
            root: root.to_owned(),
            copies: RwLock::default(),
            hashed: RwLock::default(),
            hashing: Mutex::default(),
            of_run: OfRun::ahead(root, company),
            manifest,
            lock: held,
            retired: AtomicBool::new(false),
            local: Direct::default(),
        };
        folder.learn(Since::Opening);
        Ok(folder)
    }

    /// What a process of a run opens it for.
    #[must_use]
    pub fn opened_for(mut self, occasion: Occasion) -> Self {
        self.of_run.enters(occasion);
        self
    }

    /// Copies are made for a run from now on, and not ahead of it.
    #[must_use]
    pub fn of_a_run(mut self) -> Self {
        self.of_run.joins();
        self
    }

    /// Whether a file's bytes became others while the run that copied it went on.
    pub fn is_rewritten(&self, file: &Path) -> bool {
        self.of_run.is_rewritten(file)
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
            let Line { bytes, changed_ns, made_ns, .. } = line;
            let copied = Copied { bytes, hash, changed_ns, made_ns, unseen };
            match copies.entry(line.key) {
                // This process made it, or has read it.
                Entry::Occupied(mut held) if held.get().is_of(&copied) => {
                    let held = held.get_mut();
                    held.made_ns = held.made_ns.max(made_ns);
                }
                // A file that was copied twice is what it was the second time.
                Entry::Occupied(mut held) => {
                    let before = held.insert(copied);
                    self.of_run.replaces(line.key, before, copied);
                    self.local.close(&line.key.path(&self.root));
                }
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
                // Unless another has come in its place meanwhile.
                if self.known(key).is_some_and(|now| now.is_of(&copied)) {
                    self.forget(key);
                }
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
                let hashed = self.hashed(key, copied)?;
                let (from, covering) = hashed.covering(offset, length)?;
                self.local.fetch(&Location::range(&*path, from, covering), into)?;
                hashed.check(from, into)?;
                into.truncate((offset + length - from) as usize);
                into.drain(..(offset - from) as usize);
                Ok(())
            }
        }
    }

    /// The hashes of a copy's parts: made once by each process, of bytes that are the copy's.
    fn hashed(&self, key: Key, copied: Copied) -> Result<Arc<Hashed>, FetchError> {
        let held = || {
            let all = self.hashed.read().unwrap_or_else(poisoned);
            all.get(&key).filter(|held| held.is_of(&copied)).map(Arc::clone)
        };
        if let Some(held) = held() {
            return Ok(held);
        }
        let _hashes = self.hashing.lock().unwrap_or_else(poisoned);
        if let Some(held) = held() {
            return Ok(held);
        }
        let hashed = Arc::new(hash_file(&key.path(&self.root))?);
        check(copied, hashed.bytes, hashed.hash)?;
        self.hashed.write().unwrap_or_else(poisoned).insert(key, Arc::clone(&hashed));
        Ok(hashed)
    }

    /// A copy that cannot be used is nobody's any more.
    fn forget(&self, key: Key) {
        let copied = self.copies.write().unwrap_or_else(poisoned).remove(&key);
        copied.into_iter().for_each(|copied| self.of_run.gives_up(key, copied));
        self.hashed.write().unwrap_or_else(poisoned).remove(&key);
        let path = key.path(&self.root);
        let _ = fs::remove_file(&path);
        self.local.close(&path);
    }

    /// Copies a file from the store, unless another process does: then waits for that. A copy that
    /// lay there before is made anew where the file has changed since.
    ///
    /// # Errors
    /// Either side's.
    pub fn copy(&self, store: &dyn Store, file: &Path) -> Result<Done, CopyError> {
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
                        if self.of_run.is_news(copied) {
                            let made_ns = self.of_run.now();
                            let used = Copied { made_ns, unseen: false, ..copied };
                            self.enter(file, key, used).map_err(ours)?;
                        }
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
            let (copied, hashed) = copied.map_err(|error| match error {
                Unwritten::Here(error) => ours(error),
                Unwritten::There(text) => CopyError::Source(text),
            })?;
            fs::rename(&part.path, &path).map_err(ours)?;
            let copied = Copied { made_ns: self.of_run.now(), ..copied };
            // Known before anybody reads it.
            self.of_run.gets(key, copied);
            self.enter(file, key, copied).map_err(ours)?;
            let mut all = self.hashed.write().unwrap_or_else(poisoned);
            all.extend(hashed.map(|hashed| (key, Arc::new(hashed))));
            drop(all);
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

    fn enter(&self, file: &Path, key: Key, copied: Copied) -> io::Result<()> {
        let line = Line {
            file: file.to_string_lossy().into_owned(),
            key,
            bytes: copied.bytes,
            changed_ns: copied.changed_ns,
            xxh3: format!("{:016x}", copied.hash),
            made_ns: copied.made_ns,
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
            if let Err(error) = hashed.and_then(|of| Ok(check(copied, of.bytes, of.hash)?)) {
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

#[cfg(test)]
mod tests;
