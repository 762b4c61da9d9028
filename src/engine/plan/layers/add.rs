//! Element-wise sum, with a following ReLU computed within. Every input has the same gradient,
//! which is not copied.

use super::pointwise;
use crate::engine::error::EngineError;
use crate::engine::plan::builder::Builder;
use crate::engine::plan::layer::{Forward, InputGradients, Kept, Layer};
use crate::engine::plan::operation::{Algorithm, Operation, Role};
use crate::engine::plan::tensor::Tensor;
use crate::model::saved::Activation;

/// Sum of two or more tensors of one shape.
pub struct Add {
    activation: Activation,
}

impl Add {
    /// With or without ReLU.
    pub fn new(activation: Activation) -> Self {
        Self { activation }
    }
}

impl Layer for Add {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Forward, EngineError> {
        let mut sum = inputs[0].clone();
        for (at, other) in inputs.iter().enumerate().skip(1) {
            let last = at + 1 == inputs.len();
            let algorithm = match self.activation {
                Activation::Relu if last => Algorithm::AddRelu,
                _ => Algorithm::Add,
            };
            let desc = sum.desc.clone();
            let other = builder.convert(other, &desc)?;
            let choice =
                builder.choose(&Operation::Binary { algorithm, a: &desc, b: &desc, to: &desc })?;
            let result = builder.result(&choice, Role::Dst)?;
            let arguments = [(Role::Src, &sum), (Role::Src1, &other), (Role::Dst, &result)];
            builder.run(&choice, &arguments, &[(&sum, &result)]);
            sum = result;
        }
        Ok(Forward::new(inputs[0].clone(), sum))
    }

    fn backward(
        &mut self,
        builder: &mut Builder<'_>,
        kept: &Kept,
        gradient: &Tensor,
        wanted: &[bool],
    ) -> Result<InputGradients, EngineError> {
        let gradient = pointwise::relu_within(builder, self.activation, kept, gradient)?;
        Ok(wanted.iter().map(|&wanted| wanted.then(|| gradient.clone())).collect())
    }
}
