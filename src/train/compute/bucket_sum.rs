//! One bucket's part of the rank's sum: integers of 32 bits in units of their blocks, or the wide
//! integers of batch statistics.

use std::ops::Range;

use crate::train::compute::moments;
use crate::train::fixed_point::{BLOCK, Unit};

/// The blocks of a bucket's tensors.
#[derive(Debug)]
pub(super) struct Blocks {
    /// The number of the first among those of all tensors.
    pub first: usize,
    /// Of each tensor, which in the bucket.
    pub of_tensors: Vec<Range<usize>>,
    /// Where each lies in the bucket.
    pub ranges: Vec<Range<usize>>,
}

/// A bucket's sum.
#[derive(Debug)]
pub(super) enum Words {
    /// Whole multiples of each block's unit, and what its values reach.
    Fixed { sum: Vec<i32>, units: Vec<Unit>, reaches: Vec<u64> },
    /// `moments::WORDS` words a statistic, and how many micro-batches hold one that is too large.
    Wide { sum: Vec<i64>, misfits: u64 },
}

/// A complete bucket.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Complete<'a> {
    /// In the units of `GradientSum::blocks`.
    Fixed(&'a [i32]),
    /// Of batch statistics; `moments::load` says what they are.
    Wide(&'a [i64]),
}

impl Words {
    /// Starts a step; what `owners` owners will not write is cleared, and what is counted behind
    /// `elements`.
    pub fn begin(&mut self, owners: usize, elements: usize) {
        match self {
            Self::Fixed { sum, reaches, .. } => {
                reaches.fill(0);
                sum[elements..].fill(0);
                if owners == 0 {
                    sum.fill(0);
                }
            }
            Self::Wide { sum, misfits } => {
                *misfits = 0;
                if owners == 0 {
                    sum.fill(0);
                }
            }
        }
    }

    /// Adds a tensor's gradients; `before`: how many owners' have been added.
    pub fn add(&mut self, before: usize, at: (&Blocks, usize), values: &[f32]) {
        let (blocks, tensor) = at;
        let Self::Fixed { sum, units, reaches } = self else { return };
        let add = if before == 0 { Unit::store } else { Unit::add };
        let parts = blocks.of_tensors[tensor].clone().zip(values.chunks(BLOCK));
        for (block, part) in parts {
            let sum = &mut sum[blocks.ranges[block].clone()];
            reaches[block] += add(units[block], sum, part);
        }
    }

    /// Adds sums of moments likewise.
    pub fn add_statistics(&mut self, before: usize, moments: &[f64]) {
        let Self::Wide { sum, misfits } = self else { return };
        if before == 0 {
            sum.fill(0);
        }
        *misfits += moments::add_up(sum, moments);
    }
}

impl Blocks {
    /// Of the tensors of a bucket, which lie here; `end`: the number behind their last.
    pub fn of(tensors: &[Range<usize>], end: usize) -> Self {
        let start = tensors.first().map_or(0, |tensor| tensor.start);
        let (mut of_tensors, mut ranges) = (Vec::new(), Vec::new());
        for tensor in tensors {
            let first = ranges.len();
            let begins = tensor.clone().step_by(BLOCK);
            ranges.extend(begins.map(|at| at - start..(at + BLOCK).min(tensor.end) - start));
            of_tensors.push(first..ranges.len());
        }
        Self { first: end - ranges.len(), of_tensors, ranges }
    }

    /// One tensor of one block.
    pub fn whole(first: usize, length: usize) -> Self {
        let only = |range| std::iter::once(range).collect();
        Self { first, of_tensors: only(0..1), ranges: only(0..length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_tile_tensors_from_each_ones_start() {
        let tensors = [100..110, 110..111 + 2 * BLOCK, 111 + 2 * BLOCK..112 + 2 * BLOCK];
        let blocks = Blocks::of(&tensors, 9);
        assert_eq!((blocks.first, &blocks.of_tensors[..]), (4, &[0..1, 1..4, 4..5][..]));
        let whole: Vec<_> = blocks.ranges.iter().flat_map(Range::clone).collect();
        assert!(whole.iter().copied().eq(0..12 + 2 * BLOCK));
        assert_eq!(blocks.ranges[2], 10 + BLOCK..10 + 2 * BLOCK);
    }
}
