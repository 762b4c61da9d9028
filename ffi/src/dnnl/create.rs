//! Creates an operation: picks an implementation and, where a descriptor was left open, a layout.

use std::ffi::c_int;
use std::ptr::{null, null_mut};
use std::rc::Rc;

use super::codes;
use super::memory::MemoryDesc;
use super::primitive::{Context, PrimitiveDesc};
use super::result::{Error, check};
use super::sys;
use crate::operation::{
    Activation, Algorithm, Function, Lrn, Norm, Operation, Pass, Pooling, ProductPass, SoftmaxForm,
    Window,
};

/// An operation on oneDNN's descriptors; the hint is the forward operation's description.
pub type Described<'a> = Operation<Rc<MemoryDesc>, &'a PrimitiveDesc>;

type Md<'a> = &'a MemoryDesc;
type Handle = *mut sys::primitive_desc;

/// Classes are the second dimension of the logits.
const CLASS_AXIS: c_int = 1;

/// A function of the C API that creates the description of an operation. All of them take where it
/// goes and the engine first, and the attributes last.
macro_rules! create {
    ($maker:ident, $name:literal, $call:ident => $($argument:expr),+) => {{
        let (engine, attr) = ($maker.engine, $maker.attr.raw);
        let mut raw: Handle = null_mut();
        // SAFETY: engine, attributes, descriptors and hints are live for the call, arrays have a
        // value for each of two spatial dimensions, and `raw` receives a new handle.
        let status = unsafe { sys::$call(&mut raw, engine, $($argument),+, attr) };
        check($name, status).map(|()| raw)
    }};
}

/// Where descriptions are made, and with which attributes.
struct Maker {
    engine: *mut sys::engine,
    attr: Attributes,
}

impl Maker {
    fn create(&self, operation: &Described<'_>) -> Result<Handle, Error> {
        match operation {
            Operation::Reorder { from, to } => self.reorder(from, to),
            Operation::Cut { from, to, offsets } => {
                self.reorder(&from.part(&to.dims(), offsets)?, to)
            }
            Operation::Concat { sources, axis } => {
                let raw: Vec<_> = sources.iter().map(|desc| desc.raw()).collect();
                let (count, axis) = (raw.len() as c_int, *axis as c_int);
                create!(self, "concat", dnnl_concat_primitive_desc_create =>
                    null(), count, axis, raw.as_ptr())
            }
            Operation::Binary { algorithm, a, b, to } => {
                create!(self, "binary", dnnl_binary_primitive_desc_create =>
                    codes::binary(*algorithm), a.raw(), b.raw(), to.raw())
            }
            Operation::Conv { src, weights, bias, dst, window, pass } => {
                self.conv([src, weights, dst], bias.as_deref(), &Geometry::of(*window), pass)
            }
            Operation::Linear { src, weights, bias, dst, pass } => {
                self.linear([src, weights, dst], bias.as_deref(), pass)
            }
            Operation::Pointwise { function, data, pass } => self.eltwise(*function, data, pass),
            Operation::Softmax { form, data, pass } => self.softmax(*form, data, pass),
            Operation::Pool { kind, src, dst, window, pass } => {
                self.pool(*kind, [src, dst], &Geometry::of(*window), pass)
            }
            Operation::Lrn { lrn, data, pass } => self.lrn(*lrn, data, pass),
            Operation::BatchNorm { norm, data, pass } => self.batch_norm(*norm, data, pass),
        }
    }

    fn reorder(&self, from: Md<'_>, to: Md<'_>) -> Result<Handle, Error> {
        let (mut raw, engine): (Handle, _) = (null_mut(), self.engine);
        let (from, to, attr) = (from.raw(), to.raw(), self.attr.raw);
        // SAFETY: live handles; `raw` receives a new one.
        let status = unsafe {
            sys::dnnl_reorder_primitive_desc_create(&mut raw, from, engine, to, engine, attr)
        };
        check("reorder", status).map(|()| raw)
    }

    fn conv(
        &self,
        [src, weights, dst]: [Md<'_>; 3],
        bias: Option<Md<'_>>,
        window: &Geometry,
        pass: &ProductPass<&PrimitiveDesc>,
    ) -> Result<Handle, Error> {
        let (how, [src, weights, dst]) =
            (sys::CONVOLUTION_DIRECT, [src, weights, dst].map(MemoryDesc::raw));
        let bias = bias.map_or(null(), MemoryDesc::raw);
        let [strides, dilation, begin, end] = window.pointers();
        match pass {
            ProductPass::Forward { direction, .. } => create!(
                self, "convolution forward", dnnl_convolution_forward_primitive_desc_create =>
                codes::direction(*direction), how, src, weights, bias, dst,
                strides, dilation, begin, end
            ),
            ProductPass::BackwardData(hint) => create!(
                self, "convolution backward data",
                dnnl_convolution_backward_data_primitive_desc_create =>
                how, src, weights, dst, strides, dilation, begin, end, hint.raw()
            ),
            ProductPass::BackwardWeights(hint) => create!(
                self, "convolution backward weights",
                dnnl_convolution_backward_weights_primitive_desc_create =>
                how, src, weights, bias, dst, strides, dilation, begin, end, hint.raw()
            ),
        }
    }

    fn linear(
        &self,
        [src, weights, dst]: [Md<'_>; 3],
        bias: Option<Md<'_>>,
        pass: &ProductPass<&PrimitiveDesc>,
    ) -> Result<Handle, Error> {
        let [src, weights, dst] = [src, weights, dst].map(MemoryDesc::raw);
        let bias = bias.map_or(null(), MemoryDesc::raw);
        match pass {
            ProductPass::Forward { direction, .. } => create!(
                self, "inner product forward", dnnl_inner_product_forward_primitive_desc_create =>
                codes::direction(*direction), src, weights, bias, dst
            ),
            ProductPass::BackwardData(hint) => create!(
                self, "inner product backward data",
                dnnl_inner_product_backward_data_primitive_desc_create =>
                src, weights, dst, hint.raw()
            ),
            ProductPass::BackwardWeights(hint) => create!(
                self, "inner product backward weights",
                dnnl_inner_product_backward_weights_primitive_desc_create =>
                src, weights, bias, dst, hint.raw()
            ),
        }
    }

    fn pool(
        &self,
        kind: Pooling,
        [src, dst]: [Md<'_>; 2],
        window: &Geometry,
        pass: &Pass<&PrimitiveDesc>,
    ) -> Result<Handle, Error> {
        let (how, kernel) = (codes::pooling(kind), window.kernel.as_ptr());
        let ([src, dst], [strides, dilation, begin, end]) =
            ([src.raw(), dst.raw()], window.pointers());
        match pass {
            Pass::Forward(direction) => create!(
                self, "pooling forward", dnnl_pooling_forward_primitive_desc_create =>
                codes::direction(*direction), how, src, dst, strides, kernel, dilation, begin, end
            ),
            Pass::Backward(hint) => create!(
                self, "pooling backward", dnnl_pooling_backward_primitive_desc_create =>
                how, src, dst, strides, kernel, dilation, begin, end, hint.raw()
            ),
        }
    }

    fn eltwise(
        &self,
        function: Function,
        data: Md<'_>,
        pass: &Pass<&PrimitiveDesc>,
    ) -> Result<Handle, Error> {
        let ((how, alpha, beta), data) = (codes::eltwise(function), data.raw());
        match pass {
            Pass::Forward(direction) => create!(
                self, "eltwise forward", dnnl_eltwise_forward_primitive_desc_create =>
                codes::direction(*direction), how, data, data, alpha, beta
            ),
            Pass::Backward(hint) => create!(
                self, "eltwise backward", dnnl_eltwise_backward_primitive_desc_create =>
                how, data, data, data, alpha, beta, hint.raw()
            ),
        }
    }

    fn softmax(
        &self,
        form: SoftmaxForm,
        data: Md<'_>,
        pass: &Pass<&PrimitiveDesc>,
    ) -> Result<Handle, Error> {
        let (how, data) = (codes::softmax(form), data.raw());
        match pass {
            Pass::Forward(direction) => create!(
                self, "softmax forward", dnnl_softmax_forward_primitive_desc_create =>
                codes::direction(*direction), how, data, data, CLASS_AXIS
            ),
            Pass::Backward(hint) => create!(
                self, "softmax backward", dnnl_softmax_backward_primitive_desc_create =>
                how, data, data, data, CLASS_AXIS, hint.raw()
            ),
        }
    }

    fn lrn(&self, lrn: Lrn, data: Md<'_>, pass: &Pass<&PrimitiveDesc>) -> Result<Handle, Error> {
        let (how, data) = (sys::LRN_ACROSS_CHANNELS, data.raw());
        let Lrn { size, alpha, beta, k } = lrn;
        let size = size as i64;
        match pass {
            Pass::Forward(direction) => create!(
                self, "lrn forward", dnnl_lrn_forward_primitive_desc_create =>
                codes::direction(*direction), how, data, data, size, alpha, beta, k
            ),
            Pass::Backward(hint) => create!(
                self, "lrn backward", dnnl_lrn_backward_primitive_desc_create =>
                how, data, data, data, size, alpha, beta, k, hint.raw()
            ),
        }
    }

    fn batch_norm(
        &self,
        norm: Norm,
        data: Md<'_>,
        pass: &Pass<&PrimitiveDesc>,
    ) -> Result<Handle, Error> {
        let (epsilon, flags, data) = (norm.epsilon, codes::norm_flags(norm), data.raw());
        match pass {
            Pass::Forward(direction) => create!(
                self, "batch normalization forward",
                dnnl_batch_normalization_forward_primitive_desc_create =>
                codes::direction(*direction), data, data, epsilon, flags
            ),
            Pass::Backward(hint) => create!(
                self, "batch normalization backward",
                dnnl_batch_normalization_backward_primitive_desc_create =>
                sys::BACKWARD, data, data, data, epsilon, flags, hint.raw()
            ),
        }
    }
}

/// A window as the arrays that oneDNN reads.
struct Geometry {
    kernel: [i64; 2],
    strides: [i64; 2],
    /// oneDNN counts the elements that are skipped.
    dilation: [i64; 2],
    padding: [i64; 2],
    padding_end: [i64; 2],
}

impl Geometry {
    fn of(window: Window) -> Self {
        let signed = |sizes: [usize; 2]| sizes.map(|size| size as i64);
        Self {
            kernel: signed(window.kernel),
            strides: signed(window.stride),
            dilation: signed(window.dilation.map(|distance| distance.saturating_sub(1))),
            padding: signed(window.padding),
            padding_end: signed(window.padding_end),
        }
    }

    /// Of strides, dilation, and the padding at the beginning and at the end.
    fn pointers(&self) -> [*const i64; 4] {
        [&self.strides, &self.dilation, &self.padding, &self.padding_end].map(|of| of.as_ptr())
    }
}

/// Attributes: the scratchpad is ours, products are as exact as their type whatever the environment
/// says (`ONEDNN_DEFAULT_FPMATH_MODE`), ReLU may follow.
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
            check(
                "attr_fpmath_mode",
                sys::dnnl_primitive_attr_set_fpmath_mode(this.raw, sys::FPMATH_STRICT),
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
    pub fn new(context: &Context, operation: &Described<'_>) -> Result<Self, Error> {
        let activation = match operation {
            Operation::Conv { pass: ProductPass::Forward { activation, .. }, .. }
            | Operation::Linear { pass: ProductPass::Forward { activation, .. }, .. } => {
                *activation
            }
            Operation::Binary { algorithm: Algorithm::AddRelu, .. } => Activation::Relu,
            _ => Activation::None,
        };
        let maker = Maker { engine: context.engine(), attr: Attributes::new(activation)? };
        let raw = maker.create(operation)?;
        // SAFETY: `raw` was just created, we own it.
        Ok(unsafe { Self::from_raw(context.clone(), raw, operation.roles()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `ONEDNN_DEFAULT_FPMATH_MODE=BF16` sets it.
    const BF16: std::ffi::c_int = 1;

    #[test]
    fn products_are_strict_whatever_the_process_is_told() {
        let mut mode = BF16;
        // SAFETY: a plain number for the process, which no other test depends on: attributes are
        // made here alone, and say their own; then a live handle is asked.
        unsafe {
            check("default_fpmath", sys::dnnl_set_default_fpmath_mode(BF16)).unwrap();
            let attributes = Attributes::new(Activation::None).unwrap();
            let asked = sys::dnnl_primitive_attr_get_fpmath_mode(attributes.raw, &raw mut mode);
            check("get_fpmath", asked).unwrap();
        }
        assert_eq!(mode, sys::FPMATH_STRICT);
    }
}
