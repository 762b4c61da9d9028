//! A checkpoint at work: its model with its weights in an engine, for whoever measures or asks it.

use std::path::Path;

use thiserror::Error;

use crate::config::{Config, ConfigError, DeviceKind, Shown, identity, parse};
use crate::data::loader::{LoaderOptions, Threads};
use crate::data::{DataError, Normalization};
use crate::engine::{self, Compute, EngineError, Flat};
use crate::model::{catalogue, layout};
use crate::observe::console::say;
use crate::observe::refusal::{if_there, insist};
use crate::train::checkpoint::weights::{self, Loaded, Named, Weights, WeightsError};
use crate::train::checkpoint::{CheckpointError, Snapshot};
use crate::train::compute::committed::Which;

pub mod page;
pub mod scores;

/// Why a checkpoint answers nothing.
#[derive(Debug, Error)]
pub enum TrainedError {
    /// Its run's configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The checkpoint itself.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// What it is measured on.
    #[error(transparent)]
    Data(#[from] DataError),
    /// The device.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// What was asked for.
    #[error("{0}")]
    Usage(String),
}

impl TrainedError {
    /// 1: no checkpoint verifies; 2: usage; 3: data; 70: a fault of ours.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Weights(WeightsError::Checkpoint(
                CheckpointError::Damaged { .. } | CheckpointError::AllBad(_),
            )) => 1,
            Self::Config(_) | Self::Weights(_) | Self::Usage(_) => 2,
            Self::Data(DataError::Place(_)) => 2,
            Self::Data(_) => 3,
            Self::Engine(error) if error.is_refusal() => 2,
            Self::Engine(_) => 70,
        }
    }
}

/// A checkpoint's model, ready to be asked.
pub struct Trained {
    /// The configuration of its run, with what was set anew.
    pub config: Config,
    /// What was trained.
    pub snapshot: Snapshot,
    normalization: Normalization,
    engine: Box<dyn Compute>,
    weights: Weights,
}

/// What to say where the run's device is not here.
fn elsewhere(config: &Config, error: EngineError) -> TrainedError {
    match config.device.kind {
        DeviceKind::Cuda => TrainedError::Usage(format!(
            "{error}; to look at it on this machine's processors, say -s device.kind=cpu"
        )),
        _ => error.into(),
    }
}

impl Trained {
    /// The checkpoint at `path`, or the newest that verifies of a run directory. `threads`: all
    /// cores if it is not said.
    ///
    /// # Errors
    /// It does not verify, lies in no run directory, is of a model that is not known, or has no
    /// such weights.
    pub fn open(
        path: &Path,
        which: Which,
        set: &[String],
        threads: Option<usize>,
    ) -> Result<Self, TrainedError> {
        // A named checkpoint may be retired by the time it has been read.
        let place = weights::locate(path)?;
        let Loaded { snapshot, passed_over } = weights::load(path, None)?;
        for why in passed_over {
            say!("warning: {why}");
        }
        let snapshot = weights::looked_at(snapshot, which)?;
        let config = configuration(&place, set, &snapshot)?;
        let normalization = normalization(&config, set, &snapshot);
        let graph = catalogue::of(&config.model, snapshot.input, snapshot.classes.len())
            .map_err(|error| TrainedError::Usage(error.to_string()))?;
        let layout = layout::of(&graph);
        let weights = weights::weights_for(path, &snapshot, &layout)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // A team that was not asked for is as large as it may be.
        let threads = threads.unwrap_or_else(|| cores.min(engine::team_max()));
        let engine = engine::open(&config.device, &graph, threads)
            .map_err(|error| elsewhere(&config, error))?;
        Ok(Self { config, snapshot, normalization, engine, weights })
    }

    /// How its pictures are looked at.
    pub fn view(&self) -> LoaderOptions {
        let [channels, size, _] = self.snapshot.input;
        LoaderOptions {
            threads: Threads::Fixed(1),
            prefetch: 1,
            steps: None,
            image_size: size as u32,
            channels: channels as u32,
            augment: false,
            look: self.config.data.look(),
            normalization: self.normalization,
            seed: self.config.run.seed,
            bad_image: self.config.data.bad_image,
        }
    }

    /// Appends the log-probabilities `[samples, classes]` of normalised images.
    ///
    /// # Errors
    /// The device's.
    pub fn ask(
        &mut self,
        images: &[f32],
        samples: usize,
        into: &mut Vec<f32>,
    ) -> Result<(), TrainedError> {
        let Weights { parameters, statistics } = &self.weights;
        let weights = &Flat { parameters, statistics };
        // No label is looked at.
        self.engine.infer(images, &vec![0; samples], weights, Some(into))?;
        Ok(())
    }
}

/// The key of `KEY=VALUE`.
fn key_of(text: &str) -> &str {
    text.split('=').next().unwrap_or(text).trim()
}

/// Why `KEY=VALUE` would change nothing of what a checkpoint answers; `None` where it may.
fn idle(text: &str, snapshot: &Snapshot) -> Option<String> {
    let key = key_of(text);
    match key.split('.').next().unwrap_or(key) {
        _ if key == "model.name" => {
            Some(format!("the model is that of the checkpoint, {}", snapshot.model_name.shown()))
        }
        _ if key == "device.memory_budget" => {
            Some("it is of a run's ranks; here one batch at a time takes what it takes".into())
        }
        // With what is not known it is refused as anywhere.
        "train" | "optimizer" | "schedule" | "checkpoint" | "recovery" | "staging" | "memory"
        | "faults" => Some("it is of training alone, and changes nothing here".into()),
        _ => None,
    }
}

/// How pictures are normalised: as the weights were trained, unless a person now says otherwise.
fn normalization(config: &Config, set: &[String], snapshot: &Snapshot) -> Normalization {
    let now = Normalization::of(&config.data);
    let Some(own) = snapshot.normalization else { return now };
    let is_said = |key| set.iter().any(|text| key_of(text) == key);
    let mean = if is_said("data.mean") { now.mean } else { own.mean };
    let deviation = if is_said("data.deviation") { now.deviation } else { own.deviation };
    let taken = Normalization { mean, deviation };
    if taken != now {
        let [(_, mean), (_, deviation)] = taken.texts();
        say!(
            "pictures are normalised as the checkpoint was trained, with data.mean={mean} \
             data.deviation={deviation}: the configuration says otherwise"
        );
    }
    taken
}

/// The configuration of the run that the checkpoint belongs to: in the run, or beside a checkpoint
/// that was copied out of it.
fn configuration(
    place: &Named,
    set: &[String],
    snapshot: &Snapshot,
) -> Result<Config, TrainedError> {
    let file = weights::configuration_file(&place.root);
    let shown = file.shown();
    let found = if_there(insist(|| std::fs::metadata(&file)));
    let found = found.map_err(|source| ConfigError::Read { path: file.clone(), source })?;
    if !found.is_some_and(|found| found.is_file()) {
        return Err(TrainedError::Usage(format!(
            "{shown} is not there, the configuration that says how pictures are read: name the \
             checkpoint in its run directory, or copy that run's config.toml to {shown}"
        )));
    }
    if let Some((text, why)) = set.iter().find_map(|text| Some((text, idle(text, snapshot)?))) {
        return Err(TrainedError::Usage(format!("-s {}: {why}", text.shown())));
    }
    let of_run = snapshot.state.config_fingerprint;
    // An imported checkpoint is of no run.
    // With errors of its own it is refused below, unless what is set anew mends them. Of runs with
    // plain sums the file does not say all that the hash covered.
    let own = parse::of_run(&file, &[]).ok().filter(|own| !identity::sums_plainly(own));
    if of_run != 0 && own.is_some_and(|own| identity::fingerprint(&own) != of_run) {
        say!("warning: {shown} is another configuration than that of the checkpoint's run");
    }
    let mut config = parse::of_run(&file, set)?;
    let (size, asked) = (snapshot.input[1], config.data.image_size);
    if asked as usize != size && set.iter().any(|text| key_of(text) == "data.image_size") {
        return Err(TrainedError::Usage(format!(
            "-s data.image_size={asked}: the checkpoint looks at pictures of {size} pixels"
        )));
    }
    if config.model.name != snapshot.model_name {
        (config.model.name, config.model.text) = (snapshot.model_name.clone(), None);
    }
    Ok(config)
}
