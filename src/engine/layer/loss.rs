//! Softmax cross-entropy, natural logarithm, summed over samples. Saves the log-probabilities.

use kintsugi_ffi::dnnl::{Arg, Direction, Operation, Order, PrimitiveDesc};

use crate::engine::error::EngineError;
use crate::engine::program::{Builder, Place, Step, Tensor};

/// What the loss leaves for backward.
pub struct Loss {
    operation: PrimitiveDesc,
    log_probabilities: Tensor,
    /// Gradient with respect to the log-probabilities: -1 at each label; training only.
    seed: Option<Tensor>,
}

impl Loss {
    /// Log-probabilities of `logits`, and the step that compares them with labels.
    pub fn forward(builder: &mut Builder<'_>, logits: &Tensor) -> Result<Self, EngineError> {
        let data = builder.desc(&[builder.batch, builder.graph.classes], Order::Plain)?;
        let logits = builder.convert(logits, &data)?;
        let direction = builder.direction;
        let operation = builder.choose(&Operation::LogSoftmax { direction, data: &data })?;
        let log_probabilities = builder.result(&operation, Arg::Dst)?;
        let args = [(Arg::Src, &logits), (Arg::Dst, &log_probabilities)];
        builder.run(&operation, &args, &[])?;
        let seed = match direction {
            Direction::Training => Some(builder.value(data)),
            Direction::Inference => None,
        };
        let this = Self { operation, log_probabilities, seed };
        let touched: Vec<usize> = [Some(this.value()), this.seed.as_ref().and_then(index)]
            .into_iter()
            .flatten()
            .collect();
        let seed = this.seed.as_ref().and_then(index);
        builder.step(Step::Loss { log_probabilities: this.value(), seed }, touched);
        Ok(this)
    }

    /// The value that holds the log-probabilities, `[n, classes]` row-major.
    pub fn value(&self) -> usize {
        index(&self.log_probabilities).expect("log-probabilities are computed into the arena")
    }

    /// The tensors that `backward` reads.
    pub fn saved(&self) -> Vec<Tensor> {
        std::iter::once(&self.log_probabilities).chain(&self.seed).cloned().collect()
    }

    /// Gradient of the summed loss with respect to the logits: probabilities less one-hot labels.
    pub fn backward(&self, builder: &mut Builder<'_>) -> Result<Tensor, EngineError> {
        let seed = self.seed.as_ref().expect("backward follows a forward pass in training");
        let data = self.log_probabilities.desc.clone();
        let hint = &self.operation;
        let operation =
            builder.choose(&Operation::LogSoftmaxBackward { diff: &data, data: &data, hint })?;
        let result = builder.result(&operation, Arg::DiffSrc)?;
        let args =
            [(Arg::Dst, &self.log_probabilities), (Arg::DiffDst, seed), (Arg::DiffSrc, &result)];
        builder.run(&operation, &args, &[])?;
        Ok(result)
    }
}

fn index(tensor: &Tensor) -> Option<usize> {
    match tensor.place {
        Place::Value(value) => Some(value),
        _ => None,
    }
}
