//! Softmax over channels, at each place: probabilities. Its gradient is seen from its result.

use crate::engine::error::EngineError;
use crate::engine::plan::builder::Builder;
use crate::engine::plan::layer::{Forward, InputGradients, Kept, Layer};
use crate::engine::plan::operation::{Direction, Operation, Role, SoftmaxForm};
use crate::engine::plan::tensor::Tensor;

/// `exp(x) / sum exp(x)`.
pub struct Softmax;

const FORM: SoftmaxForm = SoftmaxForm::Probabilities;

impl Layer for Softmax {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Forward, EngineError> {
        let (input, direction) = (&inputs[0], builder.direction());
        let operation = Operation::Softmax { direction, form: FORM, data: &input.desc };
        let choice = builder.choose(&operation)?;
        let output = builder.result(&choice, Role::Dst)?;
        builder.run(&choice, &[(Role::Src, input), (Role::Dst, &output)], &[]);
        Ok(Forward::new(input.clone(), output))
    }

    fn backward(
        &mut self,
        builder: &mut Builder<'_>,
        kept: &Kept,
        gradient: &Tensor,
        _wanted: &[bool],
    ) -> Result<InputGradients, EngineError> {
        let output = kept.output()?;
        let data = output.desc.clone();
        let gradient = builder.convert(gradient, &data)?;
        let direction = Direction::Training;
        let operation = Operation::Softmax { direction, form: FORM, data: &data };
        let hint = builder.choose(&operation)?.kernel;
        let (diff, data) = (&data, &data);
        let choice =
            builder.choose(&Operation::SoftmaxBackward { form: FORM, diff, data, hint })?;
        let result = builder.result(&choice, Role::DiffSrc)?;
        let arguments = [(Role::Dst, output), (Role::DiffDst, &gradient), (Role::DiffSrc, &result)];
        builder.run(&choice, &arguments, &[]);
        Ok(vec![Some(result)])
    }
}
