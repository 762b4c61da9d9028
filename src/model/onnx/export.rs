//! A trained graph as a file that ONNX Runtime runs, in inference form: norms with their running
//! statistics, no dropout, no classifier but the last. The number of samples is free. Pictures come
//! in normalised, as the layers here get them.

use std::collections::BTreeSet;

use crate::model::window::{AvgPool, Conv, MaxPool, Padding, Pair};
use crate::model::{Graph, LayerKind, Layout, Node, TensorKind};
use crate::observe::protobuf::Message;

use super::error::OnnxError;
use super::proto::{FLOAT, INT64, OWN_NAME};

/// The name of the input, `[N, channels, height, width]`.
pub const IMAGE: &str = "image";
/// The name of the output, `[N, classes]`.
pub const LOGITS: &str = "logits";

/// Of the format and of the operators; all that are written have their meaning since.
const IR_VERSION: i64 = 8;
const OPSET: i64 = 17;
/// Protobuf's bound of a message.
const FILE_BYTES_MAX: usize = (1 << 31) - 1;

/// Names of the small tensors that operators read.
const HEIGHT_AND_WIDTH: &str = "axes of height and width";
const ZERO: &str = "zero";
const SIX: &str = "six";

/// What is written.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct Trained<'a> {
    pub graph: &'a Graph,
    pub layout: &'a Layout,
    pub parameters: &'a [f32],
    pub statistics: &'a [f32],
    /// In label order.
    pub classes: &'a [String],
    /// Names and texts that the file says of itself besides.
    pub about: &'a [(&'static str, String)],
}

/// The bytes of the file.
///
/// # Errors
/// A layer that ONNX has no operator for, or more than 2 GiB.
pub fn export(trained: &Trained<'_>) -> Result<Vec<u8>, OnnxError> {
    let bytes = 4 * (trained.parameters.len() + trained.statistics.len());
    let too_large = OnnxError::TooMany { what: "bytes", found: bytes, most: FILE_BYTES_MAX };
    if bytes > FILE_BYTES_MAX {
        return Err(too_large);
    }
    let graph = trained.graph;
    let needed = needed(graph);
    let mut writer = Writer {
        graph,
        nodes: Message::default(),
        values: Vec::new(),
        count: 0,
        constants: BTreeSet::new(),
    };
    for (node, &needed) in graph.nodes.iter().zip(&needed) {
        let value = match needed {
            true => writer.node(node)?,
            false => Value { name: String::new(), flat: false },
        };
        writer.values.push(value);
    }
    let mut last = writer.values.last().cloned().expect("a graph has a layer");
    if !last.flat {
        last = writer.flat(&last);
    }
    writer.operator("Identity", &[&last.name], LOGITS, &[]);
    let [channels, height, width] = graph.input;
    let message = std::mem::take(&mut writer.nodes)
        .text(2, &graph.name)
        .within(11, &end(IMAGE, &[channels, height, width]))
        .within(12, &end(LOGITS, &[graph.classes]));
    let message = tensors(trained, &needed, message);
    let message = constants(&writer.constants, message);
    let classes = serde_json::to_string(trained.classes).expect("strings are always JSON");
    let model = Message::default()
        .integer(1, IR_VERSION)
        .text(2, OWN_NAME)
        .text(3, env!("CARGO_PKG_VERSION"))
        .within(7, &message)
        .within(8, &Message::default().integer(2, OPSET));
    let texts = [("classes", classes), ("input", format!("{channels}x{height}x{width}"))];
    let model = texts.iter().chain(trained.about).fold(model, |model, (key, text)| {
        model.within(14, &Message::default().text(1, key).text(2, text))
    });
    match model.0.len() {
        0..=FILE_BYTES_MAX => Ok(model.0),
        _ => Err(too_large),
    }
}

/// Which layers the last one depends on.
fn needed(graph: &Graph) -> Vec<bool> {
    let mut needed = vec![false; graph.nodes.len()];
    if let Some(last) = needed.last_mut() {
        *last = true;
    }
    for at in (0..needed.len()).rev() {
        if needed[at] {
            graph.nodes[at].inputs.iter().flatten().for_each(|&input| needed[input] = true);
        }
    }
    needed
}

/// An input or output (ValueInfoProto) of f32 with a free number of samples.
fn end(name: &str, sizes: &[usize]) -> Message {
    let samples = Message::default().within(1, &Message::default().text(2, "N"));
    let shape = sizes
        .iter()
        .fold(samples, |shape, &size| shape.within(1, &Message::default().integer(1, size as i64)));
    let tensor = Message::default().integer(1, FLOAT).within(2, &shape);
    Message::default().text(1, name).within(2, &Message::default().within(1, &tensor))
}

fn tensor(name: &str, dims: &[usize], kind: i64, raw: &[u8]) -> Message {
    let message = dims.iter().fold(Message::default(), |own, &dim| own.integer(1, dim as i64));
    message.integer(2, kind).text(8, name).bytes(9, raw)
}

/// Appends all that the graph holds.
fn tensors(trained: &Trained<'_>, needed: &[bool], mut message: Message) -> Message {
    for spec in trained.layout.tensors.iter().filter(|spec| needed[spec.node]) {
        let flat = match spec.kind {
            TensorKind::Statistic => trained.statistics,
            _ => trained.parameters,
        };
        let raw = bytemuck::cast_slice(&flat[spec.range()]);
        message = message.within(5, &tensor(&spec.name, &spec.shape, FLOAT, raw));
    }
    for (at, node) in trained.graph.nodes.iter().enumerate().filter(|(at, _)| needed[*at]) {
        if let LayerKind::ChannelShuffle { groups } = node.kind {
            let [channels, height, width] = node.shape;
            // Zero keeps the number of samples.
            let apart = [0, groups, channels / groups, height, width];
            let together = [0, channels, height, width];
            for (part, sizes) in [("apart", &apart[..]), ("together", &together[..])] {
                let raw: Vec<u8> =
                    sizes.iter().flat_map(|&size| (size as i64).to_le_bytes()).collect();
                let name = format!("{}.{part}", node.name);
                message = message.within(5, &tensor(&name, &[sizes.len()], INT64, &raw));
            }
        }
        let LayerKind::AdaptiveAvgPool { size } = node.kind else { continue };
        let from = trained.graph.shape_of(trained.graph.nodes[at].inputs[0]);
        let Pair([height, width]) = size;
        let (rows, columns) = (means(from[1], height), transposed(&means(from[2], width), width));
        let raw = bytemuck::cast_slice(&rows);
        let named = |side: &str| format!("{}.{side}", node.name);
        message = message.within(5, &tensor(&named("rows"), &[height, from[1]], FLOAT, raw));
        let raw = bytemuck::cast_slice(&columns);
        message = message.within(5, &tensor(&named("columns"), &[from[2], width], FLOAT, raw));
    }
    message
}

/// Appends those small tensors that an operator reads: runtimes warn of others.
fn constants(read: &BTreeSet<&str>, message: Message) -> Message {
    let axes: Vec<u8> = [2i64, 3].iter().flat_map(|axis| axis.to_le_bytes()).collect();
    let all = [
        (HEIGHT_AND_WIDTH, tensor(HEIGHT_AND_WIDTH, &[2], INT64, &axes)),
        (ZERO, tensor(ZERO, &[], FLOAT, &0.0f32.to_le_bytes())),
        (SIX, tensor(SIX, &[], FLOAT, &6.0f32.to_le_bytes())),
    ];
    let read = all.iter().filter(|(name, _)| read.contains(name));
    read.fold(message, |message, (_, tensor)| message.within(5, tensor))
}

/// `[to, from]`: the mean over each window of PyTorch's adaptive pooling, which begins at the
/// rounded-down and ends before the rounded-up multiple of `from / to`.
fn means(from: usize, to: usize) -> Vec<f32> {
    let mut means = vec![0.0; to * from];
    for (at, row) in means.chunks_exact_mut(from).enumerate() {
        let (start, end) = (at * from / to, ((at + 1) * from).div_ceil(to));
        row[start..end].fill(1.0 / (end - start) as f32);
    }
    means
}

fn transposed(rows: &[f32], count: usize) -> Vec<f32> {
    let width = rows.len() / count;
    (0..width).flat_map(|at| (0..count).map(move |row| rows[row * width + at])).collect()
}

/// What a layer gives: `[N, C, H, W]`, or `[N, C]` where it is flat.
#[derive(Debug, Clone)]
struct Value {
    name: String,
    flat: bool,
}

struct Writer<'a> {
    graph: &'a Graph,
    /// GraphProto, so far of nodes.
    nodes: Message,
    /// Of the layers so far.
    values: Vec<Value>,
    count: usize,
    /// Which of the small tensors are read.
    constants: BTreeSet<&'static str>,
}

/// An attribute (AttributeProto) and its kind.
fn attribute(name: &str, kind: i64) -> Message {
    Message::default().text(1, name).integer(20, kind)
}

fn integer(name: &str, value: usize) -> Message {
    attribute(name, 2).integer(3, value as i64)
}

fn float(name: &str, value: f32) -> Message {
    attribute(name, 1).float(2, value)
}

fn integers(name: &str, values: &[usize]) -> Message {
    let message = attribute(name, 7);
    values.iter().fold(message, |message, &value| message.integer(8, value as i64))
}

impl Writer<'_> {
    fn operator(&mut self, op: &str, inputs: &[&str], output: &str, attributes: &[Message]) {
        let small = [HEIGHT_AND_WIDTH, ZERO, SIX];
        self.constants.extend(small.into_iter().filter(|name| inputs.contains(name)));
        let node = inputs.iter().fold(Message::default(), |node, input| node.text(1, input));
        let node = node.text(2, output).text(3, &format!("{output}/{op}")).text(4, op);
        let node = attributes.iter().fold(node, |node, attribute| node.within(5, attribute));
        self.nodes = std::mem::take(&mut self.nodes).within(1, &node);
    }

    /// A step of a layer, whose result has no name of its own.
    fn step(&mut self, op: &str, inputs: &[&str], attributes: &[Message]) -> String {
        self.count += 1;
        let name = format!("step {}", self.count);
        self.operator(op, inputs, &name, attributes);
        name
    }

    fn flat(&mut self, value: &Value) -> Value {
        if value.flat {
            return value.clone();
        }
        Value { name: self.step("Flatten", &[&value.name], &[integer("axis", 1)]), flat: true }
    }

    fn whole(&mut self, value: &Value) -> Value {
        if !value.flat {
            return value.clone();
        }
        let name = self.step("Unsqueeze", &[&value.name, HEIGHT_AND_WIDTH], &[]);
        Value { name, flat: false }
    }

    fn input(&self, node: &Node, at: usize) -> Value {
        node.inputs[at]
            .map_or(Value { name: IMAGE.into(), flat: false }, |input| self.values[input].clone())
    }

    /// One operator on one input, which keeps its form.
    fn simple(&mut self, node: &Node, op: &str, inputs: &[&str], settings: &[Message]) -> Value {
        let input = self.input(node, 0);
        let inputs: Vec<&str> =
            std::iter::once(&*input.name).chain(inputs.iter().copied()).collect();
        let name = format!("{}/out", node.name);
        self.operator(op, &inputs, &name, settings);
        Value { name, flat: input.flat }
    }

    /// One operator on one input with height and width.
    fn spatial(&mut self, node: &Node, op: &str, inputs: &[&str], settings: &[Message]) -> Value {
        let input = self.input(node, 0);
        let input = self.whole(&input);
        let inputs: Vec<&str> =
            std::iter::once(&*input.name).chain(inputs.iter().copied()).collect();
        let name = format!("{}/out", node.name);
        self.operator(op, &inputs, &name, settings);
        Value { name, flat: false }
    }

    fn node(&mut self, node: &Node) -> Result<Value, OnnxError> {
        let part = |part: &str| format!("{}.{part}", node.name);
        Ok(match node.kind {
            LayerKind::Conv(conv) => self.conv(node, &conv),
            LayerKind::Linear { bias, .. } => self.linear(node, bias),
            LayerKind::BatchNorm { epsilon, .. } => {
                let parts = ["weight", "bias", "running_mean", "running_var"].map(part);
                let parts = parts.each_ref().map(String::as_str);
                self.simple(node, "BatchNormalization", &parts, &[float("epsilon", epsilon)])
            }
            LayerKind::Relu => self.simple(node, "Relu", &[], &[]),
            LayerKind::Relu6 => self.simple(node, "Clip", &[ZERO, SIX], &[]),
            LayerKind::Sigmoid => self.simple(node, "Sigmoid", &[], &[]),
            LayerKind::Silu => {
                let input = self.input(node, 0).name;
                let gate = self.step("Sigmoid", &[&input], &[]);
                self.simple(node, "Mul", &[&gate], &[])
            }
            LayerKind::HardSigmoid => {
                let slope = [float("alpha", 1.0 / 6.0), float("beta", 0.5)];
                self.simple(node, "HardSigmoid", &[], &slope)
            }
            LayerKind::HardSwish => self.simple(node, "HardSwish", &[], &[]),
            LayerKind::Softmax => self.simple(node, "Softmax", &[], &[integer("axis", 1)]),
            LayerKind::MaxPool(pool) => {
                let settings = self.window(node, &pool);
                self.spatial(node, "MaxPool", &[], &settings)
            }
            LayerKind::AvgPool(pool) => self.average(node, &pool),
            LayerKind::GlobalAvgPool => self.spatial(node, "GlobalAveragePool", &[], &[]),
            LayerKind::AdaptiveAvgPool { .. } => {
                let input = self.input(node, 0);
                let input = self.whole(&input).name;
                let narrow = self.step("MatMul", &[&input, &part("columns")], &[]);
                let name = format!("{}/out", node.name);
                self.operator("MatMul", &[&part("rows"), &narrow], &name, &[]);
                Value { name, flat: false }
            }
            LayerKind::Lrn { size, alpha, beta, k } => {
                if size % 2 == 0 {
                    let (node, op) = (node.name.clone(), "lrn".to_owned());
                    let reason = format!("size = {size}: ONNX means other windows by even sizes");
                    return Err(OnnxError::Node { node, op, reason });
                }
                let alpha = alpha * size as f32;
                let numbers = [("alpha", alpha), ("beta", beta), ("bias", k)];
                let mut settings = vec![integer("size", size)];
                settings.extend(numbers.map(|(name, value)| float(name, value)));
                self.spatial(node, "LRN", &[], &settings)
            }
            LayerKind::Add => self.joined(node, "Sum", &[]),
            LayerKind::Multiply => self.joined(node, "Mul", &[]),
            LayerKind::Concat => self.joined(node, "Concat", &[integer("axis", 1)]),
            LayerKind::ChannelShuffle { .. } => {
                let input = self.input(node, 0);
                let input = self.whole(&input).name;
                let apart = self.step("Reshape", &[&input, &part("apart")], &[]);
                let turn = [integers("perm", &[0, 2, 1, 3, 4])];
                let turned = self.step("Transpose", &[&apart], &turn);
                let name = format!("{}/out", node.name);
                self.operator("Reshape", &[&turned, &part("together")], &name, &[]);
                Value { name, flat: false }
            }
            LayerKind::Dropout { .. } => self.input(node, 0),
            LayerKind::Flatten => {
                let input = self.input(node, 0);
                self.flat(&input)
            }
        })
    }

    fn conv(&mut self, node: &Node, conv: &Conv) -> Value {
        let Conv { kernel, stride, padding, dilation, groups, bias, .. } = *conv;
        let settings = [
            integers("kernel_shape", &kernel.0),
            integers("strides", &stride.0),
            integers("pads", &padding.sides()),
            integers("dilations", &dilation.0),
            integer("group", groups),
        ];
        let parts = ["weight", "bias"].map(|part| format!("{}.{part}", node.name));
        let parts: Vec<&str> = parts.iter().take(1 + usize::from(bias)).map(|p| &**p).collect();
        self.spatial(node, "Conv", &parts, &settings)
    }

    fn linear(&mut self, node: &Node, bias: bool) -> Value {
        let input = self.input(node, 0);
        let input = self.flat(&input).name;
        let parts = ["weight", "bias"].map(|part| format!("{}.{part}", node.name));
        let parts = parts.iter().take(1 + usize::from(bias)).map(|part| &**part);
        let inputs: Vec<&str> = std::iter::once(&*input).chain(parts).collect();
        let name = format!("{}/out", node.name);
        self.operator("Gemm", &inputs, &name, &[integer("transB", 1)]);
        Value { name, flat: true }
    }

    /// Where windows are. What the last ones reach over is written as padding: runtimes differ in
    /// which windows `ceil_mode` has where there is padding too.
    fn window(&self, node: &Node, pool: &MaxPool) -> Vec<Message> {
        let sizes = |[_, height, width]: [usize; 3]| [height, width];
        let from = sizes(self.graph.shape_of(node.inputs[0]));
        let (Pair([top, left]), [bottom, right]) =
            (pool.padding.begin, pool.padding_end(from, sizes(node.shape)));
        let alone = pool.ceil_mode && pool.padding == Padding::every(0);
        let pads = if alone { [0; 4] } else { [top, left, bottom, right] };
        vec![
            integers("kernel_shape", &pool.kernel.0),
            integers("strides", &pool.stride.0),
            integers("pads", &pads),
            integer("ceil_mode", usize::from(alone)),
        ]
    }

    fn average(&mut self, node: &Node, pool: &AvgPool) -> Value {
        let mut settings = self.window(node, &pool.window());
        settings.push(integer("count_include_pad", usize::from(!pool.counts_inside_only())));
        self.spatial(node, "AveragePool", &[], &settings)
    }

    /// One operator on all inputs; all are flat, or none.
    fn joined(&mut self, node: &Node, op: &str, settings: &[Message]) -> Value {
        let mut inputs: Vec<Value> =
            (0..node.inputs.len()).map(|at| self.input(node, at)).collect();
        let flat = inputs.iter().all(|input| input.flat);
        if !flat {
            inputs = inputs.iter().map(|input| self.whole(input)).collect();
        }
        let names: Vec<&str> = inputs.iter().map(|input| &*input.name).collect();
        let name = format!("{}/out", node.name);
        self.operator(op, &names, &name, settings);
        Value { name, flat }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_of_adaptive_pooling_are_torchs() {
        // torch.nn.AdaptiveAvgPool2d: of 5 to 3 they are 0..2, 1..4, 3..5.
        let third = 1.0 / 3.0;
        let expected =
            [[0.5, 0.5, 0.0, 0.0, 0.0], [0.0, third, third, third, 0.0], [0.0, 0.0, 0.0, 0.5, 0.5]];
        assert_eq!(means(5, 3), expected.concat());
        assert_eq!(transposed(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }
}
