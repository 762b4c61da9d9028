//! Where this rank's state lies so that it outlives the process: makes or takes the
//! file of its slots, and says by name what it does not take. Without room there is one warning,
//! and the state lies in the memory of the process.

use std::path::{Path, PathBuf};
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use crate::cluster::resident::{
    Ahead, Folder, Identity, Key, Look, Refusal, SlotFile, Slots, folder,
};
use crate::config::{Recovery, Resident, Shown};
use crate::observe::notice::act_on;
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
    /// For people: why state cannot be told from that of other runs.
    pub fn of(
        recovery: &Recovery,
        run_dir: &Path,
        storage: &dyn Storage,
        facts: &Facts,
    ) -> Result<Option<Self>, String> {
        let path = std::path::absolute(run_dir)
            .map_err(|error| format!("resolving {}: {error}", run_dir.shown()))?;
        let folder = folder_of(recovery, &path);
        if recovery.resident == Resident::Off {
            folder.clear_free();
            return Ok(None);
        }
        let identity = Identity {
            run: instance(storage)?,
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
        let free = self.folder.take_free().find_map(|file| self.accept(slots, file));
        self.enter(slots, free)?;
        slots.populate();
        Ok(())
    }

    /// A newcomer's slots: those of a dead rank that hold exactly this state.
    pub fn take_over(&self, slots: &mut Slots, key: Key) -> bool {
        let holds = |file: &SlotFile| {
            let headers = Look::at(file.path()).and_then(|look| look.headers());
            headers.is_ok_and(|headers| headers.iter().flatten().any(|header| header.key == key))
        };
        // The others are let go again: each newcomer finds its own.
        for file in self.folder.inherit().filter(holds) {
            if self.accept(slots, file).is_some_and(|file| slots.move_to(file).is_ok()) {
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
        let free = self.folder.take_free().find_map(|file| self.accept(slots, file));
        if let Err(reason) = self.enter(slots, free) {
            tracing::warn!("{reason}");
        }
    }

    fn enter(&self, slots: &mut Slots, free: Option<SlotFile>) -> Result<(), String> {
        let bytes = slots.file_bytes();
        let made = match free {
            Some(file) => Ok(file),
            None => self.folder.create(bytes, &self.label),
        };
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

    /// A dead process's file if it is of this run and shape; what can never be used is removed.
    pub fn accept(&self, slots: &Slots, file: SlotFile) -> Option<SlotFile> {
        let path = file.path().shown();
        let looked = Look::at(file.path()).and_then(|look| look.headers());
        let (headers, size) = match looked.and_then(|headers| Ok((headers, file.size()?))) {
            Ok(found) => found,
            Err(error) => {
                act_on(&format!("resident state {path} cannot be read: {error}; removed"));
                file.discard();
                return None;
            }
        };
        let check = |refused: Result<_, Refusal>| {
            refused.and_then(|header: crate::cluster::resident::Header| {
                header.check_run(&self.identity, slots.shape())
            })
        };
        for (slot, header) in headers.into_iter().enumerate() {
            match check(header) {
                Ok(()) | Err(Refusal::Uncommitted) => {}
                // The data set may come back: `restart` says so and ends.
                Err(Refusal::Other("training set")) => {}
                Err(refusal @ (Refusal::Other(_) | Refusal::Format(_) | Refusal::Foreign)) => {
                    tracing::warn!("resident state {path}, slot {slot} {refusal}; removed");
                    file.discard();
                    return None;
                }
                Err(refusal) => tracing::warn!("resident state {path}, slot {slot} {refusal}"),
            }
        }
        if size != slots.file_bytes() {
            tracing::warn!("resident state {path} has {size} bytes; removed");
            file.discard();
            return None;
        }
        Some(file)
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

/// `run_dir` is absolute.
fn folder_of(recovery: &Recovery, run_dir: &Path) -> Folder {
    Folder::new(&recovery.resident_dir, &run_folder::id(run_dir))
}

/// Reads the run's number, or draws it: whoever creates the file first.
fn instance(storage: &dyn Storage) -> Result<u64, String> {
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
        if let Ok(body) = storage.read(path) {
            let text = String::from_utf8_lossy(&body);
            let number = u64::from_str_radix(text.trim(), 16);
            if let (Ok(number), true) = (number, text.ends_with('\n')) {
                return Ok(number);
            }
            // Somebody is just writing it.
            std::thread::sleep(INSTANCE_LOOK);
        } else if let Err(error) = storage.create_new(path, format!("{drawn:016x}\n").as_bytes())
            && error.kind() != std::io::ErrorKind::AlreadyExists
        {
            return Err(format!("resident state is off: cannot write {INSTANCE}: {error}"));
        }
    }
    Err(format!("resident state is off: {INSTANCE} in the run directory is no number"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::storage::MemoryStorage;

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
        assert!(instance(&storage).unwrap_err().contains("no number"));
    }
}
