//! Where a synchronous step's sums over all ranks are received, bucket by bucket: what has arrived
//! is read by whoever makes the update, while the next bucket is still on its way.

use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use crate::cluster::comm::Elements;
use crate::train::compute::bucket_sum::Complete;
use crate::train::compute::gradient_sum::GradientSum;
use crate::train::compute::moments::{self, Seen};

/// Memory for all ranks' sums of one step.
#[derive(Debug)]
pub struct Received {
    /// Of every bucket of gradients, in their order; what was counted is behind the first one's.
    buckets: Vec<RwLock<Vec<i32>>>,
    /// `moments::WORDS` words a statistic.
    statistics: RwLock<Vec<i64>>,
}

impl Received {
    /// What a rank's own `sum` is added up into.
    pub fn of(sum: &GradientSum, statistics: usize) -> Self {
        let words = (0..sum.buckets()).filter_map(|bucket| sum.integers(bucket));
        Self {
            buckets: words.map(|words| RwLock::new(vec![0; words])).collect(),
            statistics: RwLock::new(vec![0; moments::WORDS * statistics]),
        }
    }

    /// Sums a bucket over all ranks by `all_reduce`, to here.
    pub fn take_in<T>(
        &self,
        bucket: usize,
        send: Complete<'_>,
        all_reduce: impl FnOnce(Elements<'_>) -> T,
    ) -> T {
        match send {
            Complete::Fixed(send) => {
                let mut sum = self.buckets[bucket].write().unwrap_or_else(PoisonError::into_inner);
                all_reduce(Elements::I32(send, &mut sum))
            }
            Complete::Wide(send) => {
                let mut sum = self.statistics.write().unwrap_or_else(PoisonError::into_inner);
                all_reduce(Elements::I64(send, &mut sum))
            }
        }
    }

    /// All ranks' sum of a bucket of gradients.
    pub fn bucket(&self, bucket: usize) -> RwLockReadGuard<'_, Vec<i32>> {
        self.buckets[bucket].read().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many buckets of gradients there are.
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// What all ranks' owners counted: it comes with the first bucket.
    pub fn seen(&self) -> Seen {
        let counted = |from_end: usize| {
            let first = self.bucket(0);
            let word = first.len().checked_sub(from_end).map_or(0, |at| first[at]);
            u64::try_from(word).unwrap_or_default()
        };
        Seen { samples: counted(2), alone: counted(1) }
    }

    /// All ranks' sums of moments, as numbers.
    pub fn statistics(&self) -> Vec<f64> {
        let sum = self.statistics.read().unwrap_or_else(PoisonError::into_inner);
        moments::load(&sum)
    }
}
