//! Softmax cross-entropy, natural logarithm, summed over samples: in f32, whatever activations are.
//! Saves the log-probabilities and the gradient with respect to them.

use crate::engine::error::EngineError;
use crate::engine::plan::builder::Builder;
use crate::engine::plan::operation::{Direction, Kernel, Operation, Role, SoftmaxForm};
use crate::engine::plan::steps::{Action, Classifier};
use crate::engine::plan::tensor::Tensor;

const FORM: SoftmaxForm = SoftmaxForm::Logarithms;

/// What the loss leaves for backward.
pub struct Loss {
    forward: Kernel,
    log_probabilities: Tensor,
    /// Gradient with respect to the log-probabilities: the loss's weight, negative, at each label;
    /// training only.
    seed: Option<Tensor>,
}

impl Loss {
    /// Log-probabilities of `logits`, and the step that compares them with labels.
    pub fn forward(
        builder: &mut Builder<'_>,
        logits: &Tensor,
        of: Classifier,
    ) -> Result<Self, EngineError> {
        let data = builder.row_major_f32(&[builder.request.batch, builder.request.graph.classes]);
        let logits = builder.convert(logits, &data)?;
        let direction = builder.direction();
        let choice = builder.choose(&Operation::Softmax { direction, form: FORM, data: &data })?;
        let log_probabilities = builder.result(&choice, Role::Dst)?;
        let arguments = [(Role::Src, &logits), (Role::Dst, &log_probabilities)];
        builder.run(&choice, &arguments, &[]);
        let seed = match direction {
            Direction::Training => Some(builder.value(data)),
            Direction::Inference => None,
        };
        let value = log_probabilities.place.value();
        let value = value.expect("log-probabilities are computed into the arena");
        let written = seed.as_ref().and_then(|seed| seed.place.value());
        let action = Action::Loss { log_probabilities: value, seed: written, of };
        builder.step(action, vec![value], written.into_iter().collect());
        Ok(Self { forward: choice.kernel, log_probabilities, seed })
    }

    /// The tensors that `backward` reads.
    pub fn saved(&self) -> impl Iterator<Item = &Tensor> {
        self.seed.iter().flat_map(|seed| [seed, &self.log_probabilities])
    }

    /// Gradient of the summed loss with respect to the logits: probabilities less one-hot labels.
    pub fn backward(&self, builder: &mut Builder<'_>) -> Result<Tensor, EngineError> {
        let seed = self.seed.as_ref().expect("backward follows a forward pass in training");
        let data = self.log_probabilities.desc.clone();
        let hint = self.forward;
        let choice = builder.choose(&Operation::SoftmaxBackward {
            form: FORM,
            diff: &data,
            data: &data,
            hint,
        })?;
        let result = builder.result(&choice, Role::DiffSrc)?;
        let arguments =
            [(Role::Dst, &self.log_probabilities), (Role::DiffDst, seed), (Role::DiffSrc, &result)];
        builder.run(&choice, &arguments, &[]);
        builder.plain(&result)
    }
}
