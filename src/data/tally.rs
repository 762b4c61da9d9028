//! What a rank's reading of its training set costs: files, bytes by where they came from, time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::observe::data_use::{DataUse, TierBytes, Waits};

/// Words of [`Counts`].
pub const WORDS: usize = 10;

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
        ]
    }

    /// The reverse of `words`.
    pub fn from_words(words: &[u64]) -> Self {
        let word = |i: usize| words.get(i).copied().unwrap_or_default();
        let [opens, shared_bytes, local_bytes, cache_bytes, hits, misses, ..]: [u64; WORDS] =
            std::array::from_fn(word);
        let [wait, load, stage, batch] = [6, 7, 8, 9].map(word);
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
        }
    }

    /// Microseconds of all threads between a fetch and a sample that is ready.
    pub fn decode_micros(&self) -> u64 {
        self.load_micros.saturating_sub(self.wait_micros)
    }

    /// Without what clocks say, which does not replay.
    #[must_use]
    pub fn timeless(self) -> Self {
        Self { wait_micros: 0, load_micros: 0, stage_micros: 0, batch_micros: 0, ..self }
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
pub struct Tally([AtomicU64; WORDS]);

impl Tally {
    fn add(&self, word: usize, value: u64) {
        self.0[word].fetch_add(value, Ordering::Relaxed);
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
        Counts::from_words(&std::array::from_fn::<u64, WORDS, _>(|i| {
            self.0[i].load(Ordering::Relaxed)
        }))
    }
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
        assert_eq!(counts.words(), [1, 10, 20, 30, 1, 2, 4, 5, 6, 7]);
        assert_eq!(Counts::from_words(&counts.words()), counts);
        assert_eq!(counts.plus(&counts).since(&counts), counts);
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
