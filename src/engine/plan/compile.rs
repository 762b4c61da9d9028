//! From a graph to a plan: which ReLUs are computed within other layers, which gradients are
//! needed, in which order they flow.

use super::builder::{Builder, Request};
use super::layer::{Kept, Layer};
use super::layers::{self, loss::Loss};
use super::operation::{Backend, Direction};
use super::steps::{Classifier, Draft};
use super::tensor::Tensor;
use crate::engine::error::EngineError;
use crate::model::saved::Activation;
use crate::model::{Graph, LayerKind};

/// A node after its forward pass. A ReLU within another layer has nothing of its own.
struct Done {
    layer: Box<dyn Layer>,
    kept: Kept,
}

/// Plans a micro-batch with the kernels of `backend`.
pub fn compile(request: Request<'_>, backend: &mut dyn Backend) -> Result<Draft, EngineError> {
    compile_and_declare(request, backend).map(|(draft, _)| draft)
}

/// The draft, and the values that layers may read in their backward pass.
fn compile_and_declare(
    request: Request<'_>,
    backend: &mut dyn Backend,
) -> Result<(Draft, Vec<usize>), EngineError> {
    let mut builder = Builder::new(request, backend);
    let needed = needed(&request);
    let (mut nodes, results) = forward(&mut builder, &needed)?;
    builder.node = request.graph.nodes.len();
    let mut losses = Vec::new();
    for (node, of) in classifiers(request.graph).filter(|&(node, _)| needed[node]) {
        losses.push((node, Loss::forward(&mut builder, &results[node], of)?));
    }
    if request.direction == Direction::Training {
        builder.begin_backward();
        backward(&mut builder, &mut nodes, &losses)?;
    }
    let kept = nodes.iter().flatten().flat_map(|done| done.kept.tensors());
    let kept = kept.chain(losses.iter().flat_map(|(_, loss)| loss.saved()));
    let mut declared: Vec<usize> = kept.filter_map(|tensor| tensor.place.value()).collect();
    declared.sort_unstable();
    declared.dedup();
    let draft = builder.finish();
    assert!(
        draft.saved().iter().all(|value| declared.contains(value)),
        "a layer's backward pass reads something that is not declared as saved"
    );
    Ok((draft, declared))
}

/// The last node, then those within the model.
fn classifiers(graph: &Graph) -> impl Iterator<Item = (usize, Classifier)> {
    let last = graph.nodes.len().checked_sub(1).map(|last| (last, Classifier::Last));
    let heads = graph.heads.iter().map(|head| (head.node, Classifier::Auxiliary(head.weight)));
    last.into_iter().chain(heads)
}

/// Nodes that are computed: where nothing follows, only what the last one depends on.
fn needed(request: &Request<'_>) -> Vec<bool> {
    let graph = request.graph;
    let mut needed = vec![request.direction == Direction::Training; graph.nodes.len()];
    if let Some(last) = needed.last_mut() {
        *last = true;
    }
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        if needed[index] {
            node.inputs.iter().flatten().for_each(|&at| needed[at] = true);
        }
    }
    needed
}

/// Nodes and their results.
type Forwarded = (Vec<Option<Done>>, Vec<Tensor>);

/// Steps of the forward pass. What is not needed has nothing, and nobody asks for its result.
fn forward(builder: &mut Builder<'_>, needed: &[bool]) -> Result<Forwarded, EngineError> {
    let graph = builder.request.graph;
    let absorbed = absorbed_relus(graph);
    let mut nodes: Vec<Option<Done>> = Vec::with_capacity(graph.nodes.len());
    let mut results: Vec<Tensor> = Vec::with_capacity(graph.nodes.len());
    for (index, node) in graph.nodes.iter().enumerate() {
        builder.node = index;
        if !needed[index] {
            results.push(builder.image());
            nodes.push(None);
            continue;
        }
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for input in &node.inputs {
            inputs.push(match *input {
                Some(at) => results[at].clone(),
                None => image(builder, &node.kind)?,
            });
        }
        if absorbed[index] {
            results.push(inputs.remove(0));
            nodes.push(None);
            continue;
        }
        let within = graph.consumers(index).iter().any(|&to| absorbed[to]);
        let activation = if within { Activation::Relu } else { Activation::None };
        let mut layer = layers::of(&node.kind, activation);
        let forward = layer.forward(builder, &inputs)?;
        results.push(forward.output.clone());
        let kept = forward.keep(node.kind.saved_for_backward(activation));
        nodes.push(Some(Done { layer, kept }));
    }
    Ok((nodes, results))
}

/// The images as a layer takes them. A convolution changes order and element type in one go.
fn image(builder: &mut Builder<'_>, kind: &LayerKind) -> Result<Tensor, EngineError> {
    let image = builder.image();
    match kind {
        LayerKind::Conv(_) => Ok(image),
        _ => builder.plain(&image),
    }
}

/// ReLUs that are the only reader of a layer that can compute them itself.
fn absorbed_relus(graph: &Graph) -> Vec<bool> {
    let alone =
        |input: usize| graph.nodes[input].kind.can_fuse_relu() && graph.consumers(input).len() == 1;
    let absorbed = |node: &crate::model::Node| {
        node.kind == LayerKind::Relu && node.inputs[0].is_some_and(alone)
    };
    graph.nodes.iter().map(absorbed).collect()
}

/// Nodes whose result depends on a trained parameter: only they need a gradient.
fn trained(request: &Request<'_>) -> Vec<bool> {
    let Request { graph, layout, .. } = request;
    let mut trained = vec![false; graph.nodes.len()];
    for (index, tensor) in layout.tensors.iter().enumerate() {
        trained[tensor.node] |= request.is_trained(index);
    }
    for (index, node) in graph.nodes.iter().enumerate() {
        trained[index] |= node.inputs.iter().flatten().any(|&at| trained[at]);
    }
    trained
}

fn backward(
    builder: &mut Builder<'_>,
    nodes: &mut [Option<Done>],
    losses: &[(usize, Loss)],
) -> Result<(), EngineError> {
    let graph = builder.request.graph;
    let trained = trained(&builder.request);
    let mut gradients: Vec<Option<Tensor>> = vec![None; graph.nodes.len()];
    for (node, loss) in losses.iter().filter(|(node, _)| trained[*node]) {
        gradients[*node] = Some(loss.backward(builder)?);
    }
    for (index, node) in graph.nodes.iter().enumerate().rev() {
        builder.node = index;
        let Some(gradient) = gradients[index].take().filter(|_| trained[index]) else { continue };
        let wanted: Vec<bool> =
            node.inputs.iter().map(|input| input.is_some_and(|at| trained[at])).collect();
        let parts = match &mut nodes[index] {
            Some(Done { layer, kept }) => layer.backward(builder, kept, &gradient, &wanted)?,
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

#[cfg(test)]
mod tests {
    use super::super::paper::Paper;
    use super::super::steps::{Action, Step};
    use super::super::tensor::ElementType;
    use super::*;
    use crate::model::spec::GraphBuilder;
    use crate::model::window::{Conv, MaxPool, Padding, Pair};
    use crate::model::{TensorKind, catalogue, cost, layout};

    const BATCH: usize = 4;

    fn plan(graph: &Graph, direction: Direction, element: ElementType) -> (Draft, Vec<usize>) {
        plan_frozen(graph, direction, element, &[])
    }

    fn plan_frozen(
        graph: &Graph,
        direction: Direction,
        element: ElementType,
        frozen: &[bool],
    ) -> (Draft, Vec<usize>) {
        let layout = &layout::of(graph);
        let request = Request { graph, layout, batch: BATCH, direction, element, frozen };
        compile_and_declare(request, &mut Paper::default()).expect("paper refuses nothing")
    }

    fn models() -> impl Iterator<Item = Graph> {
        ["mlp", "cnn11", "resnet20", "resnet18", "mobilenet_v2", "googlenet"]
            .into_iter()
            .map(|name| catalogue::build(name, [3, 32, 32], 10, 1.0).expect("in the catalogue"))
    }

    #[test]
    fn backward_reads_what_is_declared_and_all_of_it() {
        for graph in models() {
            let (plan, declared) = plan(&graph, Direction::Training, ElementType::F32);
            assert_eq!(plan.saved(), declared, "{}", graph.name);
        }
    }

    #[test]
    fn evaluation_computes_no_classifier_within() {
        let graph = catalogue::build("googlenet", [3, 32, 32], 10, 1.0).expect("in the catalogue");
        let losses = |direction| {
            let (plan, _) = plan(&graph, direction, ElementType::F32);
            let is_loss = |step: &&Step| matches!(step.action, Action::Loss { .. });
            let named = |step: &Step| graph.nodes.get(step.node).map(|node| node.name.as_str());
            let within = plan.steps.iter().filter_map(named).any(|name| name.starts_with("aux"));
            (plan.steps.iter().filter(is_loss).count(), within)
        };
        assert_eq!(losses(Direction::Training), (3, true));
        assert_eq!(losses(Direction::Inference), (1, false));
    }

    /// Steps of the backward pass that run a kernel, and those that hand a gradient out.
    fn backward_steps(graph: &Graph, frozen: &[bool]) -> (usize, usize) {
        let (plan, _) = plan_frozen(graph, Direction::Training, ElementType::F32, frozen);
        let steps = &plan.steps[plan.forward_steps()..];
        let count = |of: fn(&Action) -> bool| steps.iter().filter(|step| of(&step.action)).count();
        let runs = count(|action| matches!(action, Action::Run { .. }));
        (runs, count(|action| matches!(action, Action::Emit { .. })))
    }

    #[test]
    fn what_is_frozen_is_not_computed_and_nothing_below_the_lowest_trained_layer() {
        let graph = catalogue::build("resnet18", [3, 32, 32], 10, 1.0).expect("in the catalogue");
        let layout = layout::of(&graph);
        let frozen = |trained: &[&str]| -> Vec<bool> {
            let is_trained = |name: &str| trained.iter().any(|prefix| name.starts_with(prefix));
            layout.tensors.iter().map(|tensor| !is_trained(&tensor.name)).collect()
        };
        let tensors = layout.tensors.iter().filter(|t| t.kind != TensorKind::Statistic).count();
        let (all, emitted) = backward_steps(&graph, &[]);
        assert_eq!(emitted, tensors);
        // Of the loss, of the weights.
        assert_eq!(backward_steps(&graph, &frozen(&["fc."])), (2, 2));
        assert_eq!(backward_steps(&graph, &frozen(&[])), (0, 0));
        // Every gradient on the way down, but of the twenty convolutions' and the last layer's
        // weights only the first one's.
        let lowest = backward_steps(&graph, &frozen(&["conv1."]));
        assert_eq!(lowest, (all - 20, 1));
    }

    #[test]
    fn nothing_is_saved_where_no_backward_pass_follows() {
        for graph in models() {
            let (plan, _) = plan(&graph, Direction::Inference, ElementType::F32);
            assert!(plan.saved().is_empty());
        }
    }

    /// Squeeze-and-excitation: its product keeps both inputs, which others may keep too.
    fn gated(builder: &mut GraphBuilder) {
        let trunk = builder.last();
        builder.then("squeeze", LayerKind::GlobalAvgPool);
        builder.then("excite", LayerKind::Conv(Conv::new(8, 1)));
        let gate = builder.then("gate", LayerKind::Sigmoid);
        builder.node("gated", LayerKind::Multiply, &[trunk, Some(gate)]);
        builder.then("grouped", LayerKind::Conv(Conv { groups: 4, ..Conv::new(8, 3) }));
        builder.then("silu", LayerKind::Silu);
        builder.then("adaptive", LayerKind::AdaptiveAvgPool { size: Pair::both(5) });
    }

    #[test]
    fn a_models_cost_is_what_its_plan_saves() {
        // Without batch norm, whose ReLU leaves a mask where it is computed within.
        let mut builder = GraphBuilder::new("several", [3, 16, 16], 10);
        let conv = Conv { padding: Padding::every(1), ..Conv::new(8, 3) };
        builder.then("conv", LayerKind::Conv(conv));
        builder.then("relu1", LayerKind::Relu);
        builder.then("pool", LayerKind::MaxPool(MaxPool::new(2, 2)));
        gated(&mut builder);
        builder.then("lrn", LayerKind::Lrn { size: 5, alpha: 1e-4, beta: 0.75, k: 2.0 });
        builder.then("flatten", LayerKind::Flatten);
        builder.then("dropout", LayerKind::Dropout { rate: 0.5 });
        builder.then("fc1", LayerKind::Linear { features: 32, bias: true });
        builder.then("relu2", LayerKind::Relu);
        builder.then("fc2", LayerKind::Linear { features: 10, bias: true });
        let graph = builder.finish().expect("a valid model");
        // In bf16 a copy of the pictures is kept, which nobody else has.
        for (element, pictures) in [(ElementType::F32, 0), (ElementType::Bf16, 2 * 3 * 16 * 16)] {
            let costs = cost::of(&graph, element.bytes() as u64);
            let expected: u64 = costs.iter().map(|cost| cost.saved_bytes).sum();
            let (plan, _) = plan(&graph, Direction::Training, element);
            // Log-probabilities and the loss's gradient, which no layer owns.
            let loss = 2 * 4 * BATCH * graph.classes;
            let own = plan.saved_bytes() - loss - BATCH * pictures;
            assert_eq!(own, BATCH * expected as usize, "{element:?}");
        }
    }

    #[test]
    fn bf16_halves_what_layers_compute_and_the_loss_stays_f32() {
        let graph = catalogue::build("cnn11", [3, 32, 32], 10, 1.0).expect("in the catalogue");
        let bytes = |element| -> [usize; 2] {
            let (plan, _) = plan(&graph, Direction::Inference, element);
            let of =
                |step: &Step| -> usize { step.writes.iter().map(|&value| plan.bytes[value]).sum() };
            let (loss, layers): (Vec<&Step>, Vec<&Step>) =
                plan.steps.iter().partition(|step| step.node >= graph.nodes.len());
            [layers, loss].map(|steps| steps.into_iter().map(of).sum())
        };
        let ([layers, loss], [halved, with_logits]) =
            (bytes(ElementType::F32), bytes(ElementType::Bf16));
        // The loss takes the logits over as f32, and pictures become bf16 where they enter.
        let logits = 4 * BATCH * graph.classes;
        let pictures = 2 * BATCH * 3 * 32 * 32;
        assert_eq!(layers, 2 * (halved - pictures));
        assert_eq!(with_logits, loss + logits);
    }

    #[test]
    fn every_step_touches_what_has_a_place_then() {
        for graph in models() {
            let (draft, _) = plan(&graph, Direction::Training, ElementType::F32);
            let (bytes, plan) = (draft.bytes.clone(), draft.place());
            for (step, action) in plan.draft.steps.iter().zip(&plan.actions) {
                let Action::Run { arguments: numbers, .. } = &step.action else { continue };
                let Action::Run { arguments: places, .. } = action else { unreachable!() };
                for ((_, number), (_, place)) in numbers.iter().zip(places) {
                    let (Some(value), Some(span)) = (number.value(), place.value()) else {
                        continue;
                    };
                    assert_eq!(span.bytes, bytes[value]);
                    assert!(span.offset + span.bytes <= plan.arena_bytes);
                }
            }
        }
    }
}
