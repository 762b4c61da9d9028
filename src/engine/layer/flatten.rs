//! Flattening to a vector per sample, row-major: linear layers run fastest on that (measured: with
//! a blocked image as input their weights change layout at every load, which costs more).

use kintsugi_ffi::dnnl::Order;

use super::{InputGradients, Layer};
use crate::engine::error::EngineError;
use crate::engine::program::{Builder, Tensor};

/// `[c, h, w]` as `[c * h * w]`.
pub struct Flatten;

impl Layer for Flatten {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Tensor, EngineError> {
        let [features, _, _] = builder.graph.nodes[builder.node].shape;
        let flat = builder.desc(&[builder.batch, features], Order::Plain)?;
        builder.convert(&inputs[0], &flat)
    }

    fn backward(
        &mut self,
        _builder: &mut Builder<'_>,
        gradient: &Tensor,
        _wanted: &[bool],
    ) -> Result<InputGradients, EngineError> {
        // Whoever reads it converts it, dimensions included.
        Ok(vec![Some(gradient.clone())])
    }

    fn saved(&self) -> Vec<Tensor> {
        Vec::new()
    }
}
