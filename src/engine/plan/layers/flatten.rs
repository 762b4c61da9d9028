//! Flattening to a vector per sample, row-major: linear layers run fastest on that (measured: with
//! a blocked image as input their weights change order at every load, which costs more).

use crate::engine::error::EngineError;
use crate::engine::plan::builder::Builder;
use crate::engine::plan::layer::{Forward, InputGradients, Kept, Layer};
use crate::engine::plan::tensor::Tensor;

/// `[c, h, w]` as `[c * h * w]`.
pub struct Flatten;

impl Layer for Flatten {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Forward, EngineError> {
        let [features, _, _] = builder.request.graph.nodes[builder.node].shape;
        let flat = builder.row_major(&[builder.request.batch, features]);
        let output = builder.convert(&inputs[0], &flat)?;
        Ok(Forward::new(inputs[0].clone(), output))
    }

    fn backward(
        &mut self,
        _builder: &mut Builder<'_>,
        _kept: &Kept,
        gradient: &Tensor,
        _wanted: &[bool],
    ) -> Result<InputGradients, EngineError> {
        // Whoever reads it converts it, dimensions included.
        Ok(vec![Some(gradient.clone())])
    }
}
