//! Batch normalisation over samples, height and width (Ioffe and Szegedy 2015), with a following
//! ReLU computed within. Saves its input, mean, variance, and the ReLU's mask if fused.

use kintsugi_ffi::dnnl::{Activation, Arg, Direction, Norm, Operation, PrimitiveDesc};

use super::{InputGradients, Layer};
use crate::engine::error::EngineError;
use crate::engine::program::{Builder, Place, Step, Tensor};

/// Per channel. In training the micro-batch's own statistics, else the running ones.
pub struct BatchNorm {
    norm: Norm,
    saved: Option<Saved>,
}

struct Saved {
    operation: PrimitiveDesc,
    input: Tensor,
    mean: Tensor,
    variance: Tensor,
    mask: Option<Tensor>,
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
        let name = &builder.graph.nodes[builder.node].name;
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
        Self { norm: Norm { epsilon, activation }, saved: None }
    }

    /// The step that hands the micro-batch's statistics out.
    fn statistics(builder: &mut Builder<'_>, tensors: &Tensors, mean: &Tensor, variance: &Tensor) {
        let [channels, height, width] = builder.graph.nodes[builder.node].shape;
        let count = builder.batch * height * width;
        // Bessel's correction, as in the running variance of PyTorch; one value has none.
        let factor = count as f32 / count.saturating_sub(1).max(1) as f32;
        let offset = |tensor: usize| builder.layout.tensors[tensor].offset;
        let at = [offset(tensors.mean), offset(tensors.variance)];
        if let (Place::Value(mean), Place::Value(variance)) = (mean.place, variance.place) {
            let step = Step::Statistics { mean, variance, at, channels, factor };
            builder.step(step, vec![mean, variance]);
        }
    }
}

impl Layer for BatchNorm {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Tensor, EngineError> {
        let input = &inputs[0];
        let direction = builder.direction;
        let operation = builder.choose(&Operation::BatchNorm {
            direction,
            data: &input.desc,
            norm: self.norm,
        })?;
        let tensors = tensors(builder)?;
        let scale = builder.weight_for(&operation, Arg::Scale, tensors.scale)?;
        let shift = builder.weight_for(&operation, Arg::Shift, tensors.shift)?;
        let output = builder.result(&operation, Arg::Dst)?;
        let mut args = vec![
            (Arg::Src, input),
            (Arg::Scale, &scale),
            (Arg::Shift, &shift),
            (Arg::Dst, &output),
        ];
        if direction == Direction::Inference {
            let mean = builder.weight_for(&operation, Arg::Mean, tensors.mean)?;
            let variance = builder.weight_for(&operation, Arg::Variance, tensors.variance)?;
            args.extend([(Arg::Mean, &mean), (Arg::Variance, &variance)]);
            builder.run(&operation, &args, &[(input, &output)])?;
            return Ok(output);
        }
        let mean = builder.result(&operation, Arg::Mean)?;
        let variance = builder.result(&operation, Arg::Variance)?;
        let mask = builder.result_if_any(&operation, Arg::Workspace)?;
        args.extend([(Arg::Mean, &mean), (Arg::Variance, &variance)]);
        if let Some(mask) = &mask {
            args.push((Arg::Workspace, mask));
        }
        builder.run(&operation, &args, &[])?;
        Self::statistics(builder, &tensors, &mean, &variance);
        self.saved = Some(Saved { operation, input: input.clone(), mean, variance, mask });
        Ok(output)
    }

    fn backward(
        &mut self,
        builder: &mut Builder<'_>,
        gradient: &Tensor,
        _wanted: &[bool],
    ) -> Result<InputGradients, EngineError> {
        let saved = self.saved.as_ref().expect("backward follows a forward pass in training");
        let data = saved.input.desc.clone();
        let gradient = builder.convert(gradient, &data)?;
        let operation = builder.choose(&Operation::BatchNormBackward {
            diff: &data,
            src: &data,
            norm: self.norm,
            hint: &saved.operation,
        })?;
        let tensors = tensors(builder)?;
        let scale = builder.weight_for(&operation, Arg::Scale, tensors.scale)?;
        let result = builder.result(&operation, Arg::DiffSrc)?;
        let scale_gradient = builder.result(&operation, Arg::DiffScale)?;
        let shift_gradient = builder.result(&operation, Arg::DiffShift)?;
        let mut args = vec![
            (Arg::Src, &saved.input),
            (Arg::Mean, &saved.mean),
            (Arg::Variance, &saved.variance),
            (Arg::DiffDst, &gradient),
            (Arg::Scale, &scale),
            (Arg::DiffSrc, &result),
            (Arg::DiffScale, &scale_gradient),
            (Arg::DiffShift, &shift_gradient),
        ];
        if let Some(mask) = &saved.mask {
            args.push((Arg::Workspace, mask));
        }
        builder.run(&operation, &args, &[(&gradient, &result)])?;
        builder.emit(tensors.shift, &shift_gradient)?;
        builder.emit(tensors.scale, &scale_gradient)?;
        Ok(vec![Some(result)])
    }

    fn saved(&self) -> Vec<Tensor> {
        let Some(saved) = &self.saved else { return Vec::new() };
        let always = [&saved.input, &saved.mean, &saved.variance];
        always.into_iter().chain(&saved.mask).cloned().collect()
    }
}
