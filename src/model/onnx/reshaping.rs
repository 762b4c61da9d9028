//! Operators that change the shape of a layer's result. Our results are `[channels, height, width]`
//! whatever a file calls them, so most of them mean nothing; flattening is a layer.

use crate::model::LayerKind;

use super::proto::Node;
use super::state::{Found, State, integer};
use super::value::{Arrangement, Dim, Flow, Value, shown};

/// A result in another shape of the same values.
fn reshaped<'a>(state: &mut State<'a>, flow: &Flow, rest: &[i64]) -> Found<'a> {
    let shape = state.shape(flow).map(|extent| extent as i64);
    let known = |extents: &[i64]| extents.iter().copied().map(Dim::Known).collect::<Vec<_>>();
    let dims: Vec<Dim> = std::iter::once(state.batch).chain(known(rest)).collect();
    let from = flow.from;
    match *rest {
        [channels, height, width] if [channels, height, width] == shape => {}
        [_] if shape[1..] == [1, 1] => {
            // With another size of images it may be more than one value; a global mean never is.
            let global = LayerKind::GlobalAvgPool;
            let flat =
                flow.dims.len() == 2 || from.is_some_and(|at| state.drafts[at].kind == global);
            if !flat {
                return flattened(state, flow);
            }
        }
        [_] => return flattened(state, flow),
        [groups, each, height, width]
            if [groups.saturating_mul(each), height, width] == shape && flow.dims.len() == 4 =>
        {
            let (flow, groups, arrangement) = (flow.clone(), groups as usize, Arrangement::Apart);
            return Ok(Value::Grouped { flow, dims, groups, arrangement });
        }
        _ => {
            return Err(format!(
                "from {} to {}: only flattening to [N, features], and back where height and width \
                 are 1, is taken",
                shown(&flow.dims),
                shown(&dims)
            ));
        }
    }
    Ok(Value::Flow(Flow { from, dims }))
}

fn flattened<'a>(state: &mut State<'a>, flow: &Flow) -> Found<'a> {
    match state.layer(LayerKind::Flatten, &[flow], Vec::new())? {
        Value::Flow(Flow { from, mut dims }) => {
            dims.truncate(2);
            Ok(Value::Flow(Flow { from, dims }))
        }
        other => Ok(other),
    }
}

fn elements(state: &State<'_>, flow: &Flow) -> i64 {
    state.shape(flow).iter().map(|&extent| extent as i64).product()
}

pub(super) fn flatten<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    let flow = state.plain_flow(node, 0)?;
    let axis = integer(node, "axis", 1)?;
    if axis != 1 && axis != 1 - flow.dims.len() as i64 {
        return Err(format!("axis = {axis}: only 1 keeps samples apart"));
    }
    let all = elements(state, &flow);
    reshaped(state, &flow, &[all])
}

/// Groups of channels that lie apart take turns.
pub(super) fn transpose<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    let order = super::state::integers(node, "perm")?;
    match state.value(node, 0)? {
        Value::Grouped { flow, dims, groups, arrangement: Arrangement::Apart }
            if order == [0, 2, 1, 3, 4] =>
        {
            let mut dims = dims.clone();
            dims.swap(1, 2);
            Ok(Value::Grouped {
                flow: flow.clone(),
                dims,
                groups: *groups,
                arrangement: Arrangement::InTurn,
            })
        }
        other => Err(format!(
            "{} in the order {order:?}: only groups of channels change places",
            other.about()
        )),
    }
}

/// Of a result whose channels are by groups: all together again, or refused.
fn together<'a>(state: &mut State<'a>, grouped: &Value<'a>, to: &[i64]) -> Found<'a> {
    match grouped {
        Value::Grouped { flow, groups, arrangement, .. }
            if state.shape(flow).map(|extent| extent as i64) == *to =>
        {
            match arrangement {
                Arrangement::Apart => Ok(Value::Flow(flow.clone())),
                Arrangement::InTurn => {
                    state.layer(LayerKind::ChannelShuffle { groups: *groups }, &[flow], Vec::new())
                }
            }
        }
        other => Err(format!("{} to {to:?}: all channels together are taken only", other.about())),
    }
}

pub(super) fn reshape<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    let (flow, grouped) = match state.value(node, 0)? {
        grouped @ Value::Grouped { flow, dims, .. } => {
            (Flow { from: flow.from, dims: dims.clone() }, Some(grouped.clone()))
        }
        _ => (state.plain_flow(node, 0)?, None),
    };
    let mut wanted = state.numbers(node, 1)?;
    if integer(node, "allowzero", 0)? == 0 {
        for (at, dim) in wanted.iter_mut().enumerate() {
            if *dim == Dim::Known(0) {
                let kept = flow.dims.get(at).copied();
                *dim = kept.ok_or("its shape keeps an extent that is not there")?;
            }
        }
    }
    let all = elements(state, &flow);
    let refuse = || {
        let (from, to) = (shown(&flow.dims), shown(&wanted));
        format!("from {from} to {to}: samples must stay apart, with all their values")
    };
    let (&samples, rest) = wanted.split_first().ok_or_else(refuse)?;
    let mut extents = Vec::new();
    for dim in rest {
        let Dim::Known(extent) = *dim else { return Err(refuse()) };
        extents.push(extent);
    }
    let free = extents.iter().filter(|&&extent| extent == -1).count();
    let product = |extents: &[i64]| {
        let known = extents.iter().filter(|&&extent| extent != -1);
        known.copied().try_fold(1, i64::checked_mul).filter(|&product| product > 0)
    };
    let known = product(&extents).ok_or_else(refuse)?;
    match (samples, free) {
        (samples, 1) if samples == state.batch && all % known == 0 => {
            let inferred = |extent: &mut i64| {
                if *extent == -1 {
                    *extent = all / known;
                }
            };
            extents.iter_mut().for_each(inferred);
        }
        (samples, 0) if samples == state.batch || samples == Dim::Known(-1) => {}
        _ => return Err(refuse()),
    }
    if product(&extents) != Some(all) {
        return Err(refuse());
    }
    match grouped {
        Some(grouped) => together(state, &grouped, &extents),
        None => reshaped(state, &flow, &extents),
    }
}

/// `[N, channels, 1]` of one value per channel.
fn is_halfway(state: &State<'_>, flow: &Flow) -> bool {
    let [channels, rest @ ..] = state.shape(flow);
    rest == [1, 1] && flow.dims[1..] == [Dim::Known(channels as i64), Dim::Known(1)]
}

/// Height and width of 1 that come or go.
pub(super) fn squeeze<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    let flow = state.plain_flow(node, 0)?;
    let axes = state.attribute_or_input(node, "axes", 1)?;
    let axes = axes.ok_or("without axes it may take samples: name height and width")?;
    let rank = flow.dims.len() as i64;
    let mut axes: Vec<i64> = axes.iter().map(|&a| if a < 0 { a + rank } else { a }).collect();
    axes.sort_unstable();
    if rank != 4 || axes != [2, 3] {
        return Err(format!("axes = {axes:?}: height and width together are taken only"));
    }
    let all = elements(state, &flow);
    if state.shape(&flow)[1..] != [1, 1] {
        return Err(format!("height and width of {} are not 1", shown(&flow.dims)));
    }
    reshaped(state, &flow, &[all])
}

pub(super) fn unsqueeze<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    let flow = match state.flow(node, 0)? {
        // One after the other, as `[:, :, None, None]` writes them.
        halfway if is_halfway(state, &halfway) => halfway,
        _ => state.plain_flow(node, 0)?,
    };
    let axes = state.attribute_or_input(node, "axes", 1)?.unwrap_or_default();
    let mut dims = flow.dims.clone();
    for axis in axes {
        let rank = dims.len() as i64 + 1;
        let at = if axis < 0 { axis + rank } else { axis };
        if !(2..=rank.min(4)).contains(&(at + 1)) || dims.len() > 3 || at < 2 {
            return Err(format!("axis {axis}: only height and width are added"));
        }
        dims.insert(at as usize, Dim::Known(1));
    }
    Ok(Value::Flow(Flow { from: flow.from, dims }))
}

/// A part that is the whole, as `[:, :]` writes it.
pub(super) fn slice<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    let flow = state.plain_flow(node, 0)?;
    let row = |name, at| state.attribute_or_input(node, name, at);
    let starts = row("starts", 1)?.ok_or("its starts are not given")?;
    let ends = row("ends", 2)?.ok_or("its ends are not given")?;
    let axes = row("axes", 3)?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = row("steps", 4)?.unwrap_or_else(|| vec![1; starts.len()]);
    let rank = flow.dims.len() as i64;
    let is_whole = |(at, &axis): (usize, &i64)| {
        let axis = usize::try_from(if axis < 0 { axis + rank } else { axis }).ok();
        let extent = axis.and_then(|axis| flow.dims.get(axis)).copied();
        let reaches = |end: &&i64| match extent {
            Some(Dim::Known(extent)) => **end >= extent,
            Some(Dim::Batch) => **end >= i64::from(i32::MAX),
            None => false,
        };
        let from_first = starts.get(at) == Some(&0) && steps.get(at) == Some(&1);
        from_first && ends.get(at).as_ref().is_some_and(reaches)
    };
    if !axes.iter().enumerate().all(is_whole) {
        return Err(format!(
            "from {starts:?} to {ends:?} along axes {axes:?} of {}: no layer here takes a part",
            shown(&flow.dims)
        ));
    }
    Ok(Value::Flow(flow))
}

/// Repeats one value per channel over height and width.
pub(super) fn expand<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    let flow = state.plain_flow(node, 0)?;
    let wanted = state.numbers(node, 1)?;
    let one = Dim::Known(1);
    let refuse = || {
        let (from, to) = (shown(&flow.dims), shown(&wanted));
        format!("from {from} to {to}: only height and width of 1 are expanded")
    };
    if wanted.len() != flow.dims.len() {
        return Err(refuse());
    }
    let mut dims = Vec::new();
    for (at, (&own, &to)) in flow.dims.iter().zip(&wanted).enumerate() {
        match (own, to) {
            (own, to) if own == to || to == one => dims.push(own),
            (own, Dim::Known(to)) if own == one && at > 1 && to > 0 => dims.push(Dim::Known(to)),
            _ => return Err(refuse()),
        }
    }
    Ok(Value::Flow(Flow { from: flow.from, dims }))
}
