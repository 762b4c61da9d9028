//! A layer: forward, backward, and what the one leaves for the other.

use super::builder::Builder;
use super::tensor::Tensor;
use crate::engine::error::EngineError;
use crate::model::saved::{Auxiliary, Saved};

/// Gradients with respect to a layer's inputs, in their order; `None` where nobody wants one.
pub type InputGradients = Vec<Option<Tensor>>;

/// The tensors of a forward pass.
pub struct Forward {
    /// The first input, as the layer's kernel read it.
    pub input: Tensor,
    /// The result.
    pub output: Tensor,
    /// What was written for the backward pass alone.
    pub auxiliary: Vec<(Auxiliary, Tensor)>,
}

impl Forward {
    /// With nothing but a result.
    pub fn new(input: Tensor, output: Tensor) -> Self {
        Self { input, output, auxiliary: Vec::new() }
    }

    /// What a backward pass may read: only what the model's description declares.
    pub fn keep(self, saved: Saved) -> Kept {
        let declared = |(auxiliary, _): &(Auxiliary, Tensor)| saved.auxiliary.contains(auxiliary);
        Kept {
            input: saved.input.then_some(self.input),
            output: saved.output.then_some(self.output),
            auxiliary: self.auxiliary.into_iter().filter(declared).collect(),
        }
    }
}

/// What is kept of a forward pass.
pub struct Kept {
    input: Option<Tensor>,
    output: Option<Tensor>,
    auxiliary: Vec<(Auxiliary, Tensor)>,
}

impl Kept {
    /// The input.
    pub fn input(&self) -> Result<&Tensor, EngineError> {
        self.input.as_ref().ok_or_else(|| undeclared("its input"))
    }

    /// The result.
    pub fn output(&self) -> Result<&Tensor, EngineError> {
        self.output.as_ref().ok_or_else(|| undeclared("its result"))
    }

    /// An auxiliary tensor, if the device wrote one.
    pub fn auxiliary(&self, wanted: Auxiliary) -> Option<&Tensor> {
        let own = |(auxiliary, _): &&(Auxiliary, Tensor)| *auxiliary == wanted;
        self.auxiliary.iter().find(own).map(|(_, tensor)| tensor)
    }

    /// An auxiliary tensor that every device writes.
    pub fn written(&self, wanted: Auxiliary) -> Result<&Tensor, EngineError> {
        self.auxiliary(wanted).ok_or_else(|| undeclared(&format!("{wanted:?}")))
    }

    /// All of it.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let auxiliary = self.auxiliary.iter().map(|(_, tensor)| tensor);
        self.input.iter().chain(&self.output).chain(auxiliary)
    }
}

/// A backward pass wanted what model/saved.rs does not declare.
fn undeclared(what: &str) -> EngineError {
    EngineError::Layout(format!("a backward pass reads {what}, which is not declared as saved"))
}

/// A layer writes its steps. Tensors reach its backward pass as `Kept`, and in no other way.
pub trait Layer {
    /// Steps of the forward pass.
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Forward, EngineError>;

    /// Steps of the backward pass from the gradient of the result; emits those of its parameters.
    /// `wanted` says which inputs need theirs.
    fn backward(
        &mut self,
        builder: &mut Builder<'_>,
        kept: &Kept,
        gradient: &Tensor,
        wanted: &[bool],
    ) -> Result<InputGradients, EngineError>;
}
