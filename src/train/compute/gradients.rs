//! All ranks' sum of gradients as the update reads it: numbers, or integers in the units of their
//! blocks. Those become numbers where they are used: written out first, they would pass through
//! memory once more.

use std::ops::Range;

use kintsugi_ffi::fixed;
use kintsugi_ffi::stream::Source;

/// Elements that are made numbers at once: 16 KiB, which the first cache holds.
const TILE: usize = 1 << 12;

/// A step's gradients, summed over samples: pieces of the parameter vector, in ascending order.
/// What no piece covers is not trained.
#[derive(Debug, Clone, Default)]
pub struct Gradients<'a>(Vec<(Range<usize>, Source<'a>)>);

impl<'a> Gradients<'a> {
    /// Of pieces that lie apart, in any order.
    pub fn of(pieces: impl IntoIterator<Item = (Range<usize>, Source<'a>)>) -> Self {
        let mut pieces: Vec<_> = pieces.into_iter().collect();
        pieces.sort_by_key(|(range, _)| range.start);
        Self(pieces)
    }

    /// One for every parameter.
    pub fn numbers_of_all(sums: &'a [f32]) -> Self {
        Self(vec![(0..sums.len(), Source::Numbers(sums))])
    }

    /// The parts of pieces that lie in `range`.
    pub fn within(&self, range: Range<usize>) -> impl Iterator<Item = (Range<usize>, Source<'a>)> {
        let first = self.0.partition_point(|(piece, _)| piece.end <= range.start);
        self.0[first..].iter().map_while(move |(piece, source)| {
            let part = piece.start.max(range.start)..piece.end.min(range.end);
            let within = part.start.wrapping_sub(piece.start)..part.end.wrapping_sub(piece.start);
            (part.start < part.end).then(|| (part, source.slice(within)))
        })
    }

    /// The same as numbers; all tiles but the last have a length that is a multiple of 8. Zeros
    /// where there are none.
    pub fn numbers(&self, range: Range<usize>, mut each: impl FnMut(&[f32])) {
        let mut numbers = [0.0; TILE];
        for start in range.clone().step_by(TILE) {
            let tile = start..range.end.min(start + TILE);
            numbers[..tile.len()].fill(0.0);
            for (part, source) in self.within(tile.clone()) {
                let into = &mut numbers[part.start - start..part.end - start];
                match source {
                    Source::Numbers(sums) => into.copy_from_slice(sums),
                    Source::Multiples(sums, unit) => fixed::load(sums, into, unit),
                }
            }
            each(&numbers[..tile.len()]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_become_the_numbers_of_their_blocks_whatever_the_range() {
        let ends = [0, 3, 3 + TILE, 10 + TILE, 11 + 2 * TILE, 3 * TILE];
        let unit = |number: usize| 2f32.powi(-(number as i32));
        let sum: Vec<i32> = (0..3 * TILE as i32).collect();
        let blocks = ends.windows(2).enumerate();
        let gradients = Gradients::of(blocks.map(|(number, ends)| {
            let range = ends[0]..ends[1];
            (range.clone(), Source::Multiples(&sum[range], unit(number)))
        }));
        let exact = |at: usize| at as f32 * unit(ends.iter().filter(|&&end| end <= at).count() - 1);
        for range in [0..0, 0..1, 2..5, 0..3 * TILE, 5..2 * TILE + 7, TILE..2 * TILE] {
            let (mut tiles, mut pieces) = (Vec::new(), Vec::new());
            gradients.numbers(range.clone(), |numbers| {
                tiles.extend_from_slice(numbers);
                assert!(tiles.len() == range.len() || numbers.len().is_multiple_of(8));
            });
            for (piece, sums) in gradients.within(range.clone()) {
                let Source::Multiples(sums, unit) = sums else { panic!("numbers") };
                assert_eq!(piece.len(), sums.len());
                pieces.extend(sums.iter().map(|&sum| sum as f32 * unit));
            }
            let expected: Vec<f32> = range.map(exact).collect();
            assert_eq!((&tiles, &pieces), (&expected, &expected));
        }
    }
}
