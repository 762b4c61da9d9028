//! Pure description of models: the layer graph, shapes, parameters, costs, what backward
//! reads, first weights, the parts of a run's state. No memory.

use serde::{Deserialize, Serialize};

pub mod catalogue;
pub mod cost;
pub mod file;
pub mod init;
pub mod layout;
pub mod onnx;
pub mod parts;
pub mod saved;
pub mod spec;
pub mod window;
pub mod written;

pub use window::Shape;
use window::{AvgPool, Conv, MaxPool, Pair};

/// What a node computes. Sizes in elements.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs)]
pub enum LayerKind {
    Conv(Conv),
    BatchNorm {
        #[serde(default = "epsilon")]
        epsilon: f32,
        #[serde(default = "statistics_momentum")]
        momentum: f32,
    },
    Relu,
    /// ReLU, and at most 6.
    Relu6,
    Sigmoid,
    /// `x sigmoid(x)`, also called swish.
    Silu,
    /// `min(max(x / 6 + 1 / 2, 0), 1)`.
    HardSigmoid,
    /// `x hard_sigmoid(x)`.
    HardSwish,
    /// Over channels, at each place (PyTorch's `Softmax(dim=1)`).
    Softmax,
    MaxPool(MaxPool),
    AvgPool(AvgPool),
    GlobalAvgPool,
    /// The mean over windows that cover any image and give this size (PyTorch's
    /// `AdaptiveAvgPool2d`).
    AdaptiveAvgPool {
        size: Pair,
    },
    Linear {
        features: usize,
        #[serde(default = "yes")]
        bias: bool,
    },
    Dropout {
        rate: f32,
    },
    /// Across channels (AlexNet section 3.3): size n, alpha, beta, k.
    Lrn {
        size: usize,
        alpha: f32,
        beta: f32,
        k: f32,
    },
    /// Element-wise sum of the inputs.
    Add,
    /// Element-wise product of two inputs; the second may have one value per channel.
    Multiply,
    /// Along channels.
    Concat,
    /// Channel `k` of group `g` becomes channel `k groups + g` (PyTorch's `ChannelShuffle`).
    ChannelShuffle {
        groups: usize,
    },
    Flatten,
}

fn yes() -> bool {
    true
}
fn epsilon() -> f32 {
    1e-5
}
fn statistics_momentum() -> f32 {
    0.1
}

/// A node of the graph; inputs are earlier nodes, by index (`None` = the image).
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Unique; tensors are `name.weight`, `name.bias`, `name.running_mean`, ... (torchvision's).
    pub name: String,
    /// What it computes.
    pub kind: LayerKind,
    /// Where its inputs come from.
    pub inputs: Vec<Option<usize>>,
    /// Output shape of one sample, inferred.
    pub shape: Shape,
}

/// A whole model: nodes in topological order; the last one gives the logits `[classes, 1, 1]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Graph {
    /// Catalogue name or file stem.
    pub name: String,
    /// Shape of one input sample.
    pub input: Shape,
    /// Number of classes.
    pub classes: usize,
    /// The nodes.
    pub nodes: Vec<Node>,
    /// Classifiers within the model.
    pub heads: Vec<Head>,
    /// How convolutions begin.
    pub spread: Spread,
}

/// By what the variance of a convolution's first weights is divided. Without norms signals keep
/// their size by the inputs; PyTorch's residual networks begin by the outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spread {
    /// By the values that one input goes to.
    #[default]
    FanOut,
    /// By the values that one output comes from.
    FanIn,
}

/// A classifier within a model, which only training computes: a node that gives logits, and the
/// weight of its loss beside that of the last node (Szegedy et al. 2015, section 5).
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)]
pub struct Head {
    pub node: usize,
    pub weight: f32,
}

/// What a tensor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum TensorKind {
    /// Trained, decayed.
    Weight,
    /// Trained, not decayed (biases, batch-norm scale and shift).
    Bias,
    /// Batch-norm running mean or variance: not trained, travels with the gradients.
    Statistic,
}

/// One named tensor within the flat vectors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorSpec {
    /// `node.weight` and so on.
    pub name: String,
    /// Row-major: conv `[out, in of a group, kh, kw]`, linear `[out, in]`, others `[n]`.
    pub shape: Vec<usize>,
    /// First element in the parameter vector (Weight, Bias) or the statistics vector (Statistic).
    pub offset: usize,
    /// What it is for.
    pub kind: TensorKind,
    /// The node it belongs to.
    pub node: usize,
}

/// Where every tensor lies. Parameters and statistics are two flat f32 vectors, in node order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// All tensors, in node order.
    pub tensors: Vec<TensorSpec>,
    /// Elements of the parameter vector.
    pub parameters: usize,
    /// Elements of the statistics vector.
    pub statistics: usize,
}
