//! Checkpoints against the storage cases of the failure matrix (S1-S12): whatever is torn, flipped,
//! missing or full, the newest whole checkpoint is found and training goes on.

#![allow(clippy::wildcard_imports, reason = "the parts of one module")]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kintsugi::model::{Layout, TensorKind, TensorSpec};
use kintsugi::observe::clock::RealClock;
use kintsugi::observe::ledger::Committed;
use kintsugi::observe::storage::{Fault, MemoryStorage, Operation, Storage};
use kintsugi::train::checkpoint::manifest::{FILES, MANIFEST};
use kintsugi::train::checkpoint::{
    Expectation, Snapshot, TrainState, WriterReport, newest_verified, store,
};

use kintsugi::cluster::resident::Shape;
use kintsugi::model::parts::{self, MOMENTUM};
use kintsugi::train::plan::About;

mod behind;
mod damage;
mod elsewhere;
mod files;
mod retired;
mod trouble;

const PARAMETERS: usize = 5000;
const STATISTICS: usize = 40;
const SHAPE: Shape = Shape::of(&[
    (parts::PARAMETERS, PARAMETERS),
    (MOMENTUM, PARAMETERS),
    (parts::STATISTICS, STATISTICS),
]);

fn tensor(name: &str, shape: &[usize], offset: usize, kind: TensorKind) -> TensorSpec {
    TensorSpec { name: name.into(), shape: shape.to_vec(), offset, kind, node: 0 }
}

fn layout() -> Arc<Layout> {
    let tensors = vec![
        tensor("conv1.weight", &[20, 3, 8, 8], 0, TensorKind::Weight),
        tensor("bn1.weight", &[20], 3840, TensorKind::Bias),
        tensor("bn1.bias", &[20], 3860, TensorKind::Bias),
        tensor("bn1.running_mean", &[20], 0, TensorKind::Statistic),
        tensor("bn1.running_var", &[20], 20, TensorKind::Statistic),
        tensor("fc.weight", &[10, 111], 3880, TensorKind::Weight),
        tensor("fc.bias", &[10], 4990, TensorKind::Bias),
    ];
    Arc::new(Layout { tensors, parameters: PARAMETERS, statistics: STATISTICS })
}

/// A state that differs from step to step in every tensor.
fn snapshot(step: u64) -> Snapshot {
    let value =
        |i: usize, salt: u64| ((i as u64 * 2_654_435_761 + step * salt) % 1000) as f32 - 500.5;
    Snapshot {
        layout: layout(),
        model_name: "tiny".into(),
        classes: vec!["cat".into(), "dog, \"big\"".into()],
        input: [3, 8, 8],
        normalization: None,
        parameters: (0..PARAMETERS).map(|i| value(i, 7)).collect(),
        optimizer: vec![(MOMENTUM.into(), (0..PARAMETERS).map(|i| value(i, 11)).collect())],
        // The second half are variances.
        statistics: (0..STATISTICS)
            .map(|i| if i < STATISTICS / 2 { value(i, 13) } else { value(i, 13).abs() })
            .collect(),
        state: TrainState {
            step,
            cursor: step * 96,
            seed: 1,
            attempt: 1,
            run_id: "tiny-0".into(),
            config_fingerprint: 0xC0_FFEE,
            data_fingerprint: 0xDA7A,
            exact: true,
            ..TrainState::default()
        },
    }
}

fn about() -> About {
    let Snapshot { layout, model_name, classes, input, .. } = snapshot(0);
    About { layout, model_name, classes, input, normalization: None }
}

fn expectation() -> Expectation {
    Expectation {
        layout: layout(),
        model_name: "tiny".into(),
        config_fingerprint: Some(0xC0_FFEE),
        data_fingerprint: Some(0xDA7A),
        run_id: Some("tiny-0".into()),
    }
}

fn write_keeping(storage: &dyn Storage, step: u64, keep: u32) -> WriterReport {
    store::write(storage, &snapshot(step), keep, &|| true, &RealClock::default())
}

fn write(storage: &dyn Storage, step: u64) {
    write_keeping(storage, step, 9).result.unwrap();
}

fn names(storage: &dyn Storage) -> Vec<String> {
    storage.list(Path::new(store::FOLDER)).unwrap()
}

fn folder_of(step: u64) -> PathBuf {
    Path::new(store::FOLDER).join(store::name_of(step))
}

fn all_files() -> impl Iterator<Item = &'static str> {
    FILES.into_iter().chain([MANIFEST])
}

fn newest_step(storage: &dyn Storage) -> Option<u64> {
    newest_verified(storage, &expectation()).unwrap().map(|found| found.state.step)
}

/// Makes operations of a storage go wrong: `failing` of them, from the `first` on.
struct Wear {
    count: AtomicUsize,
    first: AtomicUsize,
    failing: AtomicUsize,
}

impl Wear {
    fn strike(&self, first: usize, failing: usize) {
        self.count.store(0, Ordering::Relaxed);
        self.failing.store(failing, Ordering::Relaxed);
        self.first.store(first, Ordering::Relaxed);
    }
}

fn wearing(kind: std::io::ErrorKind) -> (Arc<Wear>, MemoryStorage) {
    let wear = Arc::new(Wear { count: 0.into(), first: usize::MAX.into(), failing: 0.into() });
    let shared = Arc::clone(&wear);
    let storage = MemoryStorage::with_faults(move |_: Operation, _: &Path| {
        let now = shared.count.fetch_add(1, Ordering::Relaxed);
        let first = shared.first.load(Ordering::Relaxed);
        let end = first.saturating_add(shared.failing.load(Ordering::Relaxed));
        (first..end).contains(&now).then_some(Fault::Fails(kind))
    });
    (wear, storage)
}
