//! ReLU. Saves its result, from which the sign of its input can be seen; runs in place where
//! nothing else reads its input.

use kintsugi_ffi::dnnl::{Arg, Direction, Operation};

use super::{InputGradients, Layer};
use crate::engine::error::EngineError;
use crate::engine::program::{Builder, Tensor};

/// max(x, 0); the derivative at 0 is 0.
#[derive(Default)]
pub struct Relu {
    saved: Option<Tensor>,
}

impl Layer for Relu {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Tensor, EngineError> {
        let input = &inputs[0];
        let direction = builder.direction;
        let operation = builder.choose(&Operation::Relu { direction, data: &input.desc })?;
        let output = builder.result(&operation, Arg::Dst)?;
        let args = [(Arg::Src, input), (Arg::Dst, &output)];
        builder.run(&operation, &args, &[(input, &output)])?;
        if direction == Direction::Training {
            self.saved = Some(output.clone());
        }
        Ok(output)
    }

    fn backward(
        &mut self,
        builder: &mut Builder<'_>,
        gradient: &Tensor,
        _wanted: &[bool],
    ) -> Result<InputGradients, EngineError> {
        let output = self.saved.as_ref().expect("backward follows a forward pass in training");
        Ok(vec![Some(backward(builder, gradient, output)?)])
    }

    fn saved(&self) -> Vec<Tensor> {
        self.saved.iter().cloned().collect()
    }
}

/// The gradient where the result was positive, else 0.
pub(super) fn backward(
    builder: &mut Builder<'_>,
    gradient: &Tensor,
    output: &Tensor,
) -> Result<Tensor, EngineError> {
    let data = output.desc.clone();
    let gradient = builder.convert(gradient, &data)?;
    let direction = Direction::Training;
    let forward = builder.choose(&Operation::Relu { direction, data: &data })?;
    let operation =
        builder.choose(&Operation::ReluBackward { diff: &data, data: &data, hint: &forward })?;
    let result = builder.result(&operation, Arg::DiffSrc)?;
    let args = [(Arg::Dst, output), (Arg::DiffDst, &gradient), (Arg::DiffSrc, &result)];
    builder.run(&operation, &args, &[(&gradient, &result)])?;
    Ok(result)
}
