//! Building and checking graphs: shape inference.

use crate::config::Shown;

use super::window::{Pair, SIZE_MAX};
use super::{Graph, Head, LayerKind, Node, Shape, Spread};

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
    #[error("model file {0}")]
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
            Self::Softmax => "softmax",
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
            Self::ChannelShuffle { .. } => "channel_shuffle",
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

    /// The node of that name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.nodes.iter().position(|node| node.name == name)
    }

    /// The newest node.
    pub fn last(&self) -> Option<usize> {
        self.nodes.len().checked_sub(1)
    }

    /// Infers all shapes and checks the whole.
    pub fn finish(self) -> Result<Graph, ModelError> {
        let Self { name, input, classes, nodes, heads } = self;
        let spread = Spread::default();
        let mut graph = Graph { name, input, classes, nodes, heads, spread };
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

pub(in crate::model) fn output_shape(kind: &LayerKind, inputs: &[Shape]) -> Result<Shape, String> {
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
        LayerKind::Lrn { size, alpha, beta, k } => {
            positive("size", size)?;
            // Below 0 or at 0 something is divided by 0 or has no root.
            let fits = k > 0.0 && [alpha, beta].iter().all(|factor| *factor >= 0.0);
            match fits && [alpha, beta, k].iter().all(|factor| factor.is_finite()) {
                true => Ok(first),
                false => Err(format!(
                    "alpha = {alpha} and beta = {beta} must be 0 or above, k = {k} above 0"
                )),
            }
        }
        LayerKind::BatchNorm { epsilon, .. } if !(epsilon > 0.0 && epsilon.is_finite()) => {
            Err(format!("epsilon = {epsilon} is not above 0"))
        }
        LayerKind::BatchNorm { momentum, .. } if !(0.0..=1.0).contains(&momentum) => {
            Err(format!("momentum = {momentum} is not in 0..=1"))
        }
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
        LayerKind::ChannelShuffle { groups } => match first[0].checked_rem(groups) {
            Some(0) => Ok(first),
            _ => Err(format!("groups = {groups} must divide the input's {} channels", first[0])),
        },
        LayerKind::Flatten => Ok([elements(first), 1, 1]),
        LayerKind::BatchNorm { .. }
        | LayerKind::Relu
        | LayerKind::Relu6
        | LayerKind::Sigmoid
        | LayerKind::Silu
        | LayerKind::HardSigmoid
        | LayerKind::HardSwish
        | LayerKind::Softmax
        | LayerKind::Dropout { .. } => Ok(first),
    }
}
