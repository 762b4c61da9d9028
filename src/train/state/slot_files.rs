//! Where this rank's state lies so that it outlives the process: makes or takes the
//! file of its slots, and says by name what it does not take. Without room there is one warning,
//! and the state lies in the memory of the process.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use crate::cluster::resident::{
    Ahead, Folder, Header, Identity, Key, Refusal, SlotFile, Slots, folder,
};
use crate::config::{Recovery, Resident, Shown};
use crate::observe::notice::act_on;
use crate::observe::refusal::{if_there, insist};
use crate::observe::spans::amount;
use crate::observe::storage::Storage;
use crate::run_folder;

use crate::train::plan::Facts;

/// The run's own number, drawn when it began: a later run in the same folder has another one.
pub const INSTANCE: &str = "instance";

/// Looks for a number that another rank is writing, and how far apart.
const INSTANCE_LOOKS_MAX: u32 = 200;
const INSTANCE_LOOK: Duration = Duration::from_millis(5);

/// What a rank needs to know to keep its slots in a file.
#[derive(Debug, Clone)]
pub struct SlotFiles {
    /// The run's files on this node.
    pub folder: Folder,
    /// Of the run; member and attempt are not known yet.
    pub identity: Identity,
    label: String,
}

impl SlotFiles {
    /// `None` with `recovery.resident = "off"`: what an earlier start left is removed then.
    ///
    /// # Errors
    /// Why state cannot be told from that of other runs.
    pub fn of(
        recovery: &Recovery,
        run_dir: &Path,
        storage: &dyn Storage,
        facts: &Facts,
    ) -> Result<Option<Self>, Nameless> {
        let path = std::path::absolute(run_dir)
            .map_err(|error| Nameless::Off(format!("resolving {}: {error}", run_dir.shown())))?;
        let folder = folder_of(recovery, &path);
        if recovery.resident == Resident::Off {
            folder.clear_free();
            return Ok(None);
        }
        let identity = Identity {
            run: instance(storage).map_err(|why| why.known(&folder))?,
            config_fingerprint: facts.config_fingerprint,
            data_fingerprint: facts.data_fingerprint,
            ..Identity::default()
        };
        Ok(Some(Self { folder, identity, label: path.to_string_lossy().into_owned() }))
    }

    /// Maps the files of this node's ranks, one of which may soon be this process's. Nothing
    /// where state does not outlive its process.
    pub fn ahead(recovery: &Recovery, run_dir: &Path) -> Ahead {
        match std::path::absolute(run_dir) {
            Ok(path) if recovery.resident == Resident::On => Ahead::of(&folder_of(recovery, &path)),
            _ => Ahead::default(),
        }
    }

    /// At the start of an attempt: takes the first file that a dead rank of this run left, else
    /// makes one.
    ///
    /// # Errors
    /// For people: why the state stays in the memory of the process.
    pub fn make_file(&self, slots: &mut Slots) -> Result<(), String> {
        self.enter(slots)?;
        slots.populate();
        Ok(())
    }

    /// A newcomer's slots: those of a dead rank that hold exactly this state.
    pub fn take_over(&self, slots: &mut Slots, key: Key) -> bool {
        let holds = |file: &SlotFile| {
            let headers = folder::look_at(file.path());
            headers.is_ok_and(|headers| headers.iter().flatten().any(|header| header.key == key))
        };
        // The others are let go again: each newcomer finds its own. So are those that cannot be
        // read now: the state comes from a living rank.
        for file in self.folder.inherit().filter_map(Result::ok).filter(holds) {
            let file = self.accept(slots, file).ok().flatten();
            if file.is_some_and(|file| slots.move_to(file).is_ok()) {
                return slots.select(key);
            }
        }
        false
    }

    /// A newcomer's room for a state that it gets from elsewhere.
    pub fn room(&self, slots: &mut Slots) {
        if !slots.is_vacant() {
            return;
        }
        if let Err(reason) = self.enter(slots) {
            tracing::warn!("{reason}");
        }
    }

    /// The slots lie in the first free file that can be had, else in a new one.
    fn enter(&self, slots: &mut Slots) -> Result<(), String> {
        let taken = self.free(slots).find_map(|file| file.inspect_err(say_unread).ok());
        if let Some(file) = taken {
            let path = file.path().to_owned();
            match slots.move_to(file).map_err(folder::naming("mapping", &path)) {
                Ok(_) => return Ok(()),
                Err(error) => say_unread(&error),
            }
        }
        let bytes = slots.file_bytes();
        let made = self.folder.create(bytes, &self.label);
        made.and_then(|file| slots.move_to(file)).map(drop).map_err(|error| {
            let place = self.folder.path().shown();
            format!(
                "resident state is off: {} cannot be reserved in {place} ({error}); a restart \
                 will read a checkpoint. Make room, or set recovery.resident_dir to another tmpfs \
                 or node-local disk",
                amount(bytes)
            )
        })
    }

    /// The files of dead processes that are of this run and shape, and an error for each of which
    /// that cannot be told now.
    pub fn free(&self, slots: &Slots) -> impl Iterator<Item = io::Result<SlotFile>> {
        let found = self.folder.take_free();
        found.filter_map(|file| file.and_then(|file| self.accept(slots, file)).transpose())
    }

    /// A dead process's file if it is of this run and shape. One that can never be used is removed:
    /// its contents were read.
    ///
    /// # Errors
    /// Nobody knows what it holds. It stays.
    fn accept(&self, slots: &Slots, file: SlotFile) -> io::Result<Option<SlotFile>> {
        let path = file.path().shown();
        let looked = folder::look_at(file.path());
        let (headers, size) = match looked.and_then(|headers| Ok((headers, file.size()?))) {
            Ok(found) => found,
            Err(error) if folder::is_unknown(&error) => return Err(error),
            Err(error) => {
                act_on(&format!("resident state is damaged: {error}; removed"));
                file.discard();
                return Ok(None);
            }
        };
        let check = |refused: Result<Header, Refusal>| {
            refused.and_then(|header| header.check_run(&self.identity, slots.shape()))
        };
        for (slot, header) in headers.into_iter().enumerate() {
            match check(header) {
                Ok(()) | Err(Refusal::Uncommitted) => {}
                // The data set may come back: `restart` says so and ends.
                Err(Refusal::Other("training set")) => {}
                Err(refusal @ (Refusal::Other(_) | Refusal::Format(_) | Refusal::Foreign)) => {
                    tracing::warn!("resident state {path}, slot {slot} {refusal}; removed");
                    file.discard();
                    return Ok(None);
                }
                Err(refusal) => tracing::warn!("resident state {path}, slot {slot} {refusal}"),
            }
        }
        if size != slots.file_bytes() {
            tracing::warn!("resident state {path} has {size} bytes; removed");
            file.discard();
            return Ok(None);
        }
        Ok(Some(file))
    }

    /// The member that a rank's file is named after.
    pub fn owner(slots: &Slots) -> Option<u32> {
        folder::member_of(slots.file()?.path())
    }

    /// Another member's file on this node.
    pub fn neighbour(&self, member: u32) -> PathBuf {
        self.folder.of_member(member)
    }
}

/// It is looked at again once every rank has a file (`restart`).
fn say_unread(error: &io::Error) {
    tracing::warn!("resident state cannot be used now: {error}");
}

/// `run_dir` is absolute.
fn folder_of(recovery: &Recovery, run_dir: &Path) -> Folder {
    Folder::new(&recovery.resident_dir, &run_folder::id(run_dir))
}

/// Why a run cannot tell its own slot files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Nameless {
    /// It has no number and cannot get one: it goes without resident state.
    Off(String),
    /// Its number cannot be read now: what an earlier attempt left is still its own.
    Unread(String),
}

impl Nameless {
    /// Where there is no slot file at all, none has to be told from others.
    fn known(self, folder: &Folder) -> Self {
        match self {
            Self::Unread(why) if folder.files().is_ok_and(|files| files.is_empty()) => {
                Self::Off(why)
            }
            other => other,
        }
    }
}

impl std::fmt::Display for Nameless {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Off(why) => write!(f, "resident state is off: {why}"),
            Self::Unread(error) => write!(f, "resident state cannot be used: {error}"),
        }
    }
}

/// A run's number as its file has it, once that is whole.
pub fn number_in(body: &[u8]) -> Option<u64> {
    let text = str::from_utf8(body).ok()?.strip_suffix('\n')?;
    u64::from_str_radix(text, 16).ok()
}

/// Reads the run's number, or draws it: whoever creates the file first.
fn instance(storage: &dyn Storage) -> Result<u64, Nameless> {
    let path = Path::new(INSTANCE);
    let drawn = {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let text = format!(
            "{:?} {} {}",
            now.unwrap_or_default(),
            std::process::id(),
            kintsugi_ffi::os::hostname()
        );
        xxh3_64(text.as_bytes())
    };
    for _ in 0..INSTANCE_LOOKS_MAX {
        let read = if_there(insist(|| storage.read(path)));
        if let Some(body) = read.map_err(|error| Nameless::Unread(error.to_string()))? {
            if let Some(number) = number_in(&body) {
                return Ok(number);
            }
            // Somebody is just writing it.
            std::thread::sleep(INSTANCE_LOOK);
        } else if let Err(error) = storage.create_new(path, format!("{drawn:016x}\n").as_bytes())
            && error.kind() != std::io::ErrorKind::AlreadyExists
        {
            return Err(Nameless::Off(format!("cannot write {INSTANCE}: {error}")));
        }
    }
    Err(Nameless::Off(format!("{INSTANCE} in the run directory is no number")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use crate::cluster::resident::Shape;
    use crate::observe::storage::{Fault, MemoryStorage, Operation};

    #[test]
    fn a_run_keeps_its_number_and_another_run_gets_another() {
        let storage = MemoryStorage::new();
        let first = instance(&storage).unwrap();
        assert_eq!(instance(&storage), Ok(first));
        assert_ne!(instance(&MemoryStorage::new()).unwrap(), first);
    }

    #[test]
    fn a_number_that_cannot_be_read_turns_it_off() {
        let storage = MemoryStorage::new();
        storage.create_new(Path::new(INSTANCE), b"what").unwrap();
        assert!(instance(&storage).unwrap_err().to_string().contains("no number"));
    }

    #[test]
    fn a_number_that_cannot_be_read_now_is_nobody_elses() {
        let failures = Arc::new(AtomicU32::new(0));
        let left = Arc::clone(&failures);
        let storage = MemoryStorage::with_faults(move |operation, _| {
            let fails = |n: u32| n.checked_sub(1);
            let strikes = operation == Operation::Read
                && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails).is_ok();
            strikes.then_some(Fault::Fails(io::ErrorKind::TimedOut))
        });
        let number = instance(&storage).unwrap();
        failures.store(2, Ordering::SeqCst);
        assert_eq!(instance(&storage), Ok(number), "a hiccup");
        failures.store(u32::MAX, Ordering::SeqCst);
        assert!(matches!(instance(&storage), Err(Nameless::Unread(_))));
    }

    const SHAPE: Shape = Shape::of(&[("weights", 9)]);

    /// A run's slots in a folder of their own, with one state; and whoever looks for them.
    fn left_behind(place: &Path) -> (SlotFiles, SlotFile) {
        let folder = Folder::new(place, "0badcafe");
        let (identity, label) = (Identity::default(), String::new());
        let mut slots = Slots::vacant(SHAPE);
        slots.move_to(folder.create(slots.file_bytes(), "/run").unwrap()).unwrap();
        slots.identify(identity);
        slots.begin();
        slots.commit(1, 0, b"");
        drop(slots);
        // A child that another test is just starting holds the lock until it runs its program.
        let free = std::iter::repeat_with(|| folder.take_free().next());
        let free = free.take(1000).inspect(|_| std::thread::sleep(INSTANCE_LOOK)).flatten().next();
        (SlotFiles { folder, identity, label }, free.expect("its owner is gone").unwrap())
    }

    #[test]
    fn only_a_file_whose_contents_were_read_is_removed() {
        let place = tempfile::tempdir().unwrap();
        let slots = Slots::vacant(SHAPE);
        let (files, file) = left_behind(place.path());
        let (path, kept) = (file.path().to_owned(), place.path().join("kept"));
        let file = files.accept(&slots, file).unwrap().expect("of this run");
        // What stands in its place is not followed.
        std::fs::rename(&path, &kept).unwrap();
        std::os::unix::fs::symlink(&kept, &path).unwrap();
        files.accept(&slots, file).unwrap_err();
        assert!(path.is_symlink() && kept.exists());
        std::fs::rename(&kept, &path).unwrap();
        let file = files.folder.take_free().next().unwrap().unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
        assert!(files.accept(&slots, file).unwrap().is_none());
        assert!(!path.exists(), "a torn one");
    }
}
