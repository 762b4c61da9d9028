//! Convolution, with a following ReLU computed within.

use super::pointwise;
use super::product::{self, Parameters, data_backward, weights_backward};
use crate::engine::error::EngineError;
use crate::engine::plan::builder::Builder;
use crate::engine::plan::layer::{Forward, InputGradients, Kept, Layer};
use crate::engine::plan::operation::{Direction, Kernel, Operation, ProductPass, Window};
use crate::engine::plan::taps::Taps;
use crate::engine::plan::tensor::{Desc, ElementType, Tensor};
use crate::model::saved::Activation;
use crate::model::window;

/// `[n, c, h, w]` with weights `[out, c of a group, height, width]`.
pub struct Conv {
    shape: window::Conv,
    window: Window,
    activation: Activation,
    forward: Option<Chosen>,
}

/// What the forward pass chose.
struct Chosen {
    kernel: Kernel,
    /// How its result lies.
    result: Desc,
}

impl Conv {
    /// With or without ReLU.
    pub fn new(shape: window::Conv, activation: Activation) -> Self {
        let window::Conv { kernel, stride, padding, dilation, .. } = shape;
        let window = Window {
            kernel: kernel.0,
            stride: stride.0,
            padding: padding.begin.0,
            padding_end: padding.end.0,
            dilation: dilation.0,
        };
        Self { shape, window, activation, forward: None }
    }

    /// Of one group as the layout has them; of several the same numbers, cut by groups.
    fn weight_dims(&self, input: &[usize]) -> Vec<usize> {
        let [channels, inputs, height, width] = self.shape.weight_shape(input[1]);
        match self.shape.groups {
            1 => vec![channels, inputs, height, width],
            groups => vec![groups, channels / groups, inputs, height, width],
        }
    }
}

impl Layer for Conv {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Forward, EngineError> {
        let graph = builder.request.graph;
        let node = &graph.nodes[builder.node];
        let (from, to) = (graph.shape_of(node.inputs[0]), builder.dims(node.shape));
        let input = builder.spatial(&inputs[0], from)?;
        let dims = input.desc.dims.clone();
        let parameters = Parameters::of(builder)?;
        // In evaluation too: the orders, and so the copies of weights, are the same.
        let (direction, activation) = (Direction::Training, self.activation);
        let choice = builder.choose(&Operation::Conv {
            src: &builder.any_order(&dims),
            weights: &builder.any_order(&self.weight_dims(&dims)),
            bias: parameters.bias_desc(builder, self.shape.channels).as_ref(),
            dst: &builder.any_order(&to),
            window: self.window,
            pass: ProductPass::Forward { direction, activation },
        })?;
        let (input, output) = product::forward(builder, &choice, &input, parameters)?;
        self.forward = Some(Chosen { kernel: choice.kernel, result: (*output.desc).clone() });
        Ok(Forward::new(input, output))
    }

    fn backward(
        &mut self,
        builder: &mut Builder<'_>,
        kept: &Kept,
        gradient: &Tensor,
        wanted: &[bool],
    ) -> Result<InputGradients, EngineError> {
        let gradient = pointwise::relu_within(builder, self.activation, kept, gradient)?;
        let input = kept.input()?;
        let Chosen { kernel: hint, result: own } =
            self.forward.take().expect("backward follows a forward pass");
        let parameters = Parameters::of(builder)?;
        let dims = &input.desc.dims;
        let source = builder.any_order(dims);
        let kernel = self.weight_dims(dims);
        let result = builder.dims(builder.request.graph.nodes[builder.node].shape);
        let taps = Taps::of(self.window, [dims[2], dims[3]], [result[2], result[3]]);
        let taps = (!taps.all_live()).then_some(taps);
        let result = builder.any_order(&result);
        if parameters.are_trained(builder) {
            let choice = builder.choose(&Operation::Conv {
                src: &source,
                // Gradients go out as f32.
                weights: &Desc::any(&kernel, ElementType::F32),
                bias: parameters.bias_desc(builder, self.shape.channels).as_ref(),
                dst: &result,
                window: self.window,
                pass: ProductPass::BackwardWeights(hint),
            })?;
            weights_backward(builder, &choice, input, &gradient, parameters, taps)?;
        }
        if !wanted[0] {
            return Ok(vec![None]);
        }
        // oneDNN 3.2's own choice for depthwise strides in bf16 takes ten times as long as the
        // kernel that keeps the orders of the forward pass (117 ms and 9 ms seen for 96 channels).
        let (source, result) = match self.shape.groups == dims[1] && dims[1] > 1 {
            true => ((*input.desc).clone(), own),
            false => (source, result),
        };
        let choice = builder.choose(&Operation::Conv {
            src: &source,
            weights: &builder.any_order(&kernel),
            bias: None,
            dst: &result,
            window: self.window,
            pass: ProductPass::BackwardData(hint),
        })?;
        Ok(vec![Some(data_backward(builder, &choice, &gradient, parameters)?)])
    }
}
