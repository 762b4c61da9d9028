//! Lays the tensors of a graph out in flat vectors.

use super::{Graph, LayerKind, Layout, TensorKind, TensorSpec};

/// What every weight is smaller than. With larger ones a few layers come to infinity, and the
/// processors' kernels of ReLU and max pool take what is no number for 0: such a network would be
/// trained, and tell a loss, as if it computed.
pub const LARGEST_WEIGHT: f32 = (1u64 << 40) as f32;

/// Whether all are numbers whose absolute values are less than a limit. In whole blocks: processors
/// look at many values at a time.
pub fn are_below(values: &[f32], limit: f32) -> bool {
    const BLOCK: usize = 4096;
    let below = |all, value: &f32| all & (value.abs() < limit);
    values.chunks(BLOCK).all(|block| block.iter().fold(true, below))
}

/// Every tensor of `graph` in node order: weight, bias, then running mean and variance.
pub fn of(graph: &Graph) -> Layout {
    let mut layout = Layout { tensors: Vec::new(), parameters: 0, statistics: 0 };
    for (index, node) in graph.nodes.iter().enumerate() {
        let inputs = node.inputs.first().map_or(graph.input, |&input| graph.shape_of(input));
        let mut add = |suffix: &str, kind, shape: &[usize]| {
            let end = match kind {
                TensorKind::Weight | TensorKind::Bias => &mut layout.parameters,
                TensorKind::Statistic => &mut layout.statistics,
            };
            let offset = *end;
            *end += shape.iter().product::<usize>();
            let name = format!("{}.{suffix}", node.name);
            let shape = shape.to_vec();
            layout.tensors.push(TensorSpec { name, shape, offset, kind, node: index });
        };
        match node.kind {
            LayerKind::Conv(conv) => {
                add("weight", TensorKind::Weight, &conv.weight_shape(inputs[0]));
                if conv.bias {
                    add("bias", TensorKind::Bias, &[conv.channels]);
                }
            }
            LayerKind::Linear { features, bias } => {
                add("weight", TensorKind::Weight, &[features, inputs[0]]);
                if bias {
                    add("bias", TensorKind::Bias, &[features]);
                }
            }
            LayerKind::BatchNorm { .. } => {
                add("weight", TensorKind::Bias, &[inputs[0]]);
                add("bias", TensorKind::Bias, &[inputs[0]]);
                add("running_mean", TensorKind::Statistic, &[inputs[0]]);
                add("running_var", TensorKind::Statistic, &[inputs[0]]);
            }
            _ => {}
        }
    }
    layout
}

impl TensorSpec {
    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Where it lies in its flat vector.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.offset..self.offset + self.elements()
    }

    /// Whether it holds variances: none is below 0.
    pub fn is_variance(&self) -> bool {
        self.kind == TensorKind::Statistic && self.name.ends_with("running_var")
    }

    /// What of these values no weights have, in words; `None`: they are sound.
    pub fn unsound(&self, values: &[f32]) -> Option<&'static str> {
        let is_weight = self.kind != TensorKind::Statistic;
        if !are_below(values, f32::INFINITY) {
            Some("a value that is no finite number")
        } else if is_weight && !are_below(values, LARGEST_WEIGHT) {
            Some("a weight beyond 2^40")
        } else if self.is_variance() && values.iter().any(|value| *value < 0.0) {
            Some("a variance below 0")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::catalogue;

    #[test]
    fn tensors_tile_both_vectors() {
        for name in ["mlp", "cnn11", "resnet18", "resnet20"] {
            let graph = catalogue::build(name, [3, 32, 32], 10, 1.0).expect("in the catalogue");
            let layout = of(&graph);
            let (mut parameters, mut statistics) = (0, 0);
            for tensor in &layout.tensors {
                let end = match tensor.kind {
                    TensorKind::Statistic => &mut statistics,
                    _ => &mut parameters,
                };
                assert_eq!(tensor.offset, *end, "{}", tensor.name);
                *end = tensor.range().end;
            }
            assert_eq!((parameters, statistics), (layout.parameters, layout.statistics));
        }
    }
}
