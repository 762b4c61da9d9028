//! Operators that slide over height and width: convolutions and poolings.

use crate::model::LayerKind;
use crate::model::window::{AvgPool, Conv, MaxPool, Pair};

use super::proto::Node;
use super::state::{Found, State, Weight, integer, integers, only, size, text};
use super::value::{Flow, Value};

/// Two sizes of an attribute, or what stands for none.
fn pair(node: &Node<'_>, name: &str, default: usize) -> Result<Pair, String> {
    match integers(node, name)?[..] {
        [] => Ok(Pair::both(default)),
        [height, width] => Ok(Pair([size(height)?, size(width)?])),
        ref others => Err(format!("{name} = {others:?}: height and width are taken only")),
    }
}

/// The same on both sides.
fn padding(node: &Node<'_>) -> Result<Pair, String> {
    match text(node, "auto_pad")? {
        b"" | b"NOTSET" => {}
        b"VALID" => return Ok(Pair::both(0)),
        other => {
            let other = String::from_utf8_lossy(other).into_owned();
            return Err(format!("auto_pad = {other}: say its pads, which are then in the file"));
        }
    }
    match integers(node, "pads")?[..] {
        [] => Ok(Pair::both(0)),
        [top, left, bottom, right] if top == bottom && left == right => {
            Ok(Pair([size(top)?, size(left)?]))
        }
        ref others => Err(format!(
            "pads = {others:?}: padding is the same on both sides here ([top, left, bottom, right])"
        )),
    }
}

/// Whether the exporter has folded a norm into a convolution: its rule says so, or its names.
fn has_folded_norm(node: &Node<'_>) -> bool {
    let [_, weight, bias, ..] = node.inputs[..] else { return false };
    node.folded || bias.strip_suffix("_bias") == Some(weight) || weight.starts_with("onnx::Conv_")
}

pub(super) fn conv<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    let flow = state.plain_flow(node, 0)?;
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
        padding: padding(node)?,
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
    Ok(MaxPool {
        kernel: pair(node, "kernel_shape", 0)?,
        stride: pair(node, "strides", 1)?,
        padding: padding(node)?,
        ceil_mode: integer(node, "ceil_mode", 0)? != 0,
    })
}

pub(super) fn max_pool<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    let flow = state.plain_flow(node, 0)?;
    only(node, "storage_order", 0)?;
    state.layer(LayerKind::MaxPool(window(node)?), &[&flow], Vec::new())
}

pub(super) fn average_pool<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    let flow = state.plain_flow(node, 0)?;
    let MaxPool { kernel, stride, padding, ceil_mode } = window(node)?;
    let count_include_pad = padding == Pair::both(0) || integer(node, "count_include_pad", 0)? != 0;
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
