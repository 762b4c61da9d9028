//! From the configuration to a set that can be read: which source, over which store.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kintsugi_ffi::os;

use crate::config::{Data, DataFormat, Shown, Validation, seed};
use crate::data::index::{Cache, Occasion};
use crate::data::painting::synth::{self, SynthOptions};
use crate::data::source::cifar::{self, Cifar};
use crate::data::source::image_folder::{self, ImageFolder};
use crate::data::source::subset::{Splitting, Subset};
use crate::data::source::synthetic::Synthetic;
use crate::data::source::tar::{Tar, pattern};
use crate::data::source::{Source, mnist};
use crate::data::store::Store;
use crate::data::store::direct::Direct;
use crate::data::store::throttled::Throttled;
use crate::data::{DataError, Split};
use crate::observe::console::say;
use crate::run_folder::variables;

use super::DataSet;

/// Training samples for each validation sample of a synthesised set.
const TRAIN_PER_VALIDATION: u64 = 6;
/// How often a set is tried to be opened whose storage does not answer, and the pause between the
/// later tries: a hiccup ends no command.
const TRIES_MAX: u32 = 3;
const TRY_EVERY: Duration = Duration::from_millis(200);
/// Part of a synthesised set's name: raised when the pictures change.
const PICTURES_VERSION: u64 = 1;

/// Opens one split of the configured set. `image_folder` without `data.train` is synthesised on
/// first use, under `$KINTSUGI_DATA_DIR` or `./data`; any number of processes may do so at once.
pub fn open(data: &Data, split: Split, seed: u64) -> Result<DataSet, DataError> {
    open_with(data, split, seed, None)
}

/// The same, with a folder for what is learned of the set and used again: `RUN/cache`.
///
/// # Errors
/// [`DataError::Store`] where the storage did not answer, at several tries: nothing that was read
/// of the set counts, or is saved. [`DataError::Set`]: what is wrong with it.
pub fn open_with(
    data: &Data,
    split: Split,
    seed: u64,
    cache: Option<Cache<'_>>,
) -> Result<DataSet, DataError> {
    for tried in 1..TRIES_MAX {
        match open_once(data, split, seed, cache) {
            Err(DataError::Store(_)) if tried == 1 => {}
            Err(DataError::Store(_)) => std::thread::sleep(TRY_EVERY),
            other => return other,
        }
    }
    open_once(data, split, seed, cache)
}

fn open_once(
    data: &Data,
    split: Split,
    seed: u64,
    cache: Option<Cache<'_>>,
) -> Result<DataSet, DataError> {
    let store = store(data)?;
    let source = match data.validation.as_ref().and_then(Splitting::of) {
        None => source(data, split, seed, &*store, cache)?,
        Some(splitting) => {
            let whole = Data { validation: None, ..data.clone() };
            let whole = source(&whole, Split::Train, seed, &*store, cache)?;
            Arc::new(Subset::of(whole, split, &splitting)?)
        }
    };
    Ok(DataSet { source, store })
}

/// What brings the bytes of both splits.
pub fn store(data: &Data) -> Result<Arc<dyn Store>, DataError> {
    let direct = Arc::new(Direct::default());
    let Some(throttle) = &data.throttle else { return Ok(direct) };
    let throttled = Throttled::new(direct, data, throttle).map_err(|error| {
        DataError::Set(format!("data.throttle: there is no shared memory for it: {error}"))
    })?;
    Ok(Arc::new(throttled))
}

/// Whether the paths of the set lead somewhere now: an empty folder is where nothing is mounted.
///
/// # Errors
/// Which does not, and why.
pub fn reach(data: &Data) -> Result<(), String> {
    let validation = data.validation.as_ref().and_then(Validation::place);
    for path in [data.train.as_deref(), validation].into_iter().flatten() {
        let path = &match data.format {
            DataFormat::Tar => pattern::first(path),
            _ => path.to_owned(),
        };
        let lacks = |why: &dyn std::fmt::Display| Err(format!("{}: {why}", path.shown()));
        match std::fs::metadata(path).and_then(|found| match found.is_dir() {
            true => std::fs::read_dir(path).map(|mut entries| entries.next().is_some()),
            false => Ok(true),
        }) {
            Ok(true) => {}
            Ok(false) => return lacks(&"the folder is empty"),
            Err(error) => return lacks(&error),
        }
    }
    Ok(())
}

/// Reads the set's index from the store.
fn source(
    data: &Data,
    split: Split,
    seed: u64,
    store: &dyn Store,
    cache: Option<Cache<'_>>,
) -> Result<Arc<dyn Source>, DataError> {
    let cifar = |kind: Cifar| {
        let path = one_folder(data, split)?;
        apart(data, split, |train| cifar::is_one_set(store, train, kind))?;
        cifar::open(store, path, split, kind)
    };
    let mnist = || {
        let path = one_folder(data, split)?;
        apart(data, split, |train| mnist::is_one_set(store, train))?;
        mnist::open(store, path, split)
    };
    Ok(match data.format {
        DataFormat::ImageFolder => Arc::new(image_folder(data, split, seed, store, cache)?),
        DataFormat::Cifar10 => Arc::new(cifar(Cifar::Ten)?),
        DataFormat::Cifar100 => Arc::new(cifar(Cifar::Hundred)?),
        DataFormat::Mnist => Arc::new(mnist()?),
        DataFormat::Synthetic => {
            let (samples, classes) = (synthetic_samples(data, split), data.synthetic_classes);
            Arc::new(Synthetic::new(samples, classes, data.image_size, split, seed)?)
        }
        DataFormat::Tar => Arc::new(tar(data, split, store, cache)?),
    })
}

/// Refuses to measure on what is trained on, where nobody has asked for that.
fn apart(
    data: &Data,
    split: Split,
    is_one_set: impl Fn(&Path) -> Result<bool, DataError>,
) -> Result<(), DataError> {
    let train = data.train.as_deref().filter(|_| data.validation.is_none());
    match train.filter(|_| split == Split::Validation) {
        Some(train) if is_one_set(train)? => Err(DataError::Set(format!(
            "data.validation is not set, and {} holds one split: its samples would be measured \
             on, too; set data.validation, or write evaluation.every = \"never\"",
            train.shown()
        ))),
        _ => Ok(()),
    }
}

/// The path of the split. CIFAR and MNIST keep both splits in one folder, so one key is enough.
fn one_folder(data: &Data, split: Split) -> Result<&Path, DataError> {
    let validation = data.validation.as_ref().and_then(Validation::place);
    let path = match split {
        Split::Train => data.train.as_deref(),
        Split::Validation => validation.or(data.train.as_deref()),
    };
    path.ok_or_else(|| {
        DataError::Set("data.train is not set: give the folder that holds the set's files".into())
    })
}

/// The shards of a split. Labels are numbers: what is measured has those that are learned.
fn tar(
    data: &Data,
    split: Split,
    store: &dyn Store,
    cache: Option<Cache<'_>>,
) -> Result<Tar, DataError> {
    let lacks = |key: &str, instead: &str| {
        let what = "a *.tar file, a folder of them or a pattern like train-{0000..0099}.tar";
        DataError::Set(format!("{key} is not set: give {what}{instead}"))
    };
    let path = data.train.as_deref().ok_or_else(|| lacks("data.train", ""))?;
    let cache = cache.map(|cache| cache.folder);
    let train = Tar::open(store, path, Split::Train.key(), None, cache)?;
    if split == Split::Train {
        return Ok(train);
    }
    let instead = ", or a share of data.train such as \"10%\", or write evaluation.every = \
                   \"never\"";
    let path = data.validation.as_ref().and_then(Validation::place);
    let path = path.ok_or_else(|| lacks("data.validation", instead))?;
    let classes = Some(train.classes().len());
    Tar::open(store, path, Split::Validation.key(), classes, cache)
}

fn image_folder(
    data: &Data,
    split: Split,
    seed: u64,
    store: &dyn Store,
    cache: Option<Cache<'_>>,
) -> Result<ImageFolder, DataError> {
    let validation = data.validation.as_ref().and_then(Validation::place);
    let (train, validation) = match (&data.train, validation) {
        (None, None) => {
            let folder = synthesised(data, seed, &synthesis_base())?;
            (folder.join("train"), Some(folder.join("validation")))
        }
        (None, Some(_)) => {
            let text = "data.validation is set but data.train is not: set both, or none for a \
                        synthesised set";
            return Err(DataError::Set(text.into()));
        }
        (Some(train), validation) => (train.clone(), validation.map(Path::to_owned)),
    };
    // Who joins takes the listings of a run, whose classes were compared when it began.
    let joins = cache.is_some_and(|cache| cache.occasion == Occasion::Joins);
    if let Some(validation) = validation.as_ref().filter(|_| !joins) {
        same_classes(store, &train, validation)?;
    }
    let root = match split {
        Split::Train => train,
        Split::Validation => validation.ok_or_else(|| {
            let text = "data.validation is not set: give the folder of validation images, or a \
                        share of data.train such as \"10%\", or write evaluation.every = \
                        \"never\"";
            DataError::Set(text.into())
        })?,
    };
    ImageFolder::open(store, &root, split.key(), cache)
}

/// Labels are positions in the class list: both splits must have the same one.
fn same_classes(store: &dyn Store, train: &Path, validation: &Path) -> Result<(), DataError> {
    const NAMED: usize = 3;
    let learned = image_folder::class_names(store, train, Split::Train.key())?;
    let measured = image_folder::class_names(store, validation, Split::Validation.key())?;
    if learned == measured {
        return Ok(());
    }
    let only = |these: &[String], those: &[String], path: &Path| {
        let missing: Vec<&str> = these
            .iter()
            .filter(|name| those.binary_search(name).is_err())
            .map(String::as_str)
            .take(NAMED)
            .collect();
        match missing.is_empty() {
            true => String::new(),
            false => format!("; only {} has {}", path.shown(), missing.join(", ").shown()),
        }
    };
    Err(DataError::Set(format!(
        "data.train and data.validation have different class folders ({} and {}){}{}",
        learned.len(),
        measured.len(),
        only(&learned, &measured, train),
        only(&measured, &learned, validation)
    )))
}

fn synthetic_samples(data: &Data, split: Split) -> u64 {
    match split {
        Split::Train => data.synthetic_samples,
        Split::Validation => {
            let least = u64::from(data.synthetic_classes);
            (data.synthetic_samples / TRAIN_PER_VALIDATION).max(least)
        }
    }
}

fn synthesis_base() -> PathBuf {
    match os::variable(variables::DATA) {
        Some(folder) if !folder.is_empty() => folder.into(),
        _ => "data".into(),
    }
}

/// The folder (`base/synth-HASH`, with `train` and `validation`) of the set that `data`
/// describes, written if it is not there. The process that writes it prints one line.
fn synthesised(data: &Data, seed: u64, base: &Path) -> Result<PathBuf, DataError> {
    let parts = [
        PICTURES_VERSION,
        data.synthetic_samples,
        u64::from(data.synthetic_classes),
        u64::from(data.image_size),
        seed,
    ];
    let folder = base.join(format!("synth-{:016x}", seed::key(&parts)));
    let options = SynthOptions {
        folder: folder.clone(),
        classes: data.synthetic_classes,
        train_samples: data.synthetic_samples,
        validation_samples: synthetic_samples(data, Split::Validation),
        image_size: data.image_size,
        seed,
    };
    let start = std::time::Instant::now();
    let made = synth::ensure(&options, &|_, _| {}).map_err(|error| match error {
        DataError::Place(reason) => DataError::Place(format!(
            "{reason}: data.train is not set, so pictures are made there; name a set of your own, \
             or set KINTSUGI_DATA_DIR to a folder that can be written"
        )),
        DataError::Set(reason) => DataError::Set(format!(
            "{reason}: data.train is not set, so one is made, of data.image_size, \
             data.synthetic_samples and data.synthetic_classes"
        )),
        other => other,
    });
    if let Some(written) = made? {
        say!(
            "data.train is not set: made {} JPEG images of {} classes in {} ({:.1} s)",
            written.images,
            options.classes,
            folder.shown(),
            start.elapsed().as_secs_f64()
        );
    }
    Ok(folder)
}
