//! The judge of the engine: a forward pass in f64, written element by element from the formulas,
//! with no code of the engine's. Gradients are its derivatives (`tape`). In bf16 it rounds what the
//! engine rounds: pictures and weights, each layer's result, and the gradient of that.

use crate::tape::{self, Derivative, Number};
use kintsugi::config::seed::{Stream, purpose};
use kintsugi::model::window::{Conv, MaxPool};
use kintsugi::model::{Graph, LayerKind, Layout, Shape, TensorKind};

/// Which statistics batch normalisation uses, and whether dropout drops.
pub enum Mode<'a> {
    /// The batch's, but where a norm's tensors (by their number in the layout) are frozen.
    Training {
        dropout_key: [u64; 3],
        frozen: &'a [bool],
        statistics: &'a [f64],
    },
    Inference {
        statistics: &'a [f64],
    },
}

/// What weights and results between layers are made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    Exact,
    Bf16,
    /// The same on a card: a product is rounded before its bias is added, and then again.
    Bf16Twice,
}

impl Precision {
    /// What goes in.
    fn read(self, x: Number) -> Number {
        if self == Self::Exact { x } else { x.narrowed() }
    }

    /// Of a product and a bias.
    fn biased(self, product: Number, bias: Number) -> Number {
        if self == Self::Bf16Twice { product.narrowed() + bias } else { product + bias }
    }

    /// What comes out.
    fn written(self, x: Number) -> Number {
        if self == Self::Exact { x } else { x.rounded() }
    }
}

fn zeros(count: usize) -> Vec<Number> {
    vec![0.0.into(); count]
}

/// What a forward pass gives.
pub struct Forward {
    pub loss: f64,
    pub logits: Vec<f64>,
    /// Batch mean and biased variance, in layout order.
    pub statistics: Vec<f64>,
    /// Of the loss, with respect to all parameters.
    pub gradients: Vec<Derivative>,
}

fn sigmoid(x: Number) -> Number {
    let one = Number::from(1.0);
    one / (one + (Number::from(0.0) - x).exp())
}

fn hard_sigmoid(x: Number) -> Number {
    (x / 6.0.into() + 0.5.into()).clamp(0.0, 1.0)
}

/// Over channels, at each place of each sample.
fn softmax(x: &[Number], [channels, height, width]: Shape) -> Vec<Number> {
    let (plane, mut result) = (height * width, zeros(x.len()));
    for sample in (0..x.len()).step_by(channels * plane) {
        for place in sample..sample + plane {
            let at = |channel: usize| place + channel * plane;
            let sum: Number = (0..channels).map(|channel| x[at(channel)].exp()).sum();
            (0..channels).for_each(|channel| result[at(channel)] = x[at(channel)].exp() / sum);
        }
    }
    result
}

/// Channel `k` of group `g` becomes channel `k groups + g`.
fn shuffled(x: &[Number], [channels, height, width]: Shape, groups: usize) -> Vec<Number> {
    let (plane, within) = (height * width, channels / groups);
    let mut result = zeros(x.len());
    for (at, value) in x.iter().enumerate() {
        let (sample, channel, place) = (at / plane / channels, at / plane % channels, at % plane);
        let to = channel % within * groups + channel / within;
        result[(sample * channels + to) * plane + place] = *value;
    }
    result
}

struct Pass<'a> {
    graph: &'a Graph,
    layout: &'a Layout,
    parameters: &'a [Number],
    mode: &'a Mode<'a>,
    precision: Precision,
    batch: usize,
    statistics: Vec<f64>,
}

/// Probabilities that the model is to give, `[samples, classes]`: each sample's label has all.
pub fn one_hot(labels: &[u32], classes: usize) -> Vec<f64> {
    let row = |&label: &u32| (0..classes).map(move |class| f64::from(class == label as usize));
    labels.iter().flat_map(row).collect()
}

/// Summed cross-entropy of a micro-batch against `wanted` probabilities, `[samples, classes]`.
pub fn forward(
    (graph, layout): (&Graph, &Layout),
    parameters: &[f64],
    images: &[f64],
    wanted: &[f64],
    mode: &Mode<'_>,
    precision: Precision,
) -> Forward {
    tape::clear();
    let variables: Vec<Number> = parameters.iter().map(|&x| Number::variable(x)).collect();
    let images: Vec<Number> = images.iter().map(|&x| precision.read(x.into())).collect();
    let batch = wanted.len() / graph.classes;
    let statistics = vec![0.0; layout.statistics];
    let parameters = &variables;
    let mut pass = Pass { graph, layout, parameters, mode, precision, batch, statistics };
    let mut results: Vec<Vec<Number>> = Vec::new();
    for index in 0..graph.nodes.len() {
        let inputs: Vec<&[Number]> = graph.nodes[index]
            .inputs
            .iter()
            .map(|input| input.map_or(images.as_slice(), |at| results[at].as_slice()))
            .collect();
        let result = pass.node(index, &inputs);
        results.push(result.into_iter().map(|x| precision.written(x)).collect());
    }
    let mut loss = Number::from(0.0);
    if matches!(mode, Mode::Training { .. }) {
        for head in &graph.heads {
            let own = entropy(&results[head.node], wanted, graph.classes);
            loss += own * f64::from(head.weight).into();
        }
    }
    let logits = results.pop().expect("a graph has nodes");
    loss += entropy(&logits, wanted, graph.classes);
    let gradients = tape::derivatives(loss, &variables);
    let logits = logits.iter().map(|x| x.value).collect();
    Forward { loss: loss.value, logits, statistics: pass.statistics, gradients }
}

/// Summed cross-entropy of logits.
fn entropy(logits: &[Number], wanted: &[f64], classes: usize) -> Number {
    let of = |(row, wanted): (&[Number], &[f64])| {
        let peak = row.iter().fold(f64::NEG_INFINITY, |a, b| a.max(b.value));
        let sum: Number = row.iter().map(|&x| (x - peak.into()).exp()).sum();
        let whole = sum.ln() + peak.into();
        row.iter().zip(wanted).map(|(&x, &share)| (whole - x) * share.into()).sum::<Number>()
    };
    logits.chunks(classes).zip(wanted.chunks(classes)).map(of).sum()
}

/// A window that slides, along height and width.
#[derive(Clone, Copy)]
struct Window {
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
}

impl Window {
    fn of_pool(MaxPool { kernel, stride, padding, .. }: MaxPool) -> Self {
        Self { kernel: kernel.0, stride: stride.0, padding: padding.begin.0, dilation: [1; 2] }
    }
}

/// Calls `visit` with (output row, output column, kernel row and column, input row, input column)
/// of every window element that lies within the input.
fn windows(
    size: [usize; 2],
    [rows, columns]: [usize; 2],
    window: Window,
    mut visit: impl FnMut(usize, usize, usize, usize, usize, usize),
) {
    let Window { kernel, stride, padding, dilation } = window;
    let inside = |axis: usize, at: usize, tap: usize| {
        let place = (at * stride[axis] + tap * dilation[axis]).checked_sub(padding[axis])?;
        (place < size[axis]).then_some(place)
    };
    for row in 0..rows {
        for column in 0..columns {
            for i in 0..kernel[0] {
                for j in 0..kernel[1] {
                    if let (Some(y), Some(x)) = (inside(0, row, i), inside(1, column, j)) {
                        visit(row, column, i, j, y, x);
                    }
                }
            }
        }
    }
}

impl Pass<'_> {
    fn tensor(&self, index: usize, suffix: &str) -> Option<&[Number]> {
        let name = format!("{}.{suffix}", self.graph.nodes[index].name);
        let tensor = self.layout.tensors.iter().find(|tensor| tensor.name == name)?;
        Some(&self.parameters[tensor.range()])
    }

    /// A matrix or filter as kernels read it.
    fn weight(&self, index: usize) -> Vec<Number> {
        let weight = self.tensor(index, "weight").expect("this layer has weights");
        weight.iter().map(|&x| self.precision.read(x)).collect()
    }

    fn node(&mut self, index: usize, inputs: &[&[Number]]) -> Vec<Number> {
        let node = &self.graph.nodes[index];
        let from: Shape = self.graph.shape_of(node.inputs[0]);
        let x = inputs[0];
        match node.kind {
            LayerKind::Conv(conv) => self.conv(index, x, from, conv),
            LayerKind::Linear { .. } => self.linear(index, x, from[0]),
            LayerKind::BatchNorm { epsilon, .. } => self.batch_norm(index, x, f64::from(epsilon)),
            LayerKind::Relu => x.iter().map(|&v| v.clamp(0.0, f64::INFINITY)).collect(),
            LayerKind::Relu6 => x.iter().map(|&v| v.clamp(0.0, 6.0)).collect(),
            LayerKind::Sigmoid => x.iter().map(|&v| sigmoid(v)).collect(),
            LayerKind::Silu => x.iter().map(|&v| v * sigmoid(v)).collect(),
            LayerKind::HardSigmoid => x.iter().map(|&v| hard_sigmoid(v)).collect(),
            LayerKind::Softmax => softmax(x, node.shape),
            LayerKind::HardSwish => x.iter().map(|&v| v * hard_sigmoid(v)).collect(),
            LayerKind::MaxPool(pool) => {
                let window = Window::of_pool(pool);
                self.pool(index, x, from, window, f64::NEG_INFINITY, Number::max)
            }
            LayerKind::AvgPool(pool) => {
                let window = Window::of_pool(pool.window());
                let add = |a: Number, b: Number| a + b;
                let sums = self.pool(index, x, from, window, 0.0, add);
                let counted = match pool.count_include_pad && !pool.ceil_mode {
                    true => vec![(pool.kernel.area() as f64).into(); sums.len()],
                    false => self.pool(index, &vec![1.0.into(); x.len()], from, window, 0.0, add),
                };
                sums.into_iter().zip(counted).map(|(v, count)| v / count).collect()
            }
            LayerKind::AdaptiveAvgPool { .. } => self.adaptive(index, x, from),
            LayerKind::Multiply => {
                let per_value = x.len() / inputs[1].len();
                (0..x.len()).map(|at| x[at] * inputs[1][at / per_value]).collect()
            }
            LayerKind::GlobalAvgPool => {
                let area = from[1] * from[2];
                let mean =
                    |plane: &[Number]| plane.iter().copied().sum::<Number>() / (area as f64).into();
                x.chunks(area).map(mean).collect()
            }
            LayerKind::Dropout { rate } => self.dropout(index, x, f64::from(rate)),
            LayerKind::Lrn { size, alpha, beta, k } => {
                let constants = [alpha, beta, k].map(f64::from);
                self.lrn(x, from, size, constants)
            }
            LayerKind::Add => {
                (0..x.len()).map(|at| inputs.iter().map(|input| input[at]).sum()).collect()
            }
            LayerKind::Concat => {
                let mut joined = Vec::new();
                for sample in 0..self.batch {
                    for input in inputs {
                        let length = input.len() / self.batch;
                        joined.extend_from_slice(&input[sample * length..(sample + 1) * length]);
                    }
                }
                joined
            }
            LayerKind::ChannelShuffle { groups } => shuffled(x, node.shape, groups),
            LayerKind::Flatten => x.to_vec(),
        }
    }

    fn conv(
        &self,
        index: usize,
        x: &[Number],
        [channels, height, width]: Shape,
        conv: Conv,
    ) -> Vec<Number> {
        let Conv { kernel, stride, padding, dilation, groups, .. } = conv;
        let (kernel, stride, padding, dilation) = (kernel.0, stride.0, padding.begin.0, dilation.0);
        let window = Window { kernel, stride, padding, dilation };
        let in_group = channels / groups;
        let [outputs, rows, columns] = self.graph.nodes[index].shape;
        let weight = self.weight(index);
        let bias = self.tensor(index, "bias");
        let mut y = zeros(self.batch * outputs * rows * columns);
        for sample in 0..self.batch {
            for output in 0..outputs {
                let plane = (sample * outputs + output) * rows * columns;
                let group = output / (outputs / groups);
                for channel in 0..in_group {
                    let source = (sample * channels + group * in_group + channel) * height * width;
                    let taps = (output * in_group + channel) * kernel[0] * kernel[1];
                    let add =
                        |row: usize, column: usize, i: usize, j: usize, v: usize, u: usize| {
                            let sum: &mut Number = &mut y[plane + row * columns + column];
                            let weight = weight[taps + i * kernel[1] + j];
                            *sum = sum.plus_product(weight, x[source + v * width + u]);
                        };
                    windows([height, width], [rows, columns], window, add);
                }
                for sum in &mut y[plane..plane + rows * columns] {
                    *sum = bias.map_or(*sum, |bias| self.precision.biased(*sum, bias[output]));
                }
            }
        }
        y
    }

    fn linear(&self, index: usize, x: &[Number], features: usize) -> Vec<Number> {
        let outputs = self.graph.nodes[index].shape[0];
        let weight = self.weight(index);
        let bias = self.tensor(index, "bias");
        let mut y = Vec::with_capacity(self.batch * outputs);
        for row in x.chunks(features) {
            for output in 0..outputs {
                let taps = &weight[output * features..(output + 1) * features];
                let pairs = row.iter().zip(taps);
                let sum = pairs.fold(0.0.into(), |sum: Number, (&a, &b)| sum.plus_product(a, b));
                y.push(bias.map_or(sum, |bias| self.precision.biased(sum, bias[output])));
            }
        }
        y
    }

    fn pool(
        &self,
        index: usize,
        x: &[Number],
        [_, height, width]: Shape,
        window: Window,
        first: f64,
        join: impl Fn(Number, Number) -> Number,
    ) -> Vec<Number> {
        let [_, rows, columns] = self.graph.nodes[index].shape;
        let mut y = Vec::new();
        for plane in x.chunks(height * width) {
            let mut out = vec![Number::from(first); rows * columns];
            windows([height, width], [rows, columns], window, |row, column, _, _, v, u| {
                let at = row * columns + column;
                out[at] = join(out[at], plane[v * width + u]);
            });
            y.extend(out);
        }
        y
    }

    /// Every element's share of the means whose window it is in.
    fn adaptive(&self, index: usize, x: &[Number], [_, height, width]: Shape) -> Vec<Number> {
        let [_, rows, columns] = self.graph.nodes[index].shape;
        let within = |element: usize, length: usize, at: usize, windows: usize| {
            // first = floor(at * length / windows), end = ceil((at + 1) * length / windows).
            let first = (at * length) as f64 / windows as f64;
            let end = ((at + 1) * length) as f64 / windows as f64;
            element as f64 >= first.floor() && (element as f64) < end.ceil()
        };
        let mut y = Vec::new();
        for plane in x.chunks(height * width) {
            for (row, column) in (0..rows).flat_map(|row| (0..columns).map(move |c| (row, c))) {
                let own = (0..plane.len()).filter(|at| {
                    within(at / width, height, row, rows)
                        && within(at % width, width, column, columns)
                });
                let own: Vec<Number> = own.map(|at| plane[at]).collect();
                y.push(own.iter().copied().sum::<Number>() / (own.len() as f64).into());
            }
        }
        y
    }

    fn batch_norm(&mut self, index: usize, x: &[Number], epsilon: f64) -> Vec<Number> {
        let [channels, height, width] = self.graph.nodes[index].shape;
        let area = height * width;
        let scale = self.tensor(index, "weight").expect("has a scale").to_vec();
        let shift = self.tensor(index, "bias").expect("has a shift").to_vec();
        let name = self.graph.nodes[index].name.clone();
        let offset = |suffix: &str| {
            let name = format!("{name}.{suffix}");
            self.layout.tensors.iter().find(|t| t.name == name).expect("has statistics").offset
        };
        let (mean_at, variance_at) = (offset("running_mean"), offset("running_var"));
        let is_frozen = self.is_frozen(index);
        let mut y = x.to_vec();
        for channel in 0..channels {
            let kept = |statistics: &[f64]| -> (Number, Number) {
                (statistics[mean_at + channel].into(), statistics[variance_at + channel].into())
            };
            let own: Vec<usize> = (0..self.batch)
                .flat_map(|sample| {
                    let start = (sample * channels + channel) * area;
                    start..start + area
                })
                .collect();
            let (mean, variance) = match self.mode {
                Mode::Inference { statistics } => kept(statistics),
                Mode::Training { statistics, .. } if is_frozen => kept(statistics),
                Mode::Training { .. } => {
                    let count = own.len() as f64;
                    let mean = own.iter().map(|&at| x[at]).sum::<Number>() / count.into();
                    let squares: Number = own.iter().map(|&at| (x[at] - mean).powf(2.0)).sum();
                    self.statistics[mean_at + channel] = mean.value;
                    self.statistics[variance_at + channel] = squares.value / count;
                    (mean, squares / count.into())
                }
            };
            for at in own {
                let deviation = (variance + epsilon.into()).powf(0.5);
                y[at] = (x[at] - mean) / deviation * scale[channel] + shift[channel];
            }
        }
        y
    }

    /// Whether scale and shift of a norm are frozen.
    fn is_frozen(&self, index: usize) -> bool {
        let Mode::Training { frozen, .. } = *self.mode else { return false };
        let tensors = self.layout.tensors.iter().zip(frozen);
        let mut own = tensors.filter(|(t, _)| t.node == index && t.kind == TensorKind::Bias);
        !frozen.is_empty() && own.all(|(_, &frozen)| frozen)
    }

    fn dropout(&self, index: usize, x: &[Number], rate: f64) -> Vec<Number> {
        let Mode::Training { dropout_key: [a, b, c], .. } = *self.mode else { return x.to_vec() };
        let mut stream = Stream::new(&[purpose::DROPOUT, a, b, c, index as u64]);
        let mut factor = || if stream.unit() < rate { 0.0 } else { 1.0 / (1.0 - rate) };
        x.iter().map(|&v| v * factor().into()).collect()
    }

    fn lrn(
        &self,
        x: &[Number],
        [channels, height, width]: Shape,
        size: usize,
        [alpha, beta, k]: [f64; 3],
    ) -> Vec<Number> {
        let area = height * width;
        let at = |sample: usize, channel: usize, position: usize| {
            x[(sample * channels + channel) * area + position]
        };
        let mut y = Vec::with_capacity(x.len());
        for sample in 0..self.batch {
            for channel in 0..channels {
                let first = channel.saturating_sub(size / 2);
                let last = (channel + (size - 1) / 2).min(channels - 1);
                for position in 0..area {
                    let sum: Number =
                        (first..=last).map(|other| at(sample, other, position).powf(2.0)).sum();
                    let whole = (sum * alpha.into() + k.into()).powf(beta);
                    y.push(at(sample, channel, position) / whole);
                }
            }
        }
        y
    }
}
