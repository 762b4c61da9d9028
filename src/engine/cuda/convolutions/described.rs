//! A convolution as cuDNN sees it: sizes and strides of three tensors, a graph of one operation,
//! and whether a plan that was kept is of this one.

use kintsugi_ffi::cuda::cudnn::{ALIGN_BYTES, Descriptor, Values};
use kintsugi_ffi::cuda::sys::cudnn::{attribute, kind, of, value};
use kintsugi_ffi::cuda::{Cudnn, Error};
use serde_json::Value;

use super::target::Target;
use crate::config::Precision;
use crate::engine::cuda::backend::Settled;
use crate::engine::cuda::layout;
use crate::engine::plan::operation::{ProductPass, Refusal, Window};
use crate::engine::plan::tensor::{Desc, ElementType};

/// The source or its gradient, by its number in an execution.
pub const SRC: i64 = 1;
/// The weights or their gradient.
pub const WEIGHTS: i64 = 2;
/// The result or its gradient.
pub const DST: i64 = 3;

impl Precision {
    /// cuDNN's word for the elements.
    fn word(self) -> i32 {
        match self {
            Self::F32 | Self::Tf32 => value::F32,
            Self::Bf16 => value::BF16,
        }
    }
}

/// Which of the three products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Pass {
    Forward,
    BackwardData,
    BackwardWeights,
}

/// How a tensor of four dimensions lies, in elements; channels are the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Lying {
    dims: [i64; 4],
    strides: [i64; 4],
}

/// A convolution as cuDNN sees it. Equal ones have equal plans.
///
/// Without groups, lanes behind the last channel are channels: they are read, must be finite, and
/// are written as zeros where those of the weights are zeros. With groups they are neither read nor
/// written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Convolution {
    pass: Pass,
    pub(super) precision: Precision,
    src: Lying,
    filter: Lying,
    dst: Lying,
    window: Window,
    pub(super) weights: Desc,
}

impl Convolution {
    /// Of a settled convolution.
    ///
    /// # Errors
    /// It is another operation, or its tensors are of another type than the precision's.
    pub fn new(operation: &Settled, precision: Precision) -> Result<Self, Refusal> {
        let whole = Window::whole([1, 1]);
        let (src, weights, dst, window, pass) = match operation {
            Settled::Conv { src, weights, dst, window, pass, .. } => {
                (src, weights, dst, window, pass)
            }
            // A matrix is a filter of one element over planes of one.
            Settled::Linear { src, weights, dst, pass, .. } => (src, weights, dst, &whole, pass),
            _ => return Err(Refusal("this is no product".into())),
        };
        if [src, dst].iter().any(|desc| desc.element != precision.element()) {
            return Err(Refusal(format!("{:?} is not computed as {precision:?}", src.element)));
        }
        let pass = match pass {
            ProductPass::Forward { .. } => Pass::Forward,
            ProductPass::BackwardData(_) => Pass::BackwardData,
            ProductPass::BackwardWeights(_) => Pass::BackwardWeights,
        };
        let weights = match weights.dims.len() {
            2 => Desc::plain(&weights.dims, precision.element()),
            // A gradient that goes out is settled as row-major f32, which cuDNN does not write.
            _ => layout::filter(&weights.dims, precision.element()),
        };
        let is_grouped = weights.dims.len() == 5;
        // Nor has a matrix lanes too many.
        let (src, dst) = match is_grouped || weights.dims.len() == 2 {
            true => (Lying::exact(src), Lying::exact(dst)),
            false => (Lying::padded(src), Lying::padded(dst)),
        };
        let filter = Lying::filter(&weights);
        Ok(Self { pass, precision, src, filter, dst, window: *window, weights })
    }

    /// Whether a plan's JSON is of this convolution; the number of its engine.
    pub(super) fn check(&self, json: &str) -> Result<i64, Refusal> {
        let other = || Refusal("the kept plan is another convolution's".into());
        let all: Value = serde_json::from_str(json)
            .map_err(|error| Refusal(format!("the kept plan is no JSON: {error}")))?;
        let graph = &all["operationGraph"];
        let (tensors, nodes) = (graph["tensors"].as_array(), graph["nodes"].as_array());
        let (Some(tensors), Some([node])) = (tensors, nodes.map(Vec::as_slice)) else {
            return Err(other());
        };
        let element = match self.precision.element() {
            ElementType::Bf16 => "CUDNN_DATA_BFLOAT16",
            _ => "CUDNN_DATA_FLOAT",
        };
        let has = |(id, lying): (i64, Lying)| {
            let name = id.to_string();
            let mut named = tensors.iter().filter(|tensor| tensor["name"] == name.as_str());
            named.next().is_some_and(|it| lying.is_of(it) && it["dataType"] == element)
                && named.next().is_none()
        };
        let tensors_are_ours = tensors.len() == 3 && self.tensors().into_iter().all(has);
        let Window { stride, padding, padding_end, dilation, .. } = self.window;
        let pairs = [
            ("stride", None, stride),
            ("dilation", None, dilation),
            ("pad_lower", Some("pad"), padding),
            ("pad_upper", Some("pad"), padding_end),
        ];
        let pair_is_ours = |(name, both, wanted): (&str, Option<&str>, [usize; 2])| {
            let said = node.get(name).or_else(|| node.get(both?));
            said.is_some_and(|said| *said == serde_json::json!(wanted))
        };
        let is_ours = node["operation"] == self.pass.json() && tensors_are_ours;
        match is_ours && pairs.into_iter().all(pair_is_ours) {
            true => all["engine"]["engineId"].as_i64().ok_or_else(other),
            false => Err(other()),
        }
    }

    fn tensors(&self) -> [(i64, Lying); 3] {
        [(SRC, self.src), (WEIGHTS, self.filter), (DST, self.dst)]
    }

    /// A graph of one operation.
    pub(super) fn graph(&self, target: &Target<'_>) -> Result<Descriptor, Error> {
        target.graph(&self.operation(target.cudnn())?)
    }

    fn operation(&self, cudnn: &Cudnn) -> Result<Descriptor, Error> {
        let tensor = |(id, lying): (i64, Lying)| lying.tensor(cudnn, id, self.precision.word());
        let [src, weights, dst] = self.tensors().map(tensor);
        let (src, weights, dst) = (src?, weights?, dst?);
        let how = self.how(cudnn)?;
        let [operation, x, w, y, convolution, alpha, beta] = self.pass.words();
        Descriptor::new(cudnn, operation)?
            .set(x, Values::Descriptors(&[&src]))?
            .set(w, Values::Descriptors(&[&weights]))?
            .set(y, Values::Descriptors(&[&dst]))?
            .set(convolution, Values::Descriptors(&[&how]))?
            .set(alpha, Values::F32(&[1.0]))?
            .set(beta, Values::F32(&[0.0]))?
            .finalize()
    }

    fn how(&self, cudnn: &Cudnn) -> Result<Descriptor, Error> {
        let Window { stride, padding, padding_end, dilation, .. } = self.window;
        let f32 = Values::Words(of::DATA_TYPE, &[value::F32]);
        let mode = Values::Words(of::CONVOLUTION_MODE, &[value::CROSS_CORRELATION]);
        Descriptor::new(cudnn, kind::CONVOLUTION)?
            .set(attribute::CONVOLUTION_COMPUTE_TYPE, f32)?
            .set(attribute::CONVOLUTION_MODE, mode)?
            .set(attribute::CONVOLUTION_SPATIAL_DIMS, Values::I64(&[2]))?
            .set(attribute::CONVOLUTION_PRE_PADDINGS, Values::I64(&padding.map(long)))?
            .set(attribute::CONVOLUTION_POST_PADDINGS, Values::I64(&padding_end.map(long)))?
            .set(attribute::CONVOLUTION_DILATIONS, Values::I64(&dilation.map(long)))?
            .set(attribute::CONVOLUTION_STRIDES, Values::I64(&stride.map(long)))?
            .finalize()
    }
}

impl std::fmt::Display for Convolution {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { pass, precision, src, filter, dst, window, .. } = self;
        let ([n, c, h, w], [k, of_group, r, s], [_, _, oh, ow]) = (src.dims, filter.dims, dst.dims);
        let Window { stride, padding, padding_end, dilation, .. } = window;
        write!(
            f,
            "{pass:?} {precision:?}: {n} of {c} x {h} x {w} by {r} x {s} to {k} x {oh} x {ow}"
        )?;
        if of_group != c {
            write!(f, ", {} groups", c / of_group)?;
        }
        write!(f, ", stride {stride:?}, padding {padding:?} {padding_end:?}")?;
        match dilation {
            [1, 1] => Ok(()),
            _ => write!(f, ", dilation {dilation:?}"),
        }
    }
}

impl Pass {
    /// What the operation is, and where its x, w, y, convolution and factors stand.
    fn words(self) -> [i32; 7] {
        match self {
            Self::Forward => [
                kind::CONVOLUTION_FORWARD,
                attribute::FORWARD_X,
                attribute::FORWARD_W,
                attribute::FORWARD_Y,
                attribute::FORWARD_CONVOLUTION,
                attribute::FORWARD_ALPHA,
                attribute::FORWARD_BETA,
            ],
            Self::BackwardData => [
                kind::CONVOLUTION_BACKWARD_DATA,
                attribute::DATA_DX,
                attribute::DATA_W,
                attribute::DATA_DY,
                attribute::DATA_CONVOLUTION,
                attribute::DATA_ALPHA,
                attribute::DATA_BETA,
            ],
            Self::BackwardWeights => [
                kind::CONVOLUTION_BACKWARD_FILTER,
                attribute::FILTER_X,
                attribute::FILTER_DW,
                attribute::FILTER_DY,
                attribute::FILTER_CONVOLUTION,
                attribute::FILTER_ALPHA,
                attribute::FILTER_BETA,
            ],
        }
    }

    /// The operation's name in a plan's JSON.
    fn json(self) -> &'static str {
        match self {
            Self::Forward => "CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR",
            Self::BackwardData => "CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR",
            Self::BackwardWeights => {
                "CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR"
            }
        }
    }
}

impl Lying {
    /// With all lanes as channels: those behind the last one meet weights that are zero.
    fn padded(desc: &Desc) -> Self {
        let exact = Self::exact(desc);
        let [n, c, h, w] = exact.dims;
        Self { dims: [n, long(layout::lanes(c as usize)), h, w], ..exact }
    }

    /// With its own channels: groups would not divide the lanes.
    fn exact(desc: &Desc) -> Self {
        match desc.dims[..] {
            [n, c] => Self { dims: [n, c, 1, 1].map(long), strides: [c, 1, c, c].map(long) },
            _ => Self { dims: four(&desc.dims), strides: four(&layout::strides(desc)) },
        }
    }

    /// Filters of all groups lie one behind the other.
    fn filter(weights: &Desc) -> Self {
        let strides = layout::strides(weights);
        match weights.dims[..] {
            [groups, k, c, r, s] => {
                Self { dims: [groups * k, c, r, s].map(long), strides: four(&strides[1..]) }
            }
            [k, c] => Self { dims: [k, c, 1, 1].map(long), strides: [c, 1, c, c].map(long) },
            _ => {
                let [k, c, r, s] = four(&weights.dims);
                let lanes = |channels: i64| long(layout::lanes(channels as usize));
                Self { dims: [lanes(k), lanes(c), r, s], strides: four(&strides) }
            }
        }
    }

    fn is_of(self, tensor: &Value) -> bool {
        let (dims, strides) = (serde_json::json!(self.dims), serde_json::json!(self.strides));
        tensor["dim"] == dims && tensor["stride"] == strides
    }

    fn tensor(self, cudnn: &Cudnn, id: i64, element: i32) -> Result<Descriptor, Error> {
        Descriptor::new(cudnn, kind::TENSOR)?
            .set(attribute::TENSOR_DATA_TYPE, Values::Words(of::DATA_TYPE, &[element]))?
            .set(attribute::TENSOR_DIMENSIONS, Values::I64(&self.dims))?
            .set(attribute::TENSOR_STRIDES, Values::I64(&self.strides))?
            .set(attribute::TENSOR_ID, Values::I64(&[id]))?
            .set(attribute::TENSOR_ALIGNMENT, Values::I64(&[long(ALIGN_BYTES)]))?
            .finalize()
    }
}

/// The first four; what is not there is 1.
fn four(values: &[usize]) -> [i64; 4] {
    std::array::from_fn(|at| values.get(at).map_or(1, |&value| long(value)))
}

fn long(value: usize) -> i64 {
    value as i64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::plan::operation::Direction;
    use crate::model::saved::Activation;

    /// Of 2 pictures of 5 x 5 pixels, by 3 x 3 with rows below and none above.
    fn convolution(channels: [usize; 2], filter: &[usize], precision: Precision) -> Convolution {
        let element = precision.element();
        let [src, dst] = channels.map(|c| layout::channels_last(&[2, c, 5, 5], element));
        let (padding, padding_end) = ([0, 1], [2, 1]);
        let window = Window { padding, padding_end, ..Window::whole([3, 3]) };
        let (weights, activation) = (layout::filter(filter, element), Activation::None);
        let pass = ProductPass::Forward { direction: Direction::Training, activation };
        let settled = Settled::Conv { src, weights, bias: None, dst, window, pass };
        Convolution::new(&settled, precision).expect("a convolution")
    }

    #[test]
    fn lanes_are_channels_unless_there_are_groups() {
        let of = convolution([3, 10], &[10, 3, 3, 3], Precision::F32);
        assert_eq!((of.src.dims, of.src.strides), ([2, 8, 5, 5], [200, 1, 40, 8]));
        assert_eq!((of.filter.dims, of.filter.strides), ([16, 8, 3, 3], [72, 1, 24, 8]));
        assert_eq!((of.dst.dims, of.dst.strides), ([2, 16, 5, 5], [400, 1, 80, 16]));
        let of = convolution([6, 4], &[2, 2, 3, 3, 3], Precision::Bf16);
        assert_eq!((of.src.dims, of.src.strides), ([2, 6, 5, 5], [200, 1, 40, 8]));
        assert_eq!((of.filter.dims, of.filter.strides), ([4, 3, 3, 3], [27, 1, 9, 3]));
        assert_eq!(of.weights.element, ElementType::Bf16);
    }

    #[test]
    fn what_is_no_convolution_or_of_another_type_is_refused() {
        let [from, to] = [ElementType::F32, ElementType::Bf16].map(|of| Desc::plain(&[8], of));
        let reorder = Settled::Reorder { from, to };
        assert!(Convolution::new(&reorder, Precision::F32).is_err());
        let src = layout::channels_last(&[1, 8, 1, 1], ElementType::F32);
        let (dst, weights) = (src.clone(), layout::filter(&[8, 8, 1, 1], ElementType::F32));
        let (window, pass) = (Window::whole([1, 1]), ProductPass::BackwardData(0));
        let settled = Settled::Conv { src, weights, bias: None, dst, window, pass };
        assert!(Convolution::new(&settled, Precision::Tf32).is_ok());
        let error = Convolution::new(&settled, Precision::Bf16).expect_err("not of bf16");
        assert_eq!(error, Refusal("F32 is not computed as Bf16".into()));
    }

    /// As cuDNN writes it.
    fn json(of: &Convolution, padding_end: [usize; 2]) -> String {
        let tensor = |(id, lying): (i64, Lying)| {
            serde_json::json!({
                "name": id.to_string(), "dataType": "CUDNN_DATA_FLOAT",
                "dim": lying.dims, "stride": lying.strides,
            })
        };
        let node = serde_json::json!({
            "operation": of.pass.json(), "stride": [1, 1], "dilation": [1, 1],
            "pad_lower": [0, 1], "pad_upper": padding_end,
        });
        let graph = serde_json::json!({ "tensors": of.tensors().map(tensor), "nodes": [node] });
        serde_json::json!({ "operationGraph": graph, "engine": { "engineId": 7 } }).to_string()
    }

    #[test]
    fn a_kept_plan_is_of_its_own_convolution_alone() {
        let of = convolution([3, 10], &[10, 3, 3, 3], Precision::F32);
        assert_eq!(of.check(&json(&of, [2, 1])), Ok(7));
        assert!(of.check(&json(&of, [1, 1])).is_err(), "another window");
        let wider = convolution([3, 17], &[17, 3, 3, 3], Precision::F32);
        assert!(of.check(&json(&wider, [2, 1])).is_err(), "other tensors");
        let bf16 = Convolution { precision: Precision::Bf16, ..of.clone() };
        assert!(bf16.check(&json(&of, [2, 1])).is_err(), "other elements");
        let back = Convolution { pass: Pass::BackwardData, ..of.clone() };
        assert!(of.check(&json(&back, [2, 1])).is_err(), "another product");
        assert!(of.check("{").expect_err("half").0.contains("no JSON"));
    }
}
