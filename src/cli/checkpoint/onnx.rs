//! `kintsugi checkpoint export --onnx`: a checkpoint as a file that ONNX Runtime runs.

use std::path::Path;

use crate::config::{Config, Model, Shown, parse};
use crate::data::Normalization;
use crate::model::onnx::export::{IMAGE, Trained, export};
use crate::model::{catalogue, layout};
use crate::observe::console::say;
use crate::train::checkpoint::Snapshot;
use crate::train::checkpoint::weights::{self, Weights};

/// The bytes of the file, for a checkpoint that was read from `path` below the folder `root`.
pub fn bytes(path: &Path, root: &Path, snapshot: &Snapshot) -> Result<Vec<u8>, String> {
    let config = configuration(root)?;
    let mut model = config.as_ref().map_or_else(Model::default, |config| config.model.clone());
    if model.name != snapshot.model_name {
        (model.name, model.text) = (snapshot.model_name.clone(), None);
    }
    let graph = catalogue::of(&model, snapshot.input, snapshot.classes.len())
        .map_err(|error| error.to_string())?;
    let layout = layout::of(&graph);
    let Weights { parameters, statistics, .. } =
        weights::weights_for(path, snapshot, &layout).map_err(|error| error.to_string())?;
    let of_run = config.as_ref().map(|config| Normalization::of(&config.data));
    let normalization = snapshot.normalization.or(of_run);
    let about: Vec<_> = normalization.iter().flat_map(Normalization::texts).collect();
    let trained = Trained {
        graph: &graph,
        layout: &layout,
        parameters: &parameters,
        statistics: &statistics,
        classes: &snapshot.classes,
        about: &about,
    };
    let bytes = export(&trained).map_err(|error| error.to_string())?;
    say!("{}", about_pictures(normalization));
    Ok(bytes)
}

/// Of the run, where the checkpoint lies in one.
fn configuration(root: &Path) -> Result<Option<Config>, String> {
    let file = weights::configuration_file(root);
    if !file.is_file() {
        return Ok(None);
    }
    parse::of_run(&file, &[]).map(Some).map_err(|error| error.to_string())
}

/// The file holds the model alone.
fn about_pictures(normalization: Option<Normalization>) -> String {
    let Some(Normalization { mean, deviation }) = normalization else {
        return format!(
            "its input {} takes pictures normalised as in training, which is not in the file",
            IMAGE.shown()
        );
    };
    format!(
        "the model does not normalise: {IMAGE} = (level / 255 - mean) / deviation, with mean \
         {mean:?}, deviation {deviation:?} of red, green, blue, as the file's metadata says"
    )
}
