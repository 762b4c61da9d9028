//! What reading the training set took, as events and `result.json` say it: over all ranks.

use serde::{Deserialize, Serialize};

/// Bytes by where they came from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TierBytes {
    /// The storage that all nodes read; what was copied to the nodes came from there too.
    pub shared: u64,
    /// Copies on the reader's node.
    pub local: u64,
    /// The memory of the reader's node.
    pub cache: u64,
    /// Not a tier of its own: what the kernels of all nodes had to bring from a device or a share
    /// for the ranks, whatever they read, because their page caches had it not.
    pub device: u64,
}

/// What was fetched, found and waited for. Seconds are sums over threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DataUse {
    /// Files, or parts of files, that were fetched from the shared storage.
    pub opens: u64,
    /// Bytes.
    pub bytes: TierBytes,
    /// Samples that the cache had.
    pub hits: u64,
    /// Samples that it had not; without a cache there are neither.
    pub misses: u64,
    /// The least share of misses that a cache of that size can have in an epoch after the first,
    /// 1-c; unknown without a cache.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bound: Option<f64>,
    /// Threads waited for bytes.
    pub wait_seconds: f64,
    /// Threads made samples of bytes.
    pub decode_seconds: f64,
    /// Workers waited for files to be staged.
    pub stage_seconds: f64,
}

impl DataUse {
    /// Share of the reads through caches that missed; `None` without caches.
    pub fn missed(&self) -> Option<f64> {
        let reads = self.hits + self.misses;
        (reads > 0).then(|| self.misses as f64 / reads as f64)
    }

    /// Adds what came later.
    pub fn add(&mut self, later: &Self) {
        self.opens += later.opens;
        self.bytes.shared += later.bytes.shared;
        self.bytes.local += later.bytes.local;
        self.bytes.cache += later.bytes.cache;
        self.bytes.device += later.bytes.device;
        self.hits += later.hits;
        self.misses += later.misses;
        self.bound = later.bound.or(self.bound);
        self.wait_seconds += later.wait_seconds;
        self.decode_seconds += later.decode_seconds;
        self.stage_seconds += later.stage_seconds;
    }
}

/// A wait that takes this share of steps is worth a word.
const NOTABLE_SHARE: f64 = 0.2;

/// What a worker waited for in a step, in seconds: means over all workers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Waits {
    /// Bytes.
    pub data: f64,
    /// Samples made of them.
    pub decode: f64,
    /// Files to be staged.
    pub staging: f64,
    /// Ranks that took longer, the exchange with them, and what is not computing: the update, the
    /// vote.
    pub peers: f64,
}

impl Waits {
    /// Adds another step's.
    pub fn add(&mut self, other: &Self) {
        self.data += other.data;
        self.decode += other.decode;
        self.staging += other.staging;
        self.peers += other.peers;
    }

    /// Each by its name.
    fn named(&self) -> [(&'static str, f64); 4] {
        let Self { data, decode, staging, peers } = *self;
        [("data", data), ("decode", decode), ("staging", staging), ("peers", peers)]
    }

    /// Those that took much of so many seconds of steps, the longest first, for a person.
    pub fn notable(&self, seconds: f64) -> Option<String> {
        let shares = self.named().map(|(name, wait)| (name, wait / seconds.max(1e-9)));
        let mut much: Vec<_> = shares.into_iter().filter(|wait| wait.1 >= NOTABLE_SHARE).collect();
        much.sort_by(|a, b| b.1.total_cmp(&a.1));
        let told: Vec<String> =
            much.iter().map(|(name, share)| format!("{name} {:.0}%", share * 100.0)).collect();
        (!told.is_empty()).then(|| format!("waits for {}", told.join(", ")))
    }

    /// Shares of so many seconds of steps.
    #[must_use]
    pub fn shares(&self, seconds: f64) -> Self {
        let share = |wait: f64| wait / seconds.max(1e-9);
        let Self { data, decode, staging, peers } = *self;
        Self {
            data: share(data),
            decode: share(decode),
            staging: share(staging),
            peers: share(peers),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_add_up_and_the_last_bound_holds() {
        let bytes = TierBytes { shared: 1, local: 2, cache: 3, device: 4 };
        let one =
            DataUse { opens: 1, bytes, hits: 4, misses: 5, bound: Some(0.6), ..DataUse::default() };
        let mut sum = one;
        sum.add(&DataUse { bound: None, wait_seconds: 0.5, ..one });
        assert_eq!((sum.opens, sum.hits, sum.misses), (2, 8, 10));
        assert_eq!((sum.bytes.cache, sum.bytes.device), (6, 8));
        assert_eq!((sum.bound, sum.wait_seconds), (Some(0.6), 0.5));
        let text = serde_json::to_string(&sum).expect("written");
        assert_eq!(serde_json::from_str::<DataUse>(&text).expect("read"), sum);
    }

    #[test]
    fn waits_that_take_much_of_the_steps_are_named_the_longest_first() {
        let mut waits = Waits { data: 0.1, decode: 0.3, staging: 0.2, peers: 0.0 };
        assert_eq!(waits.notable(1.0).as_deref(), Some("waits for decode 30%, staging 20%"));
        waits.add(&Waits { staging: 1.0, ..Waits::default() });
        assert_eq!(waits.notable(2.0).as_deref(), Some("waits for staging 60%"));
        assert_eq!(waits.notable(100.0), None);
        assert_eq!(waits.shares(2.0).staging, 0.6);
    }
}
