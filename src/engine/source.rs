//! Where an engine reads weights: it asks for a tensor when computing reaches it.

use super::error::EngineError;
use crate::model::{TensorKind, TensorSpec};

/// The state at hand.
pub trait WeightSource {
    /// Gives `take` the numbers of one tensor, row-major, once. Nobody changes them meanwhile.
    fn read(&self, tensor: &TensorSpec, take: &mut dyn FnMut(&[f32])) -> Result<(), EngineError>;
}

/// A state as two slices, in `Layout` order.
#[derive(Debug, Clone, Copy)]
pub struct Flat<'a> {
    /// All trained elements.
    pub parameters: &'a [f32],
    /// Running statistics.
    pub statistics: &'a [f32],
}

impl WeightSource for Flat<'_> {
    fn read(&self, tensor: &TensorSpec, take: &mut dyn FnMut(&[f32])) -> Result<(), EngineError> {
        let (what, whole) = match tensor.kind {
            TensorKind::Statistic => ("running statistics", self.statistics),
            TensorKind::Weight | TensorKind::Bias => ("parameters", self.parameters),
        };
        let (range, given) = (tensor.range(), whole.len());
        let short = EngineError::Length { what, given, wanted: range.end };
        take(whole.get(range).ok_or(short)?);
        Ok(())
    }
}
