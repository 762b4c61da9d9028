//! Weights in and out: a checkpoint as one safetensors file with torchvision's names, and the
//! reverse. Also where `model.init`, evaluation and prediction get their weights.

use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::model::{Layout, Shape};
use crate::observe::storage::Storage;

use super::manifest::MANIFEST;
use super::tensors::{self, TensorError};
use super::{CheckpointError, Snapshot, TrainState, store};

/// Why weights could not be taken from a file.
#[derive(Debug, Error)]
pub enum WeightsError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// It does not hold this model.
    #[error("{path}: {source}; weights need every tensor of the model, with its name and shape")]
    Tensors {
        /// The file.
        path: PathBuf,
        /// Which tensor.
        source: TensorError,
    },
    /// The file does not say what it is and nobody else did.
    #[error("{path} does not say its {what}; give {option}")]
    Unsaid {
        /// The file.
        path: PathBuf,
        /// What is missing.
        what: &'static str,
        /// How to give it.
        option: &'static str,
    },
    /// A folder that is no run, no checkpoint.
    #[error("{0} is neither a run directory, nor a checkpoint, nor a .safetensors file")]
    NoCheckpoint(PathBuf),
    /// The checkpoint does not verify.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// The checkpoint's model as the bytes of one safetensors file.
pub fn export(snapshot: &Snapshot) -> Vec<u8> {
    let about = store::about(snapshot);
    let (layout, statistics) = (&snapshot.layout, &snapshot.statistics);
    tensors::model_file(layout, &snapshot.parameters, statistics, &about).parts().concat()
}

/// What a foreign file may not say about itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Given {
    /// Catalogue name.
    pub model: Option<String>,
    /// One input sample.
    pub input: Option<Shape>,
    /// Class names in label order.
    pub classes: Option<Vec<String>>,
}

/// A file of weights as the state of step 0: zero momentum, nothing committed. What is `given`
/// holds against what the file says of itself.
pub fn import(path: &Path, bytes: &[u8], given: Given) -> Result<Snapshot, WeightsError> {
    let wrap = |source| WeightsError::Tensors { path: path.to_path_buf(), source };
    let unsaid = |what, option| WeightsError::Unsaid { path: path.to_path_buf(), what, option };
    let about = tensors::about(bytes).map_err(wrap)?;
    let layout = tensors::layout_of(bytes).map_err(wrap)?;
    let (parameters, statistics) = tensors::read_model(bytes, &layout).map_err(wrap)?;
    let model_name = given.model.or_else(|| about.get("model").cloned());
    let input = given.input.or_else(|| about.get("input").and_then(|text| parse_input(text)));
    let said = || serde_json::from_str(about.get("classes")?).ok();
    Ok(Snapshot {
        momentum: vec![0.0; parameters.len()],
        model_name: model_name.ok_or_else(|| unsaid("model", "--model NAME"))?,
        input: input.ok_or_else(|| unsaid("input shape", "--input 3x224x224"))?,
        classes: given
            .classes
            .or_else(said)
            .ok_or_else(|| unsaid("classes", "--classes cat,dog,... or their number"))?,
        layout: layout.into(),
        parameters,
        statistics,
        state: TrainState { exact: true, ..TrainState::default() },
    })
}

/// `"3x224x224"`: channels, height, width.
pub fn parse_input(text: &str) -> Option<Shape> {
    let extents: Option<Vec<usize>> =
        text.split('x').map(|part| part.trim().parse().ok()).collect();
    extents?.try_into().ok().filter(|shape: &Shape| shape.iter().all(|&extent| extent > 0))
}

/// Parameters and statistics for a layout, from a `.safetensors` file's bytes.
pub fn weights_for(
    path: &Path,
    bytes: &[u8],
    layout: &Layout,
) -> Result<(Vec<f32>, Vec<f32>), WeightsError> {
    let wrap = |source| WeightsError::Tensors { path: path.to_path_buf(), source };
    tensors::read_model(bytes, layout).map_err(wrap)
}

/// The folder of a checkpoint within a storage rooted at a run directory (its newest that
/// verifies), a `checkpoints` folder, or the checkpoint itself. Marks nothing: the run may live.
pub fn find(storage: &dyn Storage, shown: &Path) -> Result<PathBuf, WeightsError> {
    let here = |names: &[String], name: &str| names.iter().any(|present| present == name);
    let none = || WeightsError::NoCheckpoint(shown.to_path_buf());
    let names = storage
        .list(Path::new(""))
        .map_err(|source| WeightsError::Io { path: shown.to_path_buf(), source })?;
    if here(&names, MANIFEST) {
        return Ok(PathBuf::new());
    }
    let mut refused = Vec::new();
    for (_, folder) in store::published(storage)? {
        match store::verify_files(storage, &folder) {
            Ok(_) => return Ok(folder),
            Err(error) => refused.push(error.to_string()),
        }
    }
    if refused.is_empty() { Err(none()) } else { Err(CheckpointError::AllBad(refused).into()) }
}
