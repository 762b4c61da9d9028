//! The calls of the C API for operations on elements and channels, one per operation.

use std::ffi::{c_int, c_uint};
use std::ptr::null;

use super::operation::{Activation, Algorithm, Function, Norm, Operation};
use super::primitive::Statistics;
use super::result::Created;
use super::sys;

/// Classes are the second dimension of the logits.
const CLASS_AXIS: c_int = 1;

fn norm_flags(norm: Norm) -> c_uint {
    let mut flags = sys::NORM_USE_SCALE | sys::NORM_USE_SHIFT;
    if norm.statistics == Statistics::Running {
        flags |= sys::NORM_USE_GLOBAL_STATS;
    }
    if norm.activation == Activation::Relu {
        flags |= sys::NORM_FUSE_RELU;
    }
    flags
}

pub(super) fn create_join(
    engine: *mut sys::engine,
    operation: &Operation<'_>,
    attr: *mut sys::attr,
    out: &mut *mut sys::primitive_desc,
) -> Created {
    match operation {
        Operation::Reorder { from, to } => {
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
        Operation::Concat { sources, axis } => {
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
        Operation::Binary { algorithm, a, b, to } => {
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
        _ => unreachable!("dispatched by `create`"),
    }
}

pub(super) fn create_lrn(
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
                    direction.code(),
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
        _ => unreachable!("dispatched by `create`"),
    }
}

pub(super) fn create_batch_norm(
    engine: *mut sys::engine,
    operation: &Operation<'_>,
    attr: *mut sys::attr,
    out: &mut *mut sys::primitive_desc,
) -> Created {
    match operation {
        Operation::BatchNorm { direction, data, norm } => {
            // SAFETY: live handles.
            let status = unsafe {
                sys::dnnl_batch_normalization_forward_primitive_desc_create(
                    out,
                    engine,
                    direction.code(),
                    data.raw(),
                    data.raw(),
                    norm.epsilon,
                    norm_flags(*norm),
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
                    norm_flags(*norm),
                    hint.raw(),
                    attr,
                )
            };
            ("batch normalization backward", status)
        }
        _ => unreachable!("dispatched by `create`"),
    }
}

/// oneDNN's name of a function, and its constants alpha and beta.
fn eltwise(function: Function) -> (c_int, f32, f32) {
    match function {
        Function::Relu => (sys::ELTWISE_RELU_USE_DST, 0.0, 0.0),
        Function::Relu6 => (sys::ELTWISE_CLIP_V2_USE_DST, 0.0, 6.0),
        Function::Sigmoid => (sys::ELTWISE_LOGISTIC_USE_DST, 0.0, 0.0),
        Function::Silu => (sys::ELTWISE_SWISH, 1.0, 0.0),
        Function::HardSigmoid => (sys::ELTWISE_HARDSIGMOID, 1.0 / 6.0, 0.5),
        Function::HardSwish => (sys::ELTWISE_HARDSWISH, 1.0 / 6.0, 0.5),
        Function::Scale(factor) => (sys::ELTWISE_LINEAR, factor, 0.0),
    }
}

pub(super) fn create_eltwise(
    engine: *mut sys::engine,
    operation: &Operation<'_>,
    attr: *mut sys::attr,
    out: &mut *mut sys::primitive_desc,
) -> Created {
    match operation {
        Operation::Pointwise { direction, function, data } => {
            let (code, alpha, beta) = eltwise(*function);
            // SAFETY: live handles.
            let status = unsafe {
                sys::dnnl_eltwise_forward_primitive_desc_create(
                    out,
                    engine,
                    direction.code(),
                    code,
                    data.raw(),
                    data.raw(),
                    alpha,
                    beta,
                    attr,
                )
            };
            ("eltwise forward", status)
        }
        Operation::PointwiseBackward { function, diff, data, hint } => {
            let (code, alpha, beta) = eltwise(*function);
            // SAFETY: live handles.
            let status = unsafe {
                sys::dnnl_eltwise_backward_primitive_desc_create(
                    out,
                    engine,
                    code,
                    diff.raw(),
                    diff.raw(),
                    data.raw(),
                    alpha,
                    beta,
                    hint.raw(),
                    attr,
                )
            };
            ("eltwise backward", status)
        }
        _ => unreachable!("dispatched by `create`"),
    }
}

pub(super) fn create_softmax(
    engine: *mut sys::engine,
    operation: &Operation<'_>,
    attr: *mut sys::attr,
    out: &mut *mut sys::primitive_desc,
) -> Created {
    match operation {
        Operation::Softmax { direction, form, data } => {
            // SAFETY: live handles.
            let status = unsafe {
                sys::dnnl_softmax_forward_primitive_desc_create(
                    out,
                    engine,
                    direction.code(),
                    form.code(),
                    data.raw(),
                    data.raw(),
                    CLASS_AXIS,
                    attr,
                )
            };
            ("softmax forward", status)
        }
        Operation::SoftmaxBackward { form, diff, data, hint } => {
            // SAFETY: live handles.
            let status = unsafe {
                sys::dnnl_softmax_backward_primitive_desc_create(
                    out,
                    engine,
                    form.code(),
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
