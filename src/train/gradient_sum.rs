//! The rank's own sum of gradients: worker threads add tensor by tensor while backward runs, in
//! owner order whatever the threads' timing, and the communicating thread takes bucket by bucket
//! as they become complete. A failed exchange leaves the sums as they are, so a survivor computes
//! nothing again (DESIGN 4.2).

use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::model::{Layout, TensorKind};

/// How often a waiting thread looks whether it should give up.
const WAKE_EVERY: Duration = Duration::from_millis(20);

/// Sums of all parameters and, as the last bucket, of batch statistics weighted by samples.
#[derive(Debug)]
pub struct GradientSum {
    buckets: Vec<Bucket>,
    /// Of every parameter tensor, in offset order: (offset, bucket, index in the bucket).
    tensors: Vec<(usize, usize, usize)>,
    parameters: usize,
}

#[derive(Debug)]
struct Bucket {
    range: Range<usize>,
    /// Start of each tensor within the bucket.
    starts: Vec<usize>,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    sum: Vec<f32>,
    /// Per tensor: how many owners have been added; the owner whose turn equals it may add next.
    turns: Vec<usize>,
    /// Tensor additions still to come before the bucket is complete.
    missing: usize,
    closed: bool,
}

/// The sum was closed while a thread waited for it: the run is ending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Closed;

impl GradientSum {
    /// Buckets of at least `bucket_bytes`, from the last tensor to the first: the order in which
    /// backward makes them.
    pub fn new(layout: &Layout, bucket_bytes: u64) -> Self {
        let mut spans: Vec<Range<usize>> = layout
            .tensors
            .iter()
            .filter(|tensor| tensor.kind != TensorKind::Statistic)
            .map(|tensor| tensor.offset..tensor.offset + tensor.shape.iter().product::<usize>())
            .collect();
        spans.sort_by_key(|span| span.start);
        let (mut buckets, mut tensors) = (Vec::new(), Vec::new());
        let mut end = spans.len();
        while end > 0 {
            let mut first = end;
            let mut bytes = 0;
            while first > 0 && bytes < bucket_bytes {
                first -= 1;
                bytes += 4 * spans[first].len() as u64;
            }
            let range = spans[first].start..spans[end - 1].end;
            let starts = spans[first..end].iter().map(|span| span.start - range.start).collect();
            for (index, span) in spans[first..end].iter().enumerate() {
                tensors.push((span.start, buckets.len(), index));
            }
            buckets.push(Bucket::new(range, starts));
            end = first;
        }
        if layout.statistics > 0 {
            let range = layout.parameters..layout.parameters + layout.statistics;
            buckets.push(Bucket::new(range, vec![0]));
        }
        tensors.sort_unstable();
        Self { buckets, tensors, parameters: layout.parameters }
    }

    /// Number of buckets, in the order in which they become complete.
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// Where a bucket lies in the flat vector `parameters | statistics`.
    pub fn range(&self, bucket: usize) -> Range<usize> {
        self.buckets[bucket].range.clone()
    }

    /// Starts a step: the sums of `owners` owners are expected.
    pub fn begin(&self, owners: usize) {
        for bucket in &self.buckets {
            let mut state = bucket.lock();
            state.turns.fill(0);
            state.missing = owners * bucket.starts.len();
            if owners == 0 {
                state.sum.fill(0.0);
            }
        }
    }

    /// Adds owners to a step that is under way (the share of a rank that died).
    pub fn extend(&self, owners: usize) {
        for bucket in &self.buckets {
            bucket.lock().missing += owners * bucket.starts.len();
        }
    }

    /// Adds one owner's gradients of the tensor at `offset`; waits until it is `turn`'s turn.
    pub fn add(&self, turn: usize, offset: usize, gradients: &[f32]) -> Result<(), Closed> {
        let found = self.tensors.binary_search_by_key(&offset, |tensor| tensor.0);
        let index = found.expect("the engine reports the tensors of the layout");
        let (_, bucket, tensor) = self.tensors[index];
        self.buckets[bucket].add(turn, tensor, gradients, 1.0)
    }

    /// Adds one owner's batch statistics, weighted by its samples.
    pub fn add_statistics(
        &self,
        turn: usize,
        statistics: &[f32],
        samples: u64,
    ) -> Result<(), Closed> {
        match self.buckets.last() {
            Some(bucket) if bucket.range.start == self.parameters && !statistics.is_empty() => {
                bucket.add(turn, 0, statistics, samples as f32)
            }
            _ => Ok(()),
        }
    }

    /// Waits until the bucket is complete, then hands its sum to `use_sum`. `give_up` is asked
    /// while waiting; what it returns ends the wait.
    pub fn with_complete<T, E>(
        &self,
        bucket: usize,
        mut give_up: impl FnMut() -> Option<E>,
        use_sum: impl FnOnce(&[f32]) -> Result<T, E>,
    ) -> Result<T, E> {
        let bucket = &self.buckets[bucket];
        let mut state = bucket.lock();
        while state.missing > 0 {
            if let Some(reason) = give_up() {
                return Err(reason);
            }
            let waited = bucket.changed.wait_timeout(state, WAKE_EVERY);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        use_sum(&state.sum)
    }

    /// Lets every waiting worker go.
    pub fn close(&self) {
        for bucket in &self.buckets {
            bucket.lock().closed = true;
            bucket.changed.notify_all();
        }
    }
}

impl Bucket {
    fn new(range: Range<usize>, starts: Vec<usize>) -> Self {
        let state = State {
            sum: vec![0.0; range.len()],
            turns: vec![0; starts.len()],
            missing: 0,
            closed: false,
        };
        Self { range, starts, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, turn: usize, tensor: usize, values: &[f32], weight: f32) -> Result<(), Closed> {
        let mut state = self.lock();
        while state.turns[tensor] != turn {
            if state.closed {
                return Err(Closed);
            }
            let waited = self.changed.wait_timeout(state, WAKE_EVERY);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let start = self.starts[tensor];
        let sum = &mut state.sum[start..start + values.len()];
        if turn == 0 {
            for (sum, value) in sum.iter_mut().zip(values) {
                *sum = weight * value;
            }
        } else {
            for (sum, value) in sum.iter_mut().zip(values) {
                *sum += weight * value;
            }
        }
        state.turns[tensor] += 1;
        state.missing -= 1;
        self.changed.notify_all();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::TensorSpec;

    fn layout(sizes: &[usize], statistics: usize) -> Layout {
        let mut tensors = Vec::new();
        let mut offset = 0;
        for (node, &size) in sizes.iter().enumerate() {
            let kind = TensorKind::Weight;
            let name = format!("n{node}.weight");
            tensors.push(TensorSpec { name, shape: vec![size], offset, kind, node });
            offset += size;
        }
        Layout { tensors, parameters: offset, statistics }
    }

    #[test]
    fn buckets_tile_the_vector_from_the_last_tensor_to_the_first() {
        let sum = GradientSum::new(&layout(&[10, 20, 30, 5], 7), 100);
        let ranges: Vec<_> = (0..sum.buckets()).map(|bucket| sum.range(bucket)).collect();
        assert_eq!(ranges, vec![30..65, 0..30, 65..72]);
    }

    #[test]
    fn owners_are_added_in_owner_order_whatever_the_threads_do() {
        let layout = layout(&[3], 0);
        let values = [1.0e8_f32, 1.0, -1.0e8, 3.0];
        let expected = values.iter().skip(1).fold(values[0], |sum, value| sum + value);
        for reverse in [true, false] {
            let sum = GradientSum::new(&layout, 1);
            sum.begin(values.len());
            std::thread::scope(|scope| {
                let mut turns: Vec<usize> = (0..values.len()).collect();
                if reverse {
                    turns.reverse();
                }
                for turn in turns {
                    let sum = &sum;
                    scope.spawn(move || sum.add(turn, 0, &[values[turn]; 3]));
                    std::thread::sleep(Duration::from_millis(3));
                }
            });
            let got = sum.with_complete(0, || None::<()>, |sum| Ok(sum.to_vec())).unwrap();
            assert_eq!(got, vec![expected; 3]);
        }
    }

    #[test]
    fn a_dead_ranks_owners_come_after_the_own_ones() {
        let sum = GradientSum::new(&layout(&[2], 0), 1);
        sum.begin(1);
        sum.add(0, 0, &[1.0, 2.0]).unwrap();
        sum.extend(1);
        let waiting = sum.with_complete(0, || Some("incomplete"), |_| Ok(()));
        assert_eq!(waiting, Err("incomplete"));
        sum.add(1, 0, &[10.0, 20.0]).unwrap();
        let got = sum.with_complete(0, || None::<()>, |sum| Ok(sum.to_vec())).unwrap();
        assert_eq!(got, vec![11.0, 22.0]);
    }

    #[test]
    fn a_closed_sum_lets_its_waiters_go() {
        let sum = GradientSum::new(&layout(&[1], 0), 1);
        sum.begin(2);
        sum.close();
        assert_eq!(sum.add(1, 0, &[1.0]), Err(Closed));
    }
}
