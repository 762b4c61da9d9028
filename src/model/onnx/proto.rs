//! The messages of onnx.proto (github.com/onnx/onnx, version 1.23) that a model is made of. Field
//! numbers are that file's. Texts and values stay where they lie in the file.
//!
//! Bounds: a file of 2 GiB (its own), `NODES_MAX` nodes of `INPUTS_MAX` inputs, `OUTPUTS_MAX`
//! outputs and `ATTRIBUTES_MAX` attributes, `TENSORS_MAX` tensors of `RANK_MAX` extents. That is
//! 256 MiB at most besides the file.

use super::error::OnnxError;
use super::wire::{Broken, Content, Fields, varint};

/// Nodes of a graph.
pub const NODES_MAX: usize = 1 << 14;
/// Inputs of a node.
pub const INPUTS_MAX: usize = 256;
/// Outputs of a node, and of a graph.
pub const OUTPUTS_MAX: usize = 8;
/// Attributes of a node.
pub const ATTRIBUTES_MAX: usize = 32;
/// Tensors that a graph holds.
pub const TENSORS_MAX: usize = 1 << 16;
/// Extents of a tensor.
pub const RANK_MAX: usize = 8;
/// Inputs and outputs of a graph, and operator sets. Old files list every tensor as an input.
const ENDS_MAX: usize = TENSORS_MAX + 64;
/// Values of an attribute, and of a tensor that is computed with.
pub const NUMBERS_MAX: usize = 64;
/// Texts that a file says of its model, as far as they are looked at: ours have five.
const TEXTS_MAX: usize = 256;
/// What stands beside a tensor that lies in another file.
const EXTERNAL_MAX: usize = 8;

/// Element types (TensorProto.DataType).
pub const FLOAT: i64 = 1;
/// Numbers of 16 bits, which become f32 here.
pub const FLOAT16: i64 = 10;
/// The upper halves of f32, which become f32 here.
pub const BFLOAT16: i64 = 16;
/// 64-bit integers.
pub const INT64: i64 = 7;
/// 32-bit integers.
pub const INT32: i64 = 6;
/// Truth values.
pub const BOOL: i64 = 9;

/// Who wrote a file of our own.
pub const OWN_NAME: &str = "kintsugi";

/// Whether elements of this type are fractions that layers compute with.
pub fn is_fraction(kind: i64) -> bool {
    matches!(kind, FLOAT | FLOAT16 | BFLOAT16)
}

/// A model.
#[derive(Debug, Default)]
pub struct Model<'a> {
    /// Who wrote it.
    pub producer: &'a str,
    /// Version of the default operator set.
    pub opset: Option<i64>,
    /// Its nodes, in file order.
    pub nodes: Vec<Node<'a>>,
    /// What it holds.
    pub tensors: Vec<Tensor<'a>>,
    /// What it is given; old files list its tensors here too.
    pub inputs: Vec<End<'a>>,
    /// What it gives.
    pub outputs: Vec<End<'a>>,
    /// What it says of itself: names and texts.
    pub texts: Vec<(&'a str, &'a str)>,
}

/// Of files of others nothing is known of their texts.
fn texts<'a>(producer: &str, all: &[&'a [u8]]) -> Result<Vec<(&'a str, &'a str)>, OnnxError> {
    let own = all.iter().filter(|_| producer == OWN_NAME);
    own.map(|message| Ok(pair(message)?)).collect()
}

/// A node.
#[derive(Debug, Default, Clone)]
pub struct Node<'a> {
    /// Perhaps empty.
    pub name: &'a str,
    /// What it computes.
    pub op: &'a str,
    /// Empty for the standard's own.
    pub domain: &'a str,
    /// Names of values; an empty one is not given.
    pub inputs: Vec<&'a str>,
    /// Names of values.
    pub outputs: Vec<&'a str>,
    /// torch's module path, as text of a Python list.
    pub scopes: &'a str,
    /// Whether the exporter has folded a norm into it.
    pub folded: bool,
    attributes: Vec<&'a [u8]>,
}

/// Where the values of a tensor are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place<'a> {
    /// Little-endian, as in memory.
    Raw(&'a [u8]),
    /// A packed row of protobuf's own numbers: four bytes each for floats, varints for integers.
    Row(&'a [u8]),
    /// In another file of the same folder.
    Outside {
        /// Its name.
        file: &'a str,
        /// First byte.
        offset: u64,
        /// Bytes; what the shape says where it is absent.
        length: Option<u64>,
    },
}

/// A tensor.
#[derive(Debug, Clone)]
pub struct Tensor<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its element type.
    pub kind: i64,
    /// Its shape; checked to be countable.
    pub dims: Vec<usize>,
    /// Its values.
    pub place: Place<'a>,
}

/// An input or output of the model.
#[derive(Debug, Default, Clone)]
pub struct End<'a> {
    /// Its name.
    pub name: &'a str,
    /// Element type; 0 where none is given.
    pub kind: i64,
    /// `None`: any.
    pub dims: Vec<Option<i64>>,
}

/// An attribute's value.
#[derive(Debug, Default, Clone)]
pub struct Attribute<'a> {
    /// A number.
    pub float: f32,
    /// A whole number.
    pub integer: i64,
    /// A text.
    pub text: &'a [u8],
    /// Whole numbers.
    pub integers: Vec<i64>,
    /// A tensor.
    pub tensor: Option<Tensor<'a>>,
}

fn text(content: Content<'_>) -> Result<&str, Broken> {
    let Content::Bytes(bytes) = content else { return Err(Broken("a name is a number".into())) };
    std::str::from_utf8(bytes).map_err(|_| Broken("a name is not UTF-8".into()))
}

/// A name and a text (StringStringEntryProto).
fn pair(message: &[u8]) -> Result<(&str, &str), Broken> {
    let mut pair = ("", "");
    for field in Fields::of(message) {
        match field? {
            (1, content) => pair.0 = text(content)?,
            (2, content) => pair.1 = text(content)?,
            _ => {}
        }
    }
    Ok(pair)
}

fn bytes(content: Content<'_>) -> Result<&[u8], Broken> {
    match content {
        Content::Bytes(bytes) => Ok(bytes),
        _ => Err(Broken("a number stands where a message is wanted".into())),
    }
}

fn integer(content: Content<'_>) -> Result<i64, Broken> {
    match content {
        Content::Varint(value) => Ok(value as i64),
        _ => Err(Broken("an integer is wanted".into())),
    }
}

/// One integer, or a packed row of them.
fn integers(content: Content<'_>, into: &mut Vec<i64>, most: usize) -> Result<(), OnnxError> {
    let full = |found| OnnxError::TooMany { what: "numbers of a row", found, most };
    match content {
        Content::Bytes(mut row) => {
            while !row.is_empty() {
                if into.len() == most {
                    return Err(full(most + 1));
                }
                into.push(varint(&mut row)? as i64);
            }
            Ok(())
        }
        content if into.len() < most => {
            into.push(integer(content)?);
            Ok(())
        }
        _ => Err(full(most + 1)),
    }
}

/// Appends, up to a bound.
fn push<T>(list: &mut Vec<T>, item: T, most: usize, what: &'static str) -> Result<(), OnnxError> {
    if list.len() >= most {
        return Err(OnnxError::TooMany { what, found: most + 1, most });
    }
    list.push(item);
    Ok(())
}

impl<'a> Model<'a> {
    /// Of a file's bytes.
    pub fn read(file: &'a [u8]) -> Result<Self, OnnxError> {
        let mut model = Self::default();
        let (mut graph, mut imports, mut said) = (None, 0, Vec::new());
        for field in Fields::of(file) {
            match field? {
                (2, content) => model.producer = text(content)?,
                (7, content) => graph = Some(bytes(content)?),
                (8, content) => {
                    imports += 1;
                    if imports > ENDS_MAX {
                        let (what, most) = ("operator sets", ENDS_MAX);
                        return Err(OnnxError::TooMany { what, found: imports, most });
                    }
                    let (domain, version) = operator_set(bytes(content)?)?;
                    if domain.is_empty() || domain == "ai.onnx" {
                        model.opset = Some(version);
                    }
                }
                (14, content) => {
                    let text = bytes(content)?;
                    said.extend(Some(text).filter(|_| said.len() < TEXTS_MAX));
                }
                _ => {}
            }
        }
        let graph = graph.ok_or_else(|| OnnxError::Format("it holds no graph".into()))?;
        model.texts = texts(model.producer, &said)?;
        model.read_graph(graph)?;
        Ok(model)
    }

    fn read_graph(&mut self, graph: &'a [u8]) -> Result<(), OnnxError> {
        for field in Fields::of(graph) {
            match field? {
                (1, content) => {
                    let node = Node::read(bytes(content)?)?;
                    push(&mut self.nodes, node, NODES_MAX, "nodes")?;
                }
                (5, content) => {
                    let tensor = Tensor::read(bytes(content)?)?;
                    push(&mut self.tensors, tensor, TENSORS_MAX, "tensors")?;
                }
                (11, content) => {
                    let end = End::read(bytes(content)?)?;
                    push(&mut self.inputs, end, ENDS_MAX, "inputs")?;
                }
                (12, content) => {
                    let end = End::read(bytes(content)?)?;
                    push(&mut self.outputs, end, OUTPUTS_MAX, "outputs")?;
                }
                (15, _) => {
                    return Err(OnnxError::Format(
                        "it holds sparse tensors, which are not read: write them in full".into(),
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn operator_set(message: &[u8]) -> Result<(&str, i64), Broken> {
    let (mut domain, mut version) = ("", 0);
    for field in Fields::of(message) {
        match field? {
            (1, content) => domain = text(content)?,
            (2, content) => version = integer(content)?,
            _ => {}
        }
    }
    Ok((domain, version))
}

/// A key and its text (StringStringEntryProto).
fn entry(message: &[u8]) -> Result<(&str, &str), Broken> {
    let (mut key, mut value) = ("", "");
    for field in Fields::of(message) {
        match field? {
            (1, content) => key = text(content)?,
            (2, content) => value = text(content)?,
            _ => {}
        }
    }
    Ok((key, value))
}

impl<'a> Node<'a> {
    fn read(message: &'a [u8]) -> Result<Self, OnnxError> {
        let mut node = Self::default();
        for field in Fields::of(message) {
            match field? {
                (1, content) => push(&mut node.inputs, text(content)?, INPUTS_MAX, "inputs")?,
                (2, content) => push(&mut node.outputs, text(content)?, OUTPUTS_MAX, "outputs")?,
                (3, content) => node.name = text(content)?,
                (4, content) => node.op = text(content)?,
                (5, content) => {
                    let attribute = bytes(content)?;
                    push(&mut node.attributes, attribute, ATTRIBUTES_MAX, "attributes")?;
                }
                (7, content) => node.domain = text(content)?,
                (9, content) => match entry(bytes(content)?)? {
                    ("pkg.torch.onnx.name_scopes", scopes) => node.scopes = scopes,
                    ("pkg.onnxscript.rewriter.rule_name", rules) => {
                        node.folded = rules.contains("FuseBatchNorm");
                    }
                    _ => {}
                },
                _ => {}
            }
        }
        Ok(node)
    }

    /// An attribute by its name.
    pub fn attribute(&self, name: &str) -> Result<Option<Attribute<'a>>, OnnxError> {
        for message in &self.attributes {
            let named = |field: &Result<(u32, Content<'_>), Broken>| {
                *field == Ok((1, Content::Bytes(name.as_bytes())))
            };
            if Fields::of(message).any(|field| named(&field)) {
                return Attribute::read(message).map(Some);
            }
        }
        Ok(None)
    }
}

impl<'a> Attribute<'a> {
    fn read(message: &'a [u8]) -> Result<Self, OnnxError> {
        let mut own = Self::default();
        for field in Fields::of(message) {
            match field? {
                (2, Content::Fixed32(bits)) => own.float = f32::from_bits(bits),
                (3, content) => own.integer = integer(content)?,
                (4, content) => own.text = bytes(content)?,
                (5, content) => own.tensor = Some(Tensor::read(bytes(content)?)?),
                (8, content) => integers(content, &mut own.integers, NUMBERS_MAX)?,
                _ => {}
            }
        }
        Ok(own)
    }
}

impl<'a> End<'a> {
    fn read(message: &'a [u8]) -> Result<Self, OnnxError> {
        let mut end = Self::default();
        for field in Fields::of(message) {
            match field? {
                (1, content) => end.name = text(content)?,
                (2, content) => end.read_type(bytes(content)?)?,
                _ => {}
            }
        }
        Ok(end)
    }

    /// TypeProto: of tensors only.
    fn read_type(&mut self, message: &'a [u8]) -> Result<(), OnnxError> {
        for field in Fields::of(message) {
            let (1, content) = field? else { continue };
            for field in Fields::of(bytes(content)?) {
                match field? {
                    (1, content) => self.kind = integer(content)?,
                    (2, content) => self.read_shape(bytes(content)?)?,
                    _ => {}
                }
            }
        }
        Ok(())
    }

    fn read_shape(&mut self, message: &'a [u8]) -> Result<(), OnnxError> {
        for field in Fields::of(message) {
            let (1, content) = field? else { continue };
            let mut known = None;
            for field in Fields::of(bytes(content)?) {
                if let (1, content) = field? {
                    known = Some(integer(content)?);
                }
            }
            push(&mut self.dims, known, RANK_MAX, "extents")?;
        }
        Ok(())
    }
}

impl<'a> Tensor<'a> {
    fn read(message: &'a [u8]) -> Result<Self, OnnxError> {
        let mut own = Self { name: "", kind: 0, dims: Vec::new(), place: Place::Raw(&[]) };
        let (mut extents, mut outside, mut pieces) = (Vec::new(), (None, 0, None), 0);
        let (mut is_outside, mut entries) = (false, 0);
        for field in Fields::of(message) {
            match field? {
                (1, content) => integers(content, &mut extents, RANK_MAX)?,
                (2, content) => own.kind = integer(content)?,
                (4 | 5 | 7, Content::Bytes(row)) => {
                    own.place = Place::Row(row);
                    pieces += 1;
                }
                (4 | 5 | 7 | 3, _) => pieces += 2,
                (8, content) => own.name = text(content)?,
                (9, content) => own.place = Place::Raw(bytes(content)?),
                (13, content) if entries < EXTERNAL_MAX => {
                    entries += 1;
                    read_outside(bytes(content)?, &mut outside)?;
                }
                (14, content) => is_outside = integer(content)? == 1,
                _ => {}
            }
        }
        let refuse = |reason: &str| {
            Err(OnnxError::Tensor { name: own.name.to_owned(), reason: reason.to_owned() })
        };
        if pieces > 1 {
            return refuse("its values come in pieces; write them as one row or as raw_data");
        }
        for extent in extents {
            match usize::try_from(extent) {
                Ok(extent) if extent <= 1 << 36 => own.dims.push(extent),
                _ => return refuse(&format!("an extent of {extent}")),
            }
        }
        if is_outside {
            let (Some(file), offset, length) = outside else {
                return refuse("it lies in another file, which is not named");
            };
            own.place = Place::Outside { file, offset, length };
        }
        Ok(own)
    }

    /// Elements, or `None` where no machine counts them.
    pub fn elements(&self) -> Option<usize> {
        let product = self.dims.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim));
        product.filter(|&elements| elements <= 1 << 36)
    }
}

type Outside<'a> = (Option<&'a str>, u64, Option<u64>);

fn read_outside<'a>(message: &'a [u8], outside: &mut Outside<'a>) -> Result<(), OnnxError> {
    let (key, value) = entry(message)?;
    let number = || {
        let text = format!("external data: {key} is not a number");
        value.parse::<u64>().map_err(|_| OnnxError::Format(text))
    };
    match key {
        "location" => outside.0 = Some(value),
        "offset" => outside.1 = number()?,
        "length" => outside.2 = Some(number()?),
        _ => {}
    }
    Ok(())
}
