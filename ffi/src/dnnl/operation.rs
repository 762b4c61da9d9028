//! Every operation that we ask oneDNN for, as data. Creating one picks an implementation and,
//! where a descriptor was left open (`Order::Any`), a layout.

use std::ptr::null_mut;

use super::create::create;
use super::memory::MemoryDesc;
use super::primitive::{Context, PrimitiveDesc};
use super::result::{Error, check};
use super::sys;

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

/// A sliding window over height and width, the same in both; sizes in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Window {
    pub kernel: [usize; 2],
    pub stride: usize,
    pub padding: usize,
}

/// Which pooling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The largest.
    Max,
    /// The mean over the window, padding counted.
    Average,
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
    /// Backward reads the forward result, not its source.
    Relu {
        direction: Direction,
        data: Md<'a>,
    },
    ReluBackward {
        diff: Md<'a>,
        data: Md<'a>,
        hint: Hint<'a>,
    },
    LogSoftmax {
        direction: Direction,
        data: Md<'a>,
    },
    LogSoftmaxBackward {
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
    /// Training computes mean and (biased) variance, inference reads them.
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

/// Attributes: the scratchpad is ours, ReLU may follow.
struct Attributes {
    raw: *mut sys::attr,
    post_ops: *mut sys::post_ops,
}

impl Attributes {
    fn new(activation: Activation) -> Result<Self, Error> {
        let mut this = Self { raw: null_mut(), post_ops: null_mut() };
        // SAFETY: each handle is created before it is used and destroyed once, in `drop`.
        unsafe {
            check("attr_create", sys::dnnl_primitive_attr_create(&mut this.raw))?;
            check(
                "attr_scratchpad",
                sys::dnnl_primitive_attr_set_scratchpad_mode(this.raw, sys::SCRATCHPAD_USER),
            )?;
            if activation == Activation::Relu {
                check("post_ops_create", sys::dnnl_post_ops_create(&mut this.post_ops))?;
                let relu = sys::ELTWISE_RELU;
                let status = sys::dnnl_post_ops_append_eltwise(this.post_ops, relu, 0.0, 0.0);
                check("post_ops_append", status)?;
                let status = sys::dnnl_primitive_attr_set_post_ops(this.raw, this.post_ops);
                check("attr_post_ops", status)?;
            }
        }
        Ok(this)
    }
}

impl Drop for Attributes {
    fn drop(&mut self) {
        // SAFETY: null or live; destroyed once.
        unsafe {
            if !self.post_ops.is_null() {
                sys::dnnl_post_ops_destroy(self.post_ops);
            }
            if !self.raw.is_null() {
                sys::dnnl_primitive_attr_destroy(self.raw);
            }
        }
    }
}

impl PrimitiveDesc {
    /// Picks an implementation for `operation`.
    pub fn new(context: &Context, operation: &Operation<'_>) -> Result<Self, Error> {
        let mut raw: *mut sys::primitive_desc = null_mut();
        let activation = match operation {
            Operation::Conv { activation, .. } | Operation::Linear { activation, .. } => {
                *activation
            }
            Operation::Binary { algorithm: Algorithm::AddRelu, .. } => Activation::Relu,
            _ => Activation::None,
        };
        let attributes = Attributes::new(activation)?;
        let (call, status) = create(context, operation, attributes.raw, &mut raw);
        check(call, status)?;
        let reads_statistics =
            matches!(operation, Operation::BatchNorm { direction: Direction::Inference, .. });
        let sources = match operation {
            Operation::Concat { sources, .. } => sources.len(),
            _ => 0,
        };
        // SAFETY: `raw` was just created, we own it.
        Ok(unsafe { Self::from_raw(context.clone(), raw, reads_statistics, sources) })
    }
}
