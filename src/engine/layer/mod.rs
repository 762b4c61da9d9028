//! Layers, one file each: forward, backward, and what is saved between.

use kintsugi_ffi::dnnl::Activation;

use super::error::EngineError;
use super::program::{Builder, Tensor};
use crate::model::LayerKind;

pub mod add;
pub mod batch_norm;
pub mod concat;
pub mod conv;
pub mod dropout;
pub mod flatten;
pub mod linear;
pub mod loss;
pub mod lrn;
pub mod pool;
pub mod relu;

/// Gradients with respect to a layer's inputs, in their order; `None` where nobody wants one.
pub type InputGradients = Vec<Option<Tensor>>;

/// A layer writes its steps. It keeps handles of what its backward pass reads.
pub trait Layer {
    /// Steps of the forward pass; gives the result.
    fn forward(
        &mut self,
        builder: &mut Builder<'_>,
        inputs: &[Tensor],
    ) -> Result<Tensor, EngineError>;

    /// Steps of the backward pass from the gradient of the result; emits those of its parameters.
    /// `wanted` says which inputs need theirs.
    fn backward(
        &mut self,
        builder: &mut Builder<'_>,
        gradient: &Tensor,
        wanted: &[bool],
    ) -> Result<InputGradients, EngineError>;

    /// The tensors that `backward` reads: the declared lifetimes.
    fn saved(&self) -> Vec<Tensor>;
}

/// The layer of a kind. `activation`: the ReLU that follows is computed within.
pub fn of(kind: &LayerKind, activation: Activation) -> Box<dyn Layer> {
    match *kind {
        LayerKind::Conv { channels, kernel, stride, padding, .. } => {
            Box::new(conv::Conv::new(channels, kernel, stride, padding, activation))
        }
        LayerKind::Linear { features, .. } => Box::new(linear::Linear::new(features, activation)),
        LayerKind::BatchNorm { epsilon, .. } => {
            Box::new(batch_norm::BatchNorm::new(epsilon, activation))
        }
        LayerKind::Relu => Box::new(relu::Relu::default()),
        LayerKind::MaxPool { kernel, stride, padding } => {
            Box::new(pool::Pool::max(kernel, stride, padding))
        }
        LayerKind::AvgPool { kernel, stride, padding } => {
            Box::new(pool::Pool::average(kernel, stride, padding))
        }
        LayerKind::GlobalAvgPool => Box::new(pool::Pool::global_average()),
        LayerKind::Dropout { rate } => Box::new(dropout::Dropout::new(rate)),
        LayerKind::Lrn { size, alpha, beta, k } => Box::new(lrn::Lrn::new(size, alpha, beta, k)),
        LayerKind::Add => Box::new(add::Add::new(activation)),
        LayerKind::Concat => Box::new(concat::Concat::default()),
        LayerKind::Flatten => Box::new(flatten::Flatten),
    }
}

/// Whether a ReLU that alone reads a layer of this kind can be computed within it.
pub fn can_fuse_relu(kind: &LayerKind) -> bool {
    matches!(
        kind,
        LayerKind::Conv { .. }
            | LayerKind::Linear { .. }
            | LayerKind::BatchNorm { .. }
            | LayerKind::Add
    )
}
