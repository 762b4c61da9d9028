//! Building and checking graphs: shape inference and TOML model files.

use serde::Deserialize;

use crate::config::Shown;

use super::window::{Pair, SIZE_MAX};
use super::{Graph, Head, LayerKind, Node, Shape};

/// Why there is no such model.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum ModelError {
    #[error("there is no model `{name}`{hint}; known: {known}, or the path of a *.toml model file")]
    Unknown { name: String, hint: String, known: String },
    #[error("model {model}: {reason}")]
    Unsuitable { model: String, reason: String },
    #[error("layer `{}` ({kind}): {reason}", layer.shown())]
    Layer { layer: String, kind: &'static str, reason: String },
    #[error("model file: {0}")]
    File(String),
}

impl LayerKind {
    /// The name of the kind, as in model files.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Conv { .. } => "conv",
            Self::BatchNorm { .. } => "batch_norm",
            Self::Relu => "relu",
            Self::Relu6 => "relu6",
            Self::Sigmoid => "sigmoid",
            Self::Silu => "silu",
            Self::HardSigmoid => "hard_sigmoid",
            Self::HardSwish => "hard_swish",
            Self::MaxPool { .. } => "max_pool",
            Self::AvgPool { .. } => "avg_pool",
            Self::GlobalAvgPool => "global_avg_pool",
            Self::AdaptiveAvgPool { .. } => "adaptive_avg_pool",
            Self::Linear { .. } => "linear",
            Self::Dropout { .. } => "dropout",
            Self::Lrn { .. } => "lrn",
            Self::Add => "add",
            Self::Multiply => "multiply",
            Self::Concat => "concat",
            Self::Flatten => "flatten",
        }
    }
}

/// Elements of one sample.
pub fn elements(shape: Shape) -> usize {
    shape.iter().product()
}

/// Collects nodes in order; every method gives the index that later nodes take as input.
#[derive(Debug, Clone)]
pub struct GraphBuilder {
    name: String,
    input: Shape,
    classes: usize,
    nodes: Vec<Node>,
    heads: Vec<Head>,
}

impl GraphBuilder {
    /// An empty graph that reads images of shape `input`.
    pub fn new(name: &str, input: Shape, classes: usize) -> Self {
        Self { name: name.into(), input, classes, nodes: Vec::new(), heads: Vec::new() }
    }

    /// Adds a node that reads the node before it, or the image.
    pub fn then(&mut self, name: &str, kind: LayerKind) -> usize {
        let previous = self.nodes.len().checked_sub(1);
        self.node(name, kind, &[previous])
    }

    /// Adds a node with these inputs (`None` = the image).
    pub fn node(&mut self, name: &str, kind: LayerKind, inputs: &[Option<usize>]) -> usize {
        let node = Node { name: name.into(), kind, inputs: inputs.to_vec(), shape: [0; 3] };
        self.nodes.push(node);
        self.nodes.len() - 1
    }

    /// Makes a node an auxiliary classifier, whose loss counts so much in training.
    pub fn head(&mut self, node: usize, weight: f32) {
        self.heads.push(Head { node, weight });
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Shape of an image.
    pub fn input(&self) -> Shape {
        self.input
    }

    /// The newest node.
    pub fn last(&self) -> Option<usize> {
        self.nodes.len().checked_sub(1)
    }

    /// Infers all shapes and checks the whole.
    pub fn finish(self) -> Result<Graph, ModelError> {
        let Self { name, input, classes, nodes, heads } = self;
        let mut graph = Graph { name, input, classes, nodes, heads };
        graph.infer()?;
        Ok(graph)
    }
}

impl Graph {
    /// Fills in every node's output shape; refuses what cannot be computed.
    pub fn infer(&mut self) -> Result<(), ModelError> {
        if self.input.iter().any(|size| !(1..=SIZE_MAX).contains(size)) {
            let reason = format!("input {:?}: each size must be in 1..={SIZE_MAX}", self.input);
            return Err(self.unsuitable(reason));
        }
        let mut used = vec![false; self.nodes.len()];
        for index in 0..self.nodes.len() {
            let mut shapes = Vec::new();
            for &input in &self.nodes[index].inputs {
                match input {
                    None => shapes.push(self.input),
                    Some(at) if at < index => {
                        used[at] = true;
                        shapes.push(self.nodes[at].shape);
                    }
                    Some(at) => {
                        let reason = format!("input {at} is not an earlier node");
                        return Err(refuse(&self.nodes[index], reason));
                    }
                }
            }
            let node = &self.nodes[index];
            if self.nodes[..index].iter().any(|other| other.name == node.name) {
                return Err(refuse(node, "the name is taken by an earlier layer".into()));
            }
            let shape = output_shape(&node.kind, &shapes)
                .and_then(|shape| bounded(&node.kind, shapes[0], shape))
                .map_err(|reason| refuse(node, reason))?;
            self.nodes[index].shape = shape;
        }
        let Some(last) = self.nodes.last() else {
            return Err(self.unsuitable("it has no layers".into()));
        };
        self.gives_logits(last)?;
        used.pop();
        self.check_heads(&mut used)?;
        match used.iter().position(|&used| !used) {
            Some(idle) => Err(refuse(&self.nodes[idle], "no other layer reads it".into())),
            None => Ok(()),
        }
    }

    fn gives_logits(&self, node: &Node) -> Result<(), ModelError> {
        if node.shape == [self.classes, 1, 1] {
            return Ok(());
        }
        let reason = format!("gives {:?}, but there are {} classes", node.shape, self.classes);
        Err(refuse(node, reason))
    }

    /// Auxiliary classifiers give logits too, and nobody reads them. `used`: of all but the last.
    fn check_heads(&self, used: &mut [bool]) -> Result<(), ModelError> {
        for &Head { node, weight } in &self.heads {
            let own = &self.nodes[node];
            self.gives_logits(own)?;
            if !(weight.is_finite() && weight > 0.0) {
                return Err(refuse(own, format!("loss_weight = {weight} is not above 0")));
            }
            match used.get_mut(node) {
                Some(used) if !*used => *used = true,
                _ => {
                    let reason = "loss_weight is for a layer before the last that no other reads";
                    return Err(refuse(own, reason.into()));
                }
            }
        }
        Ok(())
    }

    /// Indices of the nodes that read node `index`.
    pub fn consumers(&self, index: usize) -> Vec<usize> {
        let reads = |node: &Node| node.inputs.contains(&Some(index));
        (0..self.nodes.len()).filter(|&at| reads(&self.nodes[at])).collect()
    }

    /// Shape of one sample of an input.
    pub fn shape_of(&self, input: Option<usize>) -> Shape {
        input.map_or(self.input, |index| self.nodes[index].shape)
    }

    fn unsuitable(&self, reason: String) -> ModelError {
        ModelError::Unsuitable { model: self.name.clone(), reason }
    }
}

fn refuse(node: &Node, reason: String) -> ModelError {
    ModelError::Layer { layer: node.name.clone(), kind: node.kind.name(), reason }
}

/// Largest result of one sample, and largest weight tensor, in elements.
const ELEMENTS_MAX: u128 = 1 << 36;

/// Refuses what no machine holds, before anything multiplies it.
fn bounded(kind: &LayerKind, input: Shape, shape: Shape) -> Result<Shape, String> {
    let [channels, height, width] = shape.map(|size| size as u128);
    let weights = match kind {
        LayerKind::Conv(conv) => conv.weight_shape(input[0]).iter().map(|&n| n as u128).product(),
        LayerKind::Linear { .. } => channels * input[0] as u128,
        _ => 0,
    };
    match weights.max(channels * height * width) {
        0..=ELEMENTS_MAX => Ok(shape),
        elements => Err(format!("{elements} elements are more than {ELEMENTS_MAX}")),
    }
}

fn positive(what: &str, size: usize) -> Result<usize, String> {
    match size {
        1..=SIZE_MAX => Ok(size),
        _ => Err(format!("{what} = {size} is not in 1..={SIZE_MAX}")),
    }
}

/// Refuses a number of inputs that the layer does not take.
fn counted(kind: &LayerKind, inputs: usize) -> Result<(), String> {
    let (fits, wanted) = match kind {
        LayerKind::Add | LayerKind::Concat => (inputs > 1, "at least two inputs"),
        LayerKind::Multiply => (inputs == 2, "two inputs"),
        _ => (inputs == 1, "one input"),
    };
    if fits { Ok(()) } else { Err(format!("{wanted} wanted, {inputs} given")) }
}

fn output_shape(kind: &LayerKind, inputs: &[Shape]) -> Result<Shape, String> {
    let first = *inputs.first().ok_or("it has no input")?;
    counted(kind, inputs.len())?;
    match *kind {
        LayerKind::Conv(conv) => conv.result(first),
        LayerKind::MaxPool(pool) => pool.result(first),
        LayerKind::AvgPool(pool) => pool.result(first),
        LayerKind::GlobalAvgPool => Ok([first[0], 1, 1]),
        LayerKind::AdaptiveAvgPool { size: Pair([height, width]) } => {
            Ok([first[0], positive("height", height)?, positive("width", width)?])
        }
        LayerKind::Linear { features, .. } => match first {
            [_, 1, 1] => Ok([positive("features", features)?, 1, 1]),
            _ => Err(format!("its input is {first:?}: put a `flatten` before it")),
        },
        LayerKind::Dropout { rate } if !(0.0..1.0).contains(&rate) => {
            Err(format!("rate = {rate} is not in 0..1"))
        }
        LayerKind::Lrn { size, .. } => positive("size", size).map(|_| first),
        LayerKind::Add => match inputs.iter().find(|&&shape| shape != first) {
            Some(other) => Err(format!("shapes {first:?} and {other:?} differ")),
            None => Ok(first),
        },
        LayerKind::Multiply if inputs[1] == first || inputs[1] == [first[0], 1, 1] => Ok(first),
        LayerKind::Multiply => {
            let [channels, _, _] = first;
            Err(format!(
                "the second input is {:?}: {first:?} or {:?} is wanted",
                inputs[1],
                [channels, 1, 1]
            ))
        }
        LayerKind::Concat => {
            if let Some(other) = inputs.iter().find(|shape| shape[1..] != first[1..]) {
                return Err(format!("heights or widths of {first:?} and {other:?} differ"));
            }
            Ok([inputs.iter().map(|shape| shape[0]).sum(), first[1], first[2]])
        }
        LayerKind::Flatten => Ok([elements(first), 1, 1]),
        LayerKind::BatchNorm { .. }
        | LayerKind::Relu
        | LayerKind::Relu6
        | LayerKind::Sigmoid
        | LayerKind::Silu
        | LayerKind::HardSigmoid
        | LayerKind::HardSwish
        | LayerKind::Dropout { .. } => Ok(first),
    }
}

/// Reads a model file. Layers in order; each reads the one before it unless `inputs` names others:
///
/// ```toml
/// name = "tiny"
/// [[layer]]
/// name = "conv1"          # default: kind and number
/// kind = "conv"
/// channels = 8
/// kernel = 3
/// inputs = ["image"]      # default: the layer before
/// [[layer]]
/// kind = "global_avg_pool"
/// [[layer]]
/// kind = "linear"
/// features = "classes"    # or a number
/// ```
pub fn from_toml(text: &str, input: Shape, classes: usize) -> Result<Graph, ModelError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct File {
        #[serde(default = "unnamed")]
        name: String,
        layer: Vec<toml::Table>,
    }
    fn unnamed() -> String {
        "model".into()
    }
    let file: File = toml::from_str(text).map_err(|error| ModelError::File(error.to_string()))?;
    let mut builder = GraphBuilder::new(&file.name, input, classes);
    for (index, table) in file.layer.into_iter().enumerate() {
        let layer = file_layer(index, table, classes)?;
        let inputs = match layer.inputs {
            None => vec![builder.last()],
            Some(names) => names
                .iter()
                .map(|name| find(&builder, name).map_err(|reason| at(&layer.name, reason)))
                .collect::<Result<_, _>>()?,
        };
        let node = builder.node(&layer.name, layer.kind, &inputs);
        if let Some(weight) = layer.loss_weight {
            builder.head(node, weight);
        }
    }
    builder.finish()
}

fn at(layer: &str, reason: impl std::fmt::Display) -> ModelError {
    ModelError::File(format!("layer `{layer}`: {reason}"))
}

struct FileLayer {
    name: String,
    kind: LayerKind,
    inputs: Option<Vec<String>>,
    loss_weight: Option<f32>,
}

/// One `[[layer]]`: our own keys are taken out, the rest is the layer's kind.
fn file_layer(
    index: usize,
    mut table: toml::Table,
    classes: usize,
) -> Result<FileLayer, ModelError> {
    let text = |value: toml::Value| value.as_str().map(str::to_string);
    let kind_name = table.get("kind").and_then(|kind| kind.as_str()).unwrap_or("layer").to_string();
    let default_name = format!("{kind_name}{}", index + 1);
    let name = match table.remove("name") {
        None => default_name,
        Some(value) => text(value)
            .filter(|name| !name.is_empty() && name != "image")
            .ok_or_else(|| at(&default_name, "`name` must be a text other than `image`"))?,
    };
    let inputs = match table.remove("inputs") {
        None => None,
        Some(toml::Value::Array(names)) => {
            let names: Option<Vec<String>> = names.into_iter().map(text).collect();
            Some(names.ok_or_else(|| at(&name, "`inputs` must be layer names"))?)
        }
        Some(_) => return Err(at(&name, "`inputs` must be an array of layer names")),
    };
    let loss_weight = match table.remove("loss_weight") {
        None => None,
        Some(toml::Value::Float(weight)) => Some(weight as f32),
        Some(_) => return Err(at(&name, "`loss_weight` must be a number as 0.3")),
    };
    if table.get("features").and_then(|value| value.as_str()) == Some("classes") {
        table.insert("features".into(), toml::Value::Integer(classes as i64));
    }
    let keys = table.len();
    let kind =
        LayerKind::deserialize(toml::Value::Table(table)).map_err(|error| at(&name, error))?;
    let bare = matches!(
        kind,
        LayerKind::Relu
            | LayerKind::Relu6
            | LayerKind::Sigmoid
            | LayerKind::Silu
            | LayerKind::HardSigmoid
            | LayerKind::HardSwish
            | LayerKind::GlobalAvgPool
            | LayerKind::Add
            | LayerKind::Multiply
            | LayerKind::Concat
            | LayerKind::Flatten
    );
    if bare && keys > 1 {
        return Err(at(&name, format!("`{}` takes no further keys", kind.name())));
    }
    Ok(FileLayer { name, kind, inputs, loss_weight })
}

fn find(builder: &GraphBuilder, name: &str) -> Result<Option<usize>, String> {
    if name == "image" {
        return Ok(None);
    }
    let found = builder.nodes.iter().position(|node| node.name == name);
    found.map(Some).ok_or_else(|| format!("input `{name}` is not an earlier layer or `image`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TINY: &str = r#"
        name = "tiny"
        [[layer]]
        name = "a"
        kind = "conv"
        channels = 8
        kernel = 3
        padding = 1
        [[layer]]
        kind = "relu"
        [[layer]]
        name = "sum"
        kind = "add"
        inputs = ["a", "relu2"]
        [[layer]]
        kind = "global_avg_pool"
        [[layer]]
        kind = "linear"
        features = "classes"
    "#;

    #[test]
    fn a_model_file_gives_a_graph_with_shapes() {
        let graph = from_toml(TINY, [3, 8, 8], 5).expect("the file is right");
        assert_eq!(graph.name, "tiny");
        let shapes: Vec<Shape> = graph.nodes.iter().map(|node| node.shape).collect();
        assert_eq!(shapes, [[8, 8, 8], [8, 8, 8], [8, 8, 8], [8, 1, 1], [5, 1, 1]]);
        assert_eq!(graph.nodes[2].inputs, [Some(0), Some(1)]);
        assert_eq!(graph.consumers(0), [1, 2]);
    }

    #[test]
    fn what_is_wrong_in_a_model_file_is_named() {
        for (from, to, message) in [
            ("kernel = 3", "kernel = 30", "larger than the padded input"),
            ("kernel = 3", "kernle = 3", "kernle"),
            ("kernel = 3", "kernel = 3\nstride = 0", "must be in 1..="),
            ("channels = 8", "channels = 99999999999", "channels"),
            ("kernel = 3", "kernel = 3\nloss_weight = 0.3", "5 classes"),
            ("features = \"classes\"", "features = 5\nloss_weight = 0.3", "before the last"),
            ("features = \"classes\"", "features = 5\nloss_weight = \"a\"", "as 0.3"),
            ("channels = 8", "channels = 8\ngroups = 2", "groups = 2 must divide"),
            ("kernel = 3", "kernel = 3\ndilation = 9", "with dilation 9 is larger"),
            (
                "kind = \"add\"\n        inputs = [\"a\", \"relu2\"]",
                "kind = \"multiply\"\ninputs = [\"a\", \"image\"]",
                "the second input is [3, 8, 8]: [8, 8, 8] or [8, 1, 1]",
            ),
            ("kind = \"relu\"", "kind = \"silu\"\nrate = 1", "takes no further keys"),
            ("kind = \"relu\"", "kind = \"rleu\"", "rleu"),
            ("kind = \"relu\"", "kind = \"relu\"\nrate = 1", "takes no further keys"),
            ("\"relu2\"", "\"relu3\"", "not an earlier layer"),
            ("features = \"classes\"", "features = 7", "5 classes"),
            ("\"a\", \"relu2\"", "\"a\"", "at least two inputs"),
            ("kind = \"global_avg_pool\"", "kind = \"relu\"", "put a `flatten`"),
        ] {
            let text = TINY.replacen(from, to, 1);
            let error = from_toml(&text, [3, 8, 8], 5).expect_err(to).to_string();
            assert!(error.contains(message), "{to}: {error}");
        }
    }
}
