//! What a rank's workers count, in words that sum exactly whatever the order.

use crate::engine::Outcome;

/// Loss is summed in fixed point, so that the sum does not depend on its order: 2^-20 units.
pub const LOSS_UNIT: f64 = 1.0 / (1u64 << 20) as f64;

/// What the workers of a rank counted; all of it sums exactly, in any order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Samples, skipped ones included.
    pub count: u64,
    /// Images that could not be decoded.
    pub skipped: u64,
    /// Audit mix of (epoch, id).
    pub mix: u64,
    /// Loss in `LOSS_UNIT`s, two's complement.
    pub loss_units: u64,
    /// Wrong top-1 answers.
    pub errors: u64,
    /// Micro-batches whose loss was not a number.
    pub non_finite: u64,
}

impl Totals {
    /// Number of words in `words`.
    pub const WORDS: usize = 6;

    /// For the exchange.
    pub fn words(&self) -> [u64; Self::WORDS] {
        [self.count, self.skipped, self.mix, self.loss_units, self.errors, self.non_finite]
    }

    /// The reverse of `words`.
    pub fn from_words(words: &[u64]) -> Self {
        Self {
            count: words[0],
            skipped: words[1],
            mix: words[2],
            loss_units: words[3],
            errors: words[4],
            non_finite: words[5],
        }
    }

    /// Sum of losses over the samples.
    pub fn loss(&self) -> f64 {
        self.loss_units as i64 as f64 * LOSS_UNIT
    }

    /// Samples that were really computed.
    pub fn computed(&self) -> u64 {
        self.count.saturating_sub(self.skipped)
    }

    /// Adds another sum.
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.skipped += other.skipped;
        self.mix = self.mix.wrapping_add(other.mix);
        self.loss_units = self.loss_units.wrapping_add(other.loss_units);
        self.errors += other.errors;
        self.non_finite += other.non_finite;
    }

    /// Adds a micro-batch's outcome.
    pub fn add_outcome(&mut self, outcome: &Outcome) {
        if outcome.loss_sum.is_finite() {
            let units = (outcome.loss_sum / LOSS_UNIT).round() as i64;
            self.loss_units = self.loss_units.wrapping_add(units as u64);
        } else {
            self.non_finite += 1;
        }
        self.errors += outcome.errors;
    }
}
