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
}

/// See the module. Seconds are sums over threads.
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
    /// Adds what came later.
    pub fn add(&mut self, later: &Self) {
        self.opens += later.opens;
        self.bytes.shared += later.bytes.shared;
        self.bytes.local += later.bytes.local;
        self.bytes.cache += later.bytes.cache;
        self.hits += later.hits;
        self.misses += later.misses;
        self.bound = later.bound.or(self.bound);
        self.wait_seconds += later.wait_seconds;
        self.decode_seconds += later.decode_seconds;
        self.stage_seconds += later.stage_seconds;
    }
}

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
    /// Ranks that took longer, and the exchange with them.
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

    /// The largest of them, in words, and its seconds.
    pub fn longest(&self) -> (&'static str, f64) {
        let all = [
            ("data", self.data),
            ("decode", self.decode),
            ("staging", self.staging),
            ("peers", self.peers),
        ];
        all.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(("nothing", 0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_add_up_and_the_last_bound_holds() {
        let bytes = TierBytes { shared: 1, local: 2, cache: 3 };
        let one =
            DataUse { opens: 1, bytes, hits: 4, misses: 5, bound: Some(0.6), ..DataUse::default() };
        let mut sum = one;
        sum.add(&DataUse { bound: None, wait_seconds: 0.5, ..one });
        assert_eq!((sum.opens, sum.bytes.cache, sum.hits, sum.misses), (2, 6, 8, 10));
        assert_eq!((sum.bound, sum.wait_seconds), (Some(0.6), 0.5));
        let text = serde_json::to_string(&sum).expect("written");
        assert_eq!(serde_json::from_str::<DataUse>(&text).expect("read"), sum);
    }

    #[test]
    fn the_longest_wait_has_a_name() {
        let mut waits = Waits { data: 0.1, decode: 0.3, staging: 0.2, peers: 0.0 };
        assert_eq!(waits.longest(), ("decode", 0.3));
        waits.add(&Waits { staging: 1.0, ..Waits::default() });
        assert_eq!(waits.longest(), ("staging", 1.2));
    }
}
