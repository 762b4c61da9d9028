//! What a graph costs per sample: arithmetic, parameters, and bytes kept for backward.

use serde::Serialize;

use super::saved::{Activation, Saved};
use super::spec::elements;
use super::window::{AvgPool, MaxPool};
use super::{Graph, LayerKind, Node, TensorKind, layout};

/// Cost of one node, for one sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Cost {
    /// Trained parameters (not per sample).
    pub parameters: u64,
    /// Floating-point operations of the forward pass; a multiply-add counts as two.
    pub forward_flops: u64,
    /// The same for backward.
    pub backward_flops: u64,
    /// Bytes of this node's result.
    pub output_bytes: u64,
    /// Bytes that live from this node's forward pass until some backward pass has read them:
    /// its result if anyone needs it, and what the node keeps besides.
    pub saved_bytes: u64,
}

impl std::ops::Add for Cost {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            parameters: self.parameters + other.parameters,
            forward_flops: self.forward_flops + other.forward_flops,
            backward_flops: self.backward_flops + other.backward_flops,
            output_bytes: self.output_bytes + other.output_bytes,
            saved_bytes: self.saved_bytes + other.saved_bytes,
        }
    }
}

/// The cost of every node, where a value between layers takes `value_bytes`. The image's own bytes
/// belong to the caller and are not counted.
pub fn of(graph: &Graph, value_bytes: u64) -> Vec<Cost> {
    let mut costs = vec![Cost::default(); graph.nodes.len()];
    for tensor in layout::of(graph).tensors.iter().filter(|t| t.kind != TensorKind::Statistic) {
        costs[tensor.node].parameters += tensor.elements() as u64;
    }
    // Nodes whose result no parameter decides have no gradient, and none is made for them.
    let mut trained = vec![false; graph.nodes.len()];
    for (at, node) in graph.nodes.iter().enumerate() {
        let behind = wants_gradient(node, &trained);
        trained[at] = behind || costs[at].parameters > 0;
        costs[at] = costs[at] + arithmetic(graph, at, &trained);
        if !trained[at] {
            costs[at].backward_flops = 0;
        }
    }
    for (at, node) in graph.nodes.iter().enumerate() {
        // Computed within another layer, a ReLU has the same result to save.
        let saved = |at: usize| graph.nodes[at].kind.saved_for_backward(Activation::None);
        let Saved { output, auxiliary, .. } = saved(at);
        let reads = |to: usize| {
            let wanted = [saved(to).input, saved(to).factor];
            let inputs = graph.nodes[to].inputs.iter().zip(wanted);
            inputs.into_iter().any(|(&input, wanted)| wanted && input == Some(at))
        };
        let kept = output || graph.consumers(at).into_iter().any(reads);
        let result = elements(node.shape) as u64;
        let per_element: u64 = auxiliary.iter().map(|own| own.bytes_per_element(value_bytes)).sum();
        costs[at].output_bytes = value_bytes * result;
        costs[at].saved_bytes = per_element * result + if kept { value_bytes * result } else { 0 };
    }
    costs
}

/// Whether what comes into it depends on a trained node.
fn wants_gradient(node: &Node, trained: &[bool]) -> bool {
    node.inputs.iter().flatten().any(|&input| trained[input])
}

fn arithmetic(graph: &Graph, at: usize, trained: &[bool]) -> Cost {
    let node = &graph.nodes[at];
    let input = node.inputs.first().map_or(graph.input, |&input| graph.shape_of(input));
    let (from, to) = (elements(input) as u64, elements(node.shape) as u64);
    let behind = wants_gradient(node, trained);
    let (forward_flops, backward_flops) = match node.kind {
        LayerKind::Conv(conv) => {
            let [_, of_a_group, height, width] = conv.weight_shape(input[0]);
            let flops = 2 * to * (of_a_group * height * width) as u64;
            // Weights always, data unless it is the image.
            (flops, if behind { 2 * flops } else { flops })
        }
        LayerKind::Linear { .. } => {
            let flops = 2 * to * from;
            (flops, if behind { 2 * flops } else { flops })
        }
        LayerKind::BatchNorm { .. } => (5 * to, 10 * to),
        LayerKind::MaxPool(MaxPool { kernel, .. }) | LayerKind::AvgPool(AvgPool { kernel, .. }) => {
            (to * kernel.area() as u64, to * kernel.area() as u64)
        }
        LayerKind::GlobalAvgPool => (from, from),
        LayerKind::AdaptiveAvgPool { .. } => (from.max(to), from.max(to)),
        LayerKind::Lrn { size, .. } => (to * (2 * size as u64 + 3), to * (4 * size as u64 + 6)),
        LayerKind::Add => (to * (node.inputs.len() as u64 - 1), 0),
        // Of the two gradients, that of a factor per channel is a sum besides.
        LayerKind::Multiply => (to, 3 * to),
        LayerKind::Relu | LayerKind::Relu6 | LayerKind::Dropout { .. } => (to, to),
        LayerKind::HardSigmoid => (4 * to, 2 * to),
        LayerKind::HardSwish => (5 * to, 5 * to),
        // An exponential counts as one.
        LayerKind::Sigmoid => (3 * to, 3 * to),
        LayerKind::Silu => (4 * to, 6 * to),
        // Largest, difference, exponential, sum, quotient; product, sum, difference, product.
        LayerKind::Softmax => (5 * to, 4 * to),
        LayerKind::Concat | LayerKind::ChannelShuffle { .. } | LayerKind::Flatten => (0, 0),
    };
    Cost { forward_flops, backward_flops, ..Cost::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::catalogue;

    #[test]
    fn resnet18_costs_what_its_paper_says() {
        let graph = catalogue::build("resnet18", [3, 224, 224], 1000, 1.0).expect("known");
        let costs = of(&graph, 4);
        let parameters: u64 = costs.iter().map(|cost| cost.parameters).sum();
        assert_eq!(parameters, 11_689_512, "torchvision's count");
        let flops: u64 = costs.iter().map(|cost| cost.forward_flops).sum();
        assert!((3.5e9..3.8e9).contains(&(flops as f64)), "1.8 G multiply-adds: {flops}");
    }

    #[test]
    fn no_gradient_of_the_image_is_counted_however_it_is_shaped() {
        let graph = catalogue::build("mlp", [3, 16, 16], 3, 0.1).expect("known");
        let costs = of(&graph, 4);
        let first = graph.nodes.iter().position(|node| node.name == "fc1").expect("a layer");
        assert!(first > 0, "the image is flattened before it");
        assert_eq!(costs[first].backward_flops, costs[first].forward_flops);
        assert_eq!(costs[..first].iter().map(|cost| cost.backward_flops).sum::<u64>(), 0);
    }
}
