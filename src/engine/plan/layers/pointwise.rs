//! Functions of single elements. Where a gradient is seen from the result, the result is kept, and
//! the function runs in place if nothing else reads its input.

use crate::engine::error::EngineError;
use crate::engine::plan::builder::Builder;
use crate::engine::plan::layer::{Forward, InputGradients, Kept, Layer};
use crate::engine::plan::operation::{Direction, Function, Operation, Pass, Role};
use crate::engine::plan::tensor::Tensor;
use crate::model::saved::Activation;

/// One function. The derivative at a bend is 0.
pub struct Pointwise {
    function: Function,
}

impl Pointwise {
    /// Of every element.
    pub fn new(function: Function) -> Self {
        Self { function }
    }
}

impl Layer for Pointwise {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Forward, EngineError> {
        let input = &inputs[0];
        let output = apply(builder, self.function, input)?;
        Ok(Forward::new(input.clone(), output))
    }

    fn backward(
        &mut self,
        builder: &mut Builder<'_>,
        kept: &Kept,
        gradient: &Tensor,
        _wanted: &[bool],
    ) -> Result<InputGradients, EngineError> {
        Ok(vec![Some(backward(builder, self.function, kept, gradient)?)])
    }
}

/// The function of a tensor, in its place where that is free.
pub fn apply(
    builder: &mut Builder<'_>,
    function: Function,
    input: &Tensor,
) -> Result<Tensor, EngineError> {
    let pass = Pass::Forward(builder.direction());
    let choice = builder.choose(&Operation::Pointwise { function, data: &input.desc, pass })?;
    let output = builder.result(&choice, Role::Dst)?;
    let arguments = [(Role::Src, input), (Role::Dst, &output)];
    builder.run(&choice, &arguments, &[(input, &output)]);
    Ok(output)
}

fn backward(
    builder: &mut Builder<'_>,
    function: Function,
    kept: &Kept,
    gradient: &Tensor,
) -> Result<Tensor, EngineError> {
    let (role, seen) = match function.is_seen_from_result() {
        true => (Role::Dst, kept.output()?),
        false => (Role::Src, kept.input()?),
    };
    let data = seen.desc.clone();
    let gradient = builder.convert(gradient, &data)?;
    let pass = Pass::Forward(Direction::Training);
    let hint = builder.choose(&Operation::Pointwise { function, data: &data, pass })?.kernel;
    let pass = Pass::Backward(hint);
    let choice = builder.choose(&Operation::Pointwise { function, data: &data, pass })?;
    let result = builder.result(&choice, Role::DiffSrc)?;
    let arguments = [(role, seen), (Role::DiffDst, &gradient), (Role::DiffSrc, &result)];
    builder.run(&choice, &arguments, &[(&gradient, &result)]);
    Ok(result)
}

/// The gradient of a layer's sum from that of its result: where the result of a ReLU within was
/// positive, else 0.
pub fn relu_within(
    builder: &mut Builder<'_>,
    activation: Activation,
    kept: &Kept,
    gradient: &Tensor,
) -> Result<Tensor, EngineError> {
    match activation {
        Activation::None => Ok(gradient.clone()),
        Activation::Relu => backward(builder, Function::Relu, kept, gradient),
    }
}
