//! A foreign file: its tensors by name, and what it says of itself.

use std::collections::BTreeMap;

use super::tensor::Tensor;

/// Most tensors of a file.
pub(super) const TENSORS_MAX: usize = 1 << 16;
/// Longest name of a tensor, in bytes.
const NAME_BYTES_MAX: usize = 512;
/// Most dimensions of a tensor.
const DIMENSIONS_MAX: usize = 8;

/// A file's tensors, in its order.
#[derive(Debug, Default)]
pub struct Foreign<'a> {
    pub(super) tensors: Vec<Tensor<'a>>,
    /// What the file says of itself.
    pub(super) about: BTreeMap<String, String>,
    /// Tensors that are another one too, by name; the file holds that one only.
    pub(super) tied: BTreeMap<String, String>,
    /// What of the file is no tensor, by name.
    pub(super) passed_over: Vec<String>,
    /// Which of its dictionaries holds `tensors`, where another reader might take another.
    pub(super) chosen: Option<String>,
}

impl Foreign<'_> {
    /// The texts that a safetensors file holds of itself.
    pub fn about(&self) -> &BTreeMap<String, String> {
        &self.about
    }

    /// Names and shapes.
    pub fn shapes(&self) -> impl Iterator<Item = (&str, &[usize])> {
        self.tensors.iter().map(|tensor| (tensor.name.as_str(), &tensor.shape[..]))
    }
}

/// Whether a file that already has so many may have this tensor too.
pub(super) fn check_tensor(count: usize, name: &str, shape: &[usize]) -> Result<(), String> {
    if count == TENSORS_MAX {
        return Err(format!("it holds more than {TENSORS_MAX} tensors"));
    }
    if name.len() > NAME_BYTES_MAX {
        let (length, start) = (name.len(), name.chars().take(40).collect::<String>());
        return Err(format!(
            "a tensor's name has {length} bytes ({start:?}...); {NAME_BYTES_MAX} are read"
        ));
    }
    match shape.len() > DIMENSIONS_MAX {
        true => Err(format!("{name:?} has {} dimensions, at most {DIMENSIONS_MAX}", shape.len())),
        false => Ok(()),
    }
}
