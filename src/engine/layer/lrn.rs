//! Local response normalisation across channels (Krizhevsky et al. 2012, section 3.3):
//! `x / (k + alpha * sum of x^2 over `size` channels)^beta`. Saves its input and a workspace.

use kintsugi_ffi::dnnl::{self, Arg, Direction, Operation, PrimitiveDesc};

use super::{InputGradients, Layer};
use crate::engine::error::EngineError;
use crate::engine::program::{Builder, Tensor};

/// Per position.
pub struct Lrn {
    lrn: dnnl::Lrn,
    saved: Option<Saved>,
}

struct Saved {
    operation: PrimitiveDesc,
    input: Tensor,
    workspace: Option<Tensor>,
}

impl Lrn {
    /// The paper's constants. oneDNN (and PyTorch) divide alpha by the size; the paper does not.
    pub fn new(size: usize, alpha: f32, beta: f32, k: f32) -> Self {
        let alpha = alpha * size as f32;
        Self { lrn: dnnl::Lrn { size, alpha, beta, k }, saved: None }
    }
}

impl Layer for Lrn {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Tensor, EngineError> {
        let shape = builder.graph.nodes[builder.node].shape;
        let input = builder.spatial(&inputs[0], shape)?;
        let (direction, lrn) = (builder.direction, self.lrn);
        let operation = builder.choose(&Operation::Lrn { direction, data: &input.desc, lrn })?;
        let output = builder.result(&operation, Arg::Dst)?;
        let workspace = builder.result_if_any(&operation, Arg::Workspace)?;
        let mut args = vec![(Arg::Src, &input), (Arg::Dst, &output)];
        if let Some(workspace) = &workspace {
            args.push((Arg::Workspace, workspace));
        }
        builder.run(&operation, &args, &[])?;
        if direction == Direction::Training {
            self.saved = Some(Saved { operation, input, workspace });
        }
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
        let operation = builder.choose(&Operation::LrnBackward {
            diff: &data,
            src: &data,
            lrn: self.lrn,
            hint: &saved.operation,
        })?;
        let result = builder.result(&operation, Arg::DiffSrc)?;
        let mut args =
            vec![(Arg::Src, &saved.input), (Arg::DiffDst, &gradient), (Arg::DiffSrc, &result)];
        if let Some(workspace) = &saved.workspace {
            args.push((Arg::Workspace, workspace));
        }
        builder.run(&operation, &args, &[])?;
        Ok(vec![Some(result)])
    }

    fn saved(&self) -> Vec<Tensor> {
        let Some(saved) = &self.saved else { return Vec::new() };
        std::iter::once(&saved.input).chain(&saved.workspace).cloned().collect()
    }
}
