//! What a layer's backward pass reads of its forward pass: the one declaration. Costs count these
//! tensors, the engine hands a layer these and no others, out-of-core training moves them.

pub use kintsugi_ffi::operation::Activation;

use super::LayerKind;

/// A tensor that a forward pass writes for its backward pass alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auxiliary {
    /// Means of a micro-batch, per channel.
    Mean,
    /// Variances of a micro-batch, per channel.
    Variance,
    /// Where a ReLU within was positive.
    ReluMask,
    /// Which elements dropout kept, and their factor.
    DropoutMask,
    /// Which element of each window was the largest.
    Winners,
    /// What local response normalisation divided by.
    Divisors,
    /// The second input of a product: its own layer's, and counted there.
    Factor,
}

impl Auxiliary {
    /// Bytes per element of the layer's result, whose elements take `value_bytes`. What is kept per
    /// channel counts as nothing.
    pub fn bytes_per_element(self, value_bytes: u64) -> u64 {
        match self {
            Self::Mean | Self::Variance | Self::Factor => 0,
            Self::ReluMask | Self::Winners => 1,
            // Always f32.
            Self::DropoutMask => 4,
            Self::Divisors => value_bytes,
        }
    }
}

/// What a backward pass reads besides gradients and weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Saved {
    /// The layer's (first) input.
    pub input: bool,
    /// Its second input.
    pub factor: bool,
    /// Its result.
    pub output: bool,
    /// What it wrote for this.
    pub auxiliary: &'static [Auxiliary],
}

impl Saved {
    const NOTHING: Self = Self { input: false, factor: false, output: false, auxiliary: &[] };
    const INPUT: Self = Self { input: true, ..Self::NOTHING };
    const OUTPUT: Self = Self { output: true, ..Self::NOTHING };
}

impl LayerKind {
    /// What this layer's backward pass reads, alone or with the ReLU that follows within it.
    pub fn saved_for_backward(&self, activation: Activation) -> Saved {
        use Auxiliary::{Divisors, DropoutMask, Factor, Mean, ReluMask, Variance, Winners};
        let fused = activation == Activation::Relu;
        match self {
            // A ReLU's gradient is seen from the sign of its result.
            Self::Conv(_) | Self::Linear { .. } => Saved { output: fused, ..Saved::INPUT },
            Self::Add => Saved { output: fused, ..Saved::NOTHING },
            // Their gradients are seen from their results.
            Self::Relu | Self::Relu6 | Self::Sigmoid | Self::Softmax => Saved::OUTPUT,
            Self::Silu | Self::HardSigmoid | Self::HardSwish => Saved::INPUT,
            Self::Multiply => Saved { factor: true, auxiliary: &[Factor], ..Saved::INPUT },
            Self::BatchNorm { .. } => {
                let auxiliary: &[Auxiliary] =
                    if fused { &[Mean, Variance, ReluMask] } else { &[Mean, Variance] };
                Saved { auxiliary, ..Saved::INPUT }
            }
            Self::Lrn { .. } => Saved { auxiliary: &[Divisors], ..Saved::INPUT },
            Self::MaxPool(_) => Saved { auxiliary: &[Winners], ..Saved::NOTHING },
            Self::Dropout { .. } => Saved { auxiliary: &[DropoutMask], ..Saved::NOTHING },
            Self::AvgPool(_)
            | Self::AdaptiveAvgPool { .. }
            | Self::GlobalAvgPool
            | Self::Concat
            | Self::ChannelShuffle { .. }
            | Self::Flatten => Saved::NOTHING,
        }
    }

    /// Whether a ReLU that alone reads this layer can be computed within it.
    pub fn can_fuse_relu(&self) -> bool {
        matches!(self, Self::Conv(_) | Self::Linear { .. } | Self::BatchNorm { .. } | Self::Add)
    }
}
