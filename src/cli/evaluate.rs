//! `kintsugi evaluate CHECKPOINT [--data DIR]`: the validation error of a checkpoint, in one
//! process.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use serde::Serialize;
use thiserror::Error;

use crate::config::{Config, ConfigError, DataFormat, Shown, parse};
use crate::data::bad_images::{check_any, check_share};
use crate::data::evaluation::Evaluation;
use crate::data::loader::LoaderOptions;
use crate::data::open::open;
use crate::data::{DataError, Split};
use crate::engine::{self, Compute, EngineError, Flat};
use crate::model::{catalogue, layout};
use crate::observe::console::{print_line, say};
use crate::train::checkpoint::weights::{Weights, WeightsError};
use crate::train::checkpoint::{CheckpointError, Snapshot, weights};

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A run directory (its newest checkpoint that verifies) or one checkpoint
    checkpoint: PathBuf,
    /// The validation set [default: that of the checkpoint's run]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Overrides one key of the run's configuration: section.key=value
    #[arg(short = 's', long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Computing threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = super::arguments::crowd)]
    threads: Option<usize>,
    /// One JSON object on the last line of stdout
    #[arg(long)]
    json: bool,
}

/// What was measured; fractions 0..1.
#[derive(Debug, Serialize)]
struct Measured {
    checkpoint: String,
    model: String,
    step: u64,
    samples: u64,
    skipped: u64,
    error: f64,
    loss: f64,
    seconds: f64,
}

#[derive(Debug, Error)]
enum Failure {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("{0}")]
    Usage(String),
}

impl Failure {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Weights(WeightsError::Checkpoint(
                CheckpointError::Damaged { .. } | CheckpointError::AllBad(_),
            )) => 1,
            Self::Config(_) | Self::Weights(_) | Self::Usage(_) => 2,
            Self::Data(_) => 3,
            Self::Engine(_) => 70,
        }
    }
}

/// Measures and prints.
pub fn run(args: &Args) -> ExitCode {
    match evaluate(args) {
        Ok(measured) if args.json => {
            print_line!(
                "{}",
                serde_json::to_string(&measured).expect("plain fields have a JSON form")
            );
            ExitCode::SUCCESS
        }
        Ok(measured) => {
            print_line!(
                "{} at step {}: error {:.2} %, loss {:.4} over {} samples ({} skipped) in {:.1} s",
                measured.model,
                measured.step,
                100.0 * measured.error,
                measured.loss,
                measured.samples,
                measured.skipped,
                measured.seconds
            );
            ExitCode::SUCCESS
        }
        Err(failure) => {
            say!("error: {failure}");
            ExitCode::from(failure.exit_code())
        }
    }
}

fn evaluate(args: &Args) -> Result<Measured, Failure> {
    let begun = Instant::now();
    // A named checkpoint may be retired by the time it has been read.
    let place = weights::locate(&args.checkpoint)?;
    let snapshot = weights::load(&args.checkpoint, None)?;
    let config = configuration(args, &place.root, &snapshot)?;
    let set = open(&config.data, Split::Validation, config.run.seed)?;
    let source = &set.source;
    if source.classes() != snapshot.classes {
        return Err(Failure::Usage(format!(
            "the set has the classes {:?}, the checkpoint was trained on {:?}: name the set it \
             belongs to with --data",
            source.classes(),
            snapshot.classes
        )));
    }
    let options = LoaderOptions {
        threads: 1,
        prefetch: 1,
        image_size: config.data.image_size,
        channels: source.channels(),
        augment: false,
        look: config.data.look(),
        seed: config.run.seed,
        bad_image: config.data.bad_image,
    };
    // Every picture is used once: nothing is worth keeping.
    let evaluation = Evaluation::new(set, &options, 0);
    let (mut engine, found) = engine_for(args, &config, &snapshot)?;
    let weights = &Flat { parameters: &found.parameters, statistics: &found.statistics };
    let (mut loss, mut errors, mut computed, mut skipped) = (0.0, 0, 0, 0);
    let part = u64::from(config.evaluation.batch.max(1));
    for first in (0..evaluation.len()).step_by(part as usize) {
        let batch = evaluation.batch(first, part.min(evaluation.len() - first))?;
        let outcome = engine.evaluate(&batch.images, &batch.labels, weights)?;
        loss += outcome.loss_sum;
        errors += outcome.errors;
        computed += outcome.samples;
        skipped += batch.skipped;
    }
    let counts = (skipped, computed + skipped);
    let which = || "of the evaluation".into();
    check_any(Split::Validation, counts, which)?;
    check_share(Split::Validation, counts, config.data.bad_images_max, which)?;
    let divisor = computed as f64;
    Ok(Measured {
        checkpoint: args.checkpoint.shown(),
        model: snapshot.model_name.clone(),
        step: snapshot.state.step,
        samples: computed,
        skipped,
        error: errors as f64 / divisor,
        loss: loss / divisor,
        seconds: begun.elapsed().as_secs_f64(),
    })
}

/// The configuration of the run that the checkpoint belongs to, with another validation set where
/// one is named.
fn configuration(args: &Args, run_dir: &Path, snapshot: &Snapshot) -> Result<Config, Failure> {
    let file = run_dir.join("config.toml");
    if !file.is_file() {
        return Err(Failure::Usage(format!(
            "{} is not there: evaluate a checkpoint inside its run directory, which says how its \
             data are read",
            file.shown()
        )));
    }
    let mut config = parse::load(&file, &args.set)?;
    config.model.name.clone_from(&snapshot.model_name);
    if let Some(folder) = &args.data {
        if config.data.format == DataFormat::Synthetic {
            let text = "the run trained on a synthetic set: say what --data holds, for example \
                        -s data.format=image_folder";
            return Err(Failure::Usage(text.into()));
        }
        // One folder stands for both splits: only its validation half is read.
        config.data.train = Some(validation_folder(folder));
        config.data.validation = Some(validation_folder(folder).into());
    }
    Ok(config)
}

/// A set's own `validation` half where it has one.
fn validation_folder(folder: &Path) -> PathBuf {
    let half = folder.join("validation");
    if half.is_dir() { half } else { folder.to_path_buf() }
}

/// An engine for the checkpoint's model, and its weights.
fn engine_for(
    args: &Args,
    config: &Config,
    snapshot: &Snapshot,
) -> Result<(Box<dyn Compute>, Weights), Failure> {
    let (name, classes) = (config.model.found_name(), snapshot.classes.len());
    let graph = catalogue::build(&name, snapshot.input, classes, config.model.width)
        .map_err(|error| Failure::Usage(error.to_string()))?;
    let layout = layout::of(&graph);
    let found = weights::weights_for(&args.checkpoint, &weights::export(snapshot), &layout)?;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = args.threads.unwrap_or(cores);
    Ok((engine::open(&config.device, &graph, &layout, threads)?, found))
}
