//! One call of the C API per operation, grouped by family.

use std::ffi::{c_int, c_uint};
use std::ptr::null;

use super::memory::{MemoryDesc, signed};
use super::operation::{Activation, Algorithm, Direction, Norm, Operation, Pooling, Window};
use super::primitive::Context;
use super::sys;

fn prop(direction: Direction) -> c_int {
    match direction {
        Direction::Training => sys::FORWARD_TRAINING,
        Direction::Inference => sys::FORWARD_INFERENCE,
    }
}

fn optional(desc: Option<&MemoryDesc>) -> *const sys::memory_desc {
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

type Created = (&'static str, sys::status);

/// Creates the description; gives the call's name and status.
pub(super) fn create(
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
