//! The operations of a plan that oneDNN has no kernels for: dropout masks, averages over uneven
//! windows, the loss, and what is handed out.

use kintsugi_ffi::arena::{Arena, Span};

use crate::engine::micro_batch::Batch;
use crate::engine::plan::adaptive::{Adaptive, Pass};
use crate::engine::plan::layers::dropout::fill_mask;
use crate::engine::plan::operation::Access;
use crate::engine::plan::steps::Action;
use crate::engine::plan::tensor::Place;

impl Batch<'_> {
    /// Performs a step that runs no kernel.
    pub fn perform(&mut self, action: &Action<Span>, arena: &Arena, classes: usize) {
        match action {
            Action::Run { .. }
            | Action::BeginCopy { .. }
            | Action::EndCopy { .. }
            | Action::Load { .. }
            | Action::Hold { .. } => {}
            Action::Mask { value, elements, rate, node } => {
                let mask = &mut arena.lease([(*value, Access::Write)]);
                fill_mask(&mut mask.slice_mut(0)[..*elements], *rate, self.dropout_key, *node);
            }
            Action::Average { windows, pass, from, to } => {
                self.average(windows, *pass, *from, *to, arena);
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

    fn average(&self, windows: &Adaptive, pass: Pass, from: Place<Span>, to: Span, arena: &Arena) {
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
}
