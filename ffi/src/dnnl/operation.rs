//! Every operation that we ask oneDNN for, as data. Creating one picks an implementation and,
//! where a descriptor was left open (`Order::Any`), a layout.

use std::ffi::{c_int, c_uint};
use std::ptr::{null, null_mut};

use super::memory::{MemoryDesc, signed};
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

/// What is applied to the result before it is written.
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

fn prop(direction: Direction) -> c_int {
    match direction {
        Direction::Training => sys::FORWARD_TRAINING,
        Direction::Inference => sys::FORWARD_INFERENCE,
    }
}

fn optional(desc: Option<Md<'_>>) -> *const sys::memory_desc {
    desc.map_or(null(), MemoryDesc::raw)
}

fn pooling(kind: Pooling) -> c_int {
    match kind {
        Pooling::Max => sys::POOLING_MAX,
        Pooling::Average => sys::POOLING_AVG_INCLUDE_PADDING,
    }
}

fn norm_flags(norm: Norm, direction: Direction) -> c_uint {
    let mut flags = sys::NORM_USE_SCALE | sys::NORM_USE_SHIFT;
    if direction == Direction::Inference {
        flags |= sys::NORM_USE_GLOBAL_STATS;
    }
    if norm.activation == Activation::Relu {
        flags |= sys::NORM_FUSE_RELU;
    }
    flags
}

/// A window as the arrays that oneDNN reads.
struct Geometry {
    kernel: Vec<i64>,
    strides: [i64; 2],
    padding: [i64; 2],
}

const DILATION: [i64; 2] = [0, 0];

fn geometry(window: Window) -> Geometry {
    Geometry {
        kernel: signed(&window.kernel),
        strides: [window.stride as i64; 2],
        padding: [window.padding as i64; 2],
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

type Created = (&'static str, sys::status);

fn create(
    context: &Context,
    operation: &Operation<'_>,
    attr: *mut sys::attr,
    out: &mut *mut sys::primitive_desc,
) -> Created {
    use Operation as Op;
    let engine = context.engine();
    // Engine, attributes, descriptors and hints are live for the calls; `out` receives a handle.
    match operation {
        Op::Conv { .. } | Op::ConvBackwardData { .. } | Op::ConvBackwardWeights { .. } => {
            create_conv(engine, operation, attr, out)
        }
        Op::Linear { .. } | Op::LinearBackwardData { .. } | Op::LinearBackwardWeights { .. } => {
            create_linear(engine, operation, attr, out)
        }
        Op::Pool { .. } | Op::PoolBackward { .. } => create_pool(engine, operation, attr, out),
        Op::Lrn { .. }
        | Op::LrnBackward { .. }
        | Op::BatchNorm { .. }
        | Op::BatchNormBackward { .. } => create_norm(engine, operation, attr, out),
        Op::Relu { .. }
        | Op::ReluBackward { .. }
        | Op::LogSoftmax { .. }
        | Op::LogSoftmaxBackward { .. } => create_elementwise(engine, operation, attr, out),
        Op::Reorder { from, to } => {
            // SAFETY: live handles.
            let status = unsafe {
                sys::dnnl_reorder_primitive_desc_create(
                    out,
                    from.raw(),
                    engine,
                    to.raw(),
                    engine,
                    attr,
                )
            };
            ("reorder", status)
        }
        Op::Concat { sources, axis } => {
            let raw: Vec<_> = sources.iter().map(|desc| desc.raw()).collect();
            // SAFETY: live handles; `raw` holds as many descriptors as stated.
            let status = unsafe {
                sys::dnnl_concat_primitive_desc_create(
                    out,
                    engine,
                    null(),
                    raw.len() as c_int,
                    *axis as c_int,
                    raw.as_ptr(),
                    attr,
                )
            };
            ("concat", status)
        }
        Op::Binary { algorithm, a, b, to } => {
            let code = match algorithm {
                Algorithm::Add | Algorithm::AddRelu => sys::BINARY_ADD,
                Algorithm::Multiply => sys::BINARY_MUL,
            };
            // SAFETY: live handles.
            let status = unsafe {
                sys::dnnl_binary_primitive_desc_create(
                    out,
                    engine,
                    code,
                    a.raw(),
                    b.raw(),
                    to.raw(),
                    attr,
                )
            };
            ("binary", status)
        }
    }
}

fn create_conv(
    engine: *mut sys::engine,
    operation: &Operation<'_>,
    attr: *mut sys::attr,
    out: &mut *mut sys::primitive_desc,
) -> Created {
    match operation {
        Operation::Conv { direction, src, weights, bias, dst, window, .. } => {
            let g = geometry(*window);
            // SAFETY: live handles, arrays of two values for two spatial dimensions.
            let status = unsafe {
                sys::dnnl_convolution_forward_primitive_desc_create(
                    out,
                    engine,
                    prop(*direction),
                    sys::CONVOLUTION_DIRECT,
                    src.raw(),
                    weights.raw(),
                    optional(*bias),
                    dst.raw(),
                    g.strides.as_ptr(),
                    DILATION.as_ptr(),
                    g.padding.as_ptr(),
                    g.padding.as_ptr(),
                    attr,
                )
            };
            ("convolution forward", status)
        }
        Operation::ConvBackwardData { diff_src, weights, diff_dst, window, hint } => {
            let g = geometry(*window);
            // SAFETY: live handles, arrays of two values for two spatial dimensions.
            let status = unsafe {
                sys::dnnl_convolution_backward_data_primitive_desc_create(
                    out,
                    engine,
                    sys::CONVOLUTION_DIRECT,
                    diff_src.raw(),
                    weights.raw(),
                    diff_dst.raw(),
                    g.strides.as_ptr(),
                    DILATION.as_ptr(),
                    g.padding.as_ptr(),
                    g.padding.as_ptr(),
                    hint.raw(),
                    attr,
                )
            };
            ("convolution backward data", status)
        }
        Operation::ConvBackwardWeights { src, diff_weights, diff_bias, diff_dst, window, hint } => {
            let g = geometry(*window);
            // SAFETY: live handles, arrays of two values for two spatial dimensions.
            let status = unsafe {
                sys::dnnl_convolution_backward_weights_primitive_desc_create(
                    out,
                    engine,
                    sys::CONVOLUTION_DIRECT,
                    src.raw(),
                    diff_weights.raw(),
                    optional(*diff_bias),
                    diff_dst.raw(),
                    g.strides.as_ptr(),
                    DILATION.as_ptr(),
                    g.padding.as_ptr(),
                    g.padding.as_ptr(),
                    hint.raw(),
                    attr,
                )
            };
            ("convolution backward weights", status)
        }
        _ => unreachable!("dispatched by `create`"),
    }
}

fn create_linear(
    engine: *mut sys::engine,
    operation: &Operation<'_>,
    attr: *mut sys::attr,
    out: &mut *mut sys::primitive_desc,
) -> Created {
    match operation {
        Operation::Linear { direction, src, weights, bias, dst, .. } => {
            // SAFETY: live handles.
            let status = unsafe {
                sys::dnnl_inner_product_forward_primitive_desc_create(
                    out,
                    engine,
                    prop(*direction),
                    src.raw(),
                    weights.raw(),
                    optional(*bias),
                    dst.raw(),
                    attr,
                )
            };
            ("inner product forward", status)
        }
        Operation::LinearBackwardData { diff_src, weights, diff_dst, hint } => {
            // SAFETY: live handles.
            let status = unsafe {
                sys::dnnl_inner_product_backward_data_primitive_desc_create(
                    out,
                    engine,
                    diff_src.raw(),
                    weights.raw(),
                    diff_dst.raw(),
                    hint.raw(),
                    attr,
                )
            };
            ("inner product backward data", status)
        }
        Operation::LinearBackwardWeights { src, diff_weights, diff_bias, diff_dst, hint } => {
            // SAFETY: live handles.
            let status = unsafe {
                sys::dnnl_inner_product_backward_weights_primitive_desc_create(
                    out,
                    engine,
                    src.raw(),
                    diff_weights.raw(),
                    optional(*diff_bias),
                    diff_dst.raw(),
                    hint.raw(),
                    attr,
                )
            };
            ("inner product backward weights", status)
        }
        _ => unreachable!("dispatched by `create`"),
    }
}

fn create_pool(
    engine: *mut sys::engine,
    operation: &Operation<'_>,
    attr: *mut sys::attr,
    out: &mut *mut sys::primitive_desc,
) -> Created {
    match operation {
        Operation::Pool { direction, kind, src, dst, window } => {
            let g = geometry(*window);
            // SAFETY: live handles, arrays of two values for two spatial dimensions.
            let status = unsafe {
                sys::dnnl_pooling_forward_primitive_desc_create(
                    out,
                    engine,
                    prop(*direction),
                    pooling(*kind),
                    src.raw(),
                    dst.raw(),
                    g.strides.as_ptr(),
                    g.kernel.as_ptr(),
                    DILATION.as_ptr(),
                    g.padding.as_ptr(),
                    g.padding.as_ptr(),
                    attr,
                )
            };
            ("pooling forward", status)
        }
        Operation::PoolBackward { kind, diff_src, diff_dst, window, hint } => {
            let g = geometry(*window);
            // SAFETY: live handles, arrays of two values for two spatial dimensions.
            let status = unsafe {
                sys::dnnl_pooling_backward_primitive_desc_create(
                    out,
                    engine,
                    pooling(*kind),
                    diff_src.raw(),
                    diff_dst.raw(),
                    g.strides.as_ptr(),
                    g.kernel.as_ptr(),
                    DILATION.as_ptr(),
                    g.padding.as_ptr(),
                    g.padding.as_ptr(),
                    hint.raw(),
                    attr,
                )
            };
            ("pooling backward", status)
        }
        _ => unreachable!("dispatched by `create`"),
    }
}

fn create_norm(
    engine: *mut sys::engine,
    operation: &Operation<'_>,
    attr: *mut sys::attr,
    out: &mut *mut sys::primitive_desc,
) -> Created {
    match operation {
        Operation::Lrn { direction, data, lrn } => {
            // SAFETY: live handles.
            let status = unsafe {
                sys::dnnl_lrn_forward_primitive_desc_create(
                    out,
                    engine,
                    prop(*direction),
                    sys::LRN_ACROSS_CHANNELS,
                    data.raw(),
                    data.raw(),
                    lrn.size as i64,
                    lrn.alpha,
                    lrn.beta,
                    lrn.k,
                    attr,
                )
            };
            ("lrn forward", status)
        }
        Operation::LrnBackward { diff, src, lrn, hint } => {
            // SAFETY: live handles.
            let status = unsafe {
                sys::dnnl_lrn_backward_primitive_desc_create(
                    out,
                    engine,
                    sys::LRN_ACROSS_CHANNELS,
                    diff.raw(),
                    diff.raw(),
                    src.raw(),
                    lrn.size as i64,
                    lrn.alpha,
                    lrn.beta,
                    lrn.k,
                    hint.raw(),
                    attr,
                )
            };
            ("lrn backward", status)
        }
        Operation::BatchNorm { direction, data, norm } => {
            // SAFETY: live handles.
            let status = unsafe {
                sys::dnnl_batch_normalization_forward_primitive_desc_create(
                    out,
                    engine,
                    prop(*direction),
                    data.raw(),
                    data.raw(),
                    norm.epsilon,
                    norm_flags(*norm, *direction),
                    attr,
                )
            };
            ("batch normalization forward", status)
        }
        Operation::BatchNormBackward { diff, src, norm, hint } => {
            // SAFETY: live handles.
            let status = unsafe {
                sys::dnnl_batch_normalization_backward_primitive_desc_create(
                    out,
                    engine,
                    sys::BACKWARD,
                    diff.raw(),
                    diff.raw(),
                    src.raw(),
                    norm.epsilon,
                    norm_flags(*norm, Direction::Training),
                    hint.raw(),
                    attr,
                )
            };
            ("batch normalization backward", status)
        }
        _ => unreachable!("dispatched by `create`"),
    }
}

fn create_elementwise(
    engine: *mut sys::engine,
    operation: &Operation<'_>,
    attr: *mut sys::attr,
    out: &mut *mut sys::primitive_desc,
) -> Created {
    /// Classes are the second dimension of the logits.
    const CLASS_AXIS: c_int = 1;
    match operation {
        Operation::Relu { direction, data } => {
            // SAFETY: live handles.
            let status = unsafe {
                sys::dnnl_eltwise_forward_primitive_desc_create(
                    out,
                    engine,
                    prop(*direction),
                    sys::ELTWISE_RELU_USE_DST,
                    data.raw(),
                    data.raw(),
                    0.0,
                    0.0,
                    attr,
                )
            };
            ("relu forward", status)
        }
        Operation::ReluBackward { diff, data, hint } => {
            // SAFETY: live handles.
            let status = unsafe {
                sys::dnnl_eltwise_backward_primitive_desc_create(
                    out,
                    engine,
                    sys::ELTWISE_RELU_USE_DST,
                    diff.raw(),
                    diff.raw(),
                    data.raw(),
                    0.0,
                    0.0,
                    hint.raw(),
                    attr,
                )
            };
            ("relu backward", status)
        }
        Operation::LogSoftmax { direction, data } => {
            // SAFETY: live handles.
            let status = unsafe {
                sys::dnnl_softmax_forward_primitive_desc_create(
                    out,
                    engine,
                    prop(*direction),
                    sys::SOFTMAX_LOG,
                    data.raw(),
                    data.raw(),
                    CLASS_AXIS,
                    attr,
                )
            };
            ("softmax forward", status)
        }
        Operation::LogSoftmaxBackward { diff, data, hint } => {
            // SAFETY: live handles.
            let status = unsafe {
                sys::dnnl_softmax_backward_primitive_desc_create(
                    out,
                    engine,
                    sys::SOFTMAX_LOG,
                    diff.raw(),
                    diff.raw(),
                    data.raw(),
                    CLASS_AXIS,
                    hint.raw(),
                    attr,
                )
            };
            ("softmax backward", status)
        }
        _ => unreachable!("dispatched by `create`"),
    }
}
