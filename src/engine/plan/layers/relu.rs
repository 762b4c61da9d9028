//! ReLU. Its gradient is seen from its result; it runs in place where nothing else reads its
//! input.

use crate::engine::error::EngineError;
use crate::engine::plan::builder::Builder;
use crate::engine::plan::layer::{Forward, InputGradients, Kept, Layer};
use crate::engine::plan::operation::{Direction, Operation, Role};
use crate::engine::plan::tensor::Tensor;
use crate::model::saved::Activation;

/// max(x, 0); the derivative at 0 is 0.
pub struct Relu;

impl Layer for Relu {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Forward, EngineError> {
        let input = &inputs[0];
        let direction = builder.direction();
        let choice = builder.choose(&Operation::Relu { direction, data: &input.desc })?;
        let output = builder.result(&choice, Role::Dst)?;
        let arguments = [(Role::Src, input), (Role::Dst, &output)];
        builder.run(&choice, &arguments, &[(input, &output)]);
        Ok(Forward::new(input.clone(), output))
    }

    fn backward(
        &mut self,
        builder: &mut Builder<'_>,
        kept: &Kept,
        gradient: &Tensor,
        _wanted: &[bool],
    ) -> Result<InputGradients, EngineError> {
        let gradient = backward_within(builder, Activation::Relu, kept, gradient)?;
        Ok(vec![Some(gradient)])
    }
}

/// The gradient of a layer's sum from that of its result: where the result of a ReLU within was
/// positive, else 0.
pub fn backward_within(
    builder: &mut Builder<'_>,
    activation: Activation,
    kept: &Kept,
    gradient: &Tensor,
) -> Result<Tensor, EngineError> {
    if activation == Activation::None {
        return Ok(gradient.clone());
    }
    let output = kept.output()?;
    let data = output.desc.clone();
    let gradient = builder.convert(gradient, &data)?;
    let direction = Direction::Training;
    let hint = builder.choose(&Operation::Relu { direction, data: &data })?.kernel;
    let choice = builder.choose(&Operation::ReluBackward { diff: &data, data: &data, hint })?;
    let result = builder.result(&choice, Role::DiffSrc)?;
    let arguments = [(Role::Dst, output), (Role::DiffDst, &gradient), (Role::DiffSrc, &result)];
    builder.run(&choice, &arguments, &[(&gradient, &result)]);
    Ok(result)
}
