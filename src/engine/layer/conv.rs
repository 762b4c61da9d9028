//! Convolution, with a following ReLU computed within. Saves its input, and its result if fused.

use kintsugi_ffi::dnnl::{Activation, Arg, Direction, Operation, Order, PrimitiveDesc, Window};

use super::{InputGradients, Layer, relu};
use crate::engine::error::EngineError;
use crate::engine::program::{Builder, Tensor};

/// `[n, c, h, w]` with weights `[out, c, kernel, kernel]`.
pub struct Conv {
    channels: usize,
    window: Window,
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

impl Conv {
    /// Sizes in elements.
    pub fn new(
        channels: usize,
        kernel: usize,
        stride: usize,
        padding: usize,
        activation: Activation,
    ) -> Self {
        let window = Window { kernel: [kernel; 2], stride, padding };
        Self { channels, window, activation, saved: None }
    }

    fn weight_dims(&self, input: &[usize]) -> [usize; 4] {
        let [height, width] = self.window.kernel;
        [self.channels, input[1], height, width]
    }
}

impl Layer for Conv {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Tensor, EngineError> {
        let node = &builder.graph.nodes[builder.node];
        let (from, to) = (builder.graph.shape_of(node.inputs[0]), builder.dims(node.shape));
        let input = builder.spatial(&inputs[0], from)?;
        let dims = input.desc.dims();
        let (weights, bias) = parameters(builder)?;
        let bias_desc = match bias {
            Some(_) => Some(builder.desc(&[self.channels], Order::Plain)?),
            None => None,
        };
        let operation = builder.choose(&Operation::Conv {
            // In evaluation too: the layouts, and so the copies of weights, are the same.
            direction: Direction::Training,
            src: &builder.desc(&dims, Order::Any)?,
            weights: &builder.desc(&self.weight_dims(&dims), Order::Any)?,
            bias: bias_desc.as_ref(),
            dst: &builder.desc(&to, Order::Any)?,
            window: self.window,
            activation: self.activation,
        })?;
        let input = builder.convert_for(&input, &operation, Arg::Src)?;
        let kernel = builder.weight_for(&operation, Arg::Weights, weights)?;
        let shift = match bias {
            Some(tensor) => Some(builder.weight_for(&operation, Arg::Bias, tensor)?),
            None => None,
        };
        let output = builder.result(&operation, Arg::Dst)?;
        let mut args = vec![(Arg::Src, &input), (Arg::Weights, &kernel), (Arg::Dst, &output)];
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
        let kernel = builder.desc(&self.weight_dims(&dims), Order::Any)?;
        let result = builder.desc(&gradient_dims(builder), Order::Any)?;
        let bias_desc = match saved.bias {
            Some(_) => Some(builder.desc(&[self.channels], Order::Plain)?),
            None => None,
        };
        let operation = builder.choose(&Operation::ConvBackwardWeights {
            src: &source,
            diff_weights: &kernel,
            diff_bias: bias_desc.as_ref(),
            diff_dst: &result,
            window: self.window,
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
        let operation = builder.choose(&Operation::ConvBackwardData {
            diff_src: &source,
            weights: &kernel,
            diff_dst: &result,
            window: self.window,
            hint: &saved.operation,
        })?;
        Ok(vec![Some(data_backward(builder, &operation, &gradient, saved.weights)?)])
    }

    fn saved(&self) -> Vec<Tensor> {
        let Some(saved) = &self.saved else { return Vec::new() };
        std::iter::once(saved.input.clone()).chain(saved.output.clone()).collect()
    }
}

/// This node's result, `[n, c, h, w]`.
fn gradient_dims(builder: &Builder<'_>) -> [usize; 4] {
    builder.dims(builder.graph.nodes[builder.node].shape)
}

/// Indices of this node's weight and bias; conv and linear share this and what follows.
pub(super) fn parameters(builder: &Builder<'_>) -> Result<(usize, Option<usize>), EngineError> {
    let name = &builder.graph.nodes[builder.node].name;
    let missing = || EngineError::Layout(format!("`{name}.weight` is missing"));
    Ok((builder.tensor("weight").ok_or_else(missing)?, builder.tensor("bias")))
}

/// Gradients of weight and bias, handed out.
pub(super) fn weights_backward(
    builder: &mut Builder<'_>,
    operation: &PrimitiveDesc,
    input: &Tensor,
    gradient: &Tensor,
    (weights, bias): (usize, Option<usize>),
) -> Result<(), EngineError> {
    let input = builder.convert_for(input, operation, Arg::Src)?;
    let gradient = builder.convert_for(gradient, operation, Arg::DiffDst)?;
    let kernel = builder.result(operation, Arg::DiffWeights)?;
    let mut args = vec![(Arg::Src, &input), (Arg::DiffDst, &gradient), (Arg::DiffWeights, &kernel)];
    let shift = match bias {
        Some(_) => Some(builder.result(operation, Arg::DiffBias)?),
        None => None,
    };
    if let Some(shift) = &shift {
        args.push((Arg::DiffBias, shift));
    }
    builder.run(operation, &args, &[])?;
    if let (Some(tensor), Some(shift)) = (bias, &shift) {
        builder.emit(tensor, shift)?;
    }
    builder.emit(weights, &kernel)
}

/// Gradient of the input.
pub(super) fn data_backward(
    builder: &mut Builder<'_>,
    operation: &PrimitiveDesc,
    gradient: &Tensor,
    weights: usize,
) -> Result<Tensor, EngineError> {
    let gradient = builder.convert_for(gradient, operation, Arg::DiffDst)?;
    let kernel = builder.weight_for(operation, Arg::Weights, weights)?;
    let result = builder.result(operation, Arg::DiffSrc)?;
    let args = [(Arg::DiffDst, &gradient), (Arg::Weights, &kernel), (Arg::DiffSrc, &result)];
    builder.run(operation, &args, &[])?;
    Ok(result)
}
