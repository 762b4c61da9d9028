//! `kintsugi data synth`: a real JPEG ImageFolder of procedural pictures whose classes take time
//! to learn. A folder that exists is complete: it is written under another name, by one process
//! at a time, and renamed at the end.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use image::codecs::jpeg::JpegEncoder;
use kintsugi_ffi::os;

use crate::config::Shown;
use crate::config::seed::{Stream, purpose};
use crate::data::store::FetchError;
use crate::data::{DataError, Split};
use crate::observe::refusal::Meaning;
use crate::observe::threads;

use super::{picture, shape};

/// What is written.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct SynthOptions {
    /// Receives train/ and validation/; must not exist yet
    pub folder: PathBuf,
    /// Number of classes
    #[arg(long, default_value_t = 10)]
    pub classes: u32,
    /// Training images
    #[arg(long = "train", default_value_t = 6000)]
    pub train_samples: u64,
    /// Validation images
    #[arg(long = "validation", default_value_t = 1000)]
    pub validation_samples: u64,
    /// Pixels that the model sees; the files are 1.25 to 1.75 times that
    #[arg(long, default_value_t = 32)]
    pub image_size: u32,
    /// The same seed draws the same pictures
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// What was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Images in both sets.
    pub images: u64,
    /// Bytes of all files.
    pub bytes: u64,
}

/// Most threads that draw at once.
const THREADS_MAX: usize = 8;
/// Longest wait for another process that writes the same set.
const WAIT_LIMIT: Duration = Duration::from_secs(600);
const SAMPLES_MAX: u64 = 1 << 32;
/// Of the smallest JPEG that is drawn, at the least.
const FILE_BYTES_MIN: u64 = 512;
const POLL: Duration = Duration::from_millis(20);

/// Writes the set; `progress` is told (images done, images in all), from several threads.
/// Refuses a folder that exists.
pub fn write(
    options: &SynthOptions,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Written, DataError> {
    check(options)?;
    let refuse = || {
        DataError::Set(format!(
            "{} exists: name another folder, or remove it first",
            options.folder.shown()
        ))
    };
    if is_there(&options.folder)? {
        return Err(refuse());
    }
    ensure(options, progress)?.ok_or_else(refuse)
}

/// Writes the set unless it is there; `None`: it was there, or another process wrote it while
/// this one waited (at most ten minutes). Any number of processes may call this at once.
pub fn ensure(
    options: &SynthOptions,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Option<Written>, DataError> {
    check(options)?;
    let folder = &options.folder;
    if is_there(folder)? {
        return Ok(None);
    }
    let parent = match folder.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    fs::create_dir_all(parent).map_err(|error| at(parent, &error))?;
    let free = os::free_disk_bytes(parent).unwrap_or(u64::MAX);
    let need = (options.train_samples + options.validation_samples) * FILE_BYTES_MIN;
    if need > free {
        return Err(DataError::Set(format!(
            "{}: {} images need {need} bytes of disk at the least, and {free} are free: draw fewer \
             (data.synthetic_samples, or --train), or elsewhere",
            folder.shown(),
            options.train_samples + options.validation_samples
        )));
    }
    let _lock = lock(&parent.join(".synth.lock"), WAIT_LIMIT)?;
    if is_there(folder)? {
        return Ok(None);
    }
    // Under the lock nobody else writes here: what is left of a killed writer can go.
    let partial = folder.with_extension("partial");
    remove(&partial)?;
    let written = draw_all(options, &partial, progress).and_then(|written| {
        fs::rename(&partial, folder).map_err(|error| at(folder, &error))?;
        Ok(written)
    });
    if written.is_err() {
        remove(&partial)?;
    }
    written.map(Some)
}

fn check(options: &SynthOptions) -> Result<(), DataError> {
    let refuse = |text: &str| Err(DataError::Set(text.into()));
    if options.classes < 2 || options.classes > 10_000 {
        return refuse("a synthesised set has 2 to 10000 classes");
    }
    let classes = u64::from(options.classes);
    if options.train_samples < classes || options.validation_samples < classes {
        return refuse("a synthesised set needs at least one sample of each class in both splits");
    }
    if options.train_samples.max(options.validation_samples) > SAMPLES_MAX {
        return refuse("a synthesised set has at most 2^32 samples a split");
    }
    if options.image_size < 8 || options.image_size > 1024 {
        return refuse("a synthesised set is drawn for an image size of 8 to 1024 pixels");
    }
    Ok(())
}

fn is_there(folder: &Path) -> Result<bool, DataError> {
    match fs::exists(folder) {
        // A file in the place of a folder above it: whoever makes the folder says so.
        Err(error) if Meaning::of(&error) == Meaning::Absent => Ok(false),
        found => found.map_err(|error| FetchError::from(error).about(folder.shown()).into()),
    }
}

fn at(path: &Path, error: &std::io::Error) -> DataError {
    DataError::Place(format!("{}: {error}", path.shown()))
}

fn remove(partial: &Path) -> Result<(), DataError> {
    match fs::remove_dir_all(partial) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(at(partial, &error)),
        _ => Ok(()),
    }
}

/// An exclusive lock, which the kernel frees when its holder dies.
fn lock(path: &Path, limit: Duration) -> Result<File, DataError> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(|error| at(path, &error))?;
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(error)) => return Err(at(path, &error)),
            Err(TryLockError::WouldBlock) if start.elapsed() > limit => {
                return Err(DataError::Set(format!(
                    "{}: another process has been writing a data set here for more than {} s; \
                     end it, or set KINTSUGI_DATA_DIR to another folder",
                    path.shown(),
                    limit.as_secs()
                )));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(POLL),
        }
    }
}

/// Draws both splits under `folder`, with a few threads that share one counter.
fn draw_all(
    options: &SynthOptions,
    folder: &Path,
    progress: &(dyn Fn(u64, u64) + Sync),
) -> Result<Written, DataError> {
    for split in [Split::Train, Split::Validation] {
        for class in 0..options.classes {
            let class = folder.join(split.name()).join(shape::class_name(class));
            fs::create_dir_all(&class).map_err(|error| at(&class, &error))?;
        }
    }
    let total = options.train_samples + options.validation_samples;
    let (next, done, bytes) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let (failed, failure) = (AtomicBool::new(false), Mutex::new(None));
    let work = || {
        while !failed.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= total {
                return;
            }
            match draw_one(options, folder, index) {
                Ok(size) => {
                    bytes.fetch_add(size, Ordering::Relaxed);
                    progress(done.fetch_add(1, Ordering::Relaxed) + 1, total);
                }
                Err(error) => {
                    failed.store(true, Ordering::Relaxed);
                    failure
                        .lock()
                        .unwrap_or_else(|poison| poison.into_inner())
                        .get_or_insert(error);
                }
            }
        }
    };
    let number = std::thread::available_parallelism().map_or(1, |n| n.get().min(THREADS_MAX));
    std::thread::scope(|scope| threads::share(scope, number, work));
    match failure.into_inner().unwrap_or_else(|poison| poison.into_inner()) {
        Some(error) => Err(error),
        None => Ok(Written { images: total, bytes: bytes.into_inner() }),
    }
}

/// Draws, encodes and writes image `index` of both splits together; its size in bytes.
fn draw_one(options: &SynthOptions, folder: &Path, index: u64) -> Result<u64, DataError> {
    let (split, id) = match index.checked_sub(options.train_samples) {
        None => (Split::Train, index),
        Some(id) => (Split::Validation, id),
    };
    let class = (id % u64::from(options.classes)) as u32;
    let mut stream =
        Stream::new(&[options.seed, purpose::SYNTHETIC, split.number(), id, u64::from(u32::MAX)]);
    let (low, high) = (options.image_size * 5 / 4, options.image_size * 7 / 4);
    let mut side = || low + stream.below(u64::from(high - low + 1)) as u32;
    let (width, height) = (side(), side());
    let picture = picture::draw(class, [options.seed, split.number(), id], width, height);
    let quality = 82 + stream.below(14) as u8;
    let path = folder
        .join(split.name())
        .join(shape::class_name(class))
        .join(format!("{:06}.jpg", id / u64::from(options.classes)));
    let mut bytes = Vec::with_capacity(8192);
    JpegEncoder::new_with_quality(&mut bytes, quality)
        .encode(&picture.pixels, width, height, image::ExtendedColorType::Rgb8)
        .map_err(|error| DataError::Set(format!("{}: {error}", path.shown())))?;
    fs::write(&path, &bytes).map_err(|error| at(&path, &error))?;
    Ok(bytes.len() as u64)
}
