//! Copying beside readers: order, waits, faults.

use std::borrow::Cow;
use std::io;
use std::path::Path;
use std::sync::atomic::AtomicU64;

use super::*;
use crate::config::{Pace as Wanted, Rate};
use crate::data::Image;
use crate::data::source::Source;
use crate::data::staging::pace::Urgent;
use crate::data::store::memory::MemoryStore;
use crate::data::store::{Entry, FetchError, Kind, Location, Store};

const FILES: u64 = 24;
const LONG: Duration = Duration::from_secs(60);
const NOW: Duration = Duration::ZERO;

/// One file of so many bytes a sample, as the listing says.
struct Files(u64);

fn name(id: u64) -> PathBuf {
    format!("/set/{id}").into()
}

impl Source for Files {
    fn len(&self) -> u64 {
        FILES
    }
    fn classes(&self) -> &[String] {
        &[]
    }
    fn channels(&self) -> u32 {
        3
    }
    fn label(&self, _: u64) -> u32 {
        0
    }
    fn location(&self, id: u64) -> Option<Location<'_>> {
        Some(Location::whole(Cow::Owned(name(id)), self.0))
    }
    fn decode(&self, _: u64, _: &[u8]) -> Result<Image, String> {
        Err("no picture".into())
    }
    fn name(&self, id: u64) -> String {
        id.to_string()
    }
    fn fingerprint(&self) -> u64 {
        1
    }
}

/// Gives files out one by one, as the test lets it; remembers their order.
#[derive(Default)]
struct Slow {
    files: MemoryStore,
    let_through: Mutex<u64>,
    changed: Condvar,
    fetched: Mutex<Vec<PathBuf>>,
    panics: AtomicU64,
}

impl Slow {
    fn new() -> Arc<Self> {
        let mut slow = Self::default();
        (0..FILES).for_each(|id| slow.files.put(name(id), format!("{id:04}")));
        Arc::new(slow)
    }

    fn let_through(&self, files: u64) {
        *self.let_through.lock().unwrap() += files;
        self.changed.notify_all();
    }
}

impl Store for Slow {
    fn fetch(&self, location: &Location<'_>, into: &mut Vec<u8>) -> Result<(), FetchError> {
        let held = self.let_through.lock().unwrap();
        let mut held = self.changed.wait_while(held, |left| *left == 0).unwrap();
        *held -= 1;
        self.fetched.lock().unwrap().push(location.file.to_path_buf());
        drop(held);
        let more =
            self.panics.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        assert!(more.is_err(), "a copy worker that dies");
        self.files.fetch(location, into)
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

struct Stand {
    store: Arc<Slow>,
    order: Order,
    staging: Arc<Staging>,
    place: tempfile::TempDir,
}

fn root(place: &tempfile::TempDir) -> PathBuf {
    place.path().join("stage")
}

fn begin(mode: StagingMode, workers: u32, place: tempfile::TempDir) -> Stand {
    let (store, order) = (Slow::new(), Order::new(FILES, 3, 9, 6).expect("valid"));
    let set = DataSet { source: Arc::new(Files(4)), store: store.clone() };
    let folder = Arc::new(Folder::open(&root(&place)).expect("opened"));
    let pace = Pace::new(Wanted::Rate(Rate(u64::MAX)), Arc::new(Urgent::default()));
    let staging = Staging::start(set, order.clone(), folder, mode, pace, Arc::default(), workers);
    Stand { store, order, staging, place }
}

fn stand(mode: StagingMode, workers: u32) -> Stand {
    begin(mode, workers, tempfile::tempdir().expect("temporary folder"))
}

fn lets(staging: &Staging, step: u64, owner: u32) -> bool {
    staging.lets_in(&staging.lock(), step, owner)
}

fn is_whole(staging: &Staging) -> bool {
    let state = staging.lock();
    state.stopped.is_some() || state.gate.is_whole()
}

#[test]
fn files_are_copied_in_the_order_of_their_use_and_open_the_way_by_micro_batch() {
    let Stand { store, order, staging, place: _kept, .. } = stand(StagingMode::During, 1);
    staging.plan(0, &[0, 2]);
    assert!(!staging.wait(0, 0, NOW));
    store.let_through(2);
    assert!(staging.wait(0, 0, LONG), "owner 0 has two samples a step");
    assert!(!lets(&staging, 0, 2));
    store.let_through(2);
    assert!(staging.wait(0, 2, LONG) && !lets(&staging, 1, 0));
    assert!(lets(&staging, 7, 1), "nobody copies what another rank computes");
    store.let_through(FILES);
    assert!(staging.wait(99, 2, LONG), "what was copied once is there in every epoch");
    let expected: Vec<PathBuf> = (0..4)
        .flat_map(|step| [0, 2].map(|owner| order.owner_samples(step, owner)).concat())
        .map(name)
        .collect();
    assert_eq!(*store.fetched.lock().unwrap(), expected);
    let progress = staging.progress();
    assert_eq!((progress.files, progress.files_total, progress.bytes), (16, 16, 64));
}

#[test]
fn before_training_means_that_nothing_passes_until_all_is_there() {
    let Stand { store, staging, place: _kept, .. } = stand(StagingMode::Before, 3);
    staging.plan(0, &[0, 1, 2]);
    store.let_through(FILES - 1);
    assert!(!staging.wait(0, 0, Duration::from_millis(50)));
    store.let_through(1);
    assert!(staging.wait(0, 0, LONG) && is_whole(&staging));
}

#[test]
fn another_ranks_owners_are_copied_from_the_step_at_hand_and_what_is_there_is_not_again() {
    let Stand { store, order, staging, place: _kept, .. } = stand(StagingMode::During, 1);
    staging.plan(0, &[0]);
    store.let_through(FILES);
    assert!(staging.wait(50, 0, LONG));
    let before = store.fetched.lock().unwrap().len();
    staging.plan(2, &[0, 1]);
    assert!(staging.wait(50, 1, LONG));
    let fetched = store.fetched.lock().unwrap()[before..].to_vec();
    assert_eq!(fetched.len(), 8);
    let first: Vec<PathBuf> = order.owner_samples(2, 1).into_iter().map(name).collect();
    assert_eq!(fetched[..2], first);
}

#[test]
fn a_later_start_on_the_same_node_copies_nothing_twice() {
    let Stand { store, staging, place, .. } = stand(StagingMode::During, 1);
    staging.plan(0, &[0, 1, 2]);
    store.let_through(10);
    while store.fetched.lock().unwrap().len() < 10 {
        std::thread::yield_now();
    }
    let own = Arc::clone(&staging);
    let closes = std::thread::spawn(move || own.close());
    while !lets(&staging, 3, 0) {
        std::thread::yield_now();
    }
    // What it has in hand it finishes.
    store.let_through(FILES);
    closes.join().expect("no panic");
    let Stand { store, staging, place: _kept, .. } = begin(StagingMode::During, 1, place);
    staging.plan(0, &[0, 1, 2]);
    store.let_through(FILES);
    assert!(staging.wait(50, 2, LONG));
    assert!(store.fetched.lock().unwrap().len() <= (FILES - 9) as usize);
}

#[test]
fn a_worker_that_dies_leaves_its_file_to_the_others_and_the_last_one_opens_the_way() {
    let Stand { store, staging, place: _kept, .. } = stand(StagingMode::During, 2);
    store.panics.store(1, Ordering::Relaxed);
    staging.plan(0, &[0, 1, 2]);
    store.let_through(FILES + 1);
    assert!(staging.wait(50, 0, LONG) && staging.progress().files == FILES);
    let Stand { store, staging, place: _kept, .. } = stand(StagingMode::Before, 2);
    store.panics.store(2, Ordering::Relaxed);
    staging.plan(0, &[0, 1, 2]);
    store.let_through(2);
    assert!(staging.wait(0, 0, LONG), "training reads the shared store");
}

#[test]
fn a_folder_that_is_gone_and_a_file_that_cannot_be_read_hold_nobody_up() {
    let Stand { store, staging, place, .. } = stand(StagingMode::During, 1);
    std::fs::remove_dir_all(root(&place)).expect("removed");
    staging.plan(0, &[0, 1, 2]);
    store.let_through(FILES);
    assert!(staging.wait(3, 2, LONG) && is_whole(&staging));
    let (empty, place) = (Arc::new(MemoryStore::default()), tempfile::tempdir().expect("folder"));
    let set = DataSet { source: Arc::new(Files(4)), store: empty };
    let folder = Arc::new(Folder::open(&root(&place)).expect("opened"));
    let pace = Pace::new(Wanted::Auto, Arc::new(Urgent::default()));
    let order = Order::new(FILES, 3, 9, 6).expect("valid");
    let mode = StagingMode::Before;
    let staging = Staging::start(set, order, folder, mode, pace, Arc::default(), 1);
    staging.plan(0, &[0]);
    assert!(staging.wait(0, 0, LONG) && staging.progress().bytes == 0);
}

/// Eight samples in each of three files.
struct Shards;

impl Source for Shards {
    fn len(&self) -> u64 {
        FILES
    }
    fn classes(&self) -> &[String] {
        &[]
    }
    fn channels(&self) -> u32 {
        3
    }
    fn label(&self, _: u64) -> u32 {
        0
    }
    fn location(&self, id: u64) -> Option<Location<'_>> {
        Some(Location::range(name(id / 8), id % 8, 1))
    }
    fn decode(&self, _: u64, _: &[u8]) -> Result<Image, String> {
        Err("no picture".into())
    }
    fn name(&self, id: u64) -> String {
        id.to_string()
    }
    fn fingerprint(&self) -> u64 {
        1
    }
}

#[test]
fn a_file_of_many_samples_is_copied_once_and_whoever_reads_it_waits_for_it() {
    for workers in [1, 3] {
        let (store, order) = (Slow::new(), Order::new(FILES, 3, 9, 6).expect("valid"));
        let place = tempfile::tempdir().expect("temporary folder");
        let set = DataSet { source: Arc::new(Shards), store: store.clone() };
        let folder = Arc::new(Folder::open(&root(&place)).expect("opened"));
        let (mode, pace) = (StagingMode::During, Pace::new(Wanted::Auto, Arc::default()));
        let tally = Arc::new(Tally::default());
        let own = Arc::clone(&tally);
        let staging = Staging::start(set, order.clone(), folder, mode, pace, own, workers);
        staging.plan(0, &[0, 1, 2]);
        assert!(!staging.wait(0, 0, NOW));
        store.let_through(2);
        while store.fetched.lock().unwrap().len() < 2 {
            std::thread::yield_now();
        }
        let needed = |steps: std::ops::Range<u64>| -> std::collections::BTreeSet<PathBuf> {
            let samples = steps
                .flat_map(|step| (0..3).flat_map(move |owner| [(step, owner)]))
                .flat_map(|(step, owner)| order.owner_samples(step, owner));
            samples.map(|sample| name(sample / 8)).collect()
        };
        assert_eq!(needed(0..1).len(), 3, "the first step reads all of them");
        assert!(!staging.wait(0, 2, Duration::from_millis(50)) && !is_whole(&staging));
        store.let_through(1);
        assert!(staging.wait(9, 2, LONG));
        let fetched = store.fetched.lock().unwrap().clone();
        let once: std::collections::BTreeSet<PathBuf> = fetched.iter().cloned().collect();
        assert_eq!((fetched.len(), once), (3, needed(0..4)), "{workers} workers");
        let progress = staging.progress();
        let found = [progress.files, progress.files_total, progress.bytes, progress.bytes_total];
        assert_eq!(found, [3, 3, 12, 12]);
        staging.close();
    }
}

#[test]
fn a_file_of_many_samples_that_cannot_be_read_is_tried_once() {
    let place = tempfile::tempdir().expect("temporary folder");
    let mut store = Slow::default();
    store.files.put(name(1), "0001");
    let store = Arc::new(store);
    store.let_through(2);
    let set = DataSet { source: Arc::new(Shards), store: store.clone() };
    let folder = Arc::new(Folder::open(&root(&place)).expect("opened"));
    let (mode, pace) = (StagingMode::Before, Pace::new(Wanted::Auto, Arc::default()));
    let order = Order::new(FILES, 3, 9, 6).expect("valid");
    let staging = Staging::start(set, order, folder, mode, pace, Arc::default(), 2);
    staging.plan(0, &[0, 1, 2]);
    assert!(staging.wait(0, 0, LONG) && is_whole(&staging));
    assert_eq!((staging.progress().files, staging.progress().bytes), (3, 4));
}

#[test]
fn without_workers_who_waits_copies_and_no_more_than_it_needs() {
    let Stand { store, order, staging, place: _kept, .. } = stand(StagingMode::During, 0);
    store.let_through(FILES);
    staging.plan(0, &[0, 2]);
    assert!(!lets(&staging, 0, 0) && staging.wait(0, 0, NOW));
    let first: Vec<PathBuf> = order.owner_samples(0, 0).into_iter().map(name).collect();
    assert_eq!(*store.fetched.lock().unwrap(), first);
    assert!(staging.wait(1, 2, NOW) && !is_whole(&staging));
    assert!(staging.wait(9, 2, NOW) && is_whole(&staging));
    assert_eq!(store.fetched.lock().unwrap().len(), 16);
    let Stand { store, staging, place: _kept, .. } = stand(StagingMode::Before, 0);
    store.let_through(FILES);
    staging.plan(0, &[1]);
    assert!(staging.wait(0, 1, NOW) && is_whole(&staging));
    assert_eq!(store.fetched.lock().unwrap().len(), 8);
}

#[test]
fn closing_holds_nobody_up() {
    let Stand { store, staging, place: _kept, .. } = stand(StagingMode::Before, 1);
    staging.plan(0, &[0]);
    let own = Arc::clone(&staging);
    let waits = std::thread::spawn(move || own.wait(0, 0, LONG));
    store.let_through(1);
    staging.close();
    assert!(waits.join().expect("no panic"));
    store.let_through(FILES);
}

#[test]
fn a_set_that_has_no_room_is_not_staged() {
    let place = tempfile::tempdir().expect("temporary folder");
    let set = DataSet { source: Arc::new(Files(1 << 55)), store: Arc::new(MemoryStore::default()) };
    let folder = Arc::new(Folder::open(&root(&place)).expect("opened"));
    let (mode, pace) = (StagingMode::Before, Pace::new(Wanted::Auto, Arc::default()));
    let order = Order::new(FILES, 3, 9, 6).expect("valid");
    let staging = Staging::start(set, order, folder, mode, pace, Arc::default(), 1);
    staging.plan(0, &[0]);
    assert!(staging.wait(0, 0, LONG) && is_whole(&staging));
    assert_eq!(staging.progress().files, 0);
}
