//! The rank's own sum of gradients: worker threads add tensor by tensor while backward runs, and
//! the communicating thread takes bucket by bucket as they become complete. Sums of integers
//! (`fixed_point`) are the same in any order: nobody waits for a turn. A failed exchange leaves
//! them as they are, so a survivor computes nothing again.

use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::model::{Layout, TensorKind};

use crate::train::compute::bucket_sum::{Blocks, Complete, Words};
use crate::train::compute::moments::WORDS;
use crate::train::fixed_point::{BLOCK, Grid, Unit};

/// How often whoever waits for a sum asks whether it is still wanted: a death is noticed so soon,
/// for a look of microseconds.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Words behind the gradients of the first bucket: samples, and those that were computed alone. An
/// owner knows them before it computes, so they are complete when that bucket is.
const COUNTS: usize = 2;

/// Sums of all parameters and, as the last bucket, of batch statistics weighted by samples.
#[derive(Debug)]
pub struct GradientSum {
    buckets: Vec<Bucket>,
    /// Of every parameter tensor, in offset order: (offset, bucket, index in the bucket).
    tensors: Vec<(usize, usize, usize)>,
    parameters: usize,
    /// Of all tensors.
    blocks: usize,
}

#[derive(Debug)]
struct Bucket {
    range: Range<usize>,
    blocks: Blocks,
    state: Mutex<Summing>,
    changed: Condvar,
}

#[derive(Debug)]
struct Summing {
    sum: Words,
    /// Per tensor: how many owners have been added.
    added: Vec<usize>,
    /// Tensor additions still to come before the bucket is complete.
    missing: usize,
}

impl GradientSum {
    /// Buckets of at least `bucket_bytes`, from the last tensor to the first: the order in which
    /// backward makes them. Tensors that `layout` leaves out (frozen ones) are in no bucket, and
    /// what lies on both sides of one is in two.
    pub fn new(layout: &Layout, bucket_bytes: u64) -> Self {
        let mut spans: Vec<Range<usize>> = layout
            .tensors
            .iter()
            .filter(|tensor| tensor.kind != TensorKind::Statistic)
            .map(|tensor| tensor.offset..tensor.offset + tensor.shape.iter().product::<usize>())
            .collect();
        spans.sort_by_key(|span| span.start);
        let (mut buckets, mut tensors) = (Vec::new(), Vec::new());
        let (mut end, unit) = (spans.len(), Grid::default().unit(0));
        let blocks = spans.iter().map(|span| span.len().div_ceil(BLOCK)).sum();
        let mut blocks_before = blocks;
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
            for (index, span) in spans[first..end].iter().enumerate() {
                tensors.push((span.start, buckets.len(), index));
            }
            let own = Blocks::of(&spans[first..end], blocks_before);
            blocks_before = own.first;
            let (units, reaches) = (vec![unit; own.ranges.len()], vec![0; own.ranges.len()]);
            let counts = if buckets.is_empty() { COUNTS } else { 0 };
            let sum = Words::Fixed { sum: vec![0; range.len() + counts], units, reaches };
            buckets.push(Bucket::new(sum, range, own));
            end = first;
        }
        if layout.statistics > 0 {
            let range = layout.parameters..layout.parameters + layout.statistics;
            let all = Blocks::whole(blocks, range.len());
            let sum = Words::Wide { sum: vec![0; WORDS * range.len()], misfits: 0 };
            buckets.push(Bucket::new(sum, range, all));
        }
        tensors.sort_unstable();
        Self { buckets, tensors, parameters: layout.parameters, blocks }
    }

    /// Number of buckets, in the order in which they become complete.
    pub fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// Words of a bucket of gradients; `None` of batch statistics.
    pub fn integers(&self, bucket: usize) -> Option<usize> {
        match &self.buckets[bucket].lock().sum {
            Words::Fixed { sum, .. } => Some(sum.len()),
            Words::Wide { .. } => None,
        }
    }

    /// Where a bucket lies in the flat vector `parameters | statistics`.
    pub fn range(&self, bucket: usize) -> Range<usize> {
        self.buckets[bucket].range.clone()
    }

    /// Starts a step: the sums of `owners` owners are expected.
    pub fn begin(&self, owners: usize) {
        for bucket in &self.buckets {
            let mut state = bucket.lock();
            state.added.fill(0);
            state.missing = owners * bucket.blocks.of_tensors.len();
            state.sum.begin(owners, bucket.range.len());
        }
    }

    /// Adds owners to a step that is under way (the share of a rank that died).
    pub fn extend(&self, owners: usize) {
        for bucket in &self.buckets {
            bucket.lock().missing += owners * bucket.blocks.of_tensors.len();
        }
    }

    /// Counts one owner's samples, and those it computes alone, before it adds its first gradients.
    pub fn count(&self, samples: u64, alone: u64) {
        let Some(first) = self.buckets.first() else { return };
        if let Words::Fixed { sum, .. } = &mut first.lock().sum {
            // A step has fewer samples than 2^31.
            sum[first.range.len()] += samples as i32;
            sum[first.range.len() + 1] += alone as i32;
        }
    }

    /// Adds one owner's gradients of the tensor at `offset`. Those of a tensor that is in no bucket
    /// nobody wants.
    pub fn add(&self, offset: usize, gradients: &[f32]) {
        let found = self.tensors.binary_search_by_key(&offset, |tensor| tensor.0);
        if let Ok(index) = found {
            let (_, bucket, tensor) = self.tensors[index];
            self.buckets[bucket].add(tensor, |sum, before, blocks| {
                sum.add(before, (blocks, tensor), gradients);
            });
        }
    }

    /// Adds one owner's sums of moments.
    pub fn add_statistics(&self, moments: &[f64]) {
        let last = self.buckets.last().filter(|bucket| bucket.range.start == self.parameters);
        if let Some(bucket) = last.filter(|_| !moments.is_empty()) {
            bucket.add(0, |sum, before, _| sum.add_statistics(before, moments));
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
            Words::Fixed { sum, .. } => use_sum(Complete::Fixed(sum)),
            Words::Wide { sum, .. } => use_sum(Complete::Wide(sum)),
        }
    }

    /// From the next `begin` on, sums are made on this grid.
    pub fn set_grid(&self, grid: &Grid) {
        for bucket in &self.buckets {
            if let Words::Fixed { units, .. } = &mut bucket.lock().sum {
                for (block, unit) in units.iter_mut().enumerate() {
                    *unit = grid.unit(bucket.blocks.first + block);
                }
            }
        }
    }

    /// What `fixed_point::verdict` asks, once all buckets are complete: every block's reach, and
    /// the micro-batches whose statistics do not fit.
    pub fn reaches(&self) -> (Vec<u64>, u64) {
        let (mut all, mut statistics) = (vec![0; self.blocks], 0);
        for bucket in &self.buckets {
            match &bucket.lock().sum {
                Words::Fixed { reaches, .. } => {
                    all[bucket.blocks.first..][..reaches.len()].copy_from_slice(reaches);
                }
                Words::Wide { misfits, .. } => statistics = *misfits,
            }
        }
        (all, statistics)
    }

    /// Where every block of a bucket lies, in the order of their elements, and its unit on this
    /// grid.
    pub fn blocks(&self, bucket: usize, grid: &Grid) -> Vec<(Range<usize>, Unit)> {
        let Bucket { range, blocks, .. } = &self.buckets[bucket];
        let placed = blocks.ranges.iter().enumerate().map(|(number, block)| {
            let place = range.start + block.start..range.start + block.end;
            (place, grid.unit(blocks.first + number))
        });
        placed.collect()
    }
}

impl Bucket {
    fn new(sum: Words, range: Range<usize>, blocks: Blocks) -> Self {
        let added = vec![0; blocks.of_tensors.len()];
        let state = Summing { sum, added, missing: 0 };
        Self { range, blocks, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Summing> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One owner's values of a tensor, which `add` adds behind those of so many.
    fn add(&self, tensor: usize, add: impl FnOnce(&mut Words, usize, &Blocks)) {
        let mut state = self.lock();
        let before = state.added[tensor];
        add(&mut state.sum, before, &self.blocks);
        state.added[tensor] += 1;
        state.missing -= 1;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::TensorSpec;

    /// The unit of the first step.
    const ONE: f32 = 1.0 / (1 << 20) as f32;

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

    fn fixed(sum_of: &GradientSum, bucket: usize) -> Vec<i64> {
        sum_of.await_complete(bucket, || None::<()>).unwrap();
        sum_of.with_complete(bucket, |sum| match sum {
            Complete::Fixed(words) => {
                let gradients = words.iter().take(sum_of.range(bucket).len());
                gradients.map(|&sum| i64::from(sum)).collect()
            }
            Complete::Wide(sum) => sum.to_vec(),
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
            sum.add(offset, &vec![ONE; elements]);
        }
        assert_eq!((fixed(&sum, 0), fixed(&sum, 1)), (vec![1; 30], vec![1; 10]));
    }

    #[test]
    fn a_dead_ranks_owners_are_added_to_the_own_ones() {
        let sum = GradientSum::new(&layout(&[2], 0), 1);
        sum.begin(1);
        sum.add(0, &[ONE, 2.0 * ONE]);
        sum.extend(1);
        let waiting = sum.await_complete(0, || Some("incomplete"));
        assert_eq!(waiting, Err("incomplete"));
        sum.add(0, &[10.0 * ONE, 20.0 * ONE]);
        assert_eq!(fixed(&sum, 0), [11, 22]);
    }

    #[test]
    fn a_sum_has_the_same_bits_for_any_order_and_any_share() {
        let layout = layout(&[2, 3], 2);
        let owners: [[f32; 3]; 4] = [
            [0.25, 1.0e-9, -0.5],
            [1.0e-2, -1.0e-9, 0.7],
            [-0.25, 3.0e-8, 0.03],
            [0.02, 0.1, 1e-7],
        ];
        let share = |of: &[usize]| {
            let sum = GradientSum::new(&layout, 1);
            sum.begin(of.len());
            for &owner in of {
                sum.add(0, &owners[owner][..2]);
                sum.add(2, &owners[owner]);
                sum.add_statistics(&[1, 2].map(|at| 8.0 * f64::from(owners[owner][at])));
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
        let blocks =
            [1, 0].map(|b| GradientSum::new(&layout, 1).blocks(b, &Grid::default()).remove(0));
        assert_eq!(blocks.clone().map(|(range, _)| range), [0..2, 2..5]);
        for (&sum, exact) in whole[0].iter().zip([0.03, 0.1, 0.23]) {
            let value = sum as f32 * blocks[1].1.value();
            assert!((value - exact).abs() < 4.0 * 2f32.powi(-21), "{value} {exact}");
        }
    }

    #[test]
    fn samples_are_counted_behind_the_first_bucket_and_anew_in_each_step() {
        let sum = GradientSum::new(&layout(&[2, 3], 0), 1);
        for step in 1..3 {
            sum.begin(2);
            for owner in 0..2 {
                sum.count(4 + owner, step);
                sum.add(2, &[ONE; 3]);
            }
            let words = sum.with_complete(0, |sum| match sum {
                Complete::Fixed(words) => words.to_vec(),
                Complete::Wide(_) => panic!("gradients"),
            });
            assert_eq!(words, [2, 2, 2, 9, 2 * step as i32]);
        }
        assert_eq!([0, 1].map(|bucket| sum.integers(bucket)), [Some(5), Some(2)]);
    }

    #[test]
    fn values_beyond_the_grid_are_noticed_and_fit_on_the_one_asked_for() {
        use crate::train::fixed_point::{GridChoice, verdict};
        let sum = GradientSum::new(&layout(&[2], 0), 1);
        let choice = |grid: &Grid| {
            sum.set_grid(grid);
            sum.begin(1);
            sum.add(0, &[5000.0, 0.25]);
            let (reaches, statistics) = sum.reaches();
            assert_eq!((reaches.len(), statistics), (1, 0));
            verdict(grid, &reaches, statistics)
        };
        let GridChoice::Again(grid) = choice(&Grid::default()) else { panic!("5000 fits") };
        assert!(matches!(choice(&grid), GridChoice::Holds(_)));
        let mut values = [0.0; 2];
        sum.with_complete(0, |complete| match complete {
            Complete::Fixed(integers) => grid.unit(0).load(&integers[..2], &mut values),
            Complete::Wide(_) => panic!("gradients"),
        });
        assert_eq!(values, [5000.0, 0.25]);
    }

    #[test]
    fn blocks_tile_tensors_whatever_the_buckets() {
        let sizes = [10, 2 * BLOCK + 1, BLOCK, 7];
        let mut seen = Vec::new();
        for bucket_bytes in [1, 4 * BLOCK as u64, 1 << 30] {
            let sum = GradientSum::new(&layout(&sizes, 1), bucket_bytes);
            let mut blocks = Vec::new();
            for bucket in sum.buckets.iter().filter(|bucket| bucket.range.end <= sum.parameters) {
                let own = bucket.blocks.ranges.iter().enumerate().map(|(number, range)| {
                    let start = bucket.range.start;
                    (bucket.blocks.first + number, start + range.start..start + range.end)
                });
                blocks.extend(own);
            }
            blocks.sort_by_key(|(number, _)| *number);
            assert_eq!(blocks.len(), 6);
            seen.push(blocks);
        }
        let ends =
            [0, 10, 10 + BLOCK, 10 + 2 * BLOCK, 11 + 2 * BLOCK, 11 + 3 * BLOCK, 18 + 3 * BLOCK];
        let expected: Vec<_> = ends.windows(2).map(|ends| ends[0]..ends[1]).enumerate().collect();
        assert!(seen.iter().all(|blocks| *blocks == expected));
    }
}
