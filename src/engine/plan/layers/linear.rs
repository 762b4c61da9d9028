//! Fully connected layer, with a following ReLU computed within.
//!
//! Everything is row-major. oneDNN's own choice, blocked weights, computes hardly faster at the
//! micro-batches of training, and its changes of order cost more than the products (measured
//! for 2560 x 2048 at 24 samples: 4 ms at every load, 6 ms for every gradient, 3-4 ms a product).

use super::pointwise;
use super::product::{self, Parameters, data_backward, weights_backward};
use crate::engine::error::EngineError;
use crate::engine::plan::builder::Builder;
use crate::engine::plan::layer::{Forward, InputGradients, Kept, Layer};
use crate::engine::plan::operation::{Direction, Kernel, Operation, ProductPass};
use crate::engine::plan::tensor::{Desc, Tensor};
use crate::model::saved::Activation;

/// `[n, in]` with weights `[out, in]`.
pub struct Linear {
    features: usize,
    activation: Activation,
    forward: Option<Kernel>,
}

impl Linear {
    /// Output features.
    pub fn new(features: usize, activation: Activation) -> Self {
        Self { features, activation, forward: None }
    }

    /// Input, weights and result.
    fn descs(&self, builder: &Builder<'_>) -> [Desc; 3] {
        let (batch, graph) = (builder.request.batch, builder.request.graph);
        let [from, _, _] = graph.shape_of(graph.nodes[builder.node].inputs[0]);
        [[batch, from], [self.features, from], [batch, self.features]]
            .map(|dims| builder.row_major(&dims))
    }
}

impl Layer for Linear {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Forward, EngineError> {
        let [source, matrix, result] = self.descs(builder);
        let parameters = Parameters::of(builder)?;
        // In evaluation too: the orders, and so the copies of weights, are the same.
        let (direction, activation) = (Direction::Training, self.activation);
        let choice = builder.choose(&Operation::Linear {
            src: &source,
            weights: &matrix,
            bias: parameters.bias_desc(builder, self.features).as_ref(),
            dst: &result,
            pass: ProductPass::Forward { direction, activation },
        })?;
        self.forward = Some(choice.kernel);
        let (input, output) = product::forward(builder, &choice, &inputs[0], parameters)?;
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
        let hint = self.forward.expect("backward follows a forward pass");
        let [source, matrix, result] = self.descs(builder);
        let parameters = Parameters::of(builder)?;
        if parameters.are_trained(builder) {
            let choice = builder.choose(&Operation::Linear {
                src: &source,
                // Gradients go out as f32.
                weights: &builder.row_major_f32(&matrix.dims),
                bias: parameters.bias_desc(builder, self.features).as_ref(),
                dst: &result,
                pass: ProductPass::BackwardWeights(hint),
            })?;
            weights_backward(builder, &choice, kept.input()?, &gradient, parameters, None)?;
        }
        if !wanted[0] {
            return Ok(vec![None]);
        }
        let choice = builder.choose(&Operation::Linear {
            src: &source,
            weights: &matrix,
            bias: None,
            dst: &result,
            pass: ProductPass::BackwardData(hint),
        })?;
        Ok(vec![Some(data_backward(builder, &choice, &gradient, parameters)?)])
    }
}
