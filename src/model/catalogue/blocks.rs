//! Layers that models have in common.

use crate::model::LayerKind;
use crate::model::window::{Conv, Padding, Pair};

/// A square convolution without bias that keeps the size at stride 1.
pub fn conv(channels: usize, kernel: usize, stride: usize) -> LayerKind {
    let (stride, padding) = (Pair::both(stride), Padding::every(kernel / 2));
    LayerKind::Conv(Conv { stride, padding, bias: false, ..Conv::new(channels, kernel) })
}

/// With PyTorch's constants.
pub const NORM: LayerKind = LayerKind::BatchNorm { epsilon: 1e-5, momentum: 0.1 };

/// With a bias.
pub fn linear(features: usize) -> LayerKind {
    LayerKind::Linear { features, bias: true }
}
