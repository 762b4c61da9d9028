//! Softmax cross-entropy, natural logarithm, summed over samples: in f32, whatever activations are.
//! Loss and errors are seen from the logits. For the gradient a device's log-probabilities are
//! saved, and the gradient with respect to them.

use crate::engine::error::EngineError;
use crate::engine::plan::builder::Builder;
use crate::engine::plan::operation::{Direction, Kernel, Operation, Pass, Role, SoftmaxForm};
use crate::engine::plan::steps::{Action, Classifier};
use crate::engine::plan::tensor::Tensor;

const FORM: SoftmaxForm = SoftmaxForm::Logarithms;

/// What the loss leaves for backward: something in training only.
pub struct Loss(Option<Passed>);

struct Passed {
    forward: Kernel,
    log_probabilities: Tensor,
    /// Gradient with respect to the log-probabilities: the loss's weight, negative, at each label.
    seed: Tensor,
}

impl Loss {
    /// The step that compares `logits` with labels, and what backward needs.
    pub fn forward(
        builder: &mut Builder<'_>,
        logits: &Tensor,
        of: Classifier,
    ) -> Result<Self, EngineError> {
        let data = builder.row_major_f32(&[builder.request.batch, builder.request.graph.classes]);
        let logits = builder.convert(logits, &data)?;
        let passed = match builder.direction() {
            Direction::Training => Some(Passed::of(builder, &logits)?),
            Direction::Inference => None,
        };
        let seed = passed.as_ref().and_then(|passed| passed.seed.place.value());
        let action = Action::Loss { logits: logits.place, seed, of };
        builder.step(
            action,
            logits.place.value().into_iter().collect(),
            seed.into_iter().collect(),
        );
        Ok(Self(passed))
    }

    /// The tensors that `backward` reads.
    pub fn saved(&self) -> impl Iterator<Item = &Tensor> {
        self.0.iter().flat_map(|passed| [&passed.seed, &passed.log_probabilities])
    }

    /// Gradient of the summed loss with respect to the logits: probabilities less one-hot labels.
    pub fn backward(&self, builder: &mut Builder<'_>) -> Result<Tensor, EngineError> {
        let passed = self.0.as_ref().expect("backward follows a forward pass in training");
        let Passed { forward, log_probabilities, seed } = passed;
        let data = log_probabilities.desc.clone();
        let pass = Pass::Backward(*forward);
        let choice = builder.choose(&Operation::Softmax { form: FORM, data: &data, pass })?;
        let result = builder.result(&choice, Role::DiffSrc)?;
        let arguments =
            [(Role::Dst, log_probabilities), (Role::DiffDst, seed), (Role::DiffSrc, &result)];
        builder.run(&choice, &arguments, &[]);
        builder.plain(&result)
    }
}

impl Passed {
    fn of(builder: &mut Builder<'_>, logits: &Tensor) -> Result<Self, EngineError> {
        let (data, pass) = (logits.desc.clone(), Pass::Forward(Direction::Training));
        let choice = builder.choose(&Operation::Softmax { form: FORM, data: &data, pass })?;
        let log_probabilities = builder.result(&choice, Role::Dst)?;
        let arguments = [(Role::Src, logits), (Role::Dst, &log_probabilities)];
        builder.run(&choice, &arguments, &[]);
        let seed = builder.value((*data).clone());
        Ok(Self { forward: choice.kernel, log_probabilities, seed })
    }
}
