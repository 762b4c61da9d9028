//! Readers beside a run that publishes, replaces, retires and marks checkpoints: what goes while it
//! is read is gone, never damaged, and a newer one is taken.

use super::*;
use kintsugi::observe::storage::FileSystem;
use kintsugi::train::checkpoint::weights::{self, Loaded, WeightsError};
use kintsugi::train::checkpoint::{CheckpointError, store};

/// More than the reads of one checkpoint.
const READS_MAX: usize = 40;

/// A reader's view, in which `meanwhile` happens just before one of its reads.
struct Beside<'a> {
    inner: &'a MemoryStorage,
    reads: AtomicUsize,
    at: usize,
    meanwhile: &'a (dyn Fn(&MemoryStorage) + Sync),
}

impl Storage for Beside<'_> {
    fn append_line(&self, path: &Path, line: &str) -> std::io::Result<()> {
        self.inner.append_line(path, line)
    }
    fn write_whole(&self, path: &Path, body: &[&[u8]]) -> std::io::Result<()> {
        self.inner.write_whole(path, body)
    }
    fn create_new(&self, path: &Path, body: &[u8]) -> std::io::Result<()> {
        self.inner.create_new(path, body)
    }
    fn read(&self, path: &Path) -> std::io::Result<Vec<u8>> {
        if self.reads.fetch_add(1, Ordering::Relaxed) == self.at {
            (self.meanwhile)(self.inner);
        }
        self.inner.read(path)
    }
    fn list(&self, path: &Path) -> std::io::Result<Vec<String>> {
        self.inner.list(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
        self.inner.rename(from, to)
    }
    fn remove(&self, path: &Path) -> std::io::Result<()> {
        self.inner.remove(path)
    }
    fn create_dir(&self, path: &Path) -> std::io::Result<()> {
        self.inner.create_dir(path)
    }
}

/// Lets `meanwhile` happen before every read of a checkpoint of step 1, one after the other.
fn before_every_read(
    meanwhile: &(dyn Fn(&MemoryStorage) + Sync),
    check: impl Fn(&dyn Storage, &MemoryStorage),
) {
    for at in 0..READS_MAX {
        let inner = MemoryStorage::new();
        write(&inner, 1);
        let beside = Beside { inner: &inner, reads: 0.into(), at, meanwhile };
        check(&beside, &inner);
        if beside.reads.load(Ordering::Relaxed) <= at {
            assert!(at > 0, "a checkpoint is read");
            return;
        }
    }
    panic!("a checkpoint is less than {READS_MAX} reads");
}

#[test]
fn a_newer_one_is_taken_where_the_one_that_is_read_is_retired() {
    let retired = |storage: &MemoryStorage| {
        write_keeping(storage, 2, 1).result.unwrap();
    };
    before_every_read(&retired, |reader, inner| {
        let found = newest_verified(reader, &expectation()).unwrap().unwrap();
        assert!([snapshot(1), snapshot(2)].contains(&found));
        assert!(names(inner).iter().all(|name| !name.ends_with(store::BAD)), "{:?}", names(inner));
    });
    before_every_read(&retired, |reader, _| {
        let named = store::read_snapshot(reader, &folder_of(1), Some(&expectation()));
        assert!(matches!(named, Ok(_) | Err(CheckpointError::Gone { .. })), "{named:?}");
        let verified = store::verify_files(reader, &folder_of(2));
        assert!(matches!(verified, Ok(_) | Err(CheckpointError::Gone { .. })), "{verified:?}");
    });
}

#[test]
fn one_that_is_replaced_while_it_is_read_is_read_again() {
    let other = || Snapshot { parameters: snapshot(7).parameters, ..snapshot(1) };
    let replaced = |storage: &MemoryStorage| {
        let report = store::write(storage, &other(), 9, &|| true, &RealClock::default());
        report.result.unwrap();
    };
    before_every_read(&replaced, |reader, _| {
        let found = store::read_snapshot(reader, &folder_of(1), Some(&expectation())).unwrap();
        assert!(found == snapshot(1) || found == other(), "half of each");
    });
}

#[test]
fn one_whose_files_are_gone_in_its_place_is_damaged() {
    let emptied = |storage: &MemoryStorage| {
        for file in FILES {
            storage.remove(&folder_of(1).join(file)).unwrap();
        }
    };
    before_every_read(&emptied, |reader, _| {
        let found = store::read_snapshot(reader, &folder_of(1), Some(&expectation()));
        assert!(matches!(found, Ok(_) | Err(CheckpointError::Damaged { .. })), "{found:?}");
    });
}

#[test]
fn a_reader_of_real_files_beside_a_writer_never_meets_damage() {
    const WRITTEN: u64 = 40;
    let folder = tempfile::tempdir().unwrap();
    let storage = FileSystem::new(folder.path());
    write_keeping(&storage, 1, 1).result.unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for step in 2..=WRITTEN {
                write_keeping(&storage, step, 1).result.unwrap();
            }
        });
        while !writer.is_finished() {
            match weights::load(folder.path(), Some(&expectation())) {
                Ok(Loaded { snapshot: found, passed_over }) => {
                    assert_eq!(found, snapshot(found.state.step));
                    assert_eq!(passed_over, [""; 0]);
                }
                Err(WeightsError::Checkpoint(CheckpointError::Gone { .. })) => {}
                Err(error) => panic!("{error}"),
            }
        }
    });
    let retired = folder.path().join(folder_of(1));
    let error = weights::load(&retired, None).unwrap_err().to_string();
    assert!(error.contains("step-00000001 is not there any more"), "{error}");
    assert!(error.contains("checkpoint.keep"), "{error}");
}
