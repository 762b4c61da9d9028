//! Fully connected layer, with a following ReLU computed within. Saves its input, and its result
//! if fused. A flattened image keeps its four dimensions and its layout up to here.

use kintsugi_ffi::dnnl::{Activation, Arg, Direction, Operation, Order, PrimitiveDesc};

use super::conv::{data_backward, parameters, weights_backward};
use super::{InputGradients, Layer, relu};
use crate::engine::EngineError;
use crate::engine::program::{Builder, Tensor};

/// `[n, in]` or `[n, c, h, w]` with weights `[out, in]` or `[out, c, h, w]`: the same numbers.
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

    fn weight_dims(&self, input: &[usize]) -> Vec<usize> {
        std::iter::once(self.features).chain(input[1..].iter().copied()).collect()
    }
}

impl Layer for Linear {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Tensor, EngineError> {
        let dims = inputs[0].desc.dims();
        let (weights, bias) = parameters(builder)?;
        let bias_desc = match bias {
            Some(_) => Some(builder.desc(&[self.features], Order::Plain)?),
            None => None,
        };
        let operation = builder.choose(&Operation::Linear {
            direction: builder.direction,
            src: &builder.desc(&dims, Order::Any)?,
            weights: &builder.desc(&self.weight_dims(&dims), Order::Any)?,
            bias: bias_desc.as_ref(),
            dst: &builder.desc(&[builder.batch, self.features], Order::Any)?,
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
        let dims = saved.input.desc.dims();
        let source = builder.desc(&dims, Order::Any)?;
        let result = builder.desc(&[builder.batch, self.features], Order::Any)?;
        let bias_desc = match saved.bias {
            Some(_) => Some(builder.desc(&[self.features], Order::Plain)?),
            None => None,
        };
        let operation = builder.choose(&Operation::LinearBackwardWeights {
            src: &source,
            diff_weights: &builder.desc(&self.weight_dims(&dims), Order::Any)?,
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
            weights: &builder.desc(&self.weight_dims(&dims), Order::Any)?,
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
