//! All ranks' sum of gradients as the update reads it: integers in the units of their blocks. They
//! become numbers piece by piece where they are used: written out first, they would pass through
//! memory once more.

use std::ops::Range;

use kintsugi_ffi::stream::Summed;

use crate::train::compute::fixed_point::Unit;

/// Elements that are made numbers at once: 16 KiB, which the first cache holds beside what the
/// update reads and writes of them.
const TILE: usize = 1 << 12;

/// A step's gradients, summed over samples, one for every parameter.
#[derive(Debug, Clone, Copy)]
pub enum Gradients<'a> {
    /// Numbers, of one worker that sums with nobody (`bench step`).
    Plain(&'a [f32]),
    /// Sums of all ranks.
    Fixed(FixedSums<'a>),
    /// Some gradient is infinite or undefined, which integers do not hold.
    NotANumber,
}

/// Whole multiples of each block's unit.
#[derive(Debug, Clone, Copy)]
pub struct FixedSums<'a> {
    /// One for every parameter.
    pub sum: &'a [i32],
    /// Of every block where it lies, in ascending order, and its unit. What no block covers is
    /// not trained.
    pub blocks: &'a [(Range<usize>, Unit)],
}

impl FixedSums<'_> {
    /// The parts of blocks that lie in `range`.
    fn units(&self, range: Range<usize>) -> impl Iterator<Item = (Range<usize>, Unit)> {
        let first = self.blocks.partition_point(|(block, _)| block.end <= range.start);
        self.blocks[first..].iter().map_while(move |(block, unit)| {
            let part = block.start.max(range.start)..block.end.min(range.end);
            (part.start < part.end).then_some((part, *unit))
        })
    }
}

impl<'a> Gradients<'a> {
    /// Of how many parameters; none of what is no number.
    pub fn parameters(&self) -> Option<usize> {
        match self {
            Self::Plain(sums) => Some(sums.len()),
            Self::Fixed(fixed) => Some(fixed.sum.len()),
            Self::NotANumber => None,
        }
    }

    /// Calls `each` with ranges that tile `range`, and their sums as they are: for a rule that
    /// reads integers itself. Nothing of what is no number.
    pub fn pieces(&self, range: Range<usize>, mut each: impl FnMut(Range<usize>, Summed<'a>)) {
        match self {
            Self::Plain(sums) => each(range.clone(), Summed::Numbers(&sums[range])),
            Self::Fixed(fixed) => {
                for (part, unit) in fixed.units(range) {
                    each(part.clone(), Summed::Multiples(&fixed.sum[part], unit.value()));
                }
            }
            Self::NotANumber => {}
        }
    }

    /// The same as numbers; all ranges but the last have a length that is a multiple of 8.
    pub fn numbers(&self, range: Range<usize>, mut each: impl FnMut(Range<usize>, &[f32])) {
        match self {
            Self::Plain(sums) => each(range.clone(), &sums[range]),
            Self::Fixed(fixed) => {
                let mut numbers = [0.0; TILE];
                for start in range.clone().step_by(TILE) {
                    let tile = start..range.end.min(start + TILE);
                    for (part, unit) in fixed.units(tile.clone()) {
                        let within = part.start - start..part.end - start;
                        unit.load(&fixed.sum[part], &mut numbers[within]);
                    }
                    let length = tile.len();
                    each(tile, &numbers[..length]);
                }
            }
            Self::NotANumber => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_become_the_numbers_of_their_blocks_whatever_the_range() {
        let ends = [0, 3, 3 + TILE, 10 + TILE, 11 + 2 * TILE, 3 * TILE];
        let unit = |number: usize| Unit::of(-(number as i32));
        let blocks: Vec<_> = ends.windows(2).map(|w| w[0]..w[1]).zip((0..).map(unit)).collect();
        let sum: Vec<i32> = (0..3 * TILE as i32).collect();
        let gradients = Gradients::Fixed(FixedSums { sum: &sum, blocks: &blocks });
        let exact = |at: usize| {
            let number = ends.iter().filter(|&&end| end <= at).count() - 1;
            at as f32 * 2f32.powi(-(number as i32))
        };
        for range in [0..0, 0..1, 2..5, 0..3 * TILE, 5..2 * TILE + 7, TILE..2 * TILE] {
            let (mut tiles, mut pieces) = (Vec::new(), Vec::new());
            let mut next = range.start;
            gradients.numbers(range.clone(), |tile, numbers| {
                assert_eq!((tile.start, tile.len()), (next, numbers.len()));
                assert!(tile.end == range.end || tile.len().is_multiple_of(8));
                next = tile.end;
                tiles.extend_from_slice(numbers);
            });
            gradients.pieces(range.clone(), |piece, sums| {
                let Summed::Multiples(sums, unit) = sums else { panic!("numbers") };
                assert_eq!(piece.len(), sums.len());
                pieces.extend(sums.iter().map(|&sum| sum as f32 * unit));
            });
            let expected: Vec<f32> = range.map(exact).collect();
            assert_eq!((&tiles, &pieces), (&expected, &expected));
        }
    }
}
