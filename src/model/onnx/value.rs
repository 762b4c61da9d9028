//! What a name of an ONNX graph stands for while the graph is read: the result of a layer, a
//! tensor of the file, or small whole numbers that shapes are computed with.

use crate::model::window::Padding;

use super::proto::Tensor;

/// An extent, or another whole number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dim {
    /// A number.
    Known(i64),
    /// However many samples there are.
    Batch,
}

/// The result of a layer, with the shape that it has in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flow {
    /// Its layer; `None` is the image.
    pub from: Option<usize>,
    /// Samples first.
    pub dims: Vec<Dim>,
}

/// A tensor of the file.
#[derive(Debug, Clone)]
pub struct Held<'a> {
    /// By which name.
    pub name: &'a str,
    /// The tensor.
    pub tensor: Tensor<'a>,
    /// A number of its own: the same tensor under two names has it twice.
    pub origin: usize,
    /// Whether rows are columns; of two extents only.
    pub transposed: bool,
}

impl Held<'_> {
    /// Its shape, as it is used.
    pub fn dims(&self) -> Vec<usize> {
        let mut dims = self.tensor.dims.clone();
        if self.transposed {
            dims.reverse();
        }
        dims
    }
}

/// Whether channels of groups lie apart or take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Arrangement {
    Apart,
    InTurn,
}

/// What one name of a graph stands for.
#[derive(Debug, Clone)]
pub enum Value<'a> {
    /// Differs by image.
    Flow(Flow),
    /// The result of a layer with zeros around it, which a convolution takes.
    Padded(Flow, Padding),
    /// Channels apart by groups, `[N, groups, each, height, width]`, or then in turn.
    Grouped {
        /// Of all channels.
        flow: Flow,
        /// As the file has it now, samples first.
        dims: Vec<Dim>,
        /// How many groups.
        groups: usize,
        /// Whether the groups take turns.
        arrangement: Arrangement,
    },
    /// A tensor of the file.
    Held(Held<'a>),
    /// Whole numbers. One stands for a row of one as well.
    Numbers(Vec<Dim>),
    /// One value everywhere. No extents: a single number.
    Fill {
        /// The value.
        value: f32,
        /// Its shape.
        dims: Vec<usize>,
    },
}

impl Value<'_> {
    /// In words, for a person.
    pub fn about(&self) -> String {
        match self {
            Self::Flow(flow) => format!("the result of a layer, {}", shown(&flow.dims)),
            Self::Padded(flow, _) => {
                format!("zeros around the result of a layer, {}", shown(&flow.dims))
            }
            Self::Grouped { dims, .. } => format!("channels by groups, {}", shown(dims)),
            Self::Held(held) => format!("the tensor {:?} of the file", held.dims()),
            Self::Numbers(numbers) => format!("the numbers {}", shown(numbers)),
            Self::Fill { value, dims } => format!("{dims:?} times {value}"),
        }
    }
}

/// As `[N, 3, 224, 224]`.
pub fn shown(dims: &[Dim]) -> String {
    let text = |dim: &Dim| match dim {
        Dim::Known(size) => size.to_string(),
        Dim::Batch => "N".into(),
    };
    format!("[{}]", dims.iter().map(text).collect::<Vec<_>>().join(", "))
}
