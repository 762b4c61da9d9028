//! Every operation that a plan asks a device for, as data, and what the device answers.

use super::tensor::Desc;
use crate::model::saved::Activation;

/// What a forward pass is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// A backward pass follows: workspaces and statistics are written.
    Training,
    /// Nothing follows.
    Inference,
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

impl Window {
    /// All of a plane of this size.
    pub fn whole(size: [usize; 2]) -> Self {
        let (none, one) = ([0; 2], [1; 2]);
        Self { kernel: size, stride: one, padding: none, padding_end: none, dilation: one }
    }
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

/// What a softmax gives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SoftmaxForm {
    Probabilities,
    /// Their natural logarithms.
    Logarithms,
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

impl Function {
    /// Whether a backward pass reads the forward result; else it reads the source.
    pub fn is_seen_from_result(self) -> bool {
        matches!(self, Self::Relu | Self::Relu6 | Self::Sigmoid)
    }
}

/// What a batch norm centres and scales by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Statistics {
    /// The micro-batch's own mean and (biased) variance, which it computes.
    Batch,
    /// The running ones, which it reads.
    Running,
}

/// Batch normalisation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Norm {
    /// Which statistics.
    pub statistics: Statistics,
    /// Added to the variance.
    pub epsilon: f32,
    /// ReLU within.
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

/// What an argument of an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Role {
    Src,
    Src1,
    Dst,
    Weights,
    Bias,
    Mean,
    Variance,
    Scale,
    Shift,
    /// What a forward pass leaves for its backward pass, in the device's own form.
    Workspace,
    /// Memory that one execution needs for itself.
    Scratchpad,
    DiffSrc,
    DiffDst,
    DiffWeights,
    DiffBias,
    DiffScale,
    DiffShift,
    /// One of several sources.
    Source(usize),
}

/// What an operation does with an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Access {
    Read,
    Write,
}

/// A kernel that a backend chose, by the number it gave it.
pub type Kernel = usize;

/// An operation on tensors of given descriptors. `hint` is the forward operation's kernel.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub enum Operation<'a> {
    Reorder {
        from: &'a Desc,
        to: &'a Desc,
    },
    /// The part of a tensor from `offsets` on that has the size of `to`. Refused where the order
    /// of `from` does not allow it.
    Cut {
        from: &'a Desc,
        to: &'a Desc,
        offsets: &'a [usize],
    },
    Concat {
        sources: &'a [&'a Desc],
        axis: usize,
    },
    /// Of `b`, a size of 1 stands for any.
    Binary {
        algorithm: Algorithm,
        a: &'a Desc,
        b: &'a Desc,
        to: &'a Desc,
    },
    /// Weights of several groups have one dimension more, the groups, before all others.
    Conv {
        direction: Direction,
        src: &'a Desc,
        weights: &'a Desc,
        bias: Option<&'a Desc>,
        dst: &'a Desc,
        window: Window,
        activation: Activation,
    },
    ConvBackwardData {
        diff_src: &'a Desc,
        weights: &'a Desc,
        diff_dst: &'a Desc,
        window: Window,
        hint: Kernel,
    },
    ConvBackwardWeights {
        src: &'a Desc,
        diff_weights: &'a Desc,
        diff_bias: Option<&'a Desc>,
        diff_dst: &'a Desc,
        window: Window,
        hint: Kernel,
    },
    Linear {
        direction: Direction,
        src: &'a Desc,
        weights: &'a Desc,
        bias: Option<&'a Desc>,
        dst: &'a Desc,
        activation: Activation,
    },
    LinearBackwardData {
        diff_src: &'a Desc,
        weights: &'a Desc,
        diff_dst: &'a Desc,
        hint: Kernel,
    },
    LinearBackwardWeights {
        src: &'a Desc,
        diff_weights: &'a Desc,
        diff_bias: Option<&'a Desc>,
        diff_dst: &'a Desc,
        hint: Kernel,
    },
    Pointwise {
        direction: Direction,
        function: Function,
        data: &'a Desc,
    },
    PointwiseBackward {
        function: Function,
        diff: &'a Desc,
        data: &'a Desc,
        hint: Kernel,
    },
    /// Over the second dimension.
    Softmax {
        direction: Direction,
        form: SoftmaxForm,
        data: &'a Desc,
    },
    SoftmaxBackward {
        form: SoftmaxForm,
        diff: &'a Desc,
        data: &'a Desc,
        hint: Kernel,
    },
    Pool {
        direction: Direction,
        kind: Pooling,
        src: &'a Desc,
        dst: &'a Desc,
        window: Window,
    },
    PoolBackward {
        kind: Pooling,
        diff_src: &'a Desc,
        diff_dst: &'a Desc,
        window: Window,
        hint: Kernel,
    },
    Lrn {
        direction: Direction,
        data: &'a Desc,
        lrn: Lrn,
    },
    LrnBackward {
        diff: &'a Desc,
        src: &'a Desc,
        lrn: Lrn,
        hint: Kernel,
    },
    BatchNorm {
        direction: Direction,
        data: &'a Desc,
        norm: Norm,
    },
    BatchNormBackward {
        diff: &'a Desc,
        src: &'a Desc,
        norm: Norm,
        hint: Kernel,
    },
}

impl Operation<'_> {
    /// The roles that an execution reads, then those that it writes. A device may have no
    /// workspace.
    pub fn roles(&self) -> Vec<(Role, Access)> {
        use Role::{
            Bias, DiffBias, DiffDst, DiffScale, DiffShift, DiffSrc, DiffWeights, Dst, Mean, Scale,
            Shift, Source, Src, Src1, Variance, Weights, Workspace,
        };
        let with = |roles: &[Role], more: Option<Role>| [roles, more.as_slice()].concat();
        let (read, written) = match self {
            Self::Reorder { .. } | Self::Cut { .. } => (vec![Src], vec![Dst]),
            Self::Pointwise { .. } | Self::Softmax { .. } => (vec![Src], vec![Dst]),
            Self::Concat { sources, .. } => ((0..sources.len()).map(Source).collect(), vec![Dst]),
            Self::Binary { .. } => (vec![Src, Src1], vec![Dst]),
            Self::Conv { bias, .. } | Self::Linear { bias, .. } => {
                (with(&[Src, Weights], bias.map(|_| Bias)), vec![Dst])
            }
            Self::ConvBackwardData { .. } | Self::LinearBackwardData { .. } => {
                (vec![Weights, DiffDst], vec![DiffSrc])
            }
            Self::ConvBackwardWeights { diff_bias, .. }
            | Self::LinearBackwardWeights { diff_bias, .. } => {
                (vec![Src, DiffDst], with(&[DiffWeights], diff_bias.map(|_| DiffBias)))
            }
            Self::PointwiseBackward { function, .. } if !function.is_seen_from_result() => {
                (vec![Src, DiffDst], vec![DiffSrc])
            }
            Self::PointwiseBackward { .. } | Self::SoftmaxBackward { .. } => {
                (vec![Dst, DiffDst], vec![DiffSrc])
            }
            Self::Pool { .. } | Self::Lrn { .. } => (vec![Src], vec![Dst, Workspace]),
            Self::PoolBackward { .. } => (vec![DiffDst, Workspace], vec![DiffSrc]),
            Self::LrnBackward { .. } => (vec![Src, DiffDst, Workspace], vec![DiffSrc]),
            Self::BatchNorm { norm, .. } => match norm.statistics {
                Statistics::Batch => {
                    (vec![Src, Scale, Shift], vec![Dst, Mean, Variance, Workspace])
                }
                Statistics::Running => {
                    (vec![Src, Scale, Shift, Mean, Variance], vec![Dst, Workspace])
                }
            },
            Self::BatchNormBackward { .. } => (
                vec![Src, Mean, Variance, Scale, DiffDst, Workspace],
                vec![DiffSrc, DiffScale, DiffShift],
            ),
        };
        let read = read.into_iter().map(|role| (role, Access::Read));
        read.chain(written.into_iter().map(|role| (role, Access::Write))).collect()
    }
}

/// An argument of a chosen kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// What it is.
    pub role: Role,
    /// What happens to it.
    pub access: Access,
    /// How it must lie.
    pub desc: Desc,
}

/// A chosen kernel and what it wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Which.
    pub kernel: Kernel,
    /// All that it reads and writes, the scratchpad aside.
    pub arguments: Vec<Argument>,
    /// Bytes that every execution needs for itself.
    pub scratch_bytes: usize,
}

impl Choice {
    /// How an argument must lie; `None` if the kernel has no such argument.
    pub fn desc_if_any(&self, role: Role) -> Option<&Desc> {
        let own = |argument: &&Argument| argument.role == role;
        self.arguments.iter().find(own).map(|argument| &argument.desc)
    }

    /// How an argument that the kernel is known to have must lie.
    pub fn desc(&self, role: Role) -> Result<Desc, Refusal> {
        let missing = || Refusal(format!("this operation has no {role:?}"));
        self.desc_if_any(role).cloned().ok_or_else(missing)
    }

    /// Whether an execution writes this argument.
    pub fn writes(&self, role: Role) -> bool {
        let written = |a: &Argument| a.role == role && a.access == Access::Write;
        role == Role::Scratchpad || self.arguments.iter().any(written)
    }
}

/// Why a device cannot do what was asked for, in its words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal(pub String);

/// What a plan needs to know of a device.
pub trait Backend {
    /// Picks a kernel for `operation`, and the orders that were left open.
    fn choose(&mut self, operation: &Operation<'_>) -> Result<Choice, Refusal>;
}
