//! The update of a step beside its exchange. Whoever has nothing to compute moves the weights of a
//! bucket as soon as all ranks' sum of it is there, into the slot that is not committed, while
//! later buckets are still summed. What it writes counts only after the vote, by the commit word: a
//! step that is given up leaves rubbish in that slot, as a step that is computed again on another
//! grid does.
//!
//! Clipping waits for the norm of the whole gradient, so there the update follows the last bucket.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use kintsugi_ffi::stream::Source;

use crate::cluster::resident::{Body, Next, Slots};
use crate::model::parts::is_over_parameters;
use crate::train::compute::board::{Board, Chore};
use crate::train::compute::gradient_sum::GradientSum;
use crate::train::compute::gradients::Gradients;
use crate::train::compute::moments::Moments;
use crate::train::exchange::received::Received;
use crate::train::fixed_point::{Grid, Unit};
use crate::train::update::optimizer::{Optimizer, Scales};

/// Elements that one thread moves at a time: about a millisecond's work.
const CHUNK: usize = 1 << 18;

/// A part of the parameter vector that is moved at a time.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Chunk {
    /// Whose sum it waits for; `None`: frozen, to be copied.
    bucket: Option<usize>,
    range: Range<usize>,
}

/// The update of one step at a time.
pub struct Beside {
    optimizer: Arc<Optimizer>,
    moments: Moments,
    /// Tile the parameters, in ascending order.
    chunks: Arc<[Chunk]>,
    received: Arc<Received>,
    slots: Arc<RwLock<Slots>>,
    step: Option<Step>,
}

/// One step's update.
struct Step {
    learning_rate: f64,
    moving: Option<Arc<Moving>>,
    /// Written whole, and waits for the vote.
    written: Option<Body>,
}

/// What everybody shares who moves weights of a step.
struct Moving {
    optimizer: Arc<Optimizer>,
    chunks: Arc<[Chunk]>,
    received: Arc<Received>,
    slots: Arc<RwLock<Slots>>,
    /// The blocks of each bucket, and their units.
    blocks: Vec<Vec<(Range<usize>, Unit)>>,
    next: Next,
    scales: OnceLock<Scales>,
    /// Nothing was infinite or undefined so far.
    sound: AtomicBool,
}

/// Whether a step learns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Learns {
    /// Where its numbers are finite.
    IfSound,
    /// Its gradients hold something infinite or undefined.
    Nothing,
}

impl Beside {
    /// For the sums of a model with so many parameters and statistics.
    pub fn new(
        optimizer: Optimizer,
        moments: Moments,
        sum: &GradientSum,
        parameters: usize,
        statistics: usize,
        slots: Arc<RwLock<Slots>>,
    ) -> Self {
        let received = Arc::new(Received::of(sum, statistics));
        let ranges = (0..received.buckets()).map(|bucket| sum.range(bucket));
        let chunks = chunks(&ranges.collect::<Vec<_>>(), parameters).into();
        Self { optimizer: Arc::new(optimizer), moments, chunks, received, slots, step: None }
    }

    /// Where all ranks' sums go.
    pub fn received(&self) -> &Received {
        &self.received
    }

    /// A step begins whose sums are made on this grid.
    pub fn begin(&mut self, sum: &GradientSum, grid: &Grid, learning_rate: f64) {
        let ranges: Vec<_> = self.chunks.iter().map(|chunk| chunk.range.clone()).collect();
        let body = self.slots.read().unwrap_or_else(PoisonError::into_inner).lend();
        let moving = Moving {
            optimizer: Arc::clone(&self.optimizer),
            chunks: Arc::clone(&self.chunks),
            received: Arc::clone(&self.received),
            slots: Arc::clone(&self.slots),
            blocks: (0..self.received.buckets()).map(|bucket| sum.blocks(bucket, grid)).collect(),
            next: body.cut(&ranges, is_over_parameters),
            scales: OnceLock::new(),
            sound: AtomicBool::new(true),
        };
        self.step = Some(Step { learning_rate, moving: Some(Arc::new(moving)), written: None });
    }

    /// All ranks' sum of this bucket of gradients has arrived: what it moves is put on the board.
    pub fn arrived(&mut self, bucket: usize, board: &Board) {
        if bucket >= self.received.buckets() || self.optimizer.clips() {
            return;
        }
        if bucket == 0 {
            self.scale(&Gradients::default());
            self.put(board, |of| of.is_none());
        }
        self.put(board, |of| of == Some(bucket));
    }

    /// All sums have arrived: waits until the next state is written, whole.
    /// Whether the step learned something.
    pub fn finish(&mut self, board: &Board, learns: Learns) -> bool {
        if self.optimizer.clips() {
            let sums: Vec<_> =
                (0..self.received.buckets()).map(|b| self.received.bucket(b)).collect();
            let moving = self.moving();
            let gradients = Gradients::of(
                sums.iter()
                    .enumerate()
                    .flat_map(|(bucket, sum)| moving.pieces(bucket, sum, 0..usize::MAX)),
            );
            self.scale(&gradients);
            drop(gradients);
            drop(sums);
            self.put(board, |_| true);
        }
        board.finish_chores();
        let seen = self.received.seen();
        let step = self.step.as_mut().expect("a step has begun");
        let moving = Arc::into_inner(step.moving.take().expect("not finished yet"));
        let moving = moving.expect("whoever moved weights is done");
        let sound = moving.sound.load(Ordering::Relaxed);
        let mut body = moving.next.join();
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let current = slots.committed();
        let statistics = self.received.statistics();
        let learned = seen.samples > 0
            && sound
            && learns == Learns::IfSound
            && self.optimizer.follow(&current, &mut body.slot(), &statistics, &self.moments, seen);
        if !learned {
            body.slot().copy_from(&current);
        }
        step.written = Some(body);
        learned
    }

    /// The step is given up, or what it wrote is to be committed: the slot goes back.
    pub fn end(&mut self, board: &Board) {
        board.drop_chores();
        let Some(Step { moving, written, .. }) = self.step.take() else { return };
        let joined = || Arc::into_inner(moving?).map(|moving| moving.next.join());
        if let Some(body) = written.or_else(joined) {
            self.slots.read().unwrap_or_else(PoisonError::into_inner).take_back(body);
        }
    }

    fn moving(&self) -> &Arc<Moving> {
        let moving = self.step.as_ref().and_then(|step| step.moving.as_ref());
        moving.expect("a step is under way")
    }

    /// Of so many samples as came with the first bucket.
    fn scale(&self, gradients: &Gradients<'_>) {
        let update = self.slots.read().unwrap_or_else(PoisonError::into_inner).committed().step + 1;
        let rate = self.step.as_ref().map_or(0.0, |step| step.learning_rate);
        let samples = self.received.seen().samples;
        let scales = self.optimizer.scales(update, rate, samples, gradients);
        self.moving().scales.set(scales).expect("a step is scaled once");
    }

    /// Puts the chunks of some buckets on the board. Without samples nothing moves.
    fn put(&self, board: &Board, whose: impl Fn(Option<usize>) -> bool) {
        if self.received.seen().samples == 0 {
            return;
        }
        let moving = self.moving();
        let chosen = self.chunks.iter().enumerate().filter(|(_, chunk)| whose(chunk.bucket));
        board.put_chores(chosen.map(|(number, _)| {
            let moving = Arc::clone(moving);
            Box::new(move || moving.write(number)) as Chore
        }));
    }
}

impl Moving {
    /// Writes a chunk of the next state.
    fn write(&self, number: usize) {
        let Chunk { bucket, range } = &self.chunks[number];
        let sum: Option<RwLockReadGuard<'_, Vec<i32>>> = bucket.map(|b| self.received.bucket(b));
        let wanted = if self.optimizer.takes_norms() { 0..usize::MAX } else { range.clone() };
        let pieces =
            bucket.zip(sum.as_deref()).map(|(bucket, sum)| self.pieces(bucket, sum, wanted));
        let gradients = Gradients::of(pieces.into_iter().flatten());
        let slots = self.slots.read().unwrap_or_else(PoisonError::into_inner);
        let current = slots.committed();
        let scales = self.scales.get().expect("chunks are moved once the step's scale is known");
        let mut piece = self.next.piece(number);
        let optimizer = &self.optimizer;
        let (range, next) = (range.clone(), &mut piece.slot());
        if !optimizer.advance(scales, range, &gradients, &current, next) {
            self.sound.store(false, Ordering::Relaxed);
        }
    }

    /// A bucket's sums by their blocks, of those that reach into `wanted`.
    fn pieces<'a>(
        &'a self,
        bucket: usize,
        sum: &'a [i32],
        wanted: Range<usize>,
    ) -> impl Iterator<Item = (Range<usize>, Source<'a>)> {
        let blocks = &self.blocks[bucket];
        let start = blocks.first().map_or(0, |(range, _)| range.start);
        let first = blocks.partition_point(|(range, _)| range.end <= wanted.start);
        let reached = blocks[first..].iter().take_while(move |(range, _)| range.start < wanted.end);
        reached.map(move |(range, unit)| {
            let sums = &sum[range.start - start..range.end - start];
            (range.clone(), Source::Multiples(sums, unit.value()))
        })
    }
}

/// Cuts the parameters where buckets begin and end, and into pieces that one thread moves at a
/// time.
fn chunks(buckets: &[Range<usize>], parameters: usize) -> Vec<Chunk> {
    let mut spans: Vec<(Option<usize>, Range<usize>)> =
        buckets.iter().cloned().enumerate().map(|(bucket, range)| (Some(bucket), range)).collect();
    spans.sort_by_key(|(_, range)| range.start);
    let starts = spans.iter().map(|(_, range)| range.start).chain([parameters]);
    let ends = std::iter::once(0).chain(spans.iter().map(|(_, range)| range.end));
    let frozen: Vec<_> = ends.zip(starts).map(|(end, start)| (None, end..start)).collect();
    spans.extend(frozen);
    spans.sort_by_key(|(_, range)| (range.start, range.end));
    let cut = |(bucket, range): (Option<usize>, Range<usize>)| {
        let end = range.end;
        range
            .step_by(CHUNK)
            .map(move |start| Chunk { bucket, range: start..end.min(start + CHUNK) })
    };
    spans.into_iter().flat_map(cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_tile_the_parameters_and_know_their_bucket() {
        let end = 3 * CHUNK;
        let found = chunks(&[CHUNK + 7..end - 1, 3..CHUNK + 5], end);
        let expected = [
            (None, 0..3),
            (Some(1), 3..CHUNK + 3),
            (Some(1), CHUNK + 3..CHUNK + 5),
            (None, CHUNK + 5..CHUNK + 7),
            (Some(0), CHUNK + 7..2 * CHUNK + 7),
            (Some(0), 2 * CHUNK + 7..end - 1),
            (None, end - 1..end),
        ];
        assert_eq!(found, expected.map(|(bucket, range)| Chunk { bucket, range }));
    }
}
