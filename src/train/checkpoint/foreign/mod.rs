//! Files of weights that others wrote: safetensors of any element type, and what `torch.save`
//! writes. A file is opened as a list of tensors that say where their elements lie; nothing is
//! copied or converted before a model asks for it. `torch` and `zip` read PyTorch's files, `tensor`
//! is one tensor, `names` finds a model's among them, `fit` gives a model what it needs of them.

mod file;
mod fit;
mod names;
mod tensor;
mod torch;
mod zip;

use std::collections::HashMap;

use safetensors::tensor::{Dtype, SafeTensors};

use crate::train::checkpoint::tensors::TensorError;

pub use file::Foreign;
use file::{TENSORS_MAX, check_tensor};
pub use fit::{Answers, Fitted, fit, renamed};
use tensor::{Element, Tensor};

/// Most bytes of a safetensors header: names and places, 100 to 200 bytes a tensor.
const HEADER_BYTES_MAX: u64 = 16 << 20;
/// Bytes before a safetensors header: its length.
const LENGTH_BYTES: usize = 8;
const ONNX: &str = "it is an ONNX file, which holds a model: `kintsugi model import FILE` makes a \
    model file and weights (.safetensors) of it";
const NEITHER: &str = "it is no file of weights: neither .safetensors nor what torch.save writes \
    (.pth)";

/// Opens a file by what it begins with.
///
/// # Errors
/// It is neither, is damaged, or asks for what no file of weights needs.
pub fn open(bytes: &[u8]) -> Result<Foreign<'_>, TensorError> {
    if bytes.starts_with(zip::START) {
        return torch::open(bytes).map_err(TensorError::Refused);
    }
    // A header of safetensors may have any length, 128 too; none is as long as a pickle says.
    if bytes.starts_with(torch::PICKLE_START) && header_bytes(bytes) > Some(HEADER_BYTES_MAX) {
        return Err(TensorError::Refused(torch::OLD.into()));
    }
    if !is_safetensors(bytes) {
        let text = if is_onnx(bytes) { ONNX } else { NEITHER };
        return Err(TensorError::Refused(text.into()));
    }
    safetensors(bytes)
}

/// Behind the length of its header stands an object of JSON.
fn is_safetensors(bytes: &[u8]) -> bool {
    bytes.get(LENGTH_BYTES) == Some(&b'{')
}

/// ONNX files begin with a field of protobuf: the version of the format, a small number, and then
/// another field of those that a model has. Weights alone never look like this.
fn is_onnx(bytes: &[u8]) -> bool {
    const VERSION: u8 = 0x08;
    const VERSIONS_MAX: u8 = 0x40;
    // producer_name, producer_version, domain, model_version, doc_string, graph, opset_import.
    const NEXT: [u8; 7] = [0x12, 0x1a, 0x22, 0x28, 0x32, 0x3a, 0x42];
    match bytes {
        [VERSION, version, next, ..] => *version <= VERSIONS_MAX && NEXT.contains(next),
        _ => false,
    }
}

/// What a safetensors file says of its header's length.
fn header_bytes(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk::<LENGTH_BYTES>().map(|first| u64::from_le_bytes(*first))
}

fn safetensors(bytes: &[u8]) -> Result<Foreign<'_>, TensorError> {
    let format = |error: safetensors::SafeTensorError| TensorError::Format(error.to_string());
    if let Some(length) = header_bytes(bytes).filter(|length| *length > HEADER_BYTES_MAX) {
        return Err(TensorError::Format(format!(
            "it would begin with a header of {length} bytes; headers up to {HEADER_BYTES_MAX} \
             bytes are read"
        )));
    }
    let (length, header) = SafeTensors::read_metadata(bytes).map_err(format)?;
    // Checked by the library: places lie in the file, one behind the other, and fit the shapes.
    let values = &bytes[LENGTH_BYTES + length..];
    if header.data_len() != values.len() {
        let (named, lie) = (header.data_len(), values.len());
        let text = format!("its header names {named} bytes of values, and {lie} follow");
        return Err(TensorError::Format(text));
    }
    let mut tensors = Vec::new();
    for name in header.offset_keys() {
        let Some(info) = header.info(&name) else { continue };
        check_tensor(tensors.len(), &name, &info.shape).map_err(TensorError::Refused)?;
        let (from, to) = info.data_offsets;
        let element = match info.dtype {
            Dtype::F32 => Element::F32,
            Dtype::F16 => Element::F16,
            Dtype::BF16 => Element::Bf16,
            Dtype::F64 => Element::F64,
            other => Element::Other(format!("{other:?}")),
        };
        tensors.push(Tensor::contiguous(name, info.shape.clone(), element, &values[from..to]));
    }
    let about = header.metadata().clone().unwrap_or_default().into_iter().collect();
    let mut file = Foreign { tensors, about, ..Foreign::default() };
    untie(&mut file);
    Ok(file)
}

/// Of several tensors that are the same `safetensors.torch.save_model` writes one, and in the texts
/// about the file, which one each of the others is.
fn untie(file: &mut Foreign<'_>) {
    let names = file.tensors.iter().map(|tensor| tensor.name.clone());
    let places: HashMap<String, usize> = names.zip(0..).collect();
    let place = |name: &String| places.get(name).copied();
    let ties = file.about.iter().filter(|(tied, _)| place(tied).is_none());
    let ties: Vec<_> = ties
        .filter_map(|(tied, kept)| Some((tied.clone(), kept.clone(), place(kept)?)))
        .take(TENSORS_MAX.saturating_sub(file.tensors.len()))
        .collect();
    for (tied, kept, at) in ties {
        file.tensors.push(file.tensors[at].called(&tied));
        file.tied.insert(tied, kept);
    }
}

#[cfg(test)]
mod head_tests;
#[cfg(test)]
mod layout_tests;
#[cfg(test)]
mod tests;
