//! Local response normalisation across channels (Krizhevsky et al. 2012, section 3.3):
//! `x / (k + alpha * sum of x^2 over `size` channels)^beta`.

use crate::engine::error::EngineError;
use crate::engine::plan::builder::Builder;
use crate::engine::plan::layer::{Forward, InputGradients, Kept, Layer};
use crate::engine::plan::operation::{self, Kernel, Operation, Pass, Role};
use crate::engine::plan::tensor::Tensor;
use crate::model::saved::Auxiliary;

/// Per position.
pub struct Lrn {
    lrn: operation::Lrn,
    forward: Option<Kernel>,
}

impl Lrn {
    /// The paper's constants. oneDNN (and PyTorch) divide alpha by the size; the paper does not.
    pub fn new(size: usize, alpha: f32, beta: f32, k: f32) -> Self {
        let alpha = alpha * size as f32;
        Self { lrn: operation::Lrn { size, alpha, beta, k }, forward: None }
    }
}

impl Layer for Lrn {
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Forward, EngineError> {
        let shape = builder.request.graph.nodes[builder.node].shape;
        let input = builder.spatial(&inputs[0], shape)?;
        let (lrn, pass) = (self.lrn, Pass::Forward(builder.direction()));
        let choice = builder.choose(&Operation::Lrn { lrn, data: &input.desc, pass })?;
        let output = builder.result(&choice, Role::Dst)?;
        let divisors = builder.workspace_if_any(&choice);
        let mut arguments = vec![(Role::Src, &input), (Role::Dst, &output)];
        arguments.extend(divisors.as_ref().map(|divisors| (Role::Workspace, divisors)));
        builder.run(&choice, &arguments, &[]);
        self.forward = Some(choice.kernel);
        let auxiliary = divisors.into_iter().map(|tensor| (Auxiliary::Divisors, tensor)).collect();
        Ok(Forward { input, output, auxiliary })
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
        let pass = Pass::Backward(self.forward.expect("backward follows a forward pass"));
        let choice = builder.choose(&Operation::Lrn { lrn: self.lrn, data: &data, pass })?;
        let result = builder.result(&choice, Role::DiffSrc)?;
        let mut arguments =
            vec![(Role::Src, input), (Role::DiffDst, &gradient), (Role::DiffSrc, &result)];
        let divisors = kept.auxiliary(Auxiliary::Divisors);
        arguments.extend(divisors.map(|divisors| (Role::Workspace, divisors)));
        builder.run(&choice, &arguments, &[]);
        Ok(vec![Some(result)])
    }
}
