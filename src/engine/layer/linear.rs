//! Fully connected layer, with a following ReLU computed within. Saves its input, and its result
//! if fused.
//!
//! Everything is row-major. oneDNN's own choice, blocked weights, computes hardly faster at the
//! micro-batches of training, and its changes of layout cost more than the products (measured
//! for 2560 x 2048 at 24 samples: 4 ms at every load, 6 ms for every gradient, 3-4 ms a product).

use kintsugi_ffi::dnnl::{Activation, Arg, Direction, MemoryDesc, Operation, Order, PrimitiveDesc};

use super::conv::{data_backward, parameters, weights_backward};
use super::{InputGradients, Layer, relu};
use crate::engine::error::EngineError;
use crate::engine::program::{Builder, Tensor};

/// `[n, in]` with weights `[out, in]`.
pub struct Linear {
    features: usize,
    activation: Activation,
    saved: Option<Saved>,
}

struct Saved {
    operation: PrimitiveDesc,
    weights: usize,
    bias: Option<usize>,
    input: Tensor,
    /// With a ReLU within.
    output: Option<Tensor>,
}

impl Linear {
    /// Output features.
    pub fn new(features: usize, activation: Activation) -> Self {
        Self { features, activation, saved: None }
    }

    /// Input, weights and result.
    fn descs(&self, builder: &Builder<'_>) -> Result<[MemoryDesc; 3], EngineError> {
        let (batch, node) = (builder.batch, &builder.graph.nodes[builder.node]);
        let [from, _, _] = builder.graph.shape_of(node.inputs[0]);
        Ok([
            builder.desc(&[batch, from], Order::Plain)?,
            builder.desc(&[self.features, from], Order::Plain)?,
            builder.desc(&[batch, self.features], Order::Plain)?,
        ])
    }
}

impl Layer for Linear {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Tensor, EngineError> {
        let [source, matrix, result] = self.descs(builder)?;
        let (weights, bias) = parameters(builder)?;
        let bias_desc = match bias {
            Some(_) => Some(builder.desc(&[self.features], Order::Plain)?),
            None => None,
        };
        let operation = builder.choose(&Operation::Linear {
            // In evaluation too: the layouts, and so the copies of weights, are the same.
            direction: Direction::Training,
            src: &source,
            weights: &matrix,
            bias: bias_desc.as_ref(),
            dst: &result,
            activation: self.activation,
        })?;
        let input = builder.convert_for(&inputs[0], &operation, Arg::Src)?;
        let matrix = builder.weight_for(&operation, Arg::Weights, weights)?;
        let shift = match bias {
            Some(tensor) => Some(builder.weight_for(&operation, Arg::Bias, tensor)?),
            None => None,
        };
        let output = builder.result(&operation, Arg::Dst)?;
        let mut args = vec![(Arg::Src, &input), (Arg::Weights, &matrix), (Arg::Dst, &output)];
        if let Some(shift) = &shift {
            args.push((Arg::Bias, shift));
        }
        builder.run(&operation, &args, &[])?;
        if builder.direction == Direction::Training {
            let result = (self.activation == Activation::Relu).then(|| output.clone());
            self.saved = Some(Saved { operation, weights, bias, input, output: result });
        }
        Ok(output)
    }

    fn backward(
        &mut self,
        builder: &mut Builder<'_>,
        gradient: &Tensor,
        wanted: &[bool],
    ) -> Result<InputGradients, EngineError> {
        let saved = self.saved.as_ref().expect("backward follows a forward pass in training");
        let gradient = match &saved.output {
            Some(output) => relu::backward(builder, gradient, output)?,
            None => gradient.clone(),
        };
        let [source, matrix, result] = self.descs(builder)?;
        let bias_desc = match saved.bias {
            Some(_) => Some(builder.desc(&[self.features], Order::Plain)?),
            None => None,
        };
        let operation = builder.choose(&Operation::LinearBackwardWeights {
            src: &source,
            diff_weights: &matrix,
            diff_bias: bias_desc.as_ref(),
            diff_dst: &result,
            hint: &saved.operation,
        })?;
        weights_backward(
            builder,
            &operation,
            &saved.input,
            &gradient,
            (saved.weights, saved.bias),
        )?;
        if !wanted[0] {
            return Ok(vec![None]);
        }
        let operation = builder.choose(&Operation::LinearBackwardData {
            diff_src: &source,
            weights: &matrix,
            diff_dst: &result,
            hint: &saved.operation,
        })?;
        Ok(vec![Some(data_backward(builder, &operation, &gradient, saved.weights)?)])
    }

    fn saved(&self) -> Vec<Tensor> {
        let Some(saved) = &self.saved else { return Vec::new() };
        std::iter::once(saved.input.clone()).chain(saved.output.clone()).collect()
    }
}
