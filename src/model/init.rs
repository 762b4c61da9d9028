//! First weights, a pure function of (seed, tensor). Only `+ - * /` and square roots are used,
//! which IEEE 754 defines to the last bit, so that no C library can change a run.

use super::{Graph, LayerKind, Layout, Spread, TensorKind, TensorSpec};
use crate::config::seed::{Stream, mix64, purpose};
use crate::config::variates::normal_pair;

/// First parameters. Convolutions: normal, variance 2 / fan-out (He et al. 2015, as torchvision's
/// ResNet and VGG), or 2 / fan-in where the graph says so. Linear layers that feed a ReLU: normal,
/// variance 2 / fan-in; others: uniform within 1 / sqrt(fan-in), PyTorch's default. Biases 0,
/// batch-norm scales 1.
pub fn parameters(graph: &Graph, layout: &Layout, seed: u64) -> Vec<f32> {
    let mut parameters = vec![0.0; layout.parameters];
    for tensor in &layout.tensors {
        if tensor.kind == TensorKind::Statistic {
            continue;
        }
        let values = &mut parameters[tensor.range()];
        let mut stream = Stream::new(&[seed, purpose::WEIGHTS, name_key(&tensor.name)]);
        match (&graph.nodes[tensor.node].kind, tensor.kind) {
            (LayerKind::Conv(conv), TensorKind::Weight) => {
                let fan = match graph.spread {
                    Spread::FanOut => conv.channels * conv.kernel.area(),
                    Spread::FanIn => tensor.shape[1..].iter().product(),
                };
                normal(&mut stream, values, (2.0 / fan as f64).sqrt());
            }
            (LayerKind::Linear { .. }, TensorKind::Weight) => {
                linear(graph, tensor, &mut stream, values);
            }
            (LayerKind::BatchNorm { .. }, _) if tensor.name.ends_with(".weight") => {
                values.fill(1.0);
            }
            _ => {}
        }
    }
    parameters
}

/// Running means 0, running variances 1.
pub fn statistics(layout: &Layout) -> Vec<f32> {
    let mut statistics = vec![0.0; layout.statistics];
    for tensor in &layout.tensors {
        if tensor.kind == TensorKind::Statistic && tensor.name.ends_with(".running_var") {
            statistics[tensor.range()].fill(1.0);
        }
    }
    statistics
}

fn linear(graph: &Graph, tensor: &TensorSpec, stream: &mut Stream, values: &mut [f32]) {
    let fan_in = tensor.shape[1] as f64;
    let consumers = graph.consumers(tensor.node);
    if consumers.iter().any(|&at| graph.nodes[at].kind == LayerKind::Relu) {
        return normal(stream, values, (2.0 / fan_in).sqrt());
    }
    let bound = (1.0 / fan_in).sqrt();
    for value in values {
        *value = ((2.0 * stream.unit() - 1.0) * bound) as f32;
    }
}

/// A name as a number: eight bytes at a time, mixed.
fn name_key(name: &str) -> u64 {
    name.as_bytes().chunks(8).fold(name.len() as u64, |key, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix64(key ^ u64::from_le_bytes(word)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    })
}

fn normal(stream: &mut Stream, values: &mut [f32], deviation: f64) {
    for pair in values.chunks_mut(2) {
        let (a, b) = normal_pair(stream);
        pair[0] = (a * deviation) as f32;
        if let Some(second) = pair.get_mut(1) {
            *second = (b * deviation) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{catalogue, layout};

    #[test]
    fn weights_have_the_stated_mean_and_variance() {
        let graph = catalogue::build("resnet18", [3, 32, 32], 10, 1.0).expect("in the catalogue");
        let layout = layout::of(&graph);
        let weights = parameters(&graph, &layout, 3);
        let tensor = layout.tensors.iter().find(|t| t.name == "layer3.0.conv2.weight");
        let values = &weights[tensor.expect("torchvision's name").range()];
        let n = values.len() as f64;
        let mean = values.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
        let variance = values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n;
        let expected = 2.0 / (256.0 * 9.0);
        assert!(mean.abs() < 4.0 * (expected / n).sqrt(), "{mean}");
        assert!((variance / expected - 1.0).abs() < 0.01, "{variance} {expected}");
    }

    #[test]
    fn weights_depend_on_seed_and_name_only() {
        let small = catalogue::build("cnn11", [3, 32, 32], 10, 0.25).expect("in the catalogue");
        let other = catalogue::build("cnn11", [3, 32, 32], 7, 0.25).expect("in the catalogue");
        let (a, b) = (layout::of(&small), layout::of(&other));
        let (x, y) = (parameters(&small, &a, 1), parameters(&other, &b, 1));
        assert_eq!(x[a.tensors[0].range()], y[b.tensors[0].range()]);
        assert_ne!(x, parameters(&small, &a, 2));
        assert_eq!(x, parameters(&small, &a, 1));
    }

    #[test]
    fn the_first_weights_are_these_for_ever() {
        let graph = catalogue::build("mlp", [1, 8, 8], 10, 1.0).expect("in the catalogue");
        let layout = layout::of(&graph);
        let weights = parameters(&graph, &layout, 1);
        let sum = weights.iter().fold(0u64, |sum, w| mix64(sum ^ u64::from(w.to_bits())));
        assert_eq!(sum, GOLDEN, "a changed generator changes every run: {sum:#x}");
    }
    const GOLDEN: u64 = 0x5a71_6cff_5a04_ab64;

    #[test]
    fn statistics_start_at_zero_and_one() {
        let graph = catalogue::build("resnet20", [3, 32, 32], 10, 1.0).expect("in the catalogue");
        let layout = layout::of(&graph);
        let values = statistics(&layout);
        for tensor in layout.tensors.iter().filter(|t| t.kind == TensorKind::Statistic) {
            let expected = if tensor.name.ends_with("running_var") { 1.0 } else { 0.0 };
            assert!(values[tensor.range()].iter().all(|&x| x == expected));
        }
    }
}
