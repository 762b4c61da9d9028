//! How fast storage is: the one that a data set lies on, read through the store that a run would
//! use, and the folder that its copies would lie in. Every look is bounded in bytes and in time.
//! Also noise: load on an emulated storage, so that contention can be made anywhere.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kintsugi_ffi::{os, private};
use serde::Serialize;

use crate::config::{Config, Data, Shown};
use crate::data::Split;
use crate::data::sampler::Order;
use crate::data::set::{DataSet, open};
use crate::data::staging::{SPARE_BYTES, place, walk};
use crate::data::store::throttled;
use crate::observe::spans::{amount, duration};

use super::doctor::{Finding, Grade, finding};

/// What is written at a time.
const PIECE_BYTES: usize = 1 << 20;
/// What noise takes at a time: so many a second of a slow device, and pieces of this size of a fast
/// one.
const NOISE_TAKES_PER_SECOND: u64 = 20;
const NOISE_BYTES_MAX: u64 = 64 << 10;

/// Ends a look, whichever comes first.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes that are moved.
    pub bytes: u64,
    /// Its length.
    pub time: Duration,
}

/// What `doctor` spends on each storage.
pub const DOCTOR_LIMITS: Limits = Limits { bytes: 32 << 20, time: Duration::from_secs(2) };

/// What was moved, and how long it took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Speed {
    /// Files, or parts of files.
    pub fetches: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Of all.
    pub seconds: f64,
    /// The longest of one.
    pub slowest_seconds: f64,
}

impl Speed {
    /// Bytes a second.
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.seconds.max(1e-9)
    }

    /// For a person.
    pub fn line(&self) -> String {
        format!(
            "{}/s, {:.0} fetches/s ({} in {}, the slowest fetch {})",
            amount(self.bytes_per_second() as u64),
            self.fetches as f64 / self.seconds.max(1e-9),
            amount(self.bytes),
            duration(self.seconds),
            duration(self.slowest_seconds)
        )
    }
}

/// Reads samples that are spread over the set, each once, one after another. What the kernel has of
/// them in memory comes from there, as it would in a run.
///
/// # Errors
/// What the store says of one.
pub fn read_set(set: &DataSet, limits: Limits) -> Result<Speed, String> {
    let (mut speed, mut bytes, begun) = (Speed::default(), Vec::new(), Instant::now());
    let samples = set.source.len();
    let stride = samples.isqrt().max(1);
    let spread = (0..stride).flat_map(|first| (first..samples).step_by(stride as usize));
    for sample in spread {
        if speed.bytes >= limits.bytes || begun.elapsed() >= limits.time {
            break;
        }
        let Some(location) = set.source.location(sample) else { continue };
        let fetch = Instant::now();
        let fetched = set.store.fetch(&location, &mut bytes);
        fetched.map_err(|error| format!("{}: {error}", location.file.shown()))?;
        speed.fetches += 1;
        speed.bytes += bytes.len() as u64;
        speed.slowest_seconds = speed.slowest_seconds.max(fetch.elapsed().as_secs_f64());
    }
    speed.seconds = begun.elapsed().as_secs_f64();
    Ok(speed)
}

/// Writes a file in the folder, down to its disk, and removes it.
///
/// # Errors
/// The kernel's.
pub fn write_local(folder: &Path, limits: Limits) -> std::io::Result<Speed> {
    let path = folder.join(format!("kintsugi-probe-{}", std::process::id()));
    let mut file = private::make_file(&path)?;
    let (mut speed, piece, begun) = (Speed::default(), vec![0x5a; PIECE_BYTES], Instant::now());
    let mut write = || -> std::io::Result<()> {
        while speed.bytes < limits.bytes && begun.elapsed() < limits.time {
            let one = Instant::now();
            file.write_all(&piece)?;
            file.sync_data()?;
            speed.fetches += 1;
            speed.bytes += PIECE_BYTES as u64;
            speed.slowest_seconds = speed.slowest_seconds.max(one.elapsed().as_secs_f64());
        }
        Ok(())
    };
    let written = write();
    let removed = std::fs::remove_file(&path);
    written.and(removed)?;
    Ok(Speed { seconds: begun.elapsed().as_secs_f64(), ..speed })
}

const NAME: &str = "set's storage";

/// Both storages of a configuration, for `doctor`.
pub fn findings(config: &Config) -> Vec<Finding> {
    let set = match open::open(&config.data, Split::Train, config.run.seed) {
        Ok(set) => set,
        Err(error) => return vec![finding(NAME, Grade::Broken, error.to_string())],
    };
    let (shared, read) = shared_storage(&set);
    let staging = read.map(|read| staging_folder_of(config, &set, read));
    std::iter::once(shared).chain(staging).collect()
}

/// How fast a set can be read.
pub fn shared_storage(set: &DataSet) -> (Finding, Option<Speed>) {
    match read_set(set, DOCTOR_LIMITS) {
        Ok(Speed { fetches: 0, .. }) => {
            (finding(NAME, Grade::Absent, "the training set is no files"), None)
        }
        Ok(read) => (finding(NAME, Grade::Ok, read.line()), Some(read)),
        Err(reason) => (finding(NAME, Grade::Warning, reason), None),
    }
}

/// Whether the copies of a set would have room, and gain anything beside that speed of reading.
pub fn staging_folder_of(config: &Config, set: &DataSet, read: Speed) -> Finding {
    let needed = Order::of(config, set.source.len()).map_or(0, |order| {
        let owners: Vec<u32> = (0..order.owners).collect();
        walk::survey(set, &order, &owners).1
    });
    staging_folder(&config.staging.place(), read, needed)
}

fn staging_folder(folder: &Path, shared: Speed, needed: u64) -> Finding {
    const NAME: &str = "staging folder";
    let unusable = |error: std::io::Error| {
        finding(NAME, Grade::Warning, format!("{}: {error}", folder.shown()))
            .advise(place::remedy(&error))
    };
    let (written, free) = match (write_local(folder, DOCTOR_LIMITS), os::free_disk_bytes(folder)) {
        (Ok(written), Ok(free)) => (written, free),
        (Err(error), _) | (_, Err(error)) => return unusable(error),
    };
    let value = format!(
        "{}: takes {}/s; {} are free, the training set has {}",
        folder.shown(),
        amount(written.bytes_per_second() as u64),
        amount(free),
        amount(needed)
    );
    let found = |grade| finding(NAME, grade, value);
    if needed > free.saturating_sub(SPARE_BYTES) {
        let spare = amount(SPARE_BYTES);
        return found(Grade::Warning).advise(format!(
            "no room for the set where {spare} stay free: set staging.folder to a larger local disk"
        ));
    }
    if written.bytes_per_second() < shared.bytes_per_second() {
        return found(Grade::Warning).advise(
            "the set's storage gives files faster than this folder takes them: copies gain \
             nothing here",
        );
    }
    found(Grade::Ok)
}

/// Takes bytes from the emulated device that `data.throttle` describes, as so many readers do that
/// want all they can get, until `stop` or for so long.
///
/// # Errors
/// Nothing is throttled, or there is no shared memory for it.
pub fn noise(
    data: &Data,
    readers: usize,
    limit: Duration,
    stop: &AtomicBool,
) -> Result<Speed, String> {
    let throttle = data.throttle.as_ref().ok_or(
        "data.throttle is not set: noise is made on an emulated storage, such as \
         data.throttle={rate=\"8MB/s\", latency=\"2ms\"}; real storage is loaded by real reads",
    )?;
    let bucket = throttled::bucket(data, throttle)
        .map_err(|error| format!("there is no shared memory for data.throttle: {error}"))?;
    let piece = (throttle.rate.0 / NOISE_TAKES_PER_SECOND).clamp(1, NOISE_BYTES_MAX);
    let (takes, slowest_micros, begun) = (AtomicU64::new(0), AtomicU64::new(0), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..readers {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) && begun.elapsed() < limit {
                    let one = Instant::now();
                    bucket.take(piece);
                    takes.fetch_add(1, Ordering::Relaxed);
                    let micros = one.elapsed().as_micros() as u64;
                    slowest_micros.fetch_max(micros, Ordering::Relaxed);
                }
            });
        }
    });
    let fetches = takes.into_inner();
    let (bytes, seconds) = (fetches * piece, begun.elapsed().as_secs_f64());
    let slowest_seconds = slowest_micros.into_inner() as f64 / 1e6;
    Ok(Speed { fetches, bytes, seconds, slowest_seconds })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Rate, Span, Throttle};
    use std::sync::Arc;

    const SHORT: Limits = Limits { bytes: 3 << 20, time: Duration::from_secs(60) };

    #[test]
    fn a_folder_that_takes_files_leaves_none_behind_and_one_that_takes_none_is_a_warning() {
        let place = tempfile::tempdir().expect("temporary folder");
        let speed = write_local(place.path(), SHORT).expect("written");
        assert_eq!((speed.fetches, speed.bytes), (3, 3 << 20));
        assert_eq!(std::fs::read_dir(place.path()).expect("there").count(), 0);
        let slow = Speed { bytes: 1, seconds: 1e9, ..Speed::default() };
        assert_eq!(staging_folder(place.path(), slow, 0).state, Grade::Ok);
        let full = staging_folder(place.path(), slow, u64::MAX);
        assert!(full.state == Grade::Warning && full.advice.contains("larger"), "{full:?}");
        let fast = Speed { bytes: u64::MAX, seconds: 1e-9, ..Speed::default() };
        let slower = staging_folder(place.path(), fast, 0);
        assert!(slower.state == Grade::Warning && slower.advice.contains("gain nothing"));
        let absent = staging_folder(&place.path().join("absent"), slow, 0);
        assert!(absent.state == Grade::Warning && absent.advice.contains("staging.folder"));
    }

    #[test]
    fn a_look_at_a_set_ends_with_its_bytes() {
        let root = tempfile::tempdir().expect("temporary folder");
        for class in ["a", "b"] {
            std::fs::create_dir(root.path().join(class)).expect("made");
            for number in 0..50 {
                let path = root.path().join(class).join(format!("{number}.jpg"));
                std::fs::write(path, vec![7; 1000]).expect("written");
            }
        }
        let data = Data { train: Some(root.path().into()), ..Data::default() };
        let set = open::open(&data, Split::Train, 1).expect("opened");
        let some = read_set(&set, Limits { bytes: 10_500, ..SHORT }).expect("read");
        assert_eq!((some.fetches, some.bytes), (11, 11_000));
        let all = read_set(&set, SHORT).expect("read");
        assert_eq!((all.fetches, all.bytes), (100, 100_000));
        std::fs::remove_dir_all(root.path().join("b")).expect("removed");
        assert!(read_set(&set, SHORT).expect_err("gone").contains("/b/"));
    }

    #[test]
    fn both_storages_of_a_configuration_are_looked_at() {
        let root = tempfile::tempdir().expect("temporary folder");
        let class = root.path().join("set/a");
        std::fs::create_dir_all(&class).expect("made");
        (0..8).for_each(|n| std::fs::write(class.join(format!("{n}.jpg")), "x").expect("written"));
        let mut config = Config::default();
        config.data.train = Some(root.path().join("set"));
        config.train.owners = Some(2);
        config.staging.folder = Some(root.path().into());
        let found = findings(&config);
        let names: Vec<&str> = found.iter().map(|finding| finding.name).collect();
        assert_eq!(names, ["set's storage", "staging folder"]);
        assert!(found[0].value.contains("B/s") && found[1].value.contains("B are free"));
        config.data.train = Some(root.path().join("absent"));
        let found = findings(&config);
        assert!(found.len() == 1 && found[0].state == Grade::Broken, "{found:?}");
    }

    #[test]
    fn noise_takes_from_the_device_that_a_throttled_set_reads_from() {
        let root = tempfile::tempdir().expect("temporary folder");
        let path = root.path().join("a");
        std::fs::create_dir(&path).expect("made");
        std::fs::write(path.join("0.jpg"), vec![7; 20_000]).expect("written");
        let throttle = Throttle { rate: Rate(1 << 20), latency: Span(Duration::ZERO) };
        let train = Some(root.path().to_owned());
        let data = Data { train, throttle: Some(throttle), ..Data::default() };
        let quiet = Data { throttle: None, ..data.clone() };
        let never = AtomicBool::new(false);
        assert!(noise(&quiet, 1, Duration::ZERO, &never).expect_err("real").contains("throttle"));
        // Held by somebody, so that what the noise reserved is still reserved when it has ended.
        let set = open::open(&data, Split::Train, 1).expect("opened");
        let stop = Arc::new(AtomicBool::new(false));
        let (own, loud) = (Arc::clone(&stop), data.clone());
        let makes = std::thread::spawn(move || noise(&loud, 4, Duration::from_secs(60), &own));
        let waits = || read_set(&set, SHORT).expect("read").seconds >= 0.1;
        let waited = (0..500).any(|_| waits());
        stop.store(true, Ordering::Relaxed);
        let took = makes.join().expect("no panic").expect("taken");
        assert!(waited, "20 kB of 1 MB/s never took 0.1 s");
        assert!(took.fetches >= 4 && took.bytes > 0 && took.slowest_seconds > 0.05, "{took:?}");
    }
}
