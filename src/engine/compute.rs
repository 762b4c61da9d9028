//! What computes micro-batches: a device, or in simulation a stand-in.

use super::error::EngineError;

/// Sums over a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Outcome {
    /// Cross-entropy (natural logarithm), summed.
    pub loss_sum: f64,
    /// Samples whose most probable class is not their label (ties: the lowest class counts).
    pub errors: u64,
    /// Samples.
    pub samples: u64,
}

/// Forward and backward of one model on one worker thread. Images are `[n, c, h, w]`, parameters
/// and running statistics flat in `Layout` order.
pub trait Compute {
    /// Gets ready to train micro-batches of so many samples. Weights loaded afterwards go
    /// straight to where `train` wants them.
    fn prepare(&mut self, samples: usize) -> Result<(), EngineError>;

    /// Once per step: takes over weights and running statistics.
    fn load(&mut self, parameters: &[f32], statistics: &[f32]) -> Result<(), EngineError>;

    /// Forward and backward. `ready(offset, gradients)` is called during backward, tensor by
    /// tensor in reverse node order, once for every trained tensor: sums over samples, in
    /// `Layout` order. `statistics` receives this micro-batch's mean and unbiased variance. With
    /// n = 0 the outcome, all gradients and statistics are zeros.
    fn train(
        &mut self,
        images: &[f32],
        labels: &[u32],
        dropout_key: [u64; 3],
        statistics: &mut [f32],
        ready: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<Outcome, EngineError>;

    /// Forward only: loss and errors without dropout, with the running statistics.
    fn evaluate(&mut self, images: &[f32], labels: &[u32]) -> Result<Outcome, EngineError>;

    /// Bytes of activations and weight copies held.
    fn memory_bytes(&self) -> u64;
}

impl<C: Compute + ?Sized> Compute for Box<C> {
    fn prepare(&mut self, samples: usize) -> Result<(), EngineError> {
        (**self).prepare(samples)
    }
    fn load(&mut self, parameters: &[f32], statistics: &[f32]) -> Result<(), EngineError> {
        (**self).load(parameters, statistics)
    }
    fn train(
        &mut self,
        images: &[f32],
        labels: &[u32],
        dropout_key: [u64; 3],
        statistics: &mut [f32],
        ready: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<Outcome, EngineError> {
        (**self).train(images, labels, dropout_key, statistics, ready)
    }
    fn evaluate(&mut self, images: &[f32], labels: &[u32]) -> Result<Outcome, EngineError> {
        (**self).evaluate(images, labels)
    }
    fn memory_bytes(&self) -> u64 {
        (**self).memory_bytes()
    }
}
