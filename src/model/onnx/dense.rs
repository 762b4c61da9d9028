//! Operators that multiply by a matrix, normalise a batch, or drop values.

use crate::model::LayerKind;

use super::proto::Node;
use super::state::{Found, State, Weight, float, integer, only};
use super::value::{Flow, Held, Value};

/// `[N, features]`.
fn rows<'a>(state: &State<'a>, node: &Node<'a>, at: usize) -> Result<Flow, String> {
    let flow = state.plain_flow(node, at)?;
    match flow.dims.len() {
        2 => Ok(flow),
        rank => Err(format!("its input has {rank} extents; [N, features] is taken only")),
    }
}

fn linear<'a>(
    state: &mut State<'a>,
    flow: &Flow,
    weight: Held<'a>,
    bias: Option<Weight<'a>>,
) -> Found<'a> {
    let [features, _] = weight.dims()[..] else {
        return Err(format!(
            "its weight has the shape {:?}: a matrix is taken only",
            weight.dims()
        ));
    };
    let kind = LayerKind::Linear { features, bias: bias.is_some() };
    let weights = std::iter::once(("weight", Weight::Held(weight)));
    let weights = weights.chain(bias.map(|bias| ("bias", bias))).collect();
    state.layer(kind, &[flow], weights)
}

/// Of the two orders of a matrix the layer has rows of the result.
fn turned(mut weight: Held<'_>) -> Held<'_> {
    weight.transposed = !weight.transposed;
    weight
}

pub(super) fn gemm<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    only(node, "transA", 0)?;
    for name in ["alpha", "beta"] {
        let factor = float(node, name, 1.0)?;
        if factor != 1.0 {
            return Err(format!("{name} = {factor}: only 1 is taken"));
        }
    }
    let flow = rows(state, node, 0)?;
    let weight = state.held(node, 1)?;
    let weight = if integer(node, "transB", 0)? != 0 { weight } else { turned(weight) };
    let bias = match state.optional(node, 2) {
        None => None,
        Some(_) => Some(state.weight(node, 2)?),
    };
    linear(state, &flow, weight, bias)
}

pub(super) fn mat_mul<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    let flow = rows(state, node, 0)?;
    let weight = turned(state.held(node, 1)?);
    linear(state, &flow, weight, None)
}

/// A tensor that is added to a product or convolution without a bias is its bias.
pub(super) fn add_bias<'a>(state: &mut State<'a>, flow: &Flow, bias: &Held<'a>) -> Found<'a> {
    let refuse = || "a tensor of the file is added to what is no layer with weights".to_string();
    let draft = flow.from.map(|at| state.drafts[at].clone()).ok_or_else(refuse)?;
    let channels = draft.shape[0];
    let kind = match draft.kind {
        LayerKind::Linear { features, bias: false } => LayerKind::Linear { features, bias: true },
        LayerKind::Conv(mut conv) if !conv.bias => {
            conv.bias = true;
            LayerKind::Conv(conv)
        }
        _ => return Err(refuse()),
    };
    // One value per channel, as broadcasting from the last extent sees it.
    let behind = flow.dims.len() - 2;
    let mut dims = bias.dims();
    let ones = dims.iter().rev().take_while(|&&dim| dim == 1).count();
    let in_place = ones == behind || channels == 1;
    dims.retain(|&dim| dim != 1);
    if !in_place || !(dims == [channels] || (dims.is_empty() && channels == 1)) {
        let dims = bias.dims();
        return Err(format!("adds {dims:?}: one value per channel of {channels} is taken only"));
    }
    let mut bias = bias.clone();
    bias.tensor.dims = vec![channels];
    let mut weights = draft.weights;
    weights.push(("bias", Weight::Held(bias)));
    // A layer anew: the one without a bias is left out where nobody else reads it.
    let input = Flow { from: draft.inputs[0], dims: flow.dims.clone() };
    state.layer(kind, &[&input], weights)
}

/// torch's, and ONNX's, where nothing is said.
pub const MOMENTUM: f32 = 0.1;

/// In inference and training form alike: training has batch statistics here anyway.
pub(super) fn batch_norm<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    let flow = state.plain_flow(node, 0)?;
    let mut weights = Vec::new();
    for (at, name) in (1..).zip(["weight", "bias", "running_mean", "running_var"]) {
        weights.push((name, state.weight(node, at)?));
    }
    // ONNX says what stays of the old statistics, torch what comes of the new.
    const DIGITS: f64 = 1e6;
    let kept = f64::from(float(node, "momentum", 0.9)?);
    let said = (((1.0 - kept) * DIGITS).round() / DIGITS) as f32;
    // What exporters write of norms that average all batches, such as torch's `momentum=None`.
    let tells_none = said == 0.0 || said == 1.0;
    state.without_momentum += usize::from(tells_none);
    let momentum = if tells_none { MOMENTUM } else { said };
    let epsilon = float(node, "epsilon", 1e-5)?;
    state.layer(LayerKind::BatchNorm { epsilon, momentum }, &[&flow], weights)
}

pub(super) fn dropout<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    let flow = state.plain_flow(node, 0)?;
    let rate = match state.scalar(node, 1)? {
        Some(rate) => rate,
        None => float(node, "ratio", 0.5)?,
    };
    if rate == 0.0 {
        return Ok(Value::Flow(flow));
    }
    state.layer(LayerKind::Dropout { rate }, &[&flow], Vec::new())
}

/// ONNX divides alpha by the size, as torch does; the layer here does not.
pub(super) fn lrn<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    let flow = state.plain_flow(node, 0)?;
    let size = super::state::size(integer(node, "size", 0)?)?;
    if size % 2 == 0 {
        return Err(format!("size = {size}: only odd ones are taken"));
    }
    let alpha = float(node, "alpha", 1e-4)? / size as f32;
    let (beta, k) = (float(node, "beta", 0.75)?, float(node, "bias", 1.0)?);
    state.layer(LayerKind::Lrn { size, alpha, beta, k }, &[&flow], Vec::new())
}
