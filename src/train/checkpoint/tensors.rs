//! The safetensors files: a header of names, shapes and places, then the values, little-endian.
//! Written from the flat vectors without a copy, and with the same bytes every time (the
//! library's own writer copies all values and orders its metadata at random); read by the library.

use std::collections::{BTreeMap, HashMap};

use safetensors::tensor::{Dtype, SafeTensors, TensorInfo};
use serde::Serialize;
use thiserror::Error;

use crate::config::Shown;
use crate::model::parts::{AVERAGE, MOMENTUM};
use crate::model::{Layout, TensorKind, TensorSpec};
use crate::train::checkpoint::differences::{Differences, is_ignored};

/// What stands before a tensor's name in `optimizer.safetensors`: the part's name, but PyTorch's
/// word for momentum.
fn prefix_of(part: &str) -> String {
    let word = if part == MOMENTUM { MOMENTUM_WORD } else { part };
    format!("{word}.")
}

/// The reverse of `prefix_of`, without the dot.
fn part_of(word: &str) -> &str {
    if word == MOMENTUM_WORD { MOMENTUM } else { word }
}

/// PyTorch's.
const MOMENTUM_WORD: &str = "momentum_buffer";
/// Data begins on a multiple of it (the format's own rule).
const HEADER_ALIGN_BYTES: usize = 8;

const _: () = assert!(cfg!(target_endian = "little"), "values are written as they lie in memory");

/// Why a file does not give the tensors that are asked for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TensorError {
    /// Not a safetensors file.
    #[error("not a safetensors file: {0}")]
    Format(String),
    /// A file of another kind, or one that asks for what no weights need.
    #[error("{0}")]
    Refused(String),
    /// An element type that no weights have.
    #[error("tensor {} has elements of {found}; weights are f32, f16, bf16 or f64", name.shown())]
    Type {
        /// The tensor.
        name: String,
        /// Its type.
        found: String,
    },
    /// Not there.
    #[error("tensor {} is missing", .0.shown())]
    Missing(String),
    /// Another model's, or not all of this one's.
    #[error("{0}")]
    Differ(Differences),
    /// Another shape.
    #[error("tensor {} has shape {found:?}, the model needs {expected:?}", name.shown())]
    Shape {
        /// The tensor.
        name: String,
        /// In the file.
        found: Vec<usize>,
        /// In the model.
        expected: Vec<usize>,
    },
}

/// A file, ready to be written part after part.
#[derive(Debug)]
pub struct TensorFile<'a> {
    header: Vec<u8>,
    values: Vec<&'a [u8]>,
}

/// A count of PyTorch's batch norms, as its eight bytes: how many batches each has seen.
pub type Count = [u8; 8];

#[derive(Serialize)]
struct Header<'a> {
    #[serde(rename = "__metadata__")]
    about: &'a BTreeMap<String, String>,
    #[serde(flatten)]
    tensors: BTreeMap<String, TensorInfo>,
}

impl<'a> TensorFile<'a> {
    fn new(
        counters: impl Iterator<Item = (String, &'a Count)>,
        tensors: impl Iterator<Item = (String, &'a TensorSpec, &'a [f32])>,
        about: &BTreeMap<String, String>,
    ) -> Self {
        let (mut infos, mut values, mut end) = (BTreeMap::new(), Vec::<&[u8]>::new(), 0);
        // First, so that each lies at a multiple of its size.
        for (name, count) in counters {
            let data_offsets = (end, end + count.len());
            end += count.len();
            infos.insert(name, TensorInfo { dtype: Dtype::I64, shape: Vec::new(), data_offsets });
            values.push(count);
        }
        for (name, tensor, flat) in tensors {
            let bytes: &[u8] = bytemuck::cast_slice(&flat[tensor.range()]);
            let data_offsets = (end, end + bytes.len());
            end += bytes.len();
            let shape = tensor.shape.clone();
            infos.insert(name, TensorInfo { dtype: Dtype::F32, shape, data_offsets });
            values.push(bytes);
        }
        let header = Header { about, tensors: infos };
        let mut text = serde_json::to_vec(&header).expect("strings and numbers are always JSON");
        text.resize(text.len().next_multiple_of(HEADER_ALIGN_BYTES), b' ');
        let mut header = (text.len() as u64).to_le_bytes().to_vec();
        header.append(&mut text);
        Self { header, values }
    }

    /// The parts in file order.
    pub fn parts(&self) -> Vec<&[u8]> {
        std::iter::once(self.header.as_slice()).chain(self.values.iter().copied()).collect()
    }
}

/// Weights and running statistics under the names of the layout (torchvision's). `count`: beside
/// every running mean stands how many batches made it, as in PyTorch's models.
pub fn model_file<'a>(
    layout: &'a Layout,
    parameters: &'a [f32],
    statistics: &'a [f32],
    count: Option<&'a Count>,
    about: &BTreeMap<String, String>,
) -> TensorFile<'a> {
    let norms = layout.tensors.iter().filter_map(|t| t.name.strip_suffix("running_mean"));
    let counters = norms.filter_map(|node| Some((format!("{node}num_batches_tracked"), count?)));
    let flat = |kind| if kind == TensorKind::Statistic { statistics } else { parameters };
    let tensors = layout.tensors.iter().map(|t| (t.name.clone(), t, flat(t.kind)));
    TensorFile::new(counters, tensors, about)
}

/// The optimizer's parts, each with one tensor for every trained one, and for every running
/// statistic where such lie behind its parameters.
pub fn optimizer_file<'a>(
    layout: &'a Layout,
    parts: &'a [(String, Vec<f32>)],
    about: &BTreeMap<String, String>,
) -> TensorFile<'a> {
    let named = parts.iter().flat_map(|(part, values)| {
        let prefix = prefix_of(part);
        let (of_trained, of_statistics) = values.split_at(layout.parameters);
        let behind = statistics(layout).filter(|_| !of_statistics.is_empty());
        let tensors = trained(layout).map(move |t| (t, of_trained));
        let tensors = tensors.chain(behind.map(move |t| (t, of_statistics)));
        tensors.map(move |(t, values)| (format!("{prefix}{}", t.name), t, values))
    });
    TensorFile::new(std::iter::empty(), named, about)
}

fn trained(layout: &Layout) -> impl Iterator<Item = &TensorSpec> {
    layout.tensors.iter().filter(|t| t.kind != TensorKind::Statistic)
}

fn statistics(layout: &Layout) -> impl Iterator<Item = &TensorSpec> {
    layout.tensors.iter().filter(|t| t.kind == TensorKind::Statistic)
}

/// Weights and running statistics as flat vectors, found by name.
pub fn read_model(bytes: &[u8], layout: &Layout) -> Result<(Vec<f32>, Vec<f32>), TensorError> {
    let file = parse(bytes)?;
    let tensors = file.tensors();
    let found: Vec<(&str, &[usize])> =
        tensors.iter().map(|(name, view)| (name.as_str(), view.shape())).collect();
    let differences = Differences::between(&found, layout);
    if !differences.is_empty() {
        return Err(TensorError::Differ(differences));
    }
    let (mut parameters, mut statistics) =
        (vec![0.0; layout.parameters], vec![0.0; layout.statistics]);
    for tensor in &layout.tensors {
        let flat = match tensor.kind {
            TensorKind::Statistic => &mut statistics,
            TensorKind::Weight | TensorKind::Bias => &mut parameters,
        };
        read_tensor(&file, &tensor.name, tensor, flat)?;
    }
    Ok((parameters, statistics))
}

/// The optimizer's parts as flat vectors, in the order of their names: as many as stand before the
/// first trained tensor, and whole. An average that an earlier release wrote without running
/// statistics goes on from these: `running`.
pub fn read_optimizer(
    bytes: &[u8],
    layout: &Layout,
    running: &[f32],
) -> Result<Vec<(String, Vec<f32>)>, TensorError> {
    let file = parse(bytes)?;
    let Some(first) = trained(layout).next() else { return Ok(Vec::new()) };
    let names = file.names();
    let word = |name: &&str| Some(name.strip_suffix(&first.name)?.strip_suffix('.')?.to_owned());
    let mut words: Vec<String> = names.iter().filter_map(word).collect();
    words.retain(|word| !word.contains('.'));
    words.sort();
    if words.is_empty() {
        return Err(TensorError::Missing(format!("{MOMENTUM_WORD}.{}", first.name)));
    }
    let read = |word: String| {
        let mut values = vec![0.0; layout.parameters];
        for tensor in trained(layout) {
            read_tensor(&file, &format!("{word}.{}", tensor.name), tensor, &mut values)?;
        }
        if word == AVERAGE {
            let mut averaged = running.to_vec();
            let named = |t: &TensorSpec| format!("{word}.{}", t.name);
            for tensor in statistics(layout).filter(|t| names.contains(&&*named(t))) {
                read_tensor(&file, &named(tensor), tensor, &mut averaged)?;
            }
            values.append(&mut averaged);
        }
        Ok((part_of(&word).to_owned(), values))
    };
    words.into_iter().map(read).collect()
}

/// The layout that a file of weights implies: tensors in file order, kinds by torchvision's names.
pub fn layout_of(bytes: &[u8]) -> Result<Layout, TensorError> {
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(format_error)?;
    let mut layout = Layout { tensors: Vec::new(), parameters: 0, statistics: 0 };
    let mut nodes: HashMap<String, usize> = HashMap::new();
    for name in header.offset_keys() {
        let Some(info) = header.info(&name) else { continue };
        if is_ignored(&name) {
            continue;
        }
        let (node, last) = name.rsplit_once('.').unwrap_or(("", &name));
        let kind = match last {
            "running_mean" | "running_var" => TensorKind::Statistic,
            _ if info.shape.len() > 1 => TensorKind::Weight,
            _ => TensorKind::Bias,
        };
        let end = match kind {
            TensorKind::Statistic => &mut layout.statistics,
            TensorKind::Weight | TensorKind::Bias => &mut layout.parameters,
        };
        let (offset, shape, nodes_seen) = (*end, info.shape.clone(), nodes.len());
        *end += shape.iter().product::<usize>();
        let node = *nodes.entry(node.to_string()).or_insert(nodes_seen);
        layout.tensors.push(TensorSpec { name, shape, offset, kind, node });
    }
    Ok(layout)
}

fn parse(bytes: &[u8]) -> Result<SafeTensors<'_>, TensorError> {
    SafeTensors::deserialize(bytes).map_err(format_error)
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that map_err wants")]
fn format_error(error: safetensors::SafeTensorError) -> TensorError {
    TensorError::Format(error.to_string())
}

fn read_tensor(
    file: &SafeTensors<'_>,
    name: &str,
    spec: &TensorSpec,
    flat: &mut [f32],
) -> Result<(), TensorError> {
    let view = file.tensor(name).map_err(|_| TensorError::Missing(name.to_string()))?;
    if view.dtype() != Dtype::F32 {
        let found = format!("{:?}", view.dtype());
        return Err(TensorError::Type { name: name.to_string(), found });
    }
    if view.shape() != spec.shape {
        let (found, expected) = (view.shape().to_vec(), spec.shape.clone());
        return Err(TensorError::Shape { name: name.to_string(), found, expected });
    }
    for (value, four) in flat[spec.range()].iter_mut().zip(view.data().chunks_exact(4)) {
        *value = f32::from_le_bytes([four[0], four[1], four[2], four[3]]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(name: &str, shape: &[usize], offset: usize, kind: TensorKind) -> TensorSpec {
        TensorSpec { name: name.into(), shape: shape.to_vec(), offset, kind, node: 0 }
    }

    fn layout() -> Layout {
        let tensors = vec![
            tensor("conv1.weight", &[2, 1, 2, 2], 0, TensorKind::Weight),
            tensor("bn1.weight", &[2], 8, TensorKind::Bias),
            tensor("bn1.running_mean", &[2], 0, TensorKind::Statistic),
            tensor("fc.bias", &[3], 10, TensorKind::Bias),
        ];
        Layout { tensors, parameters: 13, statistics: 2 }
    }

    fn file(layout: &Layout) -> Vec<u8> {
        let parameters: Vec<f32> = (0..13).map(|i| i as f32 - 0.5).collect();
        let about = BTreeMap::from([("format".to_string(), "pt".to_string())]);
        model_file(layout, &parameters, &[7.0, 8.0], None, &about).parts().concat()
    }

    #[test]
    fn what_is_written_is_read_back() {
        let bytes = file(&layout());
        let (parameters, statistics) = read_model(&bytes, &layout()).unwrap();
        assert_eq!((parameters[12], &statistics[..]), (11.5, &[7.0, 8.0][..]));
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        assert_eq!(header.metadata().as_ref().unwrap()["format"], "pt");
        assert_eq!(bytes, file(&layout()), "the same state gives the same bytes");
    }

    #[test]
    fn averaged_statistics_are_read_back_and_begin_with_the_running_ones() {
        let momentum = ("momentum".to_string(), vec![1.0; 13]);
        let average: Vec<f32> = (0..15).map(|i| i as f32).collect();
        let written = |average: &[f32]| {
            let parts = [("ema".to_string(), average.to_vec()), momentum.clone()];
            optimizer_file(&layout(), &parts, &BTreeMap::new()).parts().concat()
        };
        let read = |bytes: &[u8]| read_optimizer(bytes, &layout(), &[7.0, 8.0]).unwrap();
        let expected = vec![("ema".to_string(), average.clone()), momentum.clone()];
        assert_eq!(read(&written(&average)), expected);
        // As an earlier release wrote it.
        let earlier = read(&written(&average[..13]));
        assert_eq!((&earlier[0].1[..13], &earlier[0].1[13..]), (&average[..13], &[7.0, 8.0][..]));
    }

    #[test]
    fn tensors_are_found_by_name_wherever_they_lie() {
        let mut moved = layout();
        moved.tensors.swap(0, 3);
        moved.tensors[0].offset = 0;
        moved.tensors[1].offset = 3;
        moved.tensors[3].offset = 5;
        let (parameters, _) = read_model(&file(&layout()), &moved).unwrap();
        assert_eq!(parameters[..3], [9.5, 10.5, 11.5]);
        assert_eq!(parameters[5], -0.5);
    }

    #[test]
    fn a_file_implies_its_layout() {
        let implied = layout_of(&file(&layout())).unwrap();
        let ends = (implied.parameters, implied.statistics);
        assert_eq!(ends, (13, 2));
        let kinds = |layout: &Layout| layout.tensors.iter().map(|t| t.kind).collect::<Vec<_>>();
        assert_eq!(kinds(&implied), kinds(&layout()));
        assert_eq!(implied.tensors[3].offset, 10);
    }

    #[test]
    fn another_model_is_named_tensor_by_tensor() {
        let bytes = file(&layout());
        let mut other = layout();
        other.tensors[3].name = "fc2.bias".into();
        let text = read_model(&bytes, &other).unwrap_err().to_string();
        let expected = "1 tensors are missing: fc2.bias; 1 tensors are of no layer of the model: \
                        fc.bias";
        assert_eq!(text, expected);
        let mut other = layout();
        other.tensors[0].shape = vec![2, 2, 2, 1];
        let text = read_model(&bytes, &other).unwrap_err().to_string();
        assert!(text.contains("conv1.weight (shape [2, 1, 2, 2], the model"), "{text}");
    }
}
