//! Softmax over channels, at each place: probabilities. Its gradient is seen from its result.

use crate::engine::error::EngineError;
use crate::engine::plan::builder::Builder;
use crate::engine::plan::layer::{Forward, InputGradients, Kept, Layer};
use crate::engine::plan::operation::{Direction, Operation, Pass, Role, SoftmaxForm};
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
        let (data, pass) = (&inputs[0].desc, Pass::Forward(builder.direction()));
        let choice = builder.choose(&Operation::Softmax { form: FORM, data, pass })?;
        let input = builder.convert_for(&inputs[0], &choice, Role::Src)?;
        let output = builder.result(&choice, Role::Dst)?;
        builder.run(&choice, &[(Role::Src, &input), (Role::Dst, &output)], &[]);
        Ok(Forward::new(input, output))
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
        let pass = Pass::Forward(Direction::Training);
        let hint = builder.choose(&Operation::Softmax { form: FORM, data: &data, pass })?.kernel;
        let pass = Pass::Backward(hint);
        let choice = builder.choose(&Operation::Softmax { form: FORM, data: &data, pass })?;
        let result = builder.result(&choice, Role::DiffSrc)?;
        let arguments = [(Role::Dst, output), (Role::DiffDst, &gradient), (Role::DiffSrc, &result)];
        builder.run(&choice, &arguments, &[]);
        Ok(vec![Some(result)])
    }
}
