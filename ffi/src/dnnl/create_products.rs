//! The calls of the C API for products and windows: convolution, inner product, pooling.

use std::ffi::c_int;
use std::ptr::null;

use super::memory::{MemoryDesc, signed};
use super::operation::{Operation, Pooling, Window};
use super::result::Created;
use super::sys;

fn optional(desc: Option<&MemoryDesc>) -> *const sys::memory_desc {
    desc.map_or(null(), MemoryDesc::raw)
}

fn pooling(kind: Pooling) -> c_int {
    match kind {
        Pooling::Max => sys::POOLING_MAX,
        Pooling::Average => sys::POOLING_AVG_INCLUDE_PADDING,
        Pooling::AverageInside => sys::POOLING_AVG_EXCLUDE_PADDING,
    }
}

/// A window as the arrays that oneDNN reads.
struct Geometry {
    kernel: Vec<i64>,
    strides: Vec<i64>,
    padding: Vec<i64>,
    padding_end: Vec<i64>,
    /// oneDNN counts the elements that are skipped.
    dilation: Vec<i64>,
}

fn geometry(window: Window) -> Geometry {
    Geometry {
        kernel: signed(&window.kernel),
        strides: signed(&window.stride),
        padding: signed(&window.padding),
        padding_end: signed(&window.padding_end),
        dilation: signed(&window.dilation.map(|distance| distance.saturating_sub(1))),
    }
}

pub(super) fn create_conv(
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
                    direction.code(),
                    sys::CONVOLUTION_DIRECT,
                    src.raw(),
                    weights.raw(),
                    optional(*bias),
                    dst.raw(),
                    g.strides.as_ptr(),
                    g.dilation.as_ptr(),
                    g.padding.as_ptr(),
                    g.padding_end.as_ptr(),
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
                    g.dilation.as_ptr(),
                    g.padding.as_ptr(),
                    g.padding_end.as_ptr(),
                    hint.raw(),
                    attr,
                )
            };
            ("convolution backward data", status)
        }
        _ => unreachable!("dispatched by `create`"),
    }
}

pub(super) fn create_conv_backward_weights(
    engine: *mut sys::engine,
    operation: &Operation<'_>,
    attr: *mut sys::attr,
    out: &mut *mut sys::primitive_desc,
) -> Created {
    match operation {
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
                    g.dilation.as_ptr(),
                    g.padding.as_ptr(),
                    g.padding_end.as_ptr(),
                    hint.raw(),
                    attr,
                )
            };
            ("convolution backward weights", status)
        }
        _ => unreachable!("dispatched by `create`"),
    }
}

pub(super) fn create_linear(
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
                    direction.code(),
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

pub(super) fn create_pool(
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
                    direction.code(),
                    pooling(*kind),
                    src.raw(),
                    dst.raw(),
                    g.strides.as_ptr(),
                    g.kernel.as_ptr(),
                    g.dilation.as_ptr(),
                    g.padding.as_ptr(),
                    g.padding_end.as_ptr(),
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
                    g.dilation.as_ptr(),
                    g.padding.as_ptr(),
                    g.padding_end.as_ptr(),
                    hint.raw(),
                    attr,
                )
            };
            ("pooling backward", status)
        }
        _ => unreachable!("dispatched by `create`"),
    }
}
