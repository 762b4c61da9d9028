//! Copies between orders and types of elements, of whole tensors, boxes and parts.

use super::elementwise::cleared;
use crate::engine::cuda::backend::{Settled, describe};
use crate::engine::cuda::call::{At, Call, Launch, word};
use crate::engine::cuda::layout::{LANES, elements, is_padded, lie_alike, strides};
use crate::engine::plan::operation::{Refusal, Role};
use crate::engine::plan::tensor::Desc;

/// Copies of any order take so many dimensions, those by groups so many.
const DIMENSIONS: usize = 5;
const GROUPED_DIMENSIONS: usize = 4;

/// One side of a copy: a box begins behind so many elements.
#[derive(Clone, Copy)]
struct Side<'a> {
    desc: &'a Desc,
    at: At,
    offset: usize,
}

/// What is copied, and which of the lanes behind its channels are written.
#[derive(Clone, Copy)]
struct Extent<'a> {
    dims: &'a [usize],
    /// Zeros in those of its last group.
    fills: bool,
    /// Of the first dimension, zeros behind the tensor's own.
    outer: usize,
}

/// A copy's launch by groups of eight channels, where one side has its channels innermost.
fn by_groups(from: Side<'_>, to: Side<'_>, extent: Extent<'_>) -> Option<Result<Call, Refusal>> {
    let (f, t) = (strides(from.desc), strides(to.desc));
    if extent.dims.len() != GROUPED_DIMENSIONS || (f[1] != 1 && t[1] != 1) {
        return None;
    }
    Some(grouped(from, &f, to, &t, extent))
}

/// The same for what is one row on both sides.
fn as_row(from: Side<'_>, to: Side<'_>, dims: &[usize]) -> Option<Result<Call, Refusal>> {
    let like = Desc { element: to.desc.element, bytes: to.desc.bytes, ..from.desc.clone() };
    let is_whole = from.desc.dims == dims && to.desc.dims == dims && from.offset + to.offset == 0;
    if !is_whole || elements(from.desc) != elements(to.desc) || !lie_alike(&like, to.desc) {
        return None;
    }
    let row = [1, elements(to.desc), 1, 1];
    let strides = [row[1], 1, 1, 1];
    let extent = Extent { dims: &row, fills: false, outer: 1 };
    Some(grouped(from, &strides, to, &strides, extent))
}

/// `f` and `t` are the strides of both sides.
fn grouped(
    from: Side<'_>,
    f: &[usize],
    to: Side<'_>,
    t: &[usize],
    extent: Extent<'_>,
) -> Result<Call, Refusal> {
    let Extent { dims, fills, outer } = extent;
    let groups = dims[1].div_ceil(LANES);
    let count = outer * groups * dims[2] * dims[3];
    let name = format!("copy_groups_{}_{}", word(from.desc.element), word(to.desc.element));
    Launch::new(&name)
        .at(&[from.at, to.at])
        .ints(&[count, dims[0], dims[1], groups, dims[2], dims[3]])
        .ints(f)
        .ints(t)
        .ints(&[from.offset, to.offset, usize::from(fills)])
        .threads(count)
}

/// Sizes or strides for a copy, which takes more dimensions.
fn widened(values: &[usize], with: usize) -> [usize; DIMENSIONS] {
    let mut all = [with; DIMENSIONS];
    all[DIMENSIONS - values.len()..].copy_from_slice(values);
    all
}

/// One launch that copies each element of a box.
fn by_elements(from: Side<'_>, to: Side<'_>, dims: &[usize]) -> Result<Call, Refusal> {
    let count = dims.iter().product();
    let name = format!("copy_{}_{}", word(from.desc.element), word(to.desc.element));
    Launch::new(&name)
        .at(&[from.at, to.at])
        .ints(&[count])
        .ints(&widened(dims, 1)[1..])
        .ints(&widened(&strides(from.desc), 0))
        .ints(&widened(&strides(to.desc), 0))
        .ints(&[from.offset, to.offset])
        .threads(count)
}

fn offset(desc: &Desc, offsets: &[usize]) -> usize {
    strides(desc).iter().zip(offsets).map(|(stride, at)| stride * at).sum()
}

/// Whether a copy by groups can write all lanes: those of padded tensors begin with whole groups.
fn has_lanes(desc: &Desc) -> bool {
    desc.dims.len() == GROUPED_DIMENSIONS && is_padded(desc) && strides(desc)[1] == 1
}

/// A box of one tensor, from these offsets on, is all of the other.
pub fn copied(
    from: &Desc,
    from_at: At,
    to: &Desc,
    to_at: At,
    offsets: &[usize],
) -> Result<Vec<Call>, Refusal> {
    let source = Side { desc: from, at: from_at, offset: offset(from, offsets) };
    let into = Side { desc: to, at: to_at, offset: 0 };
    if let Some(call) = as_row(source, into, &to.dims) {
        return Ok(vec![call?]);
    }
    let fills = has_lanes(to);
    let outer = if fills { elements(to) / strides(to)[0] } else { to.dims[0] };
    if let Some(call) = by_groups(source, into, Extent { dims: &to.dims, fills, outer }) {
        return Ok(vec![call?]);
    }
    let call = by_elements(source, into, &to.dims)?;
    Ok(cleared(to, to_at).into_iter().chain([call]).collect())
}

/// Parts behind each other.
pub fn concatenated(
    sources: &[Desc],
    axis: usize,
    at: &dyn Fn(Role) -> At,
) -> Result<Vec<Call>, Refusal> {
    let concat = Settled::Concat { sources: sources.to_vec(), axis };
    let Some(to) = describe(&concat, Role::Dst) else { return Ok(Vec::new()) };
    let last = sources.len() - 1;
    let is_whole = |number: usize| {
        axis != 1 || number == last || sources[number].dims[axis].is_multiple_of(LANES)
    };
    let fills = has_lanes(&to) && (0..=last).all(is_whole);
    let clear = cleared(&to, at(Role::Dst)).filter(|_| !fills);
    let mut calls: Vec<Call> = clear.into_iter().collect();
    let mut first = 0;
    for (number, source) in sources.iter().enumerate() {
        let into = Side { desc: &to, at: at(Role::Dst), offset: first * strides(&to)[axis] };
        let from = Side { desc: source, at: at(Role::Source(number)), offset: 0 };
        let extent = Extent { dims: &source.dims, fills, outer: source.dims[0] };
        let call = by_groups(from, into, extent);
        calls.push(call.unwrap_or_else(|| by_elements(from, into, &source.dims))?);
        first += source.dims[axis];
    }
    Ok(calls)
}
