//! Layers, one file each: the steps of forward and backward.

use super::layer::Layer;
use super::operation::Function;
use crate::model::LayerKind;
use crate::model::saved::Activation;

pub mod adaptive;
pub mod add;
pub mod batch_norm;
pub mod channel_shuffle;
pub mod concat;
pub mod conv;
pub mod dropout;
pub mod flatten;
pub mod linear;
pub mod loss;
pub mod lrn;
pub mod multiply;
pub mod pointwise;
pub mod pool;
pub mod product;
pub mod softmax;

use pointwise::Pointwise;

/// The layer of a kind. `activation`: the ReLU that follows is computed within.
pub fn of(kind: &LayerKind, activation: Activation) -> Box<dyn Layer> {
    match *kind {
        LayerKind::Conv(shape) => Box::new(conv::Conv::new(shape, activation)),
        LayerKind::Linear { features, .. } => Box::new(linear::Linear::new(features, activation)),
        LayerKind::BatchNorm { epsilon, .. } => {
            Box::new(batch_norm::BatchNorm::new(epsilon, activation))
        }
        LayerKind::Relu => Box::new(Pointwise::new(Function::Relu)),
        LayerKind::Relu6 => Box::new(Pointwise::new(Function::Relu6)),
        LayerKind::Sigmoid => Box::new(Pointwise::new(Function::Sigmoid)),
        LayerKind::Silu => Box::new(Pointwise::new(Function::Silu)),
        LayerKind::HardSigmoid => Box::new(Pointwise::new(Function::HardSigmoid)),
        LayerKind::HardSwish => Box::new(Pointwise::new(Function::HardSwish)),
        LayerKind::Softmax => Box::new(softmax::Softmax),
        LayerKind::MaxPool(shape) => Box::new(pool::Pool::max(shape)),
        LayerKind::AvgPool(shape) => Box::new(pool::Pool::average(shape)),
        LayerKind::GlobalAvgPool => Box::new(pool::Pool::global_average()),
        LayerKind::AdaptiveAvgPool { .. } => Box::new(adaptive::AdaptiveAverage::Unplanned),
        LayerKind::Dropout { rate } => Box::new(dropout::Dropout::new(rate)),
        LayerKind::Lrn { size, alpha, beta, k } => Box::new(lrn::Lrn::new(size, alpha, beta, k)),
        LayerKind::Add => Box::new(add::Add::new(activation)),
        LayerKind::Multiply => Box::new(multiply::Multiply),
        LayerKind::ChannelShuffle { groups } => {
            Box::new(channel_shuffle::ChannelShuffle::new(groups))
        }
        LayerKind::Concat => Box::new(concat::Concat::default()),
        LayerKind::Flatten => Box::new(flatten::Flatten),
    }
}
