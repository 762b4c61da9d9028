//! The operations of a plan that oneDNN has no kernels for: dropout masks, averages over uneven
//! windows, the loss, and what is handed out.

use kintsugi_ffi::arena::{Arena, Span};

use crate::engine::logarithms::log_probabilities;
use crate::engine::plan::adaptive::{Adaptive, Pass};
use crate::engine::plan::layers::dropout::fill_mask;
use crate::engine::plan::operation::Access;
use crate::engine::plan::steps::{Action, Classifier};
use crate::engine::plan::tensor::Place;
use crate::engine::source::WeightSource;
use crate::engine::targets::{Outcome, Targets};

/// What a run of a program reads and writes besides its own values.
pub struct Batch<'a> {
    /// `[n, c, h, w]`.
    pub images: &'a [f32],
    /// What they are.
    pub targets: Targets<'a>,
    /// Of the streams that masks are drawn from.
    pub dropout_key: [u64; 3],
    /// The state at hand.
    pub weights: &'a dyn WeightSource,
    /// Receives means and variances.
    pub statistics: &'a mut [f32],
    /// Receives gradients, each with where its tensor lies in the layout.
    pub ready: &'a mut dyn FnMut(usize, &[f32]),
    /// What came of it.
    pub outcome: Outcome,
    /// Receives the log-probabilities.
    pub logarithms: Option<&'a mut Vec<f32>>,
}

impl Batch<'_> {
    /// Performs a step that runs no kernel.
    pub fn perform(&mut self, action: &Action<Span>, arena: &Arena, classes: usize) {
        match action {
            Action::Run { .. } => {}
            Action::Mask { value, elements, rate, node } => {
                let mask = &mut arena.lease([(*value, Access::Write)]);
                fill_mask(&mut mask.slice_mut(0)[..*elements], *rate, self.dropout_key, *node);
            }
            Action::Average { windows, pass, from, to } => {
                self.average(windows, *pass, (*from, *to), arena);
            }
            Action::Loss { logits, seed, of } => {
                match *logits {
                    Place::Value(span) => {
                        let logits = arena.lease([(span, Access::Read)]);
                        self.answered(logits.slice(0), classes, *of);
                    }
                    Place::Image => self.answered(self.images, classes, *of),
                    Place::Weight(_) => unreachable!("weights are no logits"),
                }
                if let Some(seed) = *seed {
                    let seed = &mut arena.lease([(seed, Access::Write)]);
                    self.targets.write_seed(seed.slice_mut(0), classes, of.weight());
                }
            }
            Action::Emit { value, offset, elements, taps } => {
                let gradients = &mut arena.lease([(*value, Access::Write)]);
                let gradients = &mut gradients.slice_mut(0)[..*elements];
                taps.iter().for_each(|taps| taps.silence(gradients));
                (self.ready)(*offset, gradients);
            }
            Action::Statistics { mean, variance, at, channels } => {
                for (value, at) in [*mean, *variance].into_iter().zip(at) {
                    let source = arena.lease([(value, Access::Read)]);
                    let into = &mut self.statistics[*at..*at + *channels];
                    into.copy_from_slice(&source.slice(0)[..*channels]);
                }
            }
        }
    }

    fn average(
        &self,
        windows: &Adaptive,
        pass: Pass,
        (from, to): (Place<Span>, Span),
        arena: &Arena,
    ) {
        match from {
            Place::Value(from) => {
                let mut both = arena.lease([(from, Access::Read), (to, Access::Write)]);
                let (from, to) = both.pair(0, 1);
                windows.run(pass, from, to);
            }
            Place::Image => {
                let mut to = arena.lease([(to, Access::Write)]);
                windows.run(pass, self.images, to.slice_mut(0));
            }
            Place::Weight(_) => unreachable!("no layer averages weights"),
        }
    }

    /// Takes in rows of logits. Of a classifier within the model only its loss counts.
    fn answered(&mut self, logits: &[f32], classes: usize, of: Classifier) {
        let logits = &logits[..self.targets.labels.len() * classes];
        let mut logarithms = Vec::with_capacity(logits.len());
        log_probabilities(logits, classes, &mut logarithms);
        let scored = self.targets.score(&logarithms, classes);
        if let Classifier::Auxiliary(weight) = of {
            self.outcome.loss_sum += f64::from(weight) * scored.loss_sum;
            return;
        }
        self.outcome = scored;
        if let Some(into) = self.logarithms.as_mut() {
            into.append(&mut logarithms);
        }
    }
}
