//! What a rank's reading of its training set costs: files, bytes by where they came from, time.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::observe::data_use::{DataUse, TierBytes, Waits};

/// Words of [`Counts`].
pub const WORDS: usize = 11;

/// What was counted. All of it sums over ranks and over steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Fetches from the shared store.
    pub opens: u64,
    /// Bytes that came from it.
    pub shared_bytes: u64,
    /// Bytes that came from node-local copies.
    pub local_bytes: u64,
    /// Bytes that came from the node's cache.
    pub cache_bytes: u64,
    /// Samples that the cache had.
    pub hits: u64,
    /// Samples that it had not.
    pub misses: u64,
    /// Microseconds of all threads in fetches.
    pub wait_micros: u64,
    /// Microseconds of all threads that made samples ready, fetches included.
    pub load_micros: u64,
    /// Microseconds of workers that waited for files to be staged.
    pub stage_micros: u64,
    /// Microseconds of workers that waited for micro-batches, whose files were there.
    pub batch_micros: u64,
    /// Bytes that the kernel had to bring, for whatever the process read.
    pub device_bytes: u64,
}

impl Counts {
    /// For the exchange.
    pub fn words(&self) -> [u64; WORDS] {
        [
            self.opens,
            self.shared_bytes,
            self.local_bytes,
            self.cache_bytes,
            self.hits,
            self.misses,
            self.wait_micros,
            self.load_micros,
            self.stage_micros,
            self.batch_micros,
            self.device_bytes,
        ]
    }

    /// The reverse of `words`.
    pub fn from_words(words: &[u64]) -> Self {
        let word = |i: usize| words.get(i).copied().unwrap_or_default();
        let [opens, shared_bytes, local_bytes, cache_bytes, hits, misses, ..]: [u64; WORDS] =
            std::array::from_fn(word);
        let [wait, load, stage, batch, device_bytes] = [6, 7, 8, 9, 10].map(word);
        Self {
            opens,
            shared_bytes,
            local_bytes,
            cache_bytes,
            hits,
            misses,
            wait_micros: wait,
            load_micros: load,
            stage_micros: stage,
            batch_micros: batch,
            device_bytes,
        }
    }

    /// Microseconds of all threads between a fetch and a sample that is ready.
    pub fn decode_micros(&self) -> u64 {
        self.load_micros.saturating_sub(self.wait_micros)
    }

    /// Without what clocks and the machine's page cache say, which does not replay.
    #[must_use]
    pub fn timeless(self) -> Self {
        let (wait_micros, load_micros, stage_micros, batch_micros) = (0, 0, 0, 0);
        Self { wait_micros, load_micros, stage_micros, batch_micros, device_bytes: 0, ..self }
    }

    /// As events say it.
    pub fn as_use(&self, bound: Option<f64>) -> DataUse {
        let seconds = |micros: u64| micros as f64 / 1e6;
        DataUse {
            opens: self.opens,
            bytes: TierBytes {
                shared: self.shared_bytes,
                local: self.local_bytes,
                cache: self.cache_bytes,
                device: self.device_bytes,
            },
            hits: self.hits,
            misses: self.misses,
            bound,
            wait_seconds: seconds(self.wait_micros),
            decode_seconds: seconds(self.decode_micros()),
            stage_seconds: seconds(self.stage_micros),
        }
    }

    /// What each of so many workers waited for in a step that took so many seconds, of which it
    /// computed for `busy_seconds`, its waits for data included. What it waited for a micro-batch
    /// counts as bytes and decoding in the shares that loading took.
    pub fn waits(&self, workers: u64, step_seconds: f64, busy_seconds: f64) -> Waits {
        let mean = |micros: u64| micros as f64 / 1e6 / workers.max(1) as f64;
        let fetching = self.wait_micros as f64 / self.load_micros.max(1) as f64;
        let batch = mean(self.batch_micros);
        Waits {
            data: batch * fetching.min(1.0),
            decode: batch * (1.0 - fetching.min(1.0)),
            staging: mean(self.stage_micros),
            peers: (step_seconds - busy_seconds).max(0.0),
        }
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        let (mine, theirs) = (self.words(), other.words());
        Self::from_words(&std::array::from_fn::<u64, WORDS, _>(|i| mine[i].wrapping_add(theirs[i])))
    }

    /// What came since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let (mine, theirs) = (self.words(), earlier.words());
        Self::from_words(&std::array::from_fn::<u64, WORDS, _>(|i| {
            mine[i].saturating_sub(theirs[i])
        }))
    }
}

/// What a rank has told of its counts: each is told once, with a step that commits.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counting {
    told: Counts,
    telling: Counts,
}

impl Counting {
    /// What is new since the last commit.
    pub fn take(&mut self, now: Counts) -> Counts {
        self.telling = now;
        now.since(&self.told)
    }

    /// What was taken last is told.
    pub fn commit(&mut self) {
        self.told = self.telling;
    }
}

/// Where bytes came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tier {
    /// The store that all nodes read.
    Shared,
    /// A copy on this node.
    Local,
    /// This node's memory.
    Cache,
}

/// The running counts of a rank; its threads add to it.
#[derive(Debug, Default)]
pub struct Tally {
    words: [AtomicU64; WORDS],
    device: Option<DeviceReads>,
}

impl Tally {
    /// Counts what the kernel brings for this process from now on, too, where it says that.
    pub fn of_process() -> Self {
        Self { device: DeviceReads::since_now(), ..Self::default() }
    }

    fn add(&self, word: usize, value: u64) {
        self.words[word].fetch_add(value, Ordering::Relaxed);
    }

    /// A sample's bytes came from there.
    pub fn fetched(&self, tier: Tier, bytes: u64) {
        match tier {
            Tier::Shared => {
                self.add(0, 1);
                self.add(1, bytes);
            }
            Tier::Local => self.add(2, bytes),
            Tier::Cache => self.add(3, bytes),
        }
    }

    /// The cache had a sample.
    pub fn hit(&self) {
        self.add(4, 1);
    }

    /// The cache had it not.
    pub fn missed(&self) {
        self.add(5, 1);
    }

    /// A thread fetched for so long.
    pub fn waited(&self, time: Duration) {
        self.add(6, time.as_micros() as u64);
    }

    /// A thread made samples ready for so long, fetches included.
    pub fn loaded(&self, time: Duration) {
        self.add(7, time.as_micros() as u64);
    }

    /// A worker waited so long for files to be staged.
    pub fn stood_for_staging(&self, time: Duration) {
        self.add(8, time.as_micros() as u64);
    }

    /// A worker waited so long for a micro-batch.
    pub fn stood_for_batch(&self, time: Duration) {
        self.add(9, time.as_micros() as u64);
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        let word = |i: usize| self.words[i].load(Ordering::Relaxed);
        let counts = Counts::from_words(&std::array::from_fn::<u64, WORDS, _>(word));
        let device_bytes = self.device.as_ref().map_or(0, DeviceReads::bytes);
        Counts { device_bytes, ..counts }
    }
}

/// What the kernel brought from devices, or over the network from a share, because its page cache
/// did not have it: `read_bytes` of /proc/self/io, proc(5).
#[derive(Debug)]
struct DeviceReads {
    io: File,
    before: u64,
}

impl DeviceReads {
    /// `None` where the kernel does not say.
    fn since_now() -> Option<Self> {
        let io = File::open("/proc/self/io").ok()?;
        let before = read_bytes(&io)?;
        Some(Self { io, before })
    }

    fn bytes(&self) -> u64 {
        read_bytes(&self.io).unwrap_or(self.before).saturating_sub(self.before)
    }
}

/// The file is seven lines of a name and a number.
const IO_BYTES_MAX: usize = 512;

fn read_bytes(io: &File) -> Option<u64> {
    let mut text = [0; IO_BYTES_MAX];
    let length = io.read_at(&mut text, 0).ok()?;
    let text = std::str::from_utf8(&text[..length]).ok()?;
    text.lines().find_map(|line| line.strip_prefix("read_bytes: ")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_count_has_its_own_word_and_words_read_back() {
        let tally = Tally::default();
        tally.fetched(Tier::Shared, 10);
        tally.fetched(Tier::Local, 20);
        tally.fetched(Tier::Cache, 30);
        tally.hit();
        tally.missed();
        tally.missed();
        tally.waited(Duration::from_micros(4));
        tally.loaded(Duration::from_micros(5));
        tally.stood_for_staging(Duration::from_micros(6));
        tally.stood_for_batch(Duration::from_micros(7));
        let counts = tally.counts();
        assert_eq!(counts.words(), [1, 10, 20, 30, 1, 2, 4, 5, 6, 7, 0]);
        let counts = Counts { device_bytes: 8, ..counts };
        assert_eq!(Counts::from_words(&counts.words()), counts);
        assert_eq!(counts.plus(&counts).since(&counts), counts);
    }

    #[test]
    fn the_kernels_count_begins_at_nothing_and_never_falls() {
        let reads = DeviceReads::since_now().expect("Linux says");
        let (first, second) = (reads.bytes(), reads.bytes());
        assert!(first <= second && second < reads.before + u64::from(u32::MAX));
        assert_eq!(Tally::default().counts().device_bytes, 0);
        assert_eq!(Counts { device_bytes: 9, ..Counts::default() }.timeless(), Counts::default());
    }

    #[test]
    fn a_wait_for_a_micro_batch_is_shared_out_by_what_loading_took() {
        let counts = Counts {
            wait_micros: 300_000,
            load_micros: 400_000,
            stage_micros: 500_000,
            batch_micros: 800_000,
            ..Counts::default()
        };
        let waits = counts.waits(2, 1.0, 0.75);
        let expected = Waits { data: 0.3, decode: 0.1, staging: 0.25, peers: 0.25 };
        assert!((waits.data - expected.data).abs() < 1e-9, "{waits:?}");
        assert_eq!(Waits { data: 0.3, decode: 0.1, ..waits }, expected);
        assert!((waits.decode - 0.1).abs() < 1e-9, "{waits:?}");
        assert_eq!(counts.timeless(), Counts::default());
    }
}
