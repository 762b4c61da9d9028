//! What layers with a matrix of weights share: their tensors and the products of backward.

use crate::engine::error::EngineError;
use crate::engine::plan::builder::Builder;
use crate::engine::plan::operation::{Choice, Role};
use crate::engine::plan::taps::Taps;
use crate::engine::plan::tensor::{Desc, Tensor};

/// Indices of a node's weight and bias in the layout.
#[derive(Debug, Clone, Copy)]
pub struct Parameters {
    /// The matrix.
    pub weights: usize,
    /// What is added per output, if anything is.
    pub bias: Option<usize>,
}

impl Parameters {
    /// This node's.
    pub fn of(builder: &Builder<'_>) -> Result<Self, EngineError> {
        let name = &builder.request.graph.nodes[builder.node].name;
        let missing = || EngineError::Layout(format!("`{name}.weight` is missing"));
        let weights = builder.tensor("weight").ok_or_else(missing)?;
        Ok(Self { weights, bias: builder.tensor("bias") })
    }

    /// Whether somebody wants the gradient of either.
    pub fn are_trained(&self, builder: &Builder<'_>) -> bool {
        let trained = |tensor| builder.request.is_trained(tensor);
        trained(self.weights) || self.bias.is_some_and(trained)
    }

    /// How a bias of so many outputs lies, and its gradient.
    pub fn bias_desc(&self, builder: &Builder<'_>, outputs: usize) -> Option<Desc> {
        self.bias.map(|_| builder.row_major_f32(&[outputs]))
    }
}

/// The product itself; gives the input as the kernel read it, and the result.
pub fn forward(
    builder: &mut Builder<'_>,
    choice: &Choice,
    input: &Tensor,
    parameters: Parameters,
) -> Result<(Tensor, Tensor), EngineError> {
    let input = builder.convert_for(input, choice, Role::Src)?;
    let kernel = builder.weight_for(choice, Role::Weights, parameters.weights)?;
    let shift = match parameters.bias {
        Some(tensor) => Some(builder.weight_for(choice, Role::Bias, tensor)?),
        None => None,
    };
    let output = builder.result(choice, Role::Dst)?;
    let mut arguments = vec![(Role::Src, &input), (Role::Weights, &kernel), (Role::Dst, &output)];
    arguments.extend(shift.as_ref().map(|shift| (Role::Bias, shift)));
    builder.run(choice, &arguments, &[]);
    Ok((input, output))
}

/// Gradients of weight and bias, handed out; `taps`: those of a convolution that see data, where
/// not all do.
pub fn weights_backward(
    builder: &mut Builder<'_>,
    choice: &Choice,
    input: &Tensor,
    gradient: &Tensor,
    parameters: Parameters,
    taps: Option<Taps>,
) -> Result<(), EngineError> {
    let input = builder.convert_for(input, choice, Role::Src)?;
    let gradient = builder.convert_for(gradient, choice, Role::DiffDst)?;
    let kernel = builder.result(choice, Role::DiffWeights)?;
    let mut arguments =
        vec![(Role::Src, &input), (Role::DiffDst, &gradient), (Role::DiffWeights, &kernel)];
    let shift = match parameters.bias {
        Some(_) => Some(builder.result(choice, Role::DiffBias)?),
        None => None,
    };
    arguments.extend(shift.as_ref().map(|shift| (Role::DiffBias, shift)));
    builder.run(choice, &arguments, &[]);
    if let (Some(tensor), Some(shift)) = (parameters.bias, &shift) {
        builder.emit(tensor, shift)?;
    }
    builder.emit_of_taps(parameters.weights, &kernel, taps)
}

/// Gradient of the input.
pub fn data_backward(
    builder: &mut Builder<'_>,
    choice: &Choice,
    gradient: &Tensor,
    parameters: Parameters,
) -> Result<Tensor, EngineError> {
    let gradient = builder.convert_for(gradient, choice, Role::DiffDst)?;
    let kernel = builder.weight_for(choice, Role::Weights, parameters.weights)?;
    let result = builder.result(choice, Role::DiffSrc)?;
    let arguments =
        [(Role::DiffDst, &gradient), (Role::Weights, &kernel), (Role::DiffSrc, &result)];
    builder.run(choice, &arguments, &[]);
    Ok(result)
}
