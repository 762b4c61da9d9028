//! Batch normalisation over samples, height and width (Ioffe and Szegedy 2015), with a following
//! ReLU computed within.

use crate::engine::error::EngineError;
use crate::engine::plan::builder::Builder;
use crate::engine::plan::layer::{Forward, InputGradients, Kept, Layer};
use crate::engine::plan::operation::{
    Choice, Direction, Kernel, Norm, Operation, Pass, Role, Statistics,
};
use crate::engine::plan::steps::Action;
use crate::engine::plan::tensor::Tensor;
use crate::model::saved::{Activation, Auxiliary};

/// Per channel. In training the micro-batch's own statistics, else the running ones; these also
/// where its scale and shift are frozen (a norm that PyTorch's `eval()` holds), and where a
/// micro-batch has one value a channel, whose variance says nothing.
pub struct BatchNorm {
    epsilon: f32,
    activation: Activation,
    forward: Option<Passed>,
}

/// What backward must know of forward.
struct Passed {
    kernel: Kernel,
    norm: Norm,
}

/// Indices of this node's tensors.
struct Tensors {
    scale: usize,
    shift: usize,
    mean: usize,
    variance: usize,
}

fn tensors(builder: &Builder<'_>) -> Result<Tensors, EngineError> {
    let find = |suffix: &str| {
        let name = &builder.request.graph.nodes[builder.node].name;
        let missing = || EngineError::Layout(format!("`{name}.{suffix}` is missing"));
        builder.tensor(suffix).ok_or_else(missing)
    };
    Ok(Tensors {
        scale: find("weight")?,
        shift: find("bias")?,
        mean: find("running_mean")?,
        variance: find("running_var")?,
    })
}

impl BatchNorm {
    /// `epsilon` is added to the variance.
    pub fn new(epsilon: f32, activation: Activation) -> Self {
        Self { epsilon, activation, forward: None }
    }

    /// What it centres and scales by.
    fn norm(&self, builder: &Builder<'_>, tensors: &Tensors) -> Norm {
        let frozen = [tensors.scale, tensors.shift].map(|t| !builder.request.is_trained(t));
        let trains = builder.direction() == Direction::Training && frozen != [true; 2];
        let statistics = match trains && values_a_channel(builder) > 1 {
            true => Statistics::Batch,
            false => Statistics::Running,
        };
        Norm { statistics, epsilon: self.epsilon, activation: self.activation }
    }

    /// The step that hands the micro-batch's statistics out.
    fn statistics(builder: &mut Builder<'_>, tensors: &Tensors, mean: &Tensor, variance: &Tensor) {
        let channels = builder.request.graph.nodes[builder.node].shape[0];
        let offset = |tensor: usize| builder.request.layout.tensors[tensor].offset;
        let at = [offset(tensors.mean), offset(tensors.variance)];
        if let (Some(mean), Some(variance)) = (mean.place.value(), variance.place.value()) {
            let action = Action::Statistics { mean, variance, at, channels };
            builder.step(action, vec![mean, variance], Vec::new());
        }
    }
}

/// Of this node, in this micro-batch.
fn values_a_channel(builder: &Builder<'_>) -> usize {
    let [_, height, width] = builder.request.graph.nodes[builder.node].shape;
    builder.request.batch * height * width
}

/// Means and variances that a kernel reads instead of computing them.
fn running(
    builder: &mut Builder<'_>,
    choice: &Choice,
    tensors: &Tensors,
) -> Result<[Tensor; 2], EngineError> {
    Ok([
        builder.weight_for(choice, Role::Mean, tensors.mean)?,
        builder.weight_for(choice, Role::Variance, tensors.variance)?,
    ])
}

impl Layer for BatchNorm {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Forward, EngineError> {
        let (direction, data) = (builder.direction(), inputs[0].desc.clone());
        let tensors = tensors(builder)?;
        let norm = self.norm(builder, &tensors);
        let pass = Pass::Forward(direction);
        let choice = builder.choose(&Operation::BatchNorm { norm, data: &data, pass })?;
        let input = &builder.convert_for(&inputs[0], &choice, Role::Src)?;
        let scale = builder.weight_for(&choice, Role::Scale, tensors.scale)?;
        let shift = builder.weight_for(&choice, Role::Shift, tensors.shift)?;
        let output = builder.result(&choice, Role::Dst)?;
        let mut arguments = vec![
            (Role::Src, input),
            (Role::Scale, &scale),
            (Role::Shift, &shift),
            (Role::Dst, &output),
        ];
        let (of_batch, [mean, variance]) = match norm.statistics {
            Statistics::Running => (false, running(builder, &choice, &tensors)?),
            Statistics::Batch => {
                let mean = builder.result(&choice, Role::Mean)?;
                (true, [mean, builder.result(&choice, Role::Variance)?])
            }
        };
        let mask = builder.workspace_if_any(&choice);
        arguments.extend([(Role::Mean, &mean), (Role::Variance, &variance)]);
        arguments.extend(mask.as_ref().map(|mask| (Role::Workspace, mask)));
        if direction == Direction::Inference {
            builder.run(&choice, &arguments, &[(input, &output)]);
            return Ok(Forward::new(input.clone(), output));
        }
        builder.run(&choice, &arguments, &[]);
        self.forward = Some(Passed { kernel: choice.kernel, norm });
        let mut auxiliary = Vec::new();
        if of_batch {
            Self::statistics(builder, &tensors, &mean, &variance);
            auxiliary = vec![(Auxiliary::Mean, mean), (Auxiliary::Variance, variance)];
        }
        auxiliary.extend(mask.map(|mask| (Auxiliary::ReluMask, mask)));
        Ok(Forward { input: input.clone(), output, auxiliary })
    }

    fn backward(
        &mut self,
        builder: &mut Builder<'_>,
        kept: &Kept,
        gradient: &Tensor,
        _wanted: &[bool],
    ) -> Result<InputGradients, EngineError> {
        let input = kept.input()?;
        let data = input.desc.clone();
        let gradient = builder.convert(gradient, &data)?;
        let passed = self.forward.take().expect("backward follows a forward pass in training");
        let (norm, pass) = (passed.norm, Pass::Backward(passed.kernel));
        let choice = builder.choose(&Operation::BatchNorm { norm, data: &data, pass })?;
        let tensors = tensors(builder)?;
        let [mean, variance] = &match norm.statistics {
            Statistics::Running => running(builder, &choice, &tensors)?,
            Statistics::Batch => {
                [kept.written(Auxiliary::Mean)?.clone(), kept.written(Auxiliary::Variance)?.clone()]
            }
        };
        let scale = builder.weight_for(&choice, Role::Scale, tensors.scale)?;
        let result = builder.result(&choice, Role::DiffSrc)?;
        let scale_gradient = builder.result(&choice, Role::DiffScale)?;
        let shift_gradient = builder.result(&choice, Role::DiffShift)?;
        let mut arguments = vec![
            (Role::Src, input),
            (Role::Mean, mean),
            (Role::Variance, variance),
            (Role::DiffDst, &gradient),
            (Role::Scale, &scale),
            (Role::DiffSrc, &result),
            (Role::DiffScale, &scale_gradient),
            (Role::DiffShift, &shift_gradient),
        ];
        let mask = kept.auxiliary(Auxiliary::ReluMask);
        arguments.extend(mask.map(|mask| (Role::Workspace, mask)));
        builder.run(&choice, &arguments, &[(&gradient, &result)]);
        builder.emit(tensors.shift, &shift_gradient)?;
        builder.emit(tensors.scale, &scale_gradient)?;
        Ok(vec![Some(result)])
    }
}
