//! What a card is told for each operation: launches of kernels by name, with the arguments in the
//! order of `kernels/`. Pure: where a tensor lies is said by its place.

mod batch_norm;
mod bias;
mod convolution;
mod copies;
mod depthwise;
mod elementwise;
mod pool;
mod product;

use batch_norm::batch_norm;
use convolution::Convolved;
use copies::{concatenated, copied};
use depthwise::depthwise;
use elementwise::{binary, pointwise};
use pool::{planes, pool};

use super::backend::{Product, Settled};
use super::call::{Argument, At, Call, Launch};
use super::layout::{CHANNELS_LAST, pixels};
use crate::engine::plan::adaptive::{self, Adaptive};
use crate::engine::plan::operation::{Lrn, Pass, Refusal, Role, SoftmaxForm};
use crate::engine::plan::tensor::{Desc, ElementType};

/// Channels of a softmax that a block of threads has work with.
const ROW_CHANNELS_MIN: usize = 64;

/// The calls of an operation whose arguments lie where `at` says.
pub fn of(
    operation: &Settled,
    product: Option<&Product>,
    at: &dyn Fn(Role) -> At,
) -> Result<Vec<Call>, Refusal> {
    if let Some(product) = product {
        return product::product(operation, product, at);
    }
    let one = |call: Result<Call, Refusal>| call.map(|call| vec![call]);
    match operation {
        Settled::Reorder { from, to } => {
            let offsets = vec![0; from.dims.len()];
            copied(from, at(Role::Src), to, at(Role::Dst), &offsets)
        }
        Settled::Cut { from, to, offsets } => {
            copied(from, at(Role::Src), to, at(Role::Dst), offsets)
        }
        Settled::Concat { sources, axis } => concatenated(sources, *axis, at),
        Settled::Binary { algorithm, a, b, .. } => binary(*algorithm, a, b, at),
        Settled::Conv { src, weights, dst, bias, window, pass } => {
            let any = || Convolved::new(src, weights, dst, window).calls(pass, at);
            let mut calls = depthwise(operation, at).unwrap_or_else(any)?;
            calls.extend(bias::finished(dst, bias.is_some(), pass, at)?);
            Ok(calls)
        }
        Settled::Linear { src, weights, dst, bias, pass } => {
            let shape = Convolved::linear(src, weights, dst);
            let mut calls = shape.calls(pass, at)?;
            calls.extend(bias::finished(dst, bias.is_some(), pass, at)?);
            Ok(calls)
        }
        Settled::Pointwise { function, data, pass } => one(pointwise(*function, data, pass, at)),
        Settled::Softmax { form, data, pass } => one(softmax(*form, data, pass, at)),
        Settled::Pool { kind, src, dst, window, pass } => {
            one(pool(*kind, src, dst, window, pass, at))
        }
        Settled::Lrn { lrn: norm, data, pass } => one(lrn(*norm, data, pass, at)),
        Settled::BatchNorm { norm, data, pass } => batch_norm(*norm, data, pass, at),
    }
}

fn softmax(
    form: SoftmaxForm,
    data: &Desc,
    pass: &Pass<usize>,
    at: &dyn Fn(Role) -> At,
) -> Result<Call, Refusal> {
    let logarithms = usize::from(form == SoftmaxForm::Logarithms);
    // Channels last without lanes too many is a matrix of pixels.
    let inner: usize = match data.order {
        CHANNELS_LAST => 1,
        _ => data.dims[2..].iter().product(),
    };
    let (rows, channels) = (pixels(data), data.dims[1]);
    // A block or a thread for each.
    let by_rows = inner == 1 && channels >= ROW_CHANNELS_MIN;
    let kernel = if by_rows { "softmax_rows" } else { "softmax" };
    let launch = |pass| Launch::of(&format!("{kernel}_{pass}"), data.element);
    let launch = match pass {
        Pass::Forward(_) => launch("forward").at(&[at(Role::Src), at(Role::Dst)]),
        Pass::Backward(_) => {
            let places = [at(Role::Dst), at(Role::DiffDst), at(Role::DiffSrc)];
            launch("backward").at(&places)
        }
    };
    match by_rows {
        true => launch.ints(&[logarithms, channels]).over([rows, 1]),
        false => launch.ints(&[logarithms, rows, channels, inner]).threads(rows),
    }
}

/// It writes the lanes behind the last channel too.
fn lrn(
    norm: Lrn,
    data: &Desc,
    pass: &Pass<usize>,
    at: &dyn Fn(Role) -> At,
) -> Result<Call, Refusal> {
    let (c, planes) = (data.dims[1], planes(data)?);
    let [_, _, h, w] = planes.dims;
    let [outer, channel, _, pixel] = planes.strides;
    let launch = match pass {
        Pass::Forward(_) => {
            let places = [at(Role::Src), at(Role::Dst)];
            Launch::of("lrn_forward", data.element).at(&places)
        }
        Pass::Backward(_) => {
            let places = [at(Role::Src), at(Role::DiffDst), at(Role::DiffSrc)];
            Launch::of("lrn_backward", data.element).at(&places)
        }
    };
    let launch = launch.ints(&[pixels(data), c, outer, h * w, pixel, channel, norm.size]);
    let factors = [norm.alpha, norm.beta, norm.k].map(Argument::Float);
    launch.arguments(&factors).threads(pixels(data) * c)
}

/// A dropout mask: element i is dropped where word i of the stream is below the rate. The stream's
/// key is number `at` of those that were sent.
pub fn mask(to: At, keys: usize, at: usize, rate: f32, elements: usize) -> Result<Call, Refusal> {
    // `Stream::unit` has 53 bits: below the rate is below this many of them.
    let limit = (f64::from(rate) * (1_u64 << 53) as f64).ceil() as u64;
    let kept = 1.0 / (1.0 - rate);
    let launch = Launch::new("dropout_mask").at(&[to]).arguments(&[Argument::Sent(keys)]);
    let launch = launch.ints(&[at]).arguments(&[Argument::Word(limit), Argument::Float(kept)]);
    launch.ints(&[elements]).threads(elements)
}

/// Means over uneven windows of row-major f32 planes, or their gradients.
pub fn adaptive(
    windows: &Adaptive,
    pass: adaptive::Pass,
    from: At,
    to: At,
) -> Result<Call, Refusal> {
    let Adaptive { planes, from: [h, w], to: [oh, ow] } = *windows;
    let (name, count) = match pass {
        adaptive::Pass::Forward => ("adaptive_forward", planes * oh * ow),
        adaptive::Pass::Backward => ("adaptive_backward", planes * h * w),
    };
    Launch::new(name).at(&[from, to]).ints(&[planes, h, w, oh, ow]).threads(count)
}

/// From a tensor as the state has it, row-major f32, to how a kernel wants it.
pub fn laid_out(tensor: At, to: &Desc, to_at: At) -> Result<Vec<Call>, Refusal> {
    let from = Desc::plain(&to.dims, ElementType::F32);
    copied(&from, tensor, to, to_at, &vec![0; from.dims.len()])
}

/// Whether a kernel reads a tensor as the state has it.
pub fn is_plain(desc: &Desc) -> bool {
    *desc == Desc::plain(&desc.dims, ElementType::F32)
}
