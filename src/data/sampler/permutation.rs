//! A permutation as a pure function of its key: any place in O(1), nothing stored.

use crate::config::seed::{Stream, mix64};

/// Rounds of the Feistel network: four per half.
const ROUNDS: u64 = 8;
/// The odd step of SplitMix64.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// A permutation of `0..len` as a pure function: an unbalanced Feistel network over the next
/// power of two, walked until it lands inside (Black and Rogaway 2002, cycle walking).
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Permutation {
    len: u64,
    key: u64,
    /// Added last, modulo `len`: a network over a few values alone prefers some places by 1 %.
    turn: u64,
    /// Bits of the low half and of the high half; the domain is `2^(low + high) < 2 * len`.
    low: u32,
    high: u32,
}

impl Permutation {
    /// `len` > 0.
    pub(super) fn new(len: u64, key: u64) -> Self {
        debug_assert!(len > 0, "an empty range has no permutation");
        let bits = u64::BITS - (len - 1).leading_zeros();
        let turn = Stream::new(&[key]).below(len);
        Self { len, key, turn, low: bits - bits / 2, high: bits / 2 }
    }

    /// One pass through the network: a bijection of the domain.
    fn scramble(&self, value: u64) -> u64 {
        let (low_mask, high_mask) = (mask(self.low), mask(self.high));
        let (mut low, mut high) = (value & low_mask, value >> self.low);
        for round in 0..ROUNDS {
            let half = if round % 2 == 0 { high } else { low };
            // SplitMix64's word number `half * ROUNDS + round`.
            let number = half.wrapping_mul(ROUNDS).wrapping_add(round);
            let word = mix64(self.key.wrapping_add(number.wrapping_mul(GOLDEN)));
            if round % 2 == 0 {
                low ^= word & low_mask;
            } else {
                high ^= word & high_mask;
            }
        }
        (high << self.low) | low
    }

    /// Where `value` (in `0..len`) goes.
    pub(super) fn at(&self, value: u64) -> u64 {
        // A cycle through `value` holds at most `outside` members that are not in `0..len`.
        let outside = (mask(self.low + self.high) + 1).wrapping_sub(self.len);
        let mut next = self.scramble(value);
        for _ in 0..outside {
            if next < self.len {
                break;
            }
            next = self.scramble(next);
        }
        // Both are below `len`, which may be near the end of the range.
        let room = self.len - self.turn;
        if next < room { next + self.turn } else { next - room }
    }
}

/// The lowest `bits` bits set (`bits` <= 64).
fn mask(bits: u32) -> u64 {
    1u64.checked_shl(bits).map_or(u64::MAX, |bit| bit - 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::seed;

    #[test]
    fn any_length_is_permuted() {
        for len in (1..70).chain([127, 128, 129, 1000, 4096, 4097]) {
            let permutation = Permutation::new(len, 99 + len);
            let seen: BTreeSet<u64> = (0..len).map(|v| permutation.at(v)).collect();
            assert_eq!(seen.len() as u64, len, "of {len}");
            assert!(seen.iter().all(|&v| v < len), "of {len}");
        }
        assert!(Permutation::new(u64::MAX, 5).at(17) < u64::MAX);
        assert!(Permutation::new(1 << 63, 5).at(17) < 1 << 63);
    }

    /// Every value visits every place about equally often: chi-square over 200,000 keys against
    /// the 99.99 % point of (len - 1)^2 degrees of freedom.
    #[test]
    fn no_position_is_preferred() {
        for (len, limit) in [(2u64, 15.1), (3, 23.5), (5, 45.9), (8, 94.6), (13, 215.8)] {
            let trials = 200_000u64;
            let mut counts = vec![0f64; (len * len) as usize];
            for trial in 0..trials {
                let permutation = Permutation::new(len, seed::key(&[7, trial]));
                for v in 0..len {
                    counts[(v * len + permutation.at(v)) as usize] += 1.0;
                }
            }
            let mean = trials as f64 / len as f64;
            let chi: f64 = counts.iter().map(|c| (c - mean).powi(2) / mean).sum();
            assert!(chi < limit, "chi-square {chi:.1} over {limit} for {len}");
        }
    }
}
