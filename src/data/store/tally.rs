//! What a rank's reading of its training set costs: files, bytes by where they came from, time.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::observe::data_use::{DataUse, TierBytes, Waits};

/// What is counted: first what replays, then what clocks and the machine's page cache say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// Fetches from the shared store.
    Opens,
    /// Bytes that came from it.
    SharedBytes,
    /// Bytes that came from node-local copies.
    LocalBytes,
    /// Bytes that came from the node's cache.
    CacheBytes,
    /// Samples that the cache had.
    Hits,
    /// Samples that it had not.
    Misses,
    /// Microseconds of all threads in fetches.
    WaitMicros,
    /// Microseconds of all threads that made samples ready, fetches included.
    LoadMicros,
    /// Microseconds of workers that waited for files to be staged.
    StageMicros,
    /// Microseconds of workers that waited for micro-batches, whose files were there.
    BatchMicros,
    /// Bytes that the kernel had to bring, for whatever the process read.
    DeviceBytes,
}

/// Words of [`Counts`].
pub const WORDS: usize = Count::DeviceBytes as usize + 1;

/// What was counted. All of it sums over ranks and over steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts([u64; WORDS]);

impl Counts {
    /// For the exchange.
    pub fn words(&self) -> [u64; WORDS] {
        self.0
    }

    /// The reverse of `words`.
    pub fn from_words(words: &[u64]) -> Self {
        Self(std::array::from_fn(|at| words.get(at).copied().unwrap_or_default()))
    }

    /// One of them.
    pub fn of(&self, count: Count) -> u64 {
        self.0[count as usize]
    }

    /// With another value of one of them.
    #[must_use]
    pub fn with(mut self, count: Count, value: u64) -> Self {
        self.0[count as usize] = value;
        self
    }

    /// Microseconds of all threads between a fetch and a sample that is ready.
    pub fn decode_micros(&self) -> u64 {
        self.of(Count::LoadMicros).saturating_sub(self.of(Count::WaitMicros))
    }

    /// Without what clocks and the machine's page cache say, which does not replay.
    #[must_use]
    pub fn timeless(self) -> Self {
        Self::from_words(&self.0[..Count::WaitMicros as usize])
    }

    /// As events say it.
    pub fn as_use(&self, bound: Option<f64>) -> DataUse {
        let seconds = |micros: u64| micros as f64 / 1e6;
        DataUse {
            opens: self.of(Count::Opens),
            bytes: TierBytes {
                shared: self.of(Count::SharedBytes),
                local: self.of(Count::LocalBytes),
                cache: self.of(Count::CacheBytes),
                device: self.of(Count::DeviceBytes),
            },
            hits: self.of(Count::Hits),
            misses: self.of(Count::Misses),
            bound,
            wait_seconds: seconds(self.of(Count::WaitMicros)),
            decode_seconds: seconds(self.decode_micros()),
            stage_seconds: seconds(self.of(Count::StageMicros)),
        }
    }

    /// What each of so many workers waited for in a step that took so many seconds, of which it
    /// computed for `busy_seconds`, its waits for data included. What it waited for a micro-batch
    /// counts as bytes and decoding in the shares that loading took.
    pub fn waits(&self, workers: u64, step_seconds: f64, busy_seconds: f64) -> Waits {
        let mean = |count| self.of(count) as f64 / 1e6 / workers.max(1) as f64;
        let loading = self.of(Count::LoadMicros).max(1) as f64;
        let fetching = self.of(Count::WaitMicros) as f64 / loading;
        // A worker can have begun to wait before its step did.
        let within = |count| f64::min(mean(count), step_seconds);
        let batch = within(Count::BatchMicros);
        Waits {
            data: batch * fetching.min(1.0),
            decode: batch * (1.0 - fetching.min(1.0)),
            staging: within(Count::StageMicros),
            peers: (step_seconds - busy_seconds).max(0.0),
        }
    }

    /// Both together.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at].wrapping_add(other.0[at])))
    }

    /// What came since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at].saturating_sub(earlier.0[at])))
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

    fn add(&self, count: Count, value: u64) {
        self.words[count as usize].fetch_add(value, Ordering::Relaxed);
    }

    fn add_time(&self, count: Count, time: Duration) {
        self.add(count, time.as_micros() as u64);
    }

    /// A sample's bytes came from there.
    pub fn fetched(&self, tier: Tier, bytes: u64) {
        match tier {
            Tier::Shared => {
                self.add(Count::Opens, 1);
                self.add(Count::SharedBytes, bytes);
            }
            Tier::Local => self.add(Count::LocalBytes, bytes),
            Tier::Cache => self.add(Count::CacheBytes, bytes),
        }
    }

    /// The cache had a sample.
    pub fn hit(&self) {
        self.add(Count::Hits, 1);
    }

    /// The cache had it not.
    pub fn missed(&self) {
        self.add(Count::Misses, 1);
    }

    /// A thread fetched for so long.
    pub fn waited(&self, time: Duration) {
        self.add_time(Count::WaitMicros, time);
    }

    /// A thread made samples ready for so long, fetches included.
    pub fn loaded(&self, time: Duration) {
        self.add_time(Count::LoadMicros, time);
    }

    /// A worker waited so long for files to be staged.
    pub fn stood_for_staging(&self, time: Duration) {
        self.add_time(Count::StageMicros, time);
    }

    /// A worker waited so long for a micro-batch.
    pub fn stood_for_batch(&self, time: Duration) {
        self.add_time(Count::BatchMicros, time);
    }

    /// What was counted so far.
    pub fn counts(&self) -> Counts {
        let counts = Counts(self.words.each_ref().map(|word| word.load(Ordering::Relaxed)));
        counts.with(Count::DeviceBytes, self.device.as_ref().map_or(0, DeviceReads::bytes))
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
        let counts = counts.with(Count::DeviceBytes, 8);
        assert_eq!(Counts::from_words(&counts.words()), counts);
        assert_eq!(counts.plus(&counts).since(&counts), counts);
    }

    #[test]
    fn the_kernels_count_begins_at_nothing_and_never_falls() {
        let reads = DeviceReads::since_now().expect("Linux says");
        let (first, second) = (reads.bytes(), reads.bytes());
        assert!(first <= second && second < reads.before + u64::from(u32::MAX));
        assert_eq!(Tally::default().counts().of(Count::DeviceBytes), 0);
        let read = Counts::default().with(Count::DeviceBytes, 9);
        assert_eq!(read.timeless(), Counts::default());
    }

    #[test]
    fn a_wait_for_a_micro_batch_is_shared_out_by_what_loading_took() {
        let counts = Counts::default()
            .with(Count::WaitMicros, 300_000)
            .with(Count::LoadMicros, 400_000)
            .with(Count::StageMicros, 500_000)
            .with(Count::BatchMicros, 800_000);
        let waits = counts.waits(2, 1.0, 0.75);
        let expected = Waits { data: 0.3, decode: 0.1, staging: 0.25, peers: 0.25 };
        assert!((waits.data - expected.data).abs() < 1e-9, "{waits:?}");
        assert_eq!(Waits { data: 0.3, decode: 0.1, ..waits }, expected);
        assert!((waits.decode - 0.1).abs() < 1e-9, "{waits:?}");
        assert_eq!(counts.timeless(), Counts::default());
        let waits = counts.waits(2, 0.2, 0.2);
        assert!((waits.data + waits.decode - 0.2).abs() < 1e-9, "never more than the step took");
        assert_eq!(waits.staging, 0.2);
    }
}
