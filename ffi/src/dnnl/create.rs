//! Creates an operation: picks an implementation and, where a descriptor was left open
//! (`Order::Any`), a layout.

use std::ptr::null_mut;

use super::create_pointwise::{
    create_batch_norm, create_eltwise, create_join, create_lrn, create_softmax,
};
use super::create_products::{
    create_conv, create_conv_backward_weights, create_linear, create_pool,
};
use super::operation::{Activation, Algorithm, Operation};
use super::primitive::{Context, PrimitiveDesc, Statistics};
use super::result::{Created, Error, check};
use super::sys;

/// Creates the description; gives the call's name and status.
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
        Op::Conv { .. } | Op::ConvBackwardData { .. } => create_conv(engine, operation, attr, out),
        Op::ConvBackwardWeights { .. } => {
            create_conv_backward_weights(engine, operation, attr, out)
        }
        Op::Linear { .. } | Op::LinearBackwardData { .. } | Op::LinearBackwardWeights { .. } => {
            create_linear(engine, operation, attr, out)
        }
        Op::Pool { .. } | Op::PoolBackward { .. } => create_pool(engine, operation, attr, out),
        Op::Lrn { .. } | Op::LrnBackward { .. } => create_lrn(engine, operation, attr, out),
        Op::BatchNorm { .. } | Op::BatchNormBackward { .. } => {
            create_batch_norm(engine, operation, attr, out)
        }
        Op::Pointwise { .. } | Op::PointwiseBackward { .. } => {
            create_eltwise(engine, operation, attr, out)
        }
        Op::Softmax { .. } | Op::SoftmaxBackward { .. } => {
            create_softmax(engine, operation, attr, out)
        }
        Op::Reorder { .. } | Op::Concat { .. } | Op::Binary { .. } => {
            create_join(engine, operation, attr, out)
        }
    }
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
        let statistics = match operation {
            Operation::BatchNorm { norm, .. } | Operation::BatchNormBackward { norm, .. } => {
                norm.statistics
            }
            _ => Statistics::Batch,
        };
        let sources = match operation {
            Operation::Concat { sources, .. } => sources.len(),
            _ => 0,
        };
        // SAFETY: `raw` was just created, we own it.
        Ok(unsafe { Self::from_raw(context.clone(), raw, statistics, sources) })
    }
}
