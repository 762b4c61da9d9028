//! What a card is told for each operation: launches of kernels by name, with the arguments in the
//! order of `kernels/`. Pure: where a tensor lies is said by its place.

mod batch_norm;
mod convolution;

use batch_norm::batch_norm;
use convolution::Convolved;

use super::backend::{Settled, pixels};
use super::call::{Argument, At, Call, Launch, word};
use super::layout::{CHANNELS_LAST, Planes, elements, is_padded, strides};
use crate::engine::plan::adaptive::{self, Adaptive};
use crate::engine::plan::operation::{
    Algorithm, Direction, Function, Lrn, Pass, Pooling, Refusal, Role, SoftmaxForm, Window,
};
use crate::engine::plan::tensor::{Desc, ElementType};

/// Copies take so many dimensions.
const DIMENSIONS: usize = 5;

/// The calls of an operation whose arguments lie where `at` says.
pub fn of(operation: &Settled, at: &dyn Fn(Role) -> At) -> Result<Vec<Call>, Refusal> {
    let one = |call: Result<Call, Refusal>| call.map(|call| vec![call]);
    match operation {
        Settled::Reorder { from, to } => {
            let offsets = vec![0; from.dims.len()];
            copied((from, at(Role::Src)), (to, at(Role::Dst)), &offsets)
        }
        Settled::Cut { from, to, offsets } => {
            copied((from, at(Role::Src)), (to, at(Role::Dst)), offsets)
        }
        Settled::Concat { sources, axis } => concatenated(sources, *axis, at),
        Settled::Binary { algorithm, a, b, .. } => binary(*algorithm, a, b, at),
        Settled::Conv { src, weights, dst, bias, window, pass } => {
            let shape = Convolved::new(src, weights, dst, window);
            shape.calls(bias.is_some(), pass, at)
        }
        Settled::Linear { src, weights, dst, bias, pass } => {
            Convolved::linear(src, weights, dst).calls(bias.is_some(), pass, at)
        }
        Settled::Pointwise { function, data, pass } => one(pointwise(*function, data, pass, at)),
        Settled::Softmax { form, data, pass } => one(softmax(*form, data, pass, at)),
        Settled::Pool { kind, src, dst, window, pass } => {
            one(pool(*kind, (src, dst), window, pass, at))
        }
        Settled::Lrn { lrn: norm, data, pass } => one(lrn(*norm, data, pass, at)),
        Settled::BatchNorm { norm, data, pass } => batch_norm(*norm, data, pass, at),
    }
}

/// Zeros for lanes that a kernel does not write.
fn cleared(desc: &Desc, at: At) -> Option<Call> {
    is_padded(desc).then_some(Call::Clear { at, bytes: desc.bytes })
}

fn planes(desc: &Desc) -> Result<Planes, Refusal> {
    Planes::of(desc).ok_or_else(|| Refusal(format!("{:?} are no planes", desc.dims)))
}

/// Sizes or strides for a copy, which takes more dimensions.
fn widened(values: &[usize], with: usize) -> [usize; DIMENSIONS] {
    let mut all = [with; DIMENSIONS];
    all[DIMENSIONS - values.len()..].copy_from_slice(values);
    all
}

/// One launch that copies a box of these sizes.
fn copy(
    (from, from_at, from_offset): (&Desc, At, usize),
    (to, to_at, to_offset): (&Desc, At, usize),
    dims: &[usize],
) -> Result<Call, Refusal> {
    let count = dims.iter().product();
    let name = format!("copy_{}_{}", word(from.element), word(to.element));
    Launch::new(&name)
        .at(&[from_at, to_at])
        .ints(&[count])
        .ints(&widened(dims, 1)[1..])
        .ints(&widened(&strides(from), 0))
        .ints(&widened(&strides(to), 0))
        .ints(&[from_offset, to_offset])
        .threads(count)
}

fn offset(desc: &Desc, offsets: &[usize]) -> usize {
    strides(desc).iter().zip(offsets).map(|(stride, at)| stride * at).sum()
}

fn copied(
    (from, from_at): (&Desc, At),
    (to, to_at): (&Desc, At),
    offsets: &[usize],
) -> Result<Vec<Call>, Refusal> {
    let source = (from, from_at, offset(from, offsets));
    let call = copy(source, (to, to_at, 0), &to.dims)?;
    Ok(cleared(to, to_at).into_iter().chain([call]).collect())
}

fn concatenated(
    sources: &[Desc],
    axis: usize,
    at: &dyn Fn(Role) -> At,
) -> Result<Vec<Call>, Refusal> {
    let concat = Settled::Concat { sources: sources.to_vec(), axis };
    let Some(to) = super::backend::describe(&concat, Role::Dst) else { return Ok(Vec::new()) };
    let mut calls: Vec<Call> = cleared(&to, at(Role::Dst)).into_iter().collect();
    let mut first = 0;
    for (number, source) in sources.iter().enumerate() {
        let into = (&to, at(Role::Dst), first * strides(&to)[axis]);
        calls.push(copy((source, at(Role::Source(number)), 0), into, &source.dims)?);
        first += source.dims[axis];
    }
    Ok(calls)
}

fn binary(
    algorithm: Algorithm,
    a: &Desc,
    b: &Desc,
    at: &dyn Fn(Role) -> At,
) -> Result<Vec<Call>, Refusal> {
    let code = match algorithm {
        Algorithm::Add => 0,
        Algorithm::Multiply => 1,
        Algorithm::AddRelu => 2,
    };
    let places = [at(Role::Src), at(Role::Src1), at(Role::Dst)];
    if a.dims == b.dims && a.order == b.order {
        let name = if a.element == b.element { "binary" } else { "binary_mask" };
        let launch = Launch::of(name, a.element).at(&places).ints(&[code, elements(a)]);
        return Ok(vec![launch.threads(elements(a))?]);
    }
    if a.element != b.element || a.dims.len() != 4 {
        return Err(Refusal(format!("{algorithm:?} of {a:?} and {b:?}")));
    }
    let along = |(at, stride): (usize, usize)| if b.dims[at] == 1 { 0 } else { stride };
    let of_b: Vec<usize> = strides(b).into_iter().enumerate().map(along).collect();
    let count = a.dims.iter().product();
    let launch = Launch::of("binary_strided", a.element).at(&places).ints(&[code, count]);
    let launch = launch.ints(&a.dims[1..]).ints(&strides(a)).ints(&of_b);
    // In place the lanes behind the last channel are there already.
    let clear = (places[0] != places[2]).then(|| cleared(a, places[2])).flatten();
    Ok(clear.into_iter().chain([launch.threads(count)?]).collect())
}

fn pointwise(
    function: Function,
    data: &Desc,
    pass: &Pass<usize>,
    at: &dyn Fn(Role) -> At,
) -> Result<Call, Refusal> {
    let (code, factor) = match function {
        Function::Relu => (0, 0.0),
        Function::Relu6 => (1, 0.0),
        Function::Sigmoid => (2, 0.0),
        Function::Silu => (3, 0.0),
        Function::HardSigmoid => (4, 0.0),
        Function::HardSwish => (5, 0.0),
        Function::Scale(factor) => (6, factor),
    };
    let launch = match pass {
        Pass::Forward(_) => {
            let places = [at(Role::Src), at(Role::Dst)];
            Launch::of("pointwise_forward", data.element).at(&places)
        }
        Pass::Backward(_) => {
            let seen = if function.is_seen_from_result() { Role::Dst } else { Role::Src };
            let places = [at(seen), at(Role::DiffDst), at(Role::DiffSrc)];
            Launch::of("pointwise_backward", data.element).at(&places)
        }
    };
    let launch = launch.ints(&[code]).arguments(&[Argument::Float(factor)]);
    launch.ints(&[elements(data)]).threads(elements(data))
}

fn softmax(
    form: SoftmaxForm,
    data: &Desc,
    pass: &Pass<usize>,
    at: &dyn Fn(Role) -> At,
) -> Result<Call, Refusal> {
    let launch = match pass {
        Pass::Forward(_) => {
            let places = [at(Role::Src), at(Role::Dst)];
            Launch::of("softmax_forward", data.element).at(&places)
        }
        Pass::Backward(_) => {
            let places = [at(Role::Dst), at(Role::DiffDst), at(Role::DiffSrc)];
            Launch::of("softmax_backward", data.element).at(&places)
        }
    };
    let logarithms = usize::from(form == SoftmaxForm::Logarithms);
    // Channels last without lanes too many is a matrix of pixels.
    let inner: usize = match data.order {
        CHANNELS_LAST => 1,
        _ => data.dims[2..].iter().product(),
    };
    let rows = pixels(data);
    launch.ints(&[logarithms, rows, data.dims[1], inner]).threads(rows)
}

fn pool(
    kind: Pooling,
    (src, dst): (&Desc, &Desc),
    window: &Window,
    pass: &Pass<usize>,
    at: &dyn Fn(Role) -> At,
) -> Result<Call, Refusal> {
    let element = src.element;
    let (x, y) = (planes(src)?, planes(dst)?);
    let inside = usize::from(kind == Pooling::AverageInside);
    let (launch, count) = match (kind, pass) {
        (Pooling::Max, Pass::Forward(direction)) => {
            let kept = *direction == Direction::Training;
            let winners = if kept { at(Role::Workspace) } else { at(Role::Dst) };
            let launch = Launch::of("max_pool_forward", element);
            let launch = launch.at(&[at(Role::Src), at(Role::Dst), winners]);
            (launch.ints(&[usize::from(kept)]), y.dims)
        }
        (Pooling::Max, Pass::Backward(_)) => {
            let places = [at(Role::DiffDst), at(Role::Workspace), at(Role::DiffSrc)];
            (Launch::of("max_pool_backward", element).at(&places), x.dims)
        }
        (_, Pass::Forward(_)) => {
            let places = [at(Role::Src), at(Role::Dst)];
            (Launch::of("average_pool_forward", element).at(&places).ints(&[inside]), y.dims)
        }
        (_, Pass::Backward(_)) => {
            let places = [at(Role::DiffDst), at(Role::DiffSrc)];
            (Launch::of("average_pool_backward", element).at(&places).ints(&[inside]), x.dims)
        }
    };
    let launch = launch.ints(&x.dims).ints(&y.dims[2..]).ints(&window.kernel);
    let launch = launch.ints(&window.stride).ints(&window.padding);
    launch.ints(&x.strides).ints(&y.strides).threads(count.iter().product())
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
pub fn laid_out(tensor: At, to: (&Desc, At)) -> Result<Vec<Call>, Refusal> {
    let from = Desc::plain(&to.0.dims, ElementType::F32);
    copied((&from, tensor), to, &vec![0; from.dims.len()])
}

/// Whether a kernel reads a tensor as the state has it.
pub fn is_plain(desc: &Desc) -> bool {
    *desc == Desc::plain(&desc.dims, ElementType::F32)
}
