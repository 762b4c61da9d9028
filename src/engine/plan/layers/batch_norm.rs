//! Batch normalisation over samples, height and width (Ioffe and Szegedy 2015), with a following
//! ReLU computed within.

use crate::engine::error::EngineError;
use crate::engine::plan::builder::Builder;
use crate::engine::plan::layer::{Forward, InputGradients, Kept, Layer};
use crate::engine::plan::operation::{Direction, Kernel, Norm, Operation, Role};
use crate::engine::plan::steps::Action;
use crate::engine::plan::tensor::Tensor;
use crate::model::saved::{Activation, Auxiliary};

/// Per channel. In training the micro-batch's own statistics, else the running ones.
pub struct BatchNorm {
    norm: Norm,
    forward: Option<Kernel>,
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
        Self { norm: Norm { epsilon, activation }, forward: None }
    }

    /// The step that hands the micro-batch's statistics out.
    fn statistics(builder: &mut Builder<'_>, tensors: &Tensors, mean: &Tensor, variance: &Tensor) {
        let [channels, height, width] = builder.request.graph.nodes[builder.node].shape;
        let count = builder.request.batch * height * width;
        // Bessel's correction, as in the running variance of PyTorch; one value has none.
        let factor = count as f32 / count.saturating_sub(1).max(1) as f32;
        let offset = |tensor: usize| builder.request.layout.tensors[tensor].offset;
        let at = [offset(tensors.mean), offset(tensors.variance)];
        if let (Some(mean), Some(variance)) = (mean.place.value(), variance.place.value()) {
            let action = Action::Statistics { mean, variance, at, channels, factor };
            builder.step(action, vec![mean, variance], Vec::new());
        }
    }
}

impl Layer for BatchNorm {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Forward, EngineError> {
        let (direction, data) = (builder.direction(), inputs[0].desc.clone());
        let operation = Operation::BatchNorm { direction, data: &data, norm: self.norm };
        let choice = builder.choose(&operation)?;
        let input = &builder.convert_for(&inputs[0], &choice, Role::Src)?;
        let tensors = tensors(builder)?;
        let scale = builder.weight_for(&choice, Role::Scale, tensors.scale)?;
        let shift = builder.weight_for(&choice, Role::Shift, tensors.shift)?;
        let output = builder.result(&choice, Role::Dst)?;
        let mut arguments = vec![
            (Role::Src, input),
            (Role::Scale, &scale),
            (Role::Shift, &shift),
            (Role::Dst, &output),
        ];
        if direction == Direction::Inference {
            let mean = builder.weight_for(&choice, Role::Mean, tensors.mean)?;
            let variance = builder.weight_for(&choice, Role::Variance, tensors.variance)?;
            arguments.extend([(Role::Mean, &mean), (Role::Variance, &variance)]);
            builder.run(&choice, &arguments, &[(input, &output)]);
            return Ok(Forward::new(input.clone(), output));
        }
        let mean = builder.result(&choice, Role::Mean)?;
        let variance = builder.result(&choice, Role::Variance)?;
        let mask = builder.result_if_any(&choice, Role::Workspace);
        arguments.extend([(Role::Mean, &mean), (Role::Variance, &variance)]);
        arguments.extend(mask.as_ref().map(|mask| (Role::Workspace, mask)));
        builder.run(&choice, &arguments, &[]);
        Self::statistics(builder, &tensors, &mean, &variance);
        self.forward = Some(choice.kernel);
        let mut auxiliary = vec![(Auxiliary::Mean, mean), (Auxiliary::Variance, variance)];
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
        let mean = kept.written(Auxiliary::Mean)?;
        let variance = kept.written(Auxiliary::Variance)?;
        let data = input.desc.clone();
        let gradient = builder.convert(gradient, &data)?;
        let choice = builder.choose(&Operation::BatchNormBackward {
            diff: &data,
            src: &data,
            norm: self.norm,
            hint: self.forward.expect("backward follows a forward pass in training"),
        })?;
        let tensors = tensors(builder)?;
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
