//! Goes through the nodes that the result needs, in file order, and stops at the first that cannot
//! be taken.

use std::collections::{HashMap, HashSet};

use crate::config::Shown;
use crate::model::LayerKind;

use super::error::OnnxError;
use super::proto::{Model, Node};
use super::state::{Found, State};
use super::value::Value;
use super::{chains, dense, elementwise, reshaping, windows};

/// Reads all nodes into the state.
pub(super) fn walk<'a>(state: &mut State<'a>) -> Result<(), OnnxError> {
    let model = state.model;
    let makers = makers(model, &state.values)?;
    let needed = needed(model, &makers);
    for (at, node) in model.nodes.iter().enumerate().filter(|(at, _)| needed[*at]) {
        let refuse = |reason: String| {
            let name = match node.name {
                "" => node.outputs.first().copied().unwrap_or_default(),
                name => name,
            };
            OnnxError::Node { node: name.to_owned(), op: node.op.to_owned(), reason }
        };
        state.at = at;
        for input in node.inputs.iter().filter(|input| !input.is_empty()) {
            if !state.values.contains_key(input) {
                return Err(refuse(unmade(input, makers.get(input))));
            }
        }
        let value = taken(state, node).map_err(refuse)?;
        // Further results (statistics of a norm in training form, a dropout's mask) nobody reads:
        // who did would find them unmade.
        if let Some(output) = node.outputs.first() {
            state.values.insert(output, value);
        }
    }
    Ok(())
}

fn unmade(input: &str, maker: Option<&usize>) -> String {
    let input = input.shown();
    match maker {
        Some(_) => format!("its input {input} is made by no earlier node: the graph has a loop"),
        None => format!("its input {input} is made by no node and held by no tensor"),
    }
}

/// The node that makes each value.
fn makers<'a>(
    model: &Model<'a>,
    given: &HashMap<&'a str, Value<'a>>,
) -> Result<HashMap<&'a str, usize>, OnnxError> {
    let mut makers = HashMap::new();
    for (at, node) in model.nodes.iter().enumerate() {
        for output in node.outputs.iter().filter(|output| !output.is_empty()) {
            if makers.insert(*output, at).is_some() || given.contains_key(output) {
                let reason = format!("its output {} is made twice", output.shown());
                let (node, op) = (node.name.to_owned(), node.op.to_owned());
                return Err(OnnxError::Node { node, op, reason });
            }
        }
    }
    Ok(makers)
}

/// Which nodes the outputs depend on.
fn needed(model: &Model<'_>, makers: &HashMap<&str, usize>) -> Vec<bool> {
    let mut needed = vec![false; model.nodes.len()];
    let mut open: Vec<usize> =
        model.outputs.iter().filter_map(|end| makers.get(end.name).copied()).collect();
    let mut seen: HashSet<usize> = open.iter().copied().collect();
    // Each node enters once.
    while let Some(at) = open.pop() {
        needed[at] = true;
        let inputs = model.nodes[at].inputs.iter().filter_map(|input| makers.get(input).copied());
        open.extend(inputs.filter(|&input| seen.insert(input)));
    }
    needed
}

fn taken<'a>(state: &mut State<'a>, node: &Node<'a>) -> Found<'a> {
    if !matches!(node.domain, "" | "ai.onnx") {
        return Err(format!("operators of {} are not read", node.domain.shown()));
    }
    if let Some(value) = chains::known(state, node)? {
        return Ok(value);
    }
    match node.op {
        "Conv" => windows::conv(state, node),
        "Pad" => windows::pad(state, node),
        "MaxPool" => windows::max_pool(state, node),
        "AveragePool" => windows::average_pool(state, node),
        "GlobalAveragePool" => windows::global_average_pool(state, node),
        "ReduceMean" => windows::reduce_mean(state, node),
        "Gemm" => dense::gemm(state, node),
        "MatMul" => dense::mat_mul(state, node),
        "BatchNormalization" => dense::batch_norm(state, node),
        "Dropout" => dense::dropout(state, node),
        "LRN" => dense::lrn(state, node),
        "Relu" => elementwise::activation(state, node, LayerKind::Relu),
        "Sigmoid" => elementwise::activation(state, node, LayerKind::Sigmoid),
        "HardSwish" => elementwise::activation(state, node, LayerKind::HardSwish),
        "HardSigmoid" => elementwise::hard_sigmoid(state, node),
        "Swish" => elementwise::swish(state, node),
        "Clip" => elementwise::clip(state, node),
        "Softmax" | "LogSoftmax" => elementwise::softmax(state, node),
        "Add" | "Sum" => elementwise::add(state, node),
        "Mul" => elementwise::multiply(state, node),
        "Concat" => elementwise::concat(state, node),
        "Flatten" => reshaping::flatten(state, node),
        "Reshape" => reshaping::reshape(state, node),
        "Slice" => reshaping::slice(state, node),
        "Squeeze" => reshaping::squeeze(state, node),
        "Transpose" => reshaping::transpose(state, node),
        "Unsqueeze" => reshaping::unsqueeze(state, node),
        "Expand" => reshaping::expand(state, node),
        _ => Err("this operator has no layer here".into()),
    }
}
