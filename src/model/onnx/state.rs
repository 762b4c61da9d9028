//! What is known of a graph while its nodes are read one after another: what names stand for, and
//! the layers so far.

use std::collections::HashMap;

use crate::config::Shown;
use crate::model::spec::output_shape;
use crate::model::{LayerKind, Shape};

use super::error::OnnxError;
use super::proto::{Attribute, Model, Node, Place};
use super::stored;
use super::value::{Dim, Flow, Held, Value};

/// What gives a layer a tensor of its own.
#[derive(Debug, Clone)]
pub enum Weight<'a> {
    /// A tensor of the file.
    Held(Held<'a>),
    /// One value everywhere.
    Fill(f32),
}

/// A layer that has been read.
#[derive(Debug, Clone)]
pub struct Draft<'a> {
    /// What it computes.
    pub kind: LayerKind,
    /// Layers before it; `None` is the image.
    pub inputs: Vec<Option<usize>>,
    /// Of its result.
    pub shape: Shape,
    /// Its tensors by the ends of their names: "weight", "bias", ...
    pub weights: Vec<(&'static str, Weight<'a>)>,
    /// The node that it was read from.
    pub node: usize,
}

/// All that is known of a graph so far.
#[derive(Debug)]
pub struct State<'a> {
    /// The graph.
    pub model: &'a Model<'a>,
    /// Shape of one image.
    pub image: Shape,
    /// Samples of an input.
    pub batch: Dim,
    /// What the names stand for.
    pub values: HashMap<&'a str, Value<'a>>,
    /// The layers.
    pub drafts: Vec<Draft<'a>>,
    /// Convolutions into which the exporter has folded a norm.
    pub folded: usize,
    /// Norms whose momentum is none.
    pub without_momentum: usize,
    /// The node that is being read.
    pub at: usize,
    origins: usize,
}

/// What an operator gives, or why it cannot be taken.
pub type Found<'a> = Result<Value<'a>, String>;

impl<'a> State<'a> {
    /// Before the first node.
    pub fn new(model: &'a Model<'a>, input: &'a str, image: Shape, batch: Dim) -> Self {
        let [channels, height, width] = image.map(|extent| Dim::Known(extent as i64));
        let flow = Flow { from: None, dims: vec![batch, channels, height, width] };
        let held = |(origin, tensor): (usize, &super::proto::Tensor<'a>)| {
            let name = tensor.name;
            let held = Held { name, tensor: tensor.clone(), origin, transposed: false };
            (name, Value::Held(held))
        };
        let mut values: HashMap<_, _> = model.tensors.iter().enumerate().map(held).collect();
        values.insert(input, Value::Flow(flow));
        let origins = model.tensors.len();
        let (drafts, folded, without_momentum, at) = (Vec::new(), 0, 0, 0);
        Self { model, image, batch, values, drafts, folded, without_momentum, at, origins }
    }

    /// A number for a tensor that is no tensor of the graph.
    pub fn next_origin(&mut self) -> usize {
        self.origins += 1;
        self.origins
    }

    /// An input, if the node is given it.
    pub fn optional(&self, node: &Node<'a>, at: usize) -> Option<&Value<'a>> {
        let name = node.inputs.get(at).filter(|name| !name.is_empty())?;
        self.values.get(name)
    }

    /// An input.
    pub fn value(&self, node: &Node<'a>, at: usize) -> Result<&Value<'a>, String> {
        self.optional(node, at).ok_or_else(|| format!("its input {at} is not given"))
    }

    /// An input that is the result of a layer.
    pub fn flow(&self, node: &Node<'a>, at: usize) -> Result<Flow, String> {
        match self.value(node, at)? {
            Value::Flow(flow) => Ok(flow.clone()),
            other => Err(format!(
                "its input {at} is {}, where the result of a layer is taken only",
                other.about()
            )),
        }
    }

    /// Such an input, in the shape that its layer gives it.
    pub fn plain_flow(&self, node: &Node<'a>, at: usize) -> Result<Flow, String> {
        let flow = self.flow(node, at)?;
        match self.is_plain(&flow) {
            true => Ok(flow),
            false => Err("its input is expanded, which only a product takes".into()),
        }
    }

    /// Whether the shape is the layer's own, with or without height and width of 1.
    pub fn is_plain(&self, flow: &Flow) -> bool {
        let [channels, height, width] = self.shape(flow).map(|extent| Dim::Known(extent as i64));
        let one = Dim::Known(1);
        match flow.dims[..] {
            [_, c, h, w] => (c, h, w) == (channels, height, width),
            [_, c] => (c, one, one) == (channels, height, width),
            _ => false,
        }
    }

    /// Shape of one sample, as our layer gives it.
    pub fn shape(&self, flow: &Flow) -> Shape {
        flow.from.map_or(self.image, |at| self.drafts[at].shape)
    }

    /// An input that is a tensor.
    pub fn held(&self, node: &Node<'a>, at: usize) -> Result<Held<'a>, String> {
        match self.value(node, at)? {
            Value::Held(held) => Ok(held.clone()),
            other => Err(format!(
                "its input {at} is {}, where a tensor of the file is taken only",
                other.about()
            )),
        }
    }

    /// An input that is a layer's own tensor.
    pub fn weight(&self, node: &Node<'a>, at: usize) -> Result<Weight<'a>, String> {
        match self.value(node, at)? {
            Value::Held(held) => Ok(Weight::Held(held.clone())),
            Value::Fill { value, .. } => Ok(Weight::Fill(*value)),
            other => Err(format!(
                "its input {at} is {}, where a tensor of the file is taken only",
                other.about()
            )),
        }
    }

    /// An input that holds small whole numbers; `None` where it holds something else.
    pub fn maybe_numbers(&self, node: &Node<'a>, at: usize) -> Result<Option<Vec<Dim>>, String> {
        let known = |numbers: Vec<i64>| numbers.into_iter().map(Dim::Known).collect();
        match self.optional(node, at) {
            Some(Value::Numbers(numbers)) => Ok(Some(numbers.clone())),
            Some(Value::Held(held)) if !held.transposed => {
                let read = stored::integers(&held.tensor).map_err(|error| error.to_string())?;
                Ok(read.map(known))
            }
            _ => Ok(None),
        }
    }

    /// An input that holds small whole numbers.
    pub fn numbers(&self, node: &Node<'a>, at: usize) -> Result<Vec<Dim>, String> {
        self.maybe_numbers(node, at)?.ok_or_else(|| {
            let found = self.optional(node, at).map_or("not given".into(), Value::about);
            format!("its input {at} is {found}, where known whole numbers are taken only")
        })
    }

    /// Such numbers, none of which is the number of samples.
    pub fn known_numbers(&self, node: &Node<'a>, at: usize) -> Result<Vec<i64>, String> {
        let known = |dim: &Dim| match dim {
            Dim::Known(number) => Ok(*number),
            Dim::Batch => Err(format!("its input {at} depends on the number of samples")),
        };
        self.numbers(node, at)?.iter().map(known).collect()
    }

    /// Numbers that older operator sets have as an attribute, newer ones as an input.
    pub fn attribute_or_input(
        &self,
        node: &Node<'a>,
        name: &str,
        at: usize,
    ) -> Result<Option<Vec<i64>>, String> {
        if let Some(attribute) = attribute(node, name)? {
            return Ok(Some(attribute.integers));
        }
        match self.optional(node, at) {
            Some(_) => self.known_numbers(node, at).map(Some),
            None => Ok(None),
        }
    }

    /// An input that is one number; `None` where it is not given.
    pub fn scalar(&self, node: &Node<'a>, at: usize) -> Result<Option<f32>, String> {
        let refuse = |value: &Value<'_>| {
            format!("its input {at} is {}, where one number is taken only", value.about())
        };
        match self.optional(node, at) {
            None => Ok(None),
            Some(Value::Fill { value, dims }) if dims.iter().all(|&dim| dim == 1) => {
                Ok(Some(*value))
            }
            Some(found @ Value::Held(held)) => {
                if held.tensor.elements() != Some(1)
                    || matches!(held.tensor.place, Place::Outside { .. })
                {
                    return Err(refuse(found));
                }
                let nowhere = |_: stored::FilePart<'_>| Err("in another file".to_owned());
                let read = stored::floats(&held.tensor, &nowhere);
                Ok(read.map_err(|error| error.to_string())?.first().copied())
            }
            Some(found) => Err(refuse(found)),
        }
    }

    /// Adds a layer; its result has the shape `[N, channels, height, width]`, or `[N, features]`
    /// where its first input has.
    pub fn layer(
        &mut self,
        kind: LayerKind,
        inputs: &[&Flow],
        weights: Vec<(&'static str, Weight<'a>)>,
    ) -> Found<'a> {
        let shapes: Vec<Shape> = inputs.iter().map(|flow| self.shape(flow)).collect();
        let shape = output_shape(&kind, &shapes)?;
        let flat = inputs.iter().all(|flow| flow.dims.len() == 2);
        let extents = shape.map(|extent| Dim::Known(extent as i64));
        let kept = if flat { 1 } else { 3 };
        let dims = std::iter::once(self.batch).chain(extents.into_iter().take(kept)).collect();
        let inputs = inputs.iter().map(|flow| flow.from).collect();
        let node = self.at;
        self.drafts.push(Draft { kind, inputs, shape, weights, node });
        Ok(Value::Flow(Flow { from: Some(self.drafts.len() - 1), dims }))
    }
}

fn attribute<'a>(node: &Node<'a>, name: &str) -> Result<Option<Attribute<'a>>, String> {
    node.attribute(name).map_err(|error: OnnxError| error.to_string())
}

/// A whole number of a node.
pub fn integer(node: &Node<'_>, name: &str, default: i64) -> Result<i64, String> {
    Ok(attribute(node, name)?.map_or(default, |attribute| attribute.integer))
}

/// A number of a node.
pub fn float(node: &Node<'_>, name: &str, default: f32) -> Result<f32, String> {
    Ok(attribute(node, name)?.map_or(default, |attribute| attribute.float))
}

/// Whole numbers of a node; empty where it has none.
pub fn integers(node: &Node<'_>, name: &str) -> Result<Vec<i64>, String> {
    Ok(attribute(node, name)?.map_or(Vec::new(), |attribute| attribute.integers))
}

/// A text of a node; empty where it has none.
pub fn text<'a>(node: &Node<'a>, name: &str) -> Result<&'a [u8], String> {
    Ok(attribute(node, name)?.map_or(&[][..], |attribute| attribute.text))
}

/// Refuses an attribute whose value is another than the only one that is taken.
pub fn only(node: &Node<'_>, name: &str, wanted: i64) -> Result<(), String> {
    match integer(node, name, wanted)? {
        found if found == wanted => Ok(()),
        found => Err(format!("{} = {found}: only {wanted} is taken", name.shown())),
    }
}

/// A size that is not negative.
pub fn size(number: i64) -> Result<usize, String> {
    usize::try_from(number).map_err(|_| format!("{number} is no size"))
}
