//! What a program whose values leave is expected to take, until that was compared with what it
//! took: pure.

use super::arrange::{Arranged, arrange};
use super::expected::Expected;
use super::limits::Limits;
use super::schedule::{Costs, Turn};
use crate::engine::plan::steps::Draft;
use crate::model::Graph;

/// Passes that are compared with what was expected of them.
const COMPARED: u32 = 4;
/// By how much the quickest of them may differ before everything is planned again, once.
const TOLERANCE: f64 = 0.1;

/// What a program is expected to take.
pub struct Outlook {
    draft: Draft,
    arranged: Arranged,
    budget_bytes: Option<usize>,
    costs: Costs,
    /// Passes that are still compared.
    left: u32,
    /// The quickest of them so far.
    best_seconds: f64,
    /// Whether it may be planned again.
    is_first: bool,
}

/// What comes of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compared {
    /// The arrangement stays.
    Stays,
    /// It took what was not expected: everything is to be planned again.
    Surprised,
}

impl Outlook {
    /// Of a draft in core, with a first arrangement of it and what its steps and copies take.
    /// `budget_bytes`: of its places.
    pub fn new(
        draft: Draft,
        arranged: Arranged,
        costs: Costs,
        budget_bytes: Option<usize>,
    ) -> Self {
        let (left, best_seconds, is_first) = (COMPARED, f64::INFINITY, true);
        Self { draft, arranged, budget_bytes, costs, left, best_seconds, is_first }
    }

    /// Takes the quickest arrangement by what is known now in place of the one at hand.
    pub fn improve(&mut self, graph: &Graph, limits: &Limits) -> &Arranged {
        let (draft, costs) = (&self.draft, &self.costs);
        // By other prices there may be none as small as the first: that one stays.
        let better = arrange(draft, graph, limits, costs, self.budget_bytes).ok();
        self.arranged = better.unwrap_or_else(|| self.arranged.priced(draft, costs));
        (self.left, self.best_seconds) = (COMPARED, f64::INFINITY);
        &self.arranged
    }

    /// Whether there is still something to compare.
    pub fn is_open(&self) -> bool {
        self.left > 0
    }

    /// A pass took so many seconds in each step of the arrangement. The last that is compared is
    /// `told`, with the samples and the bytes of the near tier.
    pub fn compare(
        &mut self,
        of_steps: &[f64],
        samples: usize,
        near_bytes: usize,
        told: &mut Vec<Expected>,
    ) -> Compared {
        let mut seconds = 0.0;
        let turns = self.arranged.origins.iter().zip(&self.arranged.turns);
        for ((origin, turn), &took) in turns.zip(of_steps) {
            if matches!(turn, Turn::Keep(_)) {
                // Once a state, in one micro-batch of many: neither forecast nor compared.
                continue;
            }
            seconds += took;
            let Some(step) = *origin else { continue };
            let cost = &mut self.costs.step_seconds[step];
            // The one before was of zeros, or of other passes.
            *cost = if self.left == COMPARED { took } else { took.min(*cost) };
        }
        self.left -= 1;
        self.best_seconds = self.best_seconds.min(seconds);
        if self.left > 0 {
            return Compared::Stays;
        }
        let took_seconds = Some(self.best_seconds);
        told.push(Expected { took_seconds, ..self.expected(samples, near_bytes) });
        let error = self.best_seconds / self.arranged.forecast.seconds - 1.0;
        match error.abs() > TOLERANCE && std::mem::replace(&mut self.is_first, false) {
            true => Compared::Surprised,
            false => Compared::Stays,
        }
    }

    /// What is expected of a micro-batch of so many samples that takes so many bytes.
    pub fn expected(&self, samples: usize, near_bytes: usize) -> Expected {
        Expected {
            samples,
            near_bytes: near_bytes as u64,
            far_bytes: self.arranged.far_bytes as u64,
            forecast: self.arranged.forecast,
            took_seconds: None,
        }
    }
}

impl Arranged {
    /// What each step of the draft takes, by passes of this arrangement: the least of each. Of
    /// steps that these do not measure what was `guessed`.
    pub fn step_seconds(&self, passes: &[Vec<f64>], guessed: &[f64]) -> Vec<f64> {
        let mut seconds = vec![f64::INFINITY; guessed.len()];
        for pass in passes {
            for (origin, &took) in self.origins.iter().zip(pass) {
                if let Some(step) = *origin {
                    seconds[step] = seconds[step].min(took);
                }
            }
        }
        let unmeasured = seconds.iter_mut().zip(guessed).filter(|(took, _)| took.is_infinite());
        unmeasured.for_each(|(took, guessed)| *took = *guessed);
        seconds
    }
}
