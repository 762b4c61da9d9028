//! The best evaluation of a run: which step's weights `checkpoint.keep_best` keeps, and what
//! `train.patience` counts from. Pure, and the same on every rank.

use serde::{Deserialize, Serialize};

use crate::observe::result::Best;

impl Best {
    /// What an evaluation behind `step` is judged by: the errors of the weights and, where the run
    /// keeps one, of their average.
    pub fn of(step: u64, error: f64, average_error: Option<f64>) -> Self {
        match average_error.filter(|average| *average < error) {
            Some(error) => Self { step, error, averaged: true },
            None => Self { step, error, averaged: false },
        }
    }
}

/// The best so far, and how many evaluations behind it were no better.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Improvement {
    /// None before the first evaluation.
    pub best: Option<Best>,
    /// Since then.
    pub evaluations_since: u64,
}

impl Improvement {
    /// Before any evaluation: what a manifest leaves out.
    pub fn is_none(&self) -> bool {
        self.best.is_none()
    }

    /// One more evaluation. Of two that are equally good the first stays. One of the same step
    /// that is made again is the same one.
    pub fn judge(&mut self, new: Best) {
        if self.best.is_none_or(|best| new.error < best.error) {
            *self = Self { best: Some(new), evaluations_since: 0 };
        } else if self.best.is_some_and(|best| best.step != new.step) {
            self.evaluations_since += 1;
        }
    }

    /// Whether the newest evaluation, made behind this step, is the best.
    pub fn is_of(&self, step: u64) -> Option<Best> {
        self.best.filter(|best| best.step == step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_better_of_weights_and_average_counts_and_the_first_of_equals_stays() {
        let mut so_far = Improvement::default();
        let mut judge = |step, error, average| {
            so_far.judge(Best::of(step, error, average));
            let best = so_far.best.unwrap();
            (best.step, best.error, best.averaged, so_far.evaluations_since)
        };
        assert_eq!(judge(10, 0.5, None), (10, 0.5, false, 0));
        assert_eq!(judge(20, 0.5, None), (10, 0.5, false, 1), "no better");
        assert_eq!(judge(30, 0.6, Some(0.4)), (30, 0.4, true, 0));
        assert_eq!(judge(40, 0.4, Some(0.4)), (30, 0.4, true, 1));
        assert_eq!(judge(50, 0.3, Some(0.35)), (50, 0.3, false, 0));
        assert_eq!(judge(50, 0.3, Some(0.35)), (50, 0.3, false, 0), "made again after a failure");
    }

    #[test]
    fn what_a_newcomer_or_a_checkpoint_reads_back_is_the_same_number() {
        for wrong in 0..1000 {
            let mut so_far = Improvement::default();
            so_far.judge(Best::of(1, f64::from(wrong) / 2999.0, None));
            let text = serde_json::to_string(&so_far).unwrap();
            assert_eq!(serde_json::from_str::<Improvement>(&text).unwrap(), so_far);
        }
    }
}
