//! From a graph to a program: which ReLUs are computed within other layers, which gradients are
//! needed, in which order they flow.

use kintsugi_ffi::dnnl::{Activation, Context, Direction};

use super::error::EngineError;
use super::layer::{self, Layer, loss::Loss};
use super::program::{Builder, Place, Program, Tensor};
use crate::model::{Graph, LayerKind, Layout, TensorKind};

/// Compiles for micro-batches of `batch` samples (at least one).
pub fn compile(
    context: &Context,
    graph: &Graph,
    layout: &Layout,
    batch: usize,
    direction: Direction,
) -> Result<Program, EngineError> {
    let mut builder = Builder::new(context, graph, layout, batch, direction);
    let absorbed = absorbed_relus(graph);
    let mut layers: Vec<Option<Box<dyn Layer>>> = Vec::with_capacity(graph.nodes.len());
    let mut results: Vec<Tensor> = Vec::with_capacity(graph.nodes.len());
    for (index, node) in graph.nodes.iter().enumerate() {
        builder.node = index;
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for &input in &node.inputs {
            inputs.push(match input {
                Some(at) => results[at].clone(),
                None => builder.image()?,
            });
        }
        if absorbed[index] {
            results.push(inputs.remove(0));
            layers.push(None);
            continue;
        }
        let within = graph.consumers(index).iter().any(|&to| absorbed[to]);
        let activation = if within { Activation::Relu } else { Activation::None };
        let mut layer = layer::of(&node.kind, activation);
        results.push(layer.forward(&mut builder, &inputs)?);
        layers.push(Some(layer));
    }
    builder.node = graph.nodes.len();
    let logits = results.last().ok_or_else(|| EngineError::Layout("no layers".into()))?.clone();
    let loss = Loss::forward(&mut builder, &logits)?;
    let mut declared: Vec<Tensor> = loss.saved();
    declared.extend(layers.iter().flatten().flat_map(|layer| layer.saved()));
    if direction == Direction::Training {
        builder.begin_backward();
        backward(&mut builder, &mut layers, &loss)?;
    }
    let program = builder.finish(loss.value());
    let is_declared = |value: usize| declared.iter().any(|t| t.place == Place::Value(value));
    assert!(
        program.saved.iter().all(|&(value, _)| is_declared(value)),
        "a layer's backward pass reads something that it did not declare as saved"
    );
    Ok(program)
}

/// ReLUs that are the only reader of a layer that can compute them itself.
fn absorbed_relus(graph: &Graph) -> Vec<bool> {
    let alone = |input: usize| {
        layer::can_fuse_relu(&graph.nodes[input].kind) && graph.consumers(input).len() == 1
    };
    let absorbed = |node: &crate::model::Node| {
        node.kind == LayerKind::Relu && node.inputs[0].is_some_and(alone)
    };
    graph.nodes.iter().map(absorbed).collect()
}

/// Nodes whose result depends on a trained parameter: only they need a gradient.
fn trained(graph: &Graph, layout: &Layout) -> Vec<bool> {
    let mut trained = vec![false; graph.nodes.len()];
    for tensor in layout.tensors.iter().filter(|tensor| tensor.kind != TensorKind::Statistic) {
        trained[tensor.node] = true;
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        trained[index] |= node.inputs.iter().flatten().any(|&at| trained[at]);
    }
    trained
}

fn backward(
    builder: &mut Builder<'_>,
    layers: &mut [Option<Box<dyn Layer>>],
    loss: &Loss,
) -> Result<(), EngineError> {
    let graph = builder.graph;
    let trained = trained(graph, builder.layout);
    let mut gradients: Vec<Option<Tensor>> = vec![None; graph.nodes.len()];
    if let Some(last) = gradients.last_mut() {
        *last = Some(loss.backward(builder)?);
    }
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        builder.node = index;
        let Some(gradient) = gradients[index].take().filter(|_| trained[index]) else { continue };
        let wanted: Vec<bool> =
            node.inputs.iter().map(|input| input.is_some_and(|at| trained[at])).collect();
        let parts = match &mut layers[index] {
            Some(layer) => layer.backward(builder, &gradient, &wanted)?,
            None => vec![Some(gradient)],
        };
        for ((input, part), wanted) in node.inputs.iter().zip(parts).zip(wanted) {
            let (Some(at), Some(part), true) = (*input, part, wanted) else { continue };
            gradients[at] = Some(match gradients[at].take() {
                None => part,
                Some(sum) => builder.add(&sum, &part)?,
            });
        }
    }
    Ok(())
}
