//! Layers, one file each: the steps of forward and backward.

use super::layer::Layer;
use crate::model::LayerKind;
use crate::model::saved::Activation;

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
pub mod product;
pub mod relu;

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
        LayerKind::Relu => Box::new(relu::Relu),
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
