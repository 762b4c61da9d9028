//! Operators that work on each value by itself, or join several results.

use crate::model::LayerKind;

use super::dense::add_bias;
use super::proto::Node;
use super::state::{Found, State, float, integer};
use super::value::{Dim, Flow, Value};

/// An activation without settings.
pub(super) fn activation<'a>(state: &mut State<'a>, node: &Node<'a>, kind: LayerKind) -> Found<'a> {
    let flow = state.plain_flow(node, 0)?;
    state.layer(kind, &[&flow], Vec::new())
}

/// torch's slope is a sixth; ONNX has a fifth where none is given.
pub(super) fn hard_sigmoid<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    const NEAR: f32 = 1e-6;
    let (alpha, beta) = (float(node, "alpha", 0.2)?, float(node, "beta", 0.5)?);
    if (alpha - 1.0 / 6.0).abs() > NEAR || (beta - 0.5).abs() > NEAR {
        return Err(format!("alpha = {alpha}, beta = {beta}: only 1/6 and 1/2 are taken"));
    }
    activation(state, node, LayerKind::HardSigmoid)
}

/// `x sigmoid(alpha x)`.
pub(super) fn swish<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    match float(node, "alpha", 1.0)? {
        1.0 => activation(state, node, LayerKind::Silu),
        alpha => Err(format!("alpha = {alpha}: only 1 is taken")),
    }
}

/// Between 0 and 6, or from 0 on.
pub(super) fn clip<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    let least = match state.scalar(node, 1)? {
        Some(least) => least,
        None => float(node, "min", f32::MIN)?,
    };
    let most = match state.scalar(node, 2)? {
        Some(most) => most,
        None => float(node, "max", f32::MAX)?,
    };
    match (least, most) {
        (0.0, 6.0) => activation(state, node, LayerKind::Relu6),
        (0.0, f32::MAX) => activation(state, node, LayerKind::Relu),
        _ => Err(format!("from {least} to {most}: only 0 to 6 (ReLU6) and from 0 on are taken")),
    }
}

/// A sum of results, or a bias.
pub(super) fn add<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    if node.inputs.len() == 2 {
        for (flow, other) in [(0, 1), (1, 0)] {
            if let Value::Held(bias) = state.value(node, other)? {
                let bias = bias.clone();
                let flow = state.plain_flow(node, flow)?;
                return add_bias(state, &flow, &bias);
            }
        }
    }
    let flows = (0..node.inputs.len()).map(|at| state.plain_flow(node, at));
    let flows = flows.collect::<Result<Vec<Flow>, _>>()?;
    if let [only] = &flows[..] {
        return Ok(Value::Flow(only.clone()));
    }
    same_rank(&flows)?;
    state.layer(LayerKind::Add, &flows.iter().collect::<Vec<_>>(), Vec::new())
}

fn same_rank(flows: &[Flow]) -> Result<(), String> {
    match flows.iter().all(|flow| flow.dims.len() == flows[0].dims.len()) {
        true => Ok(()),
        false => Err("its inputs have different numbers of extents".into()),
    }
}

/// A product of results: a gate, or SiLU and hard-swish, whose parts it is made of.
pub(super) fn multiply<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    let (mut first, mut second) = (state.flow(node, 0)?, state.flow(node, 1)?);
    if state.shape(&first)[1..] == [1, 1] && state.shape(&second)[1..] != [1, 1] {
        std::mem::swap(&mut first, &mut second);
    }
    for (own, gate) in [(&first, &second), (&second, &first)] {
        let gated = gate.from.map(|at| &state.drafts[at]).filter(|gate| gate.inputs == [own.from]);
        let kind = match gated.map(|gate| &gate.kind) {
            Some(LayerKind::Sigmoid) => LayerKind::Silu,
            Some(LayerKind::HardSigmoid) => LayerKind::HardSwish,
            _ => continue,
        };
        if own.dims == gate.dims && state.is_plain(own) {
            let own = own.clone();
            return state.layer(kind, &[&own], Vec::new());
        }
    }
    if !state.is_plain(&first) || !state.is_factor(&second, &first) {
        let (a, b) = (super::value::shown(&first.dims), super::value::shown(&second.dims));
        return Err(format!("a product of {a} and {b}: equal shapes or [N, C, 1, 1] are taken"));
    }
    state.layer(LayerKind::Multiply, &[&first, &second], Vec::new())
}

impl State<'_> {
    /// Whether a factor has the shape of `whole`, or one value per channel of it, expanded or not.
    fn is_factor(&self, factor: &Flow, whole: &Flow) -> bool {
        let (one, channels) = (Dim::Known(1), whole.dims.get(1).copied());
        let own = self.shape(factor);
        let per_channel = own[1..] == [1, 1] && channels == Some(Dim::Known(own[0] as i64));
        let natural = factor.dims.len() == whole.dims.len()
            && factor.dims.iter().skip(2).all(|&extent| extent == one);
        factor.dims == whole.dims || (per_channel && natural)
    }
}

pub(super) fn concat<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    let flows = (0..node.inputs.len()).map(|at| state.plain_flow(node, at));
    let flows = flows.collect::<Result<Vec<Flow>, _>>()?;
    same_rank(&flows)?;
    let rank = flows[0].dims.len() as i64;
    let axis = integer(node, "axis", 1)?;
    if axis != 1 && axis != 1 - rank {
        return Err(format!("axis = {axis}: along channels (1) it is taken only"));
    }
    if let [only] = &flows[..] {
        return Ok(Value::Flow(only.clone()));
    }
    state.layer(LayerKind::Concat, &flows.iter().collect::<Vec<_>>(), Vec::new())
}

/// Over channels, at each place. At the end, over the classes, it is left out: the loss has it in
/// it, and it moves no class before another.
pub(super) fn softmax<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    let flow = state.plain_flow(node, 0)?;
    let is_end = |output: &&str| state.model.outputs.iter().any(|end| end.name == *output);
    // Before the 13th operator set it was over all values from an axis on, the first without one.
    let is_old = state.model.opset.is_some_and(|version| version < 13);
    let rank = flow.dims.len() as i64;
    let axis = integer(node, "axis", if is_old { 1 } else { -1 })?;
    let means_channels = axis == 1 || axis == 1 - rank;
    if !means_channels || (is_old && state.shape(&flow)[1..] != [1, 1]) {
        let shape = super::value::shown(&flow.dims);
        return Err(format!("axis = {axis} of {shape}: over channels (1) it is taken only"));
    }
    match (rank, node.op) {
        (2, _) if node.outputs.first().is_some_and(is_end) => Ok(Value::Flow(flow)),
        (_, "Softmax") => state.layer(LayerKind::Softmax, &[&flow], Vec::new()),
        _ => Err("it is taken over the classes only, as the last node".into()),
    }
}
