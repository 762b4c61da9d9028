//! The rank's own sum of gradients: worker threads add tensor by tensor while backward runs, in
//! owner order whatever the threads' timing, and the communicating thread takes bucket by bucket
//! as they become complete. A failed exchange leaves the sums as they are, so a survivor computes
//! nothing again. Reproducible sums (`fixed_point`) need no order: nobody waits.

use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::model::{Layout, TensorKind};

use crate::train::compute::fixed_point;
use crate::train::compute::fixed_point::{Grid, Needs};

/// How often a waiting thread looks whether it should give up.
/// How often a worker that waits for its turn looks up.
const WAKE_EVERY: Duration = Duration::from_millis(20);
/// How often whoever waits for a sum asks whether it is still wanted: a death is noticed so soon,
/// for a look of microseconds.
const LOOK_EVERY: Duration = Duration::from_millis(2);

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
    state: Mutex<Summing>,
    changed: Condvar,
}

/// A bucket's sum, in the format of the run.
#[derive(Debug)]
enum Words {
    Plain(Vec<f32>),
    /// Whole multiples on the grid; `largest`: bits of the largest magnitude of any owner's value.
    Fixed {
        sum: Vec<i64>,
        grid: Grid,
        largest: u32,
    },
    /// Two words a statistic.
    Wide {
        sum: Vec<i64>,
        largest: u32,
    },
}

/// A complete bucket.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Complete<'a> {
    /// Plain sums.
    Plain(&'a [f32]),
    /// Sums that do not depend on their grouping; `GradientSum::load` says what they are.
    Fixed(&'a [i64]),
}

#[derive(Debug)]
struct Summing {
    sum: Words,
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
    /// backward makes them. Tensors that `layout` leaves out (frozen ones) are in no bucket, and
    /// what lies on both sides of one is in two.
    pub fn new(layout: &Layout, bucket_bytes: u64) -> Self {
        Self::of(layout, bucket_bytes, |length| Words::Plain(vec![0.0; length]))
    }

    /// The same buckets with sums that do not depend on their grouping.
    pub fn reproducible(layout: &Layout, bucket_bytes: u64) -> Self {
        let (grid, largest) = (Grid::default(), 0);
        let fixed = |length| Words::Fixed { sum: vec![0; length], grid, largest };
        let mut sum = Self::of(layout, bucket_bytes, fixed);
        if let Some(bucket) = sum.buckets.last_mut().filter(|_| layout.statistics > 0) {
            let state = bucket.state.get_mut().unwrap_or_else(PoisonError::into_inner);
            state.sum = Words::Wide { sum: vec![0; 2 * layout.statistics], largest };
        }
        sum
    }

    fn of(layout: &Layout, bucket_bytes: u64, words: impl Fn(usize) -> Words) -> Self {
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
            let adjacent =
                |first: usize| first == end || spans[first - 1].end == spans[first].start;
            while first > 0 && bytes < bucket_bytes && adjacent(first) {
                first -= 1;
                bytes += 4 * spans[first].len() as u64;
            }
            let range = spans[first].start..spans[end - 1].end;
            let starts = spans[first..end].iter().map(|span| span.start - range.start).collect();
            for (index, span) in spans[first..end].iter().enumerate() {
                tensors.push((span.start, buckets.len(), index));
            }
            buckets.push(Bucket::new(words(range.len()), range, starts));
            end = first;
        }
        if layout.statistics > 0 {
            let range = layout.parameters..layout.parameters + layout.statistics;
            buckets.push(Bucket::new(words(range.len()), range, vec![0]));
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
            state.sum.begin(owners);
        }
    }

    /// Adds owners to a step that is under way (the share of a rank that died).
    pub fn extend(&self, owners: usize) {
        for bucket in &self.buckets {
            bucket.lock().missing += owners * bucket.starts.len();
        }
    }

    /// Adds one owner's gradients of the tensor at `offset`; waits until it is `turn`'s turn.
    /// Those of a tensor that is in no bucket nobody wants.
    pub fn add(&self, turn: usize, offset: usize, gradients: &[f32]) -> Result<(), Closed> {
        let found = self.tensors.binary_search_by_key(&offset, |tensor| tensor.0);
        let Ok(index) = found else { return Ok(()) };
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

    /// Waits until the bucket is complete. `give_up` is asked while waiting; what it returns ends
    /// the wait.
    pub fn await_complete<E>(
        &self,
        bucket: usize,
        mut give_up: impl FnMut() -> Option<E>,
    ) -> Result<(), E> {
        let bucket = &self.buckets[bucket];
        let mut state = bucket.lock();
        while state.missing > 0 {
            if let Some(reason) = give_up() {
                return Err(reason);
            }
            let waited = bucket.changed.wait_timeout(state, LOOK_EVERY);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Hands the sum of a complete bucket to `use_sum`.
    ///
    /// # Panics
    /// When it is not complete (`await_complete`).
    pub fn with_complete<T>(&self, bucket: usize, use_sum: impl FnOnce(Complete<'_>) -> T) -> T {
        let state = self.buckets[bucket].lock();
        assert_eq!(state.missing, 0, "a sum is used before it is complete");
        match &state.sum {
            Words::Plain(sum) => use_sum(Complete::Plain(sum)),
            Words::Fixed { sum, .. } | Words::Wide { sum, .. } => use_sum(Complete::Fixed(sum)),
        }
    }

    /// From the next `begin` on, reproducible sums are made on this grid.
    pub fn set_grid(&self, to: Grid) {
        for bucket in &self.buckets {
            if let Words::Fixed { grid, .. } = &mut bucket.lock().sum {
                *grid = to;
            }
        }
    }

    /// What the values added to reproducible sums need, once all buckets are complete.
    pub fn needs(&self) -> Needs {
        let mut needs = Needs::default();
        for bucket in &self.buckets {
            if let Words::Fixed { largest, .. } | Words::Wide { largest, .. } = bucket.lock().sum {
                needs.add(largest);
            }
        }
        needs
    }

    /// What all ranks' sum of a reproducible bucket is as numbers.
    pub fn load(&self, bucket: usize, sum: &[i64], values: &mut [f32]) {
        match self.buckets[bucket].lock().sum {
            Words::Fixed { grid, .. } => fixed_point::load(grid, sum, values),
            Words::Wide { .. } => fixed_point::load_statistics(sum, values),
            Words::Plain(_) => unreachable!("plain sums are numbers already"),
        }
    }

    /// Lets every waiting worker go.
    pub fn close(&self) {
        for bucket in &self.buckets {
            bucket.lock().closed = true;
            bucket.changed.notify_all();
        }
    }
}

impl Words {
    /// Starts a step; what `owners` owners will not write is cleared.
    fn begin(&mut self, owners: usize) {
        match self {
            Self::Plain(sum) if owners == 0 => sum.fill(0.0),
            Self::Plain(_) => {}
            Self::Fixed { sum, largest, .. } | Self::Wide { sum, largest } => {
                *largest = 0;
                if owners == 0 {
                    sum.fill(0);
                }
            }
        }
    }

    /// Whether owners have to be added in their order.
    fn ordered(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// Adds the values of the `turn`-th owner that comes, from `start` on.
    fn add(&mut self, turn: usize, start: usize, values: &[f32], weight: f32) {
        let range = start..start + values.len();
        match self {
            Self::Plain(sum) => {
                let pairs = sum[range].iter_mut().zip(values);
                match turn {
                    0 => pairs.for_each(|(sum, value)| *sum = weight * value),
                    _ => pairs.for_each(|(sum, value)| *sum += weight * value),
                }
            }
            Self::Fixed { sum, grid, largest } => {
                let add = if turn == 0 { fixed_point::store } else { fixed_point::add };
                *largest = (*largest).max(add(*grid, &mut sum[range], values));
            }
            Self::Wide { sum, largest } => {
                if turn == 0 {
                    sum.fill(0);
                }
                *largest = (*largest).max(fixed_point::add_statistics(sum, values, weight));
            }
        }
    }
}

impl Bucket {
    fn new(sum: Words, range: Range<usize>, starts: Vec<usize>) -> Self {
        let turns = vec![0; starts.len()];
        let state = Summing { sum, turns, missing: 0, closed: false };
        Self { range, starts, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Summing> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, turn: usize, tensor: usize, values: &[f32], weight: f32) -> Result<(), Closed> {
        let mut state = self.lock();
        while state.sum.ordered() && state.turns[tensor] != turn {
            if state.closed {
                return Err(Closed);
            }
            let waited = self.changed.wait_timeout(state, WAKE_EVERY);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let before = state.turns[tensor];
        state.sum.add(before, self.starts[tensor], values, weight);
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

    fn plain(sum: &GradientSum, bucket: usize) -> Vec<f32> {
        sum.await_complete(bucket, || None::<()>).unwrap();
        sum.with_complete(bucket, |sum| match sum {
            Complete::Plain(sum) => sum.to_vec(),
            Complete::Fixed(_) => panic!("integers"),
        })
    }

    fn fixed(sum: &GradientSum, bucket: usize) -> Vec<i64> {
        sum.await_complete(bucket, || None::<()>).unwrap();
        sum.with_complete(bucket, |sum| match sum {
            Complete::Fixed(sum) => sum.to_vec(),
            Complete::Plain(_) => panic!("floats"),
        })
    }

    #[test]
    fn buckets_tile_the_vector_from_the_last_tensor_to_the_first() {
        let sum = GradientSum::new(&layout(&[10, 20, 30, 5], 7), 100);
        let ranges: Vec<_> = (0..sum.buckets()).map(|bucket| sum.range(bucket)).collect();
        assert_eq!(ranges, vec![30..65, 0..30, 65..72]);
    }

    #[test]
    fn tensors_that_are_left_out_are_in_no_bucket_and_nobody_waits_for_them() {
        let mut trained = layout(&[10, 20, 30], 0);
        trained.tensors.remove(1);
        let sum = GradientSum::new(&trained, 1000);
        let ranges: Vec<_> = (0..sum.buckets()).map(|bucket| sum.range(bucket)).collect();
        assert_eq!(ranges, vec![30..60, 0..10]);
        sum.begin(1);
        for (offset, elements) in [(30, 30), (10, 20), (0, 10)] {
            sum.add(0, offset, &vec![1.0; elements]).unwrap();
        }
        assert_eq!((plain(&sum, 0), plain(&sum, 1)), (vec![1.0; 30], vec![1.0; 10]));
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
            assert_eq!(plain(&sum, 0), vec![expected; 3]);
        }
    }

    #[test]
    fn a_dead_ranks_owners_come_after_the_own_ones() {
        let sum = GradientSum::new(&layout(&[2], 0), 1);
        sum.begin(1);
        sum.add(0, 0, &[1.0, 2.0]).unwrap();
        sum.extend(1);
        let waiting = sum.await_complete(0, || Some("incomplete"));
        assert_eq!(waiting, Err("incomplete"));
        sum.add(1, 0, &[10.0, 20.0]).unwrap();
        assert_eq!(plain(&sum, 0), vec![11.0, 22.0]);
    }

    #[test]
    fn a_reproducible_sum_has_the_same_bits_for_any_order_and_any_share() {
        let layout = layout(&[2, 3], 2);
        let owners: [[f32; 3]; 4] =
            [[1.0e3, 1.0e-9, -3.5], [0.1, -1.0e-9, 7.0], [-1.0e3, 3.0e-12, 0.3], [0.2, 1.0, 1e-7]];
        let share = |turns: &[usize]| {
            let sum = GradientSum::reproducible(&layout, 1);
            sum.begin(turns.len());
            for &owner in turns {
                // Whatever its turn: nobody waits.
                sum.add(9, 0, &owners[owner][..2]).unwrap();
                sum.add(9, 2, &owners[owner]).unwrap();
                sum.add_statistics(9, &owners[owner][1..], 8).unwrap();
            }
            assert_eq!(sum.buckets(), 3);
            (0..3).map(|bucket| fixed(&sum, bucket)).collect::<Vec<_>>()
        };
        let whole = share(&[0, 1, 2, 3]);
        assert_eq!(whole, share(&[3, 1, 0, 2]));
        let halves = (share(&[2]), share(&[3, 1, 0]));
        let none = share(&[]);
        for bucket in 0..3 {
            let parts = halves.0[bucket].iter().zip(&halves.1[bucket]).zip(&none[bucket]);
            let sum: Vec<i64> = parts.map(|((a, b), c)| a + b + c).collect();
            assert_eq!(sum, whole[bucket]);
        }
        let mut values = [0.0; 3];
        GradientSum::reproducible(&layout, 1).load(0, &whole[0], &mut values);
        assert_eq!(values, [0.3, 1.0, 3.8000002]);
    }

    #[test]
    fn values_beyond_the_grid_are_noticed_and_fit_on_the_one_asked_for() {
        use crate::train::compute::fixed_point::GridChoice;
        let sum = GradientSum::reproducible(&layout(&[2], 0), 1);
        let verdict = |grid| {
            sum.begin(1);
            sum.add(0, 0, &[5000.0, 0.25]).unwrap();
            Needs::verdict(sum.needs().words(), grid)
        };
        let GridChoice::Again(grid) = verdict(Grid::default()) else { panic!("5000 fits") };
        sum.set_grid(grid);
        assert_eq!(verdict(grid), GridChoice::Holds);
        let mut values = [0.0; 2];
        sum.load(0, &fixed(&sum, 0), &mut values);
        assert_eq!(values, [5000.0, 0.25]);
    }

    #[test]
    fn a_closed_sum_lets_its_waiters_go() {
        let sum = GradientSum::new(&layout(&[1], 0), 1);
        sum.begin(2);
        sum.close();
        assert_eq!(sum.add(1, 0, &[1.0]), Err(Closed));
    }
}
