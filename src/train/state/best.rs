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

/// The best so far, and how many evaluations in a row were no better.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Improvement {
    /// None before the first evaluation.
    pub best: Option<Best>,
    /// The best of those that count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_of_interval: Option<Best>,
    /// Those that count and were made since then.
    pub evaluations_since: u64,
}

/// Whether `train.patience` counts an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// It is one of `evaluation.every`, which any run makes that comes so far.
    Interval,
    /// The run's end alone made it due: a run that was to be longer does without.
    End,
}

impl Improvement {
    /// Before any evaluation: what a manifest leaves out.
    pub fn is_none(&self) -> bool {
        self.best.is_none()
    }

    /// One more evaluation. Of two that are equally good the first stays. One of the same step
    /// that is made again is the same one.
    pub fn judge(&mut self, new: Best, cause: Cause) {
        let is_better = |than: Option<Best>| than.is_none_or(|best| new.error < best.error);
        if is_better(self.best) {
            self.best = Some(new);
        }
        if cause == Cause::End {
            return;
        }
        // An earlier release kept one for both.
        let kept = self.best.filter(|_| self.best_of_interval.is_none());
        let before = self.best_of_interval.or(kept.filter(|_| self.evaluations_since > 0));
        if is_better(before) {
            (self.best_of_interval, self.evaluations_since) = (Some(new), 0);
        } else if before.is_some_and(|best| best.step != new.step) {
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
            so_far.judge(Best::of(step, error, average), Cause::Interval);
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
    fn an_evaluation_of_the_end_may_be_the_best_and_counts_for_nobodys_patience() {
        let mut so_far = Improvement::default();
        let mut judge = |step, error, cause| {
            so_far.judge(Best::of(step, error, None), cause);
            (so_far.best.map(|best| best.step), so_far.evaluations_since)
        };
        assert_eq!(judge(40, 0.5, Cause::Interval), (Some(40), 0));
        assert_eq!(judge(50, 0.3, Cause::End), (Some(50), 0));
        assert_eq!(judge(80, 0.4, Cause::Interval), (Some(50), 0), "better than behind step 40");
        assert_eq!(judge(90, 0.6, Cause::End), (Some(50), 0));
        assert_eq!(judge(120, 0.4, Cause::Interval), (Some(50), 1));
    }

    #[test]
    fn what_a_newcomer_or_a_checkpoint_reads_back_is_the_same_number() {
        for wrong in 0..1000 {
            let mut so_far = Improvement::default();
            so_far.judge(Best::of(1, f64::from(wrong) / 2999.0, None), Cause::Interval);
            let text = serde_json::to_string(&so_far).unwrap();
            assert_eq!(serde_json::from_str::<Improvement>(&text).unwrap(), so_far);
        }
    }
}
