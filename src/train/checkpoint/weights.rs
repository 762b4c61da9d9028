//! Weights in and out: a checkpoint as one safetensors file with torchvision's names, and the
//! reverse. Also where `model.init`, evaluation and prediction get their weights.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::FileType;
use std::io;
use std::path::{Path, PathBuf};

use kintsugi_ffi::regular;
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_128;

use crate::config::{self, Every, Shown, parse};
use crate::data::Normalization;
use crate::model::parts::{AVERAGE, MOMENTUM};
use crate::model::spec::ModelError;
use crate::model::{Graph, Layout, Shape, catalogue, layout};
use crate::observe::refusal::{if_there, insist};
use crate::observe::storage::FileSystem;
use crate::train::checkpoint::foreign::{self, Answers, Fitted, Foreign, fit};
use crate::train::checkpoint::manifest::MANIFEST;
use crate::train::checkpoint::tensors::TensorError;
use crate::train::checkpoint::{
    CheckpointError, Expectation, Snapshot, TrainState, best, store, tensors,
};
use crate::train::compute::committed::Which;

/// Why weights could not be taken from a file.
#[derive(Debug, Error)]
pub enum WeightsError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}", path = path.shown())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// It does not hold this model.
    #[error(
        "{path}: {source}{}",
        if matches!(source, TensorError::Differ(_)) {
            "; weights need every tensor of the model, with its name and shape"
        } else {
            ""
        },
        path = path.shown()
    )]
    Tensors {
        /// The file.
        path: PathBuf,
        /// Which tensor.
        source: TensorError,
    },
    /// There is no such model.
    #[error("{}: {source}; give --model NAME, or the path of its *.toml file", path.shown())]
    Model {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: ModelError,
    },
    /// The file does not say what it is and nobody else did.
    #[error("{path} does not say its {what}; give {option}", path = path.shown())]
    Unsaid {
        /// The file.
        path: PathBuf,
        /// What is missing.
        what: &'static str,
        /// How to give it.
        option: &'static str,
    },
    /// A folder that is no run, no checkpoint.
    #[error("{} is neither a run directory, nor a checkpoint, nor a file of weights \
             (.safetensors, .pth)", .0.shown())]
    NoCheckpoint(PathBuf),
    /// A run that has written none.
    #[error("{} is a run without a checkpoint: {why}", path.shown())]
    NoneWritten {
        /// The run directory.
        path: PathBuf,
        /// What to do.
        why: &'static str,
    },
    /// A checkpoint of a run that keeps no average of its weights.
    #[error(
        "--average: the checkpoint holds no running average of the weights; train with \
         optimizer.ema_decay"
    )]
    NoAverage,
    /// A run that keeps no best one.
    #[error("--best: {}: {why}", path.shown())]
    NoBest {
        /// The run directory.
        path: PathBuf,
        /// Why there is none.
        why: String,
    },
    /// The checkpoint does not verify.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
}

/// The checkpoint's model as the bytes of one safetensors file, with all that torchvision's model
/// of this name holds: batch norms have seen a batch in each step.
pub fn export(snapshot: &Snapshot) -> Vec<u8> {
    let about = store::about(snapshot);
    let Snapshot { layout, parameters, statistics, state, .. } = snapshot;
    let steps = (state.step as i64).to_le_bytes();
    tensors::model_file(layout, parameters, statistics, Some(&steps), &about).parts().concat()
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
    /// Scale of the models that have one; else it follows from the file's shapes.
    pub width: Option<f64>,
}

/// A foreign file as a state.
#[derive(Debug, Clone, PartialEq)]
pub struct Imported {
    /// The state of step 0.
    pub snapshot: Snapshot,
    /// Scale of the model's layers, `model.width`.
    pub width: f64,
    /// What was done to make it fit, a sentence each.
    pub remarks: Vec<String>,
}

/// Of a last layer that is new at import.
const IMPORT_SEED: u64 = 1;

/// A file of weights as the state of step 0: zero momentum, nothing committed. What is `given`
/// holds against what the file says of itself. The file has to hold every tensor of that model,
/// with its shape, and nothing else; only the last layer may be for another number of classes.
pub fn import(path: &Path, bytes: &[u8], given: Given) -> Result<Imported, WeightsError> {
    let wrap = |source| WeightsError::Tensors { path: path.to_path_buf(), source };
    let unsaid = |what, option| WeightsError::Unsaid { path: path.to_path_buf(), what, option };
    let file = foreign::open(bytes).map_err(wrap)?;
    let about = file.about();
    let model_name = given.model.or_else(|| about.get("model").cloned());
    let input = given.input.or_else(|| about.get("input").and_then(|text| parse_input(text)));
    let said = || serde_json::from_str(about.get("classes")?).ok();
    let model_name = model_name.ok_or_else(|| unsaid("model", "--model NAME"))?;
    let input = input.ok_or_else(|| unsaid("input shape", "--input 3x224x224"))?;
    let classes: Vec<String> = given
        .classes
        .or_else(said)
        .ok_or_else(|| unsaid("classes", "--classes cat,dog,... or their number"))?;
    let laid_out = |width: f64| {
        let graph = catalogue::build(&model_name, input, classes.len(), width);
        graph.map_err(|source| WeightsError::Model { path: path.to_path_buf(), source })
    };
    let width = match given.width {
        None if config::scales(&model_name) => width_of(&file, &layout::of(&laid_out(1.0)?)),
        given => given,
    };
    let width = width.unwrap_or(1.0);
    let graph = laid_out(width)?;
    let layout = layout::of(&graph);
    let answers = Answers { seed: IMPORT_SEED, classes: &[] };
    let Fitted { parameters, statistics, mut remarks, about } =
        fit(&file, &graph, &layout, answers).map_err(wrap)?;
    remarks.extend(foreign::renamed(&about, &classes));
    let normalization = Normalization::from_texts(|key| about.get(key));
    remarks.extend(other_pictures(&model_name, &about, normalization));
    let snapshot = Snapshot {
        optimizer: vec![(MOMENTUM.to_owned(), vec![0.0; parameters.len()])],
        model_name,
        input,
        classes,
        normalization,
        layout: layout.into(),
        parameters,
        statistics,
        state: TrainState { exact: true, ..TrainState::default() },
    };
    Ok(Imported { snapshot, width, remarks })
}

/// What the weights of a file were trained on, in words, where it is not `now`: by what the file
/// says of itself, or by the model's name, since torchvision's files say nothing.
pub fn other_pictures(
    model: &str,
    about: &BTreeMap<String, String>,
    now: Option<Normalization>,
) -> Option<String> {
    let keys = |own: Normalization| {
        let [(_, mean), (_, deviation)] = own.texts();
        (Some(own) != now).then(|| format!("data.mean={mean} data.deviation={deviation}"))
    };
    if let Some(own) = Normalization::from_texts(|key| about.get(key)) {
        return keys(own).map(|keys| format!("it was trained with {keys}"));
    }
    let [mean, deviation] =
        catalogue::published_with(model).filter(|_| !about.contains_key("model"))?;
    keys(Normalization { mean, deviation }).map(|keys| {
        format!(
            "torchvision's published weights of {model} were trained with {keys}, which their file \
             does not say: if these are they, set both"
        )
    })
}

/// By what the file's layers are wider than those of `whole`, as its widest one says; the last
/// layer is as wide as there are classes.
fn width_of(file: &Foreign<'_>, whole: &Layout) -> Option<f64> {
    let last = whole.tensors.iter().map(|tensor| tensor.node).max()?;
    let inner = whole.tensors.iter().filter(|tensor| tensor.node != last);
    let widest = inner.max_by_key(|tensor| tensor.shape.first().copied())?;
    let (_, shape) = file.shapes().find(|(name, _)| name.ends_with(widest.name.as_str()))?;
    let (found, full) = (*shape.first()?, *widest.shape.first()?);
    (found > 0 && full > 0).then(|| found as f64 / full as f64)
}

/// `"3x224x224"`: channels, height, width.
pub fn parse_input(text: &str) -> Option<Shape> {
    let extents: Option<Vec<usize>> =
        text.split('x').map(|part| part.trim().parse().ok()).collect();
    extents?.try_into().ok().filter(|shape: &Shape| shape.iter().all(|&extent| extent > 0))
}

/// A run directory and perhaps one checkpoint in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// The storage's root.
    pub root: PathBuf,
    /// Relative to it; `None` stands for the newest that verifies.
    pub folder: Option<PathBuf>,
}

/// What a person meant by a path: a run directory, its `checkpoints` folder, or one checkpoint.
pub fn locate(path: &Path) -> Result<Named, WeightsError> {
    let read = |source| WeightsError::Io { path: path.to_path_buf(), source };
    let whole = insist(|| path.canonicalize()).map_err(|source| match retired(path) {
        Some(name) if source.kind() == io::ErrorKind::NotFound => {
            CheckpointError::Gone { name }.into()
        }
        _ => read(source),
    })?;
    if lies(&whole.join(MANIFEST))?.is_some_and(|kind| kind.is_file()) {
        Ok(one_checkpoint(path, &whole))
    } else if lies(&whole.join(store::FOLDER))?.is_some_and(|kind| kind.is_dir()) {
        Ok(Named { root: whole, folder: None })
    } else {
        let mut places = [as_typed(path, &whole), whole].into_iter();
        let folder = places.find(|place| place.ends_with(store::FOLDER));
        let root = folder.as_deref().and_then(Path::parent).map(Path::to_path_buf);
        let root = root.ok_or_else(|| none_in(path))?;
        Ok(Named { root, folder: None })
    }
}

/// What an imported checkpoint has in place of a run's configuration: a `config.toml` would make a
/// run of its folder, which goes on, is moved aside and is listed.
pub const IMPORTED: &str = "imported.toml";

/// Where the configuration of a checkpoint stands that lies in `root`.
pub fn configuration_file(root: &Path) -> PathBuf {
    let (of_run, imported) = (root.join("config.toml"), root.join(IMPORTED));
    if imported.is_file() && !of_run.exists() { imported } else { of_run }
}

/// The refusal of a folder without checkpoints.
fn none_in(path: &Path) -> WeightsError {
    let file = path.join("config.toml");
    if !file.is_file() {
        return WeightsError::NoCheckpoint(path.to_path_buf());
    }
    let never = parse::read(&file, &[]).is_ok_and(|run| run.checkpoint.every == Every::Never);
    let why = match never {
        true => {
            "with checkpoint.every = \"never\" its weights were never on disk; train anew with \
             another checkpoint.every, \"auto\" for one"
        }
        false => "none is written yet; the command that began it goes on with it",
    };
    WeightsError::NoneWritten { path: path.to_path_buf(), why }
}

/// What lies at a path; `None`: there is no such name.
fn lies(path: &Path) -> Result<Option<FileType>, WeightsError> {
    let found = insist(|| std::fs::metadata(path)).map(|found| found.file_type());
    if_there(found).map_err(|source| WeightsError::Io { path: path.to_path_buf(), source })
}

/// The path as it was typed, from the root on: a `checkpoints` folder may be a link out of its run,
/// and then only this says whose it is.
fn as_typed(path: &Path, whole: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| whole.to_path_buf())
}

/// One checkpoint, in its run where it lies in the `checkpoints` folder of one.
fn one_checkpoint(path: &Path, whole: &Path) -> Named {
    let in_run = |place: &Path| {
        let folder = Path::new(store::FOLDER).join(place.file_name()?);
        let root = place.parent().filter(|above| above.ends_with(store::FOLDER))?.parent()?;
        let leads_there = root.join(&folder).canonicalize().is_ok_and(|found| found == whole);
        leads_there.then(|| Named { root: root.to_path_buf(), folder: Some(folder) })
    };
    in_run(&as_typed(path, whole)).or_else(|| in_run(whole)).unwrap_or_else(|| Named {
        root: whole.parent().unwrap_or(whole).to_path_buf(),
        folder: whole.file_name().map(PathBuf::from),
    })
}

/// The name of a checkpoint that is not in a folder of checkpoints, where it may have been.
fn retired(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let above = path.parent().filter(|above| above.ends_with(store::FOLDER) && above.is_dir());
    store::step_of(name).and(above).map(|_| name.to_owned())
}

/// A checkpoint that verifies.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// What it holds.
    pub snapshot: Snapshot,
    /// What is wrong with the newer ones, a sentence each: whoever takes this one has to say so.
    pub passed_over: Vec<String>,
}

/// Reads and verifies the checkpoint that `locate` finds. Damaged ones are passed over and not
/// marked, since the run may be alive: for evaluation, prediction and export.
pub fn load(path: &Path, expect: Option<&Expectation>) -> Result<Loaded, WeightsError> {
    let place = locate(path)?;
    let storage = FileSystem::new(place.root);
    if let Some(folder) = place.folder {
        let snapshot = store::read_snapshot(&storage, &folder, expect)?;
        return Ok(Loaded { snapshot, passed_over: Vec::new() });
    }
    // By step: where the list is made anew, the same ones are met again.
    let mut refused = BTreeMap::new();
    let found = store::newest(&storage, |step, folder| {
        match store::read_snapshot(&storage, folder, expect) {
            Err(error @ CheckpointError::Damaged { .. }) => {
                refused.insert(Reverse(step), error.to_string());
                Ok(None)
            }
            result => result.map(|snapshot| Some((step, snapshot))),
        }
    })?;
    match found {
        Some((step, snapshot)) => {
            let newer = refused.into_iter().filter(|(Reverse(other), _)| *other > step);
            let name = store::name_of(step);
            let told = newer.map(|(_, error)| format!("{error}; {name} is taken"));
            Ok(Loaded { snapshot, passed_over: told.collect() })
        }
        None if refused.is_empty() => Err(none_in(path)),
        None => Err(CheckpointError::AllBad(refused.into_values().collect()).into()),
    }
}

/// Where the checkpoint of a run's best evaluation lies (`checkpoint.keep_best`), and which weights
/// of it were the better ones.
///
/// # Errors
/// The path names one checkpoint, or a run that has kept none.
pub fn best_of(path: &Path) -> Result<(PathBuf, Which), WeightsError> {
    let none = |why: &str| WeightsError::NoBest { path: path.to_path_buf(), why: why.to_owned() };
    let Named { root, folder } = locate(path)?;
    if folder.is_some() {
        return Err(none("this is one checkpoint; name its run, which knows the best"));
    }
    let read = |source| WeightsError::Io { path: path.to_path_buf(), source };
    let storage = FileSystem::new(&root);
    let found = best::read(&storage).map_err(read)?.map(|kept| kept.best).ok_or_else(|| {
        none(
            "no evaluation's weights are kept yet, or checkpoint.keep_best = 0, or an earlier \
             release wrote it; without --best the newest checkpoint is taken",
        )
    })?;
    let folder = root.join(store::FOLDER).join(store::name_of(found.step));
    if lies(&folder)?.is_none() {
        return Err(none(&format!(
            "that of step {}, the best, is not there any more: the run went back behind it",
            found.step
        )));
    }
    let which = if found.averaged { Which::Averaged } else { Which::Trained };
    Ok((folder, which))
}

/// The same checkpoint with the weights that are asked for as its parameters.
///
/// # Errors
/// It has no such weights.
pub fn looked_at(mut snapshot: Snapshot, which: Which) -> Result<Snapshot, WeightsError> {
    if which == Which::Averaged {
        let mut parts = snapshot.optimizer.iter();
        let average = parts.find(|(name, _)| name == AVERAGE);
        let (_, average) = average.ok_or(WeightsError::NoAverage)?;
        let (parameters, statistics) = average.split_at(snapshot.layout.parameters);
        (snapshot.parameters, snapshot.statistics) = (parameters.to_vec(), statistics.to_vec());
    }
    Ok(snapshot)
}

/// What a checkpoint gives a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Weights {
    /// Trained elements, in the order of the layout.
    pub parameters: Vec<f32>,
    /// Running statistics.
    pub statistics: Vec<f32>,
}

/// Largest file of weights: several times what any model of the catalogue has, optimizer included.
const FILE_BYTES_MAX: u64 = 8 << 30;

/// The bytes of a file of weights.
///
/// # Errors
/// It is no file, is too large, or cannot be read.
pub fn read_file(path: &Path) -> Result<Vec<u8>, WeightsError> {
    let wrap = |source| WeightsError::Io { path: path.to_path_buf(), source };
    insist(|| regular::read(path, FILE_BYTES_MAX)).map_err(wrap)
}

/// What `model.init` names: the bytes of a file of weights, or a checkpoint or the newest of a run
/// as such a file; and which newer ones were passed over, a sentence each.
///
/// # Errors
/// It cannot be read, or does not verify.
pub fn bytes_of(path: &Path) -> Result<(Vec<u8>, Vec<String>), WeightsError> {
    if !lies(path)?.is_some_and(|kind| kind.is_dir()) {
        return Ok((read_file(path)?, Vec::new()));
    }
    // By tensor, not by name: weights may start another model that is laid out alike.
    let Loaded { snapshot, passed_over } = load(path, None)?;
    Ok((export(&snapshot), passed_over))
}

/// That checkpoint of a run which has this hash: one that still trains has newer ones.
///
/// # Errors
/// As of `bytes_of`.
pub fn bytes_of_hash(path: &Path, hash: &str) -> Result<Option<Vec<u8>>, WeightsError> {
    let storage = FileSystem::new(locate(path)?.root);
    let read = |folder: &Path| match store::read_snapshot(&storage, folder, None) {
        Err(CheckpointError::Damaged { .. }) => Ok(None),
        read => read.map(|read| Some(export(&read)).filter(|bytes| hash_of(bytes) == hash)),
    };
    Ok(store::newest(&storage, |_, folder| read(folder))?)
}

/// A run that begins is of these weights: should they change before its first checkpoint, it goes
/// on with no others. Fills `init_hash` in.
///
/// # Errors
/// They cannot be read.
pub fn name(model: &mut config::Model) -> Result<(), WeightsError> {
    if let Some(path) = model.found_init().filter(|_| model.init_hash.is_none()) {
        model.init_hash = Some(hash_of(&bytes_of(&path)?.0));
    }
    Ok(())
}

/// What `model.init_hash` says of these bytes.
pub fn hash_of(bytes: &[u8]) -> String {
    format!("{:032x}", xxh3_128(bytes))
}

/// Parameters and statistics from the bytes of `model.init`; `path` names it in errors.
///
/// # Errors
/// What does not fit, whole.
pub fn initial_weights(
    path: &Path,
    bytes: &[u8],
    graph: &Graph,
    layout: &Layout,
    answers: Answers<'_>,
) -> Result<Fitted, WeightsError> {
    let wrap = |source| WeightsError::Tensors { path: path.to_path_buf(), source };
    fit(&foreign::open(bytes).map_err(wrap)?, graph, layout, answers).map_err(wrap)
}

/// The weights of a checkpoint for a layout, found by name; `path` names it in errors.
///
/// # Errors
/// It is another model's.
pub fn weights_for(
    path: &Path,
    snapshot: &Snapshot,
    layout: &Layout,
) -> Result<Weights, WeightsError> {
    let wrap = |source| WeightsError::Tensors { path: path.to_path_buf(), source };
    let (parameters, statistics) = tensors::read_model(&export(snapshot), layout).map_err(wrap)?;
    Ok(Weights { parameters, statistics })
}
