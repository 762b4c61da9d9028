//! Operators that slide over height and width: convolutions and poolings.

use crate::model::window::{AvgPool, Conv, MaxPool, Padding, Pair};
use crate::model::{LayerKind, Shape};

use super::proto::Node;
use super::state::{Found, State, Weight, float, integer, integers, only, size, text};
use super::value::{Flow, Value};

/// Two sizes of an attribute, or what stands for none.
fn pair(node: &Node<'_>, name: &str, default: usize) -> Result<Pair, String> {
    match integers(node, name)?[..] {
        [] => Ok(Pair::both(default)),
        [height, width] => Ok(Pair([size(height)?, size(width)?])),
        ref others => Err(format!("{name} = {others:?}: height and width are taken only")),
    }
}

/// For a window of this kernel.
fn padding(node: &Node<'_>, kernel: Pair) -> Result<Padding, String> {
    match text(node, "auto_pad")? {
        b"" | b"NOTSET" => {}
        b"VALID" => return Ok(Padding::every(0)),
        same @ (b"SAME_UPPER" | b"SAME_LOWER") if pair(node, "strides", 1)? == Pair::both(1) => {
            let Pair(dilation) = pair(node, "dilations", 1)?;
            // Without strides it is the same for images of any size.
            let all =
                [0, 1].map(|axis| dilation[axis].saturating_mul(kernel.0[axis].saturating_sub(1)));
            let (less, more) = (Pair(all.map(|all| all / 2)), Pair(all.map(|all| all - all / 2)));
            return Ok(match same {
                b"SAME_UPPER" => Padding { begin: less, end: more },
                _ => Padding { begin: more, end: less },
            });
        }
        other => {
            let other = String::from_utf8_lossy(other).into_owned();
            return Err(format!("auto_pad = {other}: say its pads, which are then in the file"));
        }
    }
    match integers(node, "pads")?[..] {
        [] => Ok(Padding::every(0)),
        [top, left, bottom, right] => Ok(Padding {
            begin: Pair([size(top)?, size(left)?]),
            end: Pair([size(bottom)?, size(right)?]),
        }),
        ref others => Err(format!(
            "pads = {others:?}: those of height and width, [top, left, bottom, right], are taken \
             only"
        )),
    }
}

/// Whether the exporter has folded a norm into a convolution: its rule says so, or its names.
fn has_folded_norm(node: &Node<'_>) -> bool {
    let [_, weight, bias, ..] = node.inputs[..] else { return false };
    node.folded || bias.strip_suffix("_bias") == Some(weight) || weight.starts_with("onnx::Conv_")
}

/// Zeros around, for the convolution that comes next.
pub(super) fn pad<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    let flow = state.plain_flow(node, 0)?;
    let mode = text(node, "mode")?;
    let value = match state.scalar(node, 2)? {
        Some(value) => value,
        None => float(node, "value", 0.0)?,
    };
    if !matches!(mode, b"" | b"constant") || value != 0.0 {
        let mode = String::from_utf8_lossy(mode);
        return Err(format!("mode = {mode}, value = {value}: zeros are taken only"));
    }
    let pads = state.attribute_or_input(node, "pads", 1)?.ok_or("its pads are not given")?;
    let rank = flow.dims.len() as i64;
    let axes = match state.optional(node, 3) {
        Some(_) => state.known_numbers(node, 3)?,
        None => (0..rank).collect(),
    };
    let refuse = || format!("pads = {pads:?}: around height and width they are taken only");
    if pads.len() != 2 * axes.len() {
        return Err(refuse());
    }
    let mut padding = Padding::every(0);
    for (at, &axis) in axes.iter().enumerate() {
        let (begin, end) = (size(pads[at])?, size(pads[at + axes.len()])?);
        match if axis < 0 { axis + rank } else { axis } {
            axis @ (2 | 3) if rank == 4 => {
                let along = axis as usize - 2;
                (padding.begin.0[along], padding.end.0[along]) = (begin, end);
            }
            _ if (begin, end) == (0, 0) => {}
            _ => return Err(refuse()),
        }
    }
    Ok(match padding == Padding::every(0) {
        true => Value::Flow(flow),
        false => Value::Padded(flow, padding),
    })
}

pub(super) fn conv<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    let (flow, around) = match state.value(node, 0)? {
        Value::Padded(flow, around) => (flow.clone(), *around),
        _ => (state.plain_flow(node, 0)?, Padding::every(0)),
    };
    let weight = state.held(node, 1)?;
    let [channels, _, height, width] = weight.dims()[..] else {
        let dims = weight.dims();
        return Err(format!("its weight has the shape {dims:?}: four extents are taken only"));
    };
    let kernel = Pair([height, width]);
    if pair(node, "kernel_shape", 0)? != kernel && !integers(node, "kernel_shape")?.is_empty() {
        return Err(format!("kernel_shape is not that of its weight, {:?}", weight.dims()));
    }
    let mut weights = vec![("weight", Weight::Held(weight))];
    // A bias that is zero everywhere is how torch writes none.
    let bias = match state.optional(node, 2) {
        None | Some(Value::Fill { value: 0.0, .. }) => None,
        Some(_) => Some(state.weight(node, 2)?),
    };
    let conv = Conv {
        channels,
        kernel,
        stride: pair(node, "strides", 1)?,
        padding: padding(node, kernel)?.with(around),
        dilation: pair(node, "dilations", 1)?,
        groups: size(integer(node, "group", 1)?)?,
        bias: bias.is_some(),
    };
    weights.extend(bias.map(|bias| ("bias", bias)));
    state.folded += usize::from(has_folded_norm(node));
    state.layer(LayerKind::Conv(conv), &[&flow], weights)
}

fn window(node: &Node<'_>) -> Result<MaxPool, String> {
    if pair(node, "dilations", 1)? != Pair::both(1) {
        return Err("a pooling with dilation is not among the layers here".into());
    }
    let kernel = pair(node, "kernel_shape", 0)?;
    Ok(MaxPool {
        kernel,
        stride: pair(node, "strides", 1)?,
        padding: padding(node, kernel)?,
        ceil_mode: integer(node, "ceil_mode", 0)? != 0,
    })
}

/// Windows that reach over the end can be written as padding there (our export writes them so),
/// which may be more than a layer takes. `ceil_mode` has the same windows, where it has as many.
fn reaching_over(pool: MaxPool, from: Shape) -> MaxPool {
    if pool.result(from).is_ok() {
        return pool;
    }
    let [channels, height, width] = from;
    let Padding { begin, end } = pool.padding;
    let windows = |axis: usize, length: usize| {
        let padded = length.saturating_add(begin.0[axis]).saturating_add(end.0[axis]);
        Some(padded.checked_sub(pool.kernel.0[axis])?.checked_div(pool.stride.0[axis])? + 1)
    };
    let (Some(down), Some(across)) = (windows(0, height), windows(1, width)) else { return pool };
    let end = Pair([0, 1].map(|axis| end.0[axis].min(begin.0[axis])));
    let rounded = MaxPool { padding: Padding { begin, end }, ceil_mode: true, ..pool };
    match rounded.result(from) {
        Ok(shape) if shape == [channels, down, across] => rounded,
        _ => pool,
    }
}

pub(super) fn max_pool<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    let flow = state.plain_flow(node, 0)?;
    only(node, "storage_order", 0)?;
    let pool = reaching_over(window(node)?, state.shape(&flow));
    state.layer(LayerKind::MaxPool(pool), &[&flow], Vec::new())
}

pub(super) fn average_pool<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    let flow = state.plain_flow(node, 0)?;
    let mut window = window(node)?;
    let count_include_pad =
        window.padding == Padding::every(0) || integer(node, "count_include_pad", 0)? != 0;
    if !count_include_pad {
        window = reaching_over(window, state.shape(&flow));
    }
    let MaxPool { kernel, stride, padding, ceil_mode } = window;
    let pool = AvgPool { kernel, stride, padding, ceil_mode, count_include_pad };
    state.layer(LayerKind::AvgPool(pool), &[&flow], Vec::new())
}

pub(super) fn global_average_pool<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    let flow = state.plain_flow(node, 0)?;
    state.layer(LayerKind::GlobalAvgPool, &[&flow], Vec::new())
}

/// The mean over height and width is a global pooling.
pub(super) fn reduce_mean<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    let flow = state.plain_flow(node, 0)?;
    let rank = flow.dims.len() as i64;
    let mut axes = state.attribute_or_input(node, "axes", 1)?.unwrap_or_default();
    for axis in &mut axes {
        *axis += if *axis < 0 { rank } else { 0 };
    }
    axes.sort_unstable();
    if rank != 4 || axes != [2, 3] {
        return Err(format!("the mean over axes {axes:?}: over height and width it is taken only"));
    }
    let keeps = integer(node, "keepdims", 1)? != 0;
    match state.layer(LayerKind::GlobalAvgPool, &[&flow], Vec::new())? {
        Value::Flow(Flow { from, mut dims }) => {
            dims.truncate(if keeps { 4 } else { 2 });
            Ok(Value::Flow(Flow { from, dims }))
        }
        other => Ok(other),
    }
}
