//! Element-wise sum, with a following ReLU computed within. Saves its result if fused, else
//! nothing; every input has the same gradient, which is not copied.

use kintsugi_ffi::dnnl::{Activation, Algorithm, Arg, Direction, Operation};

use super::{InputGradients, Layer, relu};
use crate::engine::error::EngineError;
use crate::engine::program::{Builder, Tensor};

/// Sum of two or more tensors of one shape.
pub struct Add {
    activation: Activation,
    saved: Option<Tensor>,
}

impl Add {
    /// With or without ReLU.
    pub fn new(activation: Activation) -> Self {
        Self { activation, saved: None }
    }
}

impl Layer for Add {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Tensor, EngineError> {
        let mut sum = inputs[0].clone();
        for (at, other) in inputs.iter().enumerate().skip(1) {
            let last = at + 1 == inputs.len();
            let algorithm = match self.activation {
                Activation::Relu if last => Algorithm::AddRelu,
                _ => Algorithm::Add,
            };
            let desc = sum.desc.clone();
            let other = builder.convert(other, &desc)?;
            let operation =
                builder.choose(&Operation::Binary { algorithm, a: &desc, b: &desc, to: &desc })?;
            let result = builder.result(&operation, Arg::Dst)?;
            let args = [(Arg::Src, &sum), (Arg::Src1, &other), (Arg::Dst, &result)];
            builder.run(&operation, &args, &[(&sum, &result)])?;
            sum = result;
        }
        if builder.direction == Direction::Training && self.activation == Activation::Relu {
            self.saved = Some(sum.clone());
        }
        Ok(sum)
    }

    fn backward(
        &mut self,
        builder: &mut Builder<'_>,
        gradient: &Tensor,
        wanted: &[bool],
    ) -> Result<InputGradients, EngineError> {
        let gradient = match &self.saved {
            Some(output) => relu::backward(builder, gradient, output)?,
            None => gradient.clone(),
        };
        Ok(wanted.iter().map(|&wanted| wanted.then(|| gradient.clone())).collect())
    }

    fn saved(&self) -> Vec<Tensor> {
        self.saved.iter().cloned().collect()
    }
}
