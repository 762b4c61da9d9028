//! Any store and any cache bring the same samples; a store says whether it lost one or all.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kintsugi::config::{Data, DataFormat};
use kintsugi::data::loader::Loader;
use kintsugi::data::loader::evaluation::Evaluation;
use kintsugi::data::sampler::Order;
use kintsugi::data::set::DataSet;
use kintsugi::data::set::open::open;
use kintsugi::data::source::Source;
use kintsugi::data::source::image_folder::ImageFolder;
use kintsugi::data::store::memory::MemoryStore;
use kintsugi::data::store::{Entry, FetchError, Kind, Location, Store};
use kintsugi::data::{Batch, DataError, Split};

use super::{damaged, folder, jpeg, options, synthetic, take_all};

#[test]
fn a_set_has_the_same_samples_in_any_store() {
    let root = tempfile::tempdir().expect("temporary folder");
    damaged(root.path());
    let mut memory = MemoryStore::default();
    for class in ["a", "b"] {
        for entry in fs::read_dir(root.path().join(class)).expect("there").flatten() {
            memory.put(entry.path(), fs::read(entry.path()).expect("read"));
        }
    }
    let direct = open(&folder(root.path()), Split::Train, 1).expect("opens");
    let source = ImageFolder::open(&memory, root.path(), "data.train", None).expect("opens");
    assert_eq!(source.fingerprint(), direct.source.fingerprint());
    let kept = DataSet { source: Arc::new(source), store: Arc::new(memory) };
    let order = Order::new(20, 2, 1, 10).expect("valid");
    let all = |set: DataSet| take_all(&Loader::new(set, order.clone(), options(1, 1)), 0..4, 2);
    assert!(all(kept) == all(direct));
}

/// A store that has lost one file, or does not answer at all.
struct Failing {
    files: MemoryStore,
    error: FetchError,
    only: Option<PathBuf>,
}

impl Store for Failing {
    fn fetch(&self, location: &Location<'_>, into: &mut Vec<u8>) -> Result<(), FetchError> {
        match &self.only {
            Some(only) if location.file != *only => self.files.fetch(location, into),
            _ => Err(self.error.clone()),
        }
    }
    fn list(&self, folder: &Path) -> io::Result<Vec<Entry>> {
        self.files.list(folder)
    }
    fn look(&self, path: &Path) -> io::Result<Kind> {
        self.files.look(path)
    }

    fn changed_ns(&self, _: &Path) -> io::Result<Option<i64>> {
        Ok(None)
    }
}

#[test]
fn a_lost_sample_is_skipped_and_a_lost_store_ends_the_run() {
    let mut files = MemoryStore::default();
    for name in ["a/0.jpg", "a/1.jpg", "b/0.jpg", "b/1.jpg"] {
        files.put(Path::new("set").join(name), jpeg(9, 9, false));
    }
    let taken = |error: FetchError, only: Option<&str>| {
        let source =
            ImageFolder::open(&files, Path::new("set"), "data.train", None).expect("opens");
        let only = only.map(PathBuf::from);
        let store = Arc::new(Failing { files: files.clone(), error, only });
        let set = DataSet { source: Arc::new(source), store };
        let order = Order::new(4, 1, 1, 4).expect("valid");
        let evaluation = Evaluation::new(set.clone(), &options(0, 0), 1 << 20).batch(0, 4);
        (Loader::new(set, order, options(0, 0)).take(0, 0), evaluation)
    };
    let (batch, evaluation) = taken(FetchError::damaged("too long"), Some("set/b/0.jpg"));
    for batch in [batch.expect("skips"), evaluation.expect("skips")] {
        assert_eq!((batch.count, batch.skipped, batch.altered), (4, 1, 0));
    }
    let (batch, evaluation) = taken(FetchError::not_now("no route"), None);
    for error in [batch.expect_err("ends"), evaluation.expect_err("ends")] {
        assert!(matches!(error, DataError::Store(text) if text.ends_with(".jpg: no route")));
    }
    // Another file of its folder can be had: it is this one that cannot.
    let (batch, evaluation) = taken(FetchError::not_now("bad sector"), Some("set/b/0.jpg"));
    let batch = batch.expect("skips");
    assert_eq!((batch.count, batch.skipped, batch.altered), (4, 1, 1), "it was there once");
    let evaluation = evaluation.expect("skips");
    assert_eq!((evaluation.count, evaluation.skipped), (4, 1));
}

#[test]
fn a_missing_file_is_a_bad_image_and_a_missing_folder_is_the_store() {
    let root = tempfile::tempdir().expect("temporary folder");
    for name in ["a/0.jpg", "a/1.jpg", "a/2.jpg", "b/0.jpg", "b/1.jpg", "c/only.jpg"] {
        let path = root.path().join(name);
        fs::create_dir_all(path.parent().expect("a class folder")).expect("made");
        fs::write(path, jpeg(9, 9, false)).expect("written");
    }
    let set = open(&folder(root.path()), Split::Train, 1).expect("opens");
    let names: Vec<String> = (0..set.source.len()).map(|id| set.source.name(id)).collect();
    let read = |name: &str| {
        let id = names.iter().position(|known| known.ends_with(name)).expect("listed") as u64;
        set.read(id, &mut Vec::new())
    };
    let first = names[0].clone();
    fs::remove_file(&first).expect("removed");
    assert!(matches!(read(&first), Err(DataError::Lost { .. })), "one file");
    fs::remove_file(root.path().join("c/only.jpg")).expect("removed");
    assert!(matches!(read("c/only.jpg"), Err(DataError::Lost { .. })), "its folder is there");
    let class = Path::new(&first).parent().expect("a class folder");
    fs::rename(class, root.path().join("elsewhere")).expect("moved");
    match read(&first) {
        Err(DataError::Store(text)) => assert!(text.contains("No such file"), "{text}"),
        other => panic!("{other:?}"),
    }
    assert!(read("b/0.jpg").is_ok(), "another class");
    fs::rename(root.path().join("elsewhere"), class).expect("moved back");
    assert!(read(&names[1]).is_ok(), "it is back");
    // What is left of a mount is an empty folder.
    for file in fs::read_dir(class).expect("a folder").flatten() {
        fs::remove_file(file.path()).expect("removed");
    }
    assert!(matches!(read(&names[1]), Err(DataError::Store(_))));
}

#[test]
fn neighbours_that_were_removed_are_bad_images_while_their_folder_holds_others() {
    let root = tempfile::tempdir().expect("temporary folder");
    let file = |number: u32| root.path().join("a").join(format!("{number:02}.jpg"));
    fs::create_dir(root.path().join("a")).expect("made");
    for number in 0..30 {
        fs::write(file(number), jpeg(9, 9, false)).expect("written");
    }
    let set = open(&folder(root.path()), Split::Train, 1).expect("opens");
    for number in 5..25 {
        fs::remove_file(file(number)).expect("removed");
    }
    let read = |id| set.read(id, &mut Vec::new());
    assert!(matches!(read(15), Err(DataError::Lost { .. })), "nobody beside it is there");
    assert!(read(3).is_ok() && read(27).is_ok());
    // They are there and none can be read: a disk that fails.
    for number in 5..25 {
        fs::create_dir(file(number)).expect("made");
    }
    assert!(matches!(read(15), Err(DataError::Store(_))));
}

/// One call that fails: the sample is asked for again, whatever its neighbours say.
#[test]
fn a_sample_that_fails_once_is_read() {
    struct Once {
        files: MemoryStore,
        failed: AtomicBool,
    }
    impl Store for Once {
        fn fetch(&self, location: &Location<'_>, into: &mut Vec<u8>) -> Result<(), FetchError> {
            match self.failed.swap(true, Ordering::Relaxed) {
                true => self.files.fetch(location, into),
                false => Err(FetchError::not_now("Input/output error")),
            }
        }
        fn list(&self, folder: &Path) -> io::Result<Vec<Entry>> {
            self.files.list(folder)
        }
        fn look(&self, path: &Path) -> io::Result<Kind> {
            self.files.look(path)
        }
        fn changed_ns(&self, _: &Path) -> io::Result<Option<i64>> {
            Ok(None)
        }
    }
    let mut files = MemoryStore::default();
    for name in ["a/0.jpg", "a/1.jpg", "b/0.jpg"] {
        files.put(Path::new("set").join(name), jpeg(9, 9, false));
    }
    let source = ImageFolder::open(&files, Path::new("set"), "data.train", None).expect("opens");
    let source: Arc<dyn Source> = Arc::new(source);
    for id in 0..2 {
        let store = Arc::new(Once { files: files.clone(), failed: AtomicBool::new(false) });
        let set = DataSet { source: Arc::clone(&source), store };
        assert!(set.read(id, &mut Vec::new()).is_ok());
    }
    // Nobody beside it says that the storage answers.
    let store = Arc::new(Once { files: files.clone(), failed: AtomicBool::new(false) });
    let set = DataSet { source, store };
    assert!(matches!(set.read(2, &mut Vec::new()), Err(DataError::Store(_))));
    assert!(set.read(2, &mut Vec::new()).is_ok());
}

/// What links lead to goes away as a share does: the folder of the links is still there.
#[test]
fn a_set_of_links_into_a_share_that_is_away_is_not_a_set_of_bad_pictures() {
    let root = tempfile::tempdir().expect("temporary folder");
    let share = root.path().join("share");
    for number in 0..6 {
        let (file, link) = (share.join(format!("{number}.jpg")), format!("set/a/{number}.jpg"));
        fs::create_dir_all(&share).expect("made");
        fs::create_dir_all(root.path().join("set/a")).expect("made");
        fs::write(&file, jpeg(9, 9, false)).expect("written");
        symlink(&file, root.path().join(link)).expect("linked");
    }
    let set = open(&folder(&root.path().join("set")), Split::Train, 1).expect("opens");
    let read = |id| set.read(id, &mut Vec::new());
    fs::remove_file(share.join("0.jpg")).expect("removed");
    assert!(matches!(read(0), Err(DataError::Lost { .. })), "its folder holds others");
    assert!(read(1).is_ok());
    fs::rename(&share, root.path().join("away")).expect("moved");
    assert!(matches!(read(1), Err(DataError::Store(_))));
    fs::create_dir(&share).expect("what is left of a mount");
    assert!(matches!(read(1), Err(DataError::Store(_))));
}

/// Shards of which some are held open and some are not, while their folder is moved away and comes
/// back: no sample is lost, whichever way a read and a move meet.
#[test]
fn samples_of_shards_that_are_moved_away_are_waited_for() {
    let root = tempfile::tempdir().expect("temporary folder");
    let (set, away) = (root.path().join("set"), root.path().join("away"));
    fs::create_dir(&set).expect("made");
    for shard in 0..40_u32 {
        let file = fs::File::create(set.join(format!("{shard:02}.tar"))).expect("made");
        let mut builder = tar::Builder::new(file);
        for (ending, body) in [("jpg", jpeg(9, 9, false)), ("cls", b"0".to_vec())] {
            let mut header = tar::Header::new_gnu();
            header.set_size(body.len() as u64);
            let name = format!("{shard}.{ending}");
            builder.append_data(&mut header, name, &*body).expect("appended");
        }
        builder.finish().expect("finished");
    }
    let data = Data { format: DataFormat::Tar, ..folder(&set) };
    for round in 0..20 {
        let opened = open(&data, Split::Train, 1).expect("opens");
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..20 {
                    fs::rename(&set, &away).expect("moved away");
                    std::thread::yield_now();
                    fs::rename(&away, &set).expect("back");
                }
                over.store(true, Ordering::Relaxed);
            });
            while !over.load(Ordering::Relaxed) {
                for id in 0..opened.source.len() {
                    match opened.read(id, &mut Vec::new()) {
                        Ok(_) | Err(DataError::Store(_)) => {}
                        Err(error) => panic!("round {round}: {error}"),
                    }
                }
            }
        });
    }
}

#[test]
fn evaluation_is_the_same_with_any_cache() {
    let set = synthetic(50);
    let batches = |bytes: u64| {
        let evaluation = Evaluation::new(set.clone(), &options(0, 0), bytes);
        assert_eq!(evaluation.len(), 50);
        let twice: Vec<Batch> = [(0, 20), (20, 30), (0, 20), (20, 30), (50, 0)]
            .map(|(first, count)| evaluation.batch(first, count).expect("read"))
            .into();
        assert!(twice[0] == twice[2] && twice[1] == twice[3]);
        assert!(evaluation.batch(40, 11).is_err() && evaluation.batch(u64::MAX, 2).is_err());
        twice
    };
    assert!(batches(0) == batches(1 << 20));
    assert!(batches(0) == batches(30 * 800));
}
