//! What a rank's workers count, in words that sum exactly whatever the order.

use crate::engine::Outcome;

/// Loss is summed in fixed point, so that the sum does not depend on its order: 2^-20 units.
pub const LOSS_UNIT: f64 = 1.0 / (1u64 << 20) as f64;

/// A micro-batch's loss beyond it has diverged and is counted as no number: thousands of smaller
/// ones sum without a carry.
const LOSS_SUM_MAX: f64 = (1u64 << 30) as f64;

/// What the workers of a rank counted; all of it sums exactly, in any order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Samples, skipped ones included.
    pub count: u64,
    /// Images that could not be decoded, or be had.
    pub skipped: u64,
    /// Samples that were not as they were when the set was listed.
    pub altered: u64,
    /// Wrapping sum over the contents of samples.
    pub contents: u64,
    /// Audit mix of (epoch, id).
    pub mix: u64,
    /// Loss in `LOSS_UNIT`s, two's complement.
    pub loss_units: u64,
    /// Wrong top-1 answers.
    pub errors: u64,
    /// Micro-batches whose loss was no number, or beyond what is summed.
    pub non_finite: u64,
    /// Samples that were computed alone: of one value a channel norms learn no statistics.
    pub alone: u64,
}

impl Totals {
    /// Number of words in `words`.
    pub const WORDS: usize = 9;

    /// For the exchange.
    pub fn words(&self) -> [u64; Self::WORDS] {
        let Self { count, skipped, altered, contents, mix, .. } = *self;
        let Self { loss_units, errors, non_finite, alone, .. } = *self;
        [count, skipped, mix, loss_units, errors, non_finite, alone, altered, contents]
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
            alone: words[6],
            altered: words[7],
            contents: words[8],
        }
    }

    /// Mean loss over the samples that were computed: no number where there are none, and where a
    /// micro-batch's was none.
    pub fn mean_loss(&self) -> f64 {
        match self.non_finite {
            0 => self.loss_units as i64 as f64 * LOSS_UNIT / self.computed() as f64,
            _ => f64::NAN,
        }
    }

    /// Wrong answers, as a fraction of the samples that were computed; no number without any.
    pub fn error(&self) -> f64 {
        self.errors as f64 / self.computed() as f64
    }

    /// Samples that were really computed.
    pub fn computed(&self) -> u64 {
        self.count.saturating_sub(self.skipped)
    }

    /// Adds another sum.
    pub fn add(&mut self, other: &Self) {
        self.count += other.count;
        self.skipped += other.skipped;
        self.altered += other.altered;
        self.contents = self.contents.wrapping_add(other.contents);
        self.mix = self.mix.wrapping_add(other.mix);
        self.loss_units = self.loss_units.wrapping_add(other.loss_units);
        self.errors += other.errors;
        self.non_finite += other.non_finite;
        self.alone += other.alone;
    }

    /// Adds a micro-batch's outcome.
    pub fn add_outcome(&mut self, outcome: &Outcome) {
        if outcome.loss_sum.abs() <= LOSS_SUM_MAX {
            let units = (outcome.loss_sum / LOSS_UNIT).round() as i64;
            self.loss_units = self.loss_units.wrapping_add(units as u64);
        } else {
            self.non_finite += 1;
        }
        self.errors += outcome.errors;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(outcomes: &[(f64, u64)]) -> Totals {
        let mut totals = Totals { count: 10, skipped: 2, ..Totals::default() };
        for &(loss_sum, errors) in outcomes {
            totals.add_outcome(&Outcome { loss_sum, errors, samples: 4 });
        }
        totals
    }

    #[test]
    fn means_are_over_the_samples_that_were_computed() {
        let totals = of(&[(6.0, 1), (2.0, 3)]);
        assert_eq!((totals.mean_loss(), totals.error()), (1.0, 0.5));
    }

    #[test]
    fn a_loss_that_is_no_number_and_the_mean_of_nothing_are_never_small() {
        for diverged in [f64::NAN, f64::INFINITY, -f64::INFINITY, 1e30, 2e13] {
            let mean = of(&[(6.0, 1), (diverged, 4), (diverged, 4)]).mean_loss();
            assert!(mean.is_nan(), "{diverged}: {mean}");
        }
        let nothing = Totals { count: 3, skipped: 3, ..Totals::default() };
        assert!(nothing.mean_loss().is_nan() && nothing.error().is_nan());
        let large = of(&[(LOSS_SUM_MAX, 4); 4096]).mean_loss();
        assert_eq!(large, LOSS_SUM_MAX * 4096.0 / 8.0, "what is summed is summed whole");
    }
}
