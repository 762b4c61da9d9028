//! Copies that are made ahead of a run: all owners' files on this node, read back and compared with
//! their hashes. The run that comes later finds them where its own would lie.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use thiserror::Error;

use crate::config::{self, Shown, StagingMode};
use crate::data::sampler::Order;
use crate::data::set::DataSet;
use crate::data::store::tally::{Count, Tally};

use super::Staging;
use super::folder::Folder;
use super::pace::Pace;
use super::progress::Progress;

/// Times that what reads back wrong is copied again.
const PASSES_MAX: u32 = 2;
/// How often people hear how far it is, and a wait looks whether somebody asks for its end.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What became of it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Staged {
    /// Files of the set.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes that were copied now; the others were there.
    pub copied_bytes: u64,
    /// Copies that read back wrong, and were made anew.
    pub damaged: u64,
}

/// Why not all of it is there.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AheadError {
    /// Somebody asked for the end. What is whole stays.
    #[error("asked to stop; what is copied stays, and the same command goes on")]
    Interrupted,
    /// Copies cannot be made, or kept, there.
    #[error("{0}")]
    Folder(String),
    /// Files of the set cannot be read.
    #[error("{0} files of the set cannot be read; the log names them")]
    Source(u64),
}

/// What people are told meanwhile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Stage {
    /// Files are copied.
    Copies(Progress),
    /// So many bytes of copies have been read back.
    Verified(u64),
}

/// Copies what lacks and verifies all.
///
/// # Errors
/// Something lacks at the end.
pub fn stage(
    set: &DataSet,
    order: &Order,
    folder: &Arc<Folder>,
    options: &config::Staging,
    stop: &AtomicBool,
    tell: &dyn Fn(Stage),
) -> Result<Staged, AheadError> {
    let mut staged = Staged::default();
    for _ in 0..PASSES_MAX {
        let progress = copy(set, order, folder, options, stop, tell)?;
        staged.copied_bytes += progress.copied;
        (staged.files, staged.bytes) = (progress.all.files_total, progress.all.bytes_total);
        let mut read = 0;
        let damaged = folder.verify(&mut |bytes| {
            read += bytes;
            tell(Stage::Verified(read));
            match stop.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        if stop.load(Ordering::Relaxed) {
            return Err(AheadError::Interrupted);
        }
        staged.damaged += damaged.len() as u64;
        if damaged.is_empty() {
            return match staged.files.saturating_sub(folder.files()) {
                0 => Ok(staged),
                unread => Err(AheadError::Source(unread)),
            };
        }
    }
    let place = folder.root().shown();
    Err(AheadError::Folder(format!("{place}: copies read back wrong: is the disk sound?")))
}

struct Copied {
    all: Progress,
    copied: u64,
}

fn copy(
    set: &DataSet,
    order: &Order,
    folder: &Arc<Folder>,
    options: &config::Staging,
    stop: &AtomicBool,
    tell: &dyn Fn(Stage),
) -> Result<Copied, AheadError> {
    let tally = Arc::new(Tally::default());
    let (mode, pace) = (StagingMode::Before, Pace::new(options.rate, Arc::default()));
    let (set, own, counts) = (set.clone(), order.clone(), Arc::clone(&tally));
    let workers = options.workers.max(1);
    let staging = Staging::start(set, own, Arc::clone(folder), mode, pace, counts, workers);
    let owners: Vec<u32> = (0..order.owners).collect();
    staging.plan(0, &owners);
    while !staging.wait_for_all(LOOK_EVERY) && !stop.load(Ordering::Relaxed) {
        tell(Stage::Copies(staging.progress()));
    }
    let (all, stopped) = (staging.progress(), staging.stop_reason());
    tell(Stage::Copies(all));
    staging.close();
    match stopped {
        _ if stop.load(Ordering::Relaxed) => Err(AheadError::Interrupted),
        Some(reason) => Err(AheadError::Folder(reason)),
        None => Ok(Copied { all, copied: tally.counts().of(Count::SharedBytes) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Data, DataFormat};
    use crate::data::Split;
    use crate::data::painting::synth::{self, SynthOptions};
    use crate::data::set::open::open;

    fn set(root: &std::path::Path) -> (DataSet, Order) {
        let options = SynthOptions {
            folder: root.join("set"),
            classes: 2,
            train_samples: 12,
            validation_samples: 2,
            image_size: 8,
            seed: 1,
        };
        synth::write(&options, &|_, _| {}).expect("written");
        let train = Some(root.join("set/train"));
        let data = Data { format: DataFormat::ImageFolder, train, ..Data::default() };
        let set = open(&data, Split::Train, 1).expect("opened");
        let order = Order::new(set.source.len(), 3, 1, 6).expect("valid");
        (set, order)
    }

    #[test]
    fn a_set_is_copied_once_and_what_reads_back_wrong_is_copied_again() {
        let root = tempfile::tempdir().expect("temporary folder");
        let (set, order) = set(root.path());
        let place = root.path().join("stage");
        let again = || {
            let folder = Arc::new(Folder::open(&place).expect("opened"));
            let (options, never) = (config::Staging::default(), AtomicBool::new(false));
            stage(&set, &order, &folder, &options, &never, &|_| {})
        };
        let first = again().expect("staged");
        assert_eq!((first.files, first.damaged), (12, 0));
        assert!(first.bytes > 0 && first.copied_bytes == first.bytes, "{first:?}");
        assert_eq!(again(), Ok(Staged { copied_bytes: 0, ..first }), "all is there");
        let copy = walk(&place);
        std::fs::write(&copy, "no picture").expect("written");
        let mended = again().expect("staged");
        assert!(mended.damaged == 1 && mended.copied_bytes > 0, "{mended:?}");
        assert_eq!(again(), Ok(Staged { copied_bytes: 0, ..first }));
        let (name, folder) = (set.source.name(5), Arc::new(Folder::open(&place).expect("opened")));
        drop(folder);
        std::fs::remove_dir_all(&place).expect("removed");
        std::fs::remove_file(name).expect("removed");
        assert_eq!(again(), Err(AheadError::Source(1)));
    }

    #[test]
    fn who_asks_for_the_end_gets_it_and_what_is_whole_stays() {
        let root = tempfile::tempdir().expect("temporary folder");
        let (set, order) = set(root.path());
        let folder = Arc::new(Folder::open(&root.path().join("stage")).expect("opened"));
        let (options, stop) = (config::Staging::default(), AtomicBool::new(true));
        let ended = stage(&set, &order, &folder, &options, &stop, &|_| {});
        assert_eq!(ended, Err(AheadError::Interrupted));
        stop.store(false, Ordering::Relaxed);
        let ended = stage(&set, &order, &folder, &options, &stop, &|_| {}).expect("staged");
        assert_eq!(ended.files, 12);
    }

    /// One copy.
    fn walk(folder: &std::path::Path) -> std::path::PathBuf {
        let mut all: Vec<_> = std::fs::read_dir(folder).expect("there").flatten().collect();
        all.retain(|entry| entry.path().is_dir());
        let first = std::fs::read_dir(all[0].path()).expect("there").flatten().next();
        first.expect("a copy").path()
    }
}
