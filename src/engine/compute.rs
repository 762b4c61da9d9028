//! What computes micro-batches: a device, or in simulation a stand-in.

use std::sync::Arc;

use super::error::EngineError;
use super::memory::expected::Expected;
use super::source::WeightSource;
use super::targets::{Outcome, Targets};

/// What a micro-batch comes to beyond the near tier of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Passing {
    /// A value is on its way to the far tier.
    SwapOut,
    /// One is on its way back.
    SwapIn,
    /// A step is about to run that has run before.
    Recompute,
}

/// Who is told of it, each time.
pub type Watch = Box<dyn FnMut(Passing) + Send>;

/// Forward and backward of one model on one worker thread. Images are `[n, c, h, w]`. Weights are
/// read tensor by tensor when computing reaches them, and kept until `renew`.
pub trait Compute {
    /// Gets ready to train micro-batches of so many samples.
    fn prepare(&mut self, samples: usize) -> Result<(), EngineError>;

    /// Weights and running statistics have changed: none that was read is used again.
    fn renew(&mut self);

    /// Reads at once whatever `train` of so many samples will want: for who cannot promise that
    /// nothing changes until then.
    fn load(&mut self, samples: usize, weights: &dyn WeightSource) -> Result<(), EngineError>;

    /// These pictures are given to a later `train`, if nothing comes between: a device may take
    /// them while it computes the next micro-batch, and need not.
    fn foresee(&mut self, _images: &Arc<Vec<f32>>) {}

    /// From now on this one is told. A device from which nothing leaves has nothing to tell.
    fn watch(&mut self, _watch: Watch) {}

    /// What micro-batches are expected to take, and were found to take, since the last call.
    fn take_expected(&mut self) -> Vec<Expected> {
        Vec::new()
    }

    /// Forward and backward. `ready(offset, gradients)` is called during backward, tensor by
    /// tensor in reverse node order, once for every tensor that is trained: sums over samples, in
    /// `Layout` order. `statistics` receives this micro-batch's mean and (biased) variance, but
    /// nothing of norms that use the running ones: frozen ones, and those that see one value a
    /// channel. With n = 0 the outcome, all gradients and statistics are zeros.
    fn train(
        &mut self,
        images: &[f32],
        targets: Targets<'_>,
        dropout_key: [u64; 3],
        weights: &dyn WeightSource,
        statistics: &mut [f32],
        ready: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<Outcome, EngineError>;

    /// Forward only: loss and errors without dropout, with the running statistics. Appends to
    /// `logarithms` the (natural) one of the probability of each class, `[samples, classes]`.
    fn infer(
        &mut self,
        images: &[f32],
        labels: &[u32],
        weights: &dyn WeightSource,
        logarithms: Option<&mut Vec<f32>>,
    ) -> Result<Outcome, EngineError>;
}
