//! Every operation that we ask oneDNN for, as data. `create` asks.

use std::ffi::c_int;

use super::memory::MemoryDesc;
use super::primitive::{PrimitiveDesc, Statistics};
use super::sys;

/// What a forward pass is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// A backward pass follows: workspaces and statistics are written.
    Training,
    /// Nothing follows.
    Inference,
}

/// What a softmax gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SoftmaxForm {
    Probabilities,
    /// Their natural logarithms.
    Logarithms,
}

impl SoftmaxForm {
    pub(super) fn code(self) -> c_int {
        match self {
            Self::Probabilities => sys::SOFTMAX_ACCURATE,
            Self::Logarithms => sys::SOFTMAX_LOG,
        }
    }
}

impl Direction {
    /// oneDNN's name of a forward pass for this.
    pub(super) fn code(self) -> c_int {
        match self {
            Self::Training => sys::FORWARD_TRAINING,
            Self::Inference => sys::FORWARD_INFERENCE,
        }
    }
}

/// How two tensors become one, element by element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Algorithm {
    Add,
    Multiply,
    AddRelu,
}

/// A sliding window over height and width; sizes in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Window {
    pub kernel: [usize; 2],
    pub stride: [usize; 2],
    /// Above and to the left.
    pub padding: [usize; 2],
    /// Below and to the right.
    pub padding_end: [usize; 2],
    /// Distance of two elements of a kernel; 1: they are neighbours.
    pub dilation: [usize; 2],
}

/// Which pooling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The largest.
    Max,
    /// The mean over the window, padding counted.
    Average,
    /// The mean over the part of the window that is not padding.
    AverageInside,
}

/// What becomes of each element.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Function {
    /// `max(x, 0)`.
    Relu,
    /// `min(max(x, 0), 6)`.
    Relu6,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `x / (1 + exp(-x))`.
    Silu,
    /// `min(max(x / 6 + 1 / 2, 0), 1)`.
    HardSigmoid,
    /// `x min(max(x / 6 + 1 / 2, 0), 1)`.
    HardSwish,
    /// Times a constant.
    Scale(f32),
}

/// Whether ReLU is applied within the operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Activation {
    None,
    Relu,
}

/// Batch normalisation: which statistics, and epsilon.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    /// Which statistics.
    pub statistics: Statistics,
    /// Added to the variance.
    pub epsilon: f32,
    /// ReLU within; in training this adds a workspace.
    pub activation: Activation,
}

/// Local response normalisation across channels: `x (k + alpha / size * sum x^2)^-beta`.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub struct Lrn {
    pub size: usize,
    pub alpha: f32,
    pub beta: f32,
    pub k: f32,
}

type Md<'a> = &'a MemoryDesc;
type Hint<'a> = &'a PrimitiveDesc;

/// An operation on tensors of given descriptors. `hint` is the forward operation's description.
#[allow(missing_docs)]
pub enum Operation<'a> {
    Reorder {
        from: Md<'a>,
        to: Md<'a>,
    },
    Concat {
        sources: &'a [Md<'a>],
        axis: usize,
    },
    Binary {
        algorithm: Algorithm,
        a: Md<'a>,
        b: Md<'a>,
        to: Md<'a>,
    },
    Conv {
        direction: Direction,
        src: Md<'a>,
        weights: Md<'a>,
        bias: Option<Md<'a>>,
        dst: Md<'a>,
        window: Window,
        activation: Activation,
    },
    ConvBackwardData {
        diff_src: Md<'a>,
        weights: Md<'a>,
        diff_dst: Md<'a>,
        window: Window,
        hint: Hint<'a>,
    },
    ConvBackwardWeights {
        src: Md<'a>,
        diff_weights: Md<'a>,
        diff_bias: Option<Md<'a>>,
        diff_dst: Md<'a>,
        window: Window,
        hint: Hint<'a>,
    },
    Linear {
        direction: Direction,
        src: Md<'a>,
        weights: Md<'a>,
        bias: Option<Md<'a>>,
        dst: Md<'a>,
        activation: Activation,
    },
    LinearBackwardData {
        diff_src: Md<'a>,
        weights: Md<'a>,
        diff_dst: Md<'a>,
        hint: Hint<'a>,
    },
    LinearBackwardWeights {
        src: Md<'a>,
        diff_weights: Md<'a>,
        diff_bias: Option<Md<'a>>,
        diff_dst: Md<'a>,
        hint: Hint<'a>,
    },
    Pointwise {
        direction: Direction,
        function: Function,
        data: Md<'a>,
    },
    /// Of ReLU, ReLU6 and the sigmoid it reads the forward result, of others the source.
    PointwiseBackward {
        function: Function,
        diff: Md<'a>,
        data: Md<'a>,
        hint: Hint<'a>,
    },
    Softmax {
        direction: Direction,
        form: SoftmaxForm,
        data: Md<'a>,
    },
    SoftmaxBackward {
        form: SoftmaxForm,
        diff: Md<'a>,
        data: Md<'a>,
        hint: Hint<'a>,
    },
    Pool {
        direction: Direction,
        kind: Pooling,
        src: Md<'a>,
        dst: Md<'a>,
        window: Window,
    },
    PoolBackward {
        kind: Pooling,
        diff_src: Md<'a>,
        diff_dst: Md<'a>,
        window: Window,
        hint: Hint<'a>,
    },
    Lrn {
        direction: Direction,
        data: Md<'a>,
        lrn: Lrn,
    },
    LrnBackward {
        diff: Md<'a>,
        src: Md<'a>,
        lrn: Lrn,
        hint: Hint<'a>,
    },
    BatchNorm {
        direction: Direction,
        data: Md<'a>,
        norm: Norm,
    },
    BatchNormBackward {
        diff: Md<'a>,
        src: Md<'a>,
        norm: Norm,
        hint: Hint<'a>,
    },
}
