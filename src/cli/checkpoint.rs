//! `kintsugi checkpoint {list,verify,export,import}`: looks at checkpoints without touching them,
//! and takes weights out and in.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgAction, Subcommand};
use serde::Serialize;

use super::arguments::{Chosen, Form, form, print_json};
use crate::config::Shown;
use crate::observe::clock::RealClock;
use crate::observe::console::{print_line, say};
use crate::observe::spans::amount;
use crate::observe::storage::{FileSystem, Storage};
use crate::train::checkpoint::weights::{Given, Imported, Loaded, Named, WeightsError};
use crate::train::checkpoint::{CheckpointError, Snapshot, store, weights};
use crate::train::compute::committed::Which;

mod imported;
mod onnx;

/// Arguments.
#[derive(Debug, Subcommand)]
pub enum Args {
    /// Shows every checkpoint with its step, size and whether it verifies.
    List {
        /// A run directory, its checkpoints folder, or one checkpoint.
        path: PathBuf,
        /// One JSON object a line.
        #[arg(long, action = ArgAction::SetTrue, value_parser = form())]
        json: Form,
    },
    /// Reads every checkpoint back and compares it with its checksums; exits 1 on a bad one.
    Verify {
        /// A run directory, its checkpoints folder, or one checkpoint.
        path: PathBuf,
        /// One JSON object a line.
        #[arg(long, action = ArgAction::SetTrue, value_parser = form())]
        json: Form,
    },
    /// Writes the weights as one .safetensors file with torchvision's names, or as .onnx.
    Export {
        /// Whose weights.
        #[command(flatten)]
        chosen: Chosen,
        /// The file to write; one that ends in .onnx is written as with --onnx.
        file: PathBuf,
        /// Writes model and weights for ONNX Runtime instead: norms in inference form, no dropout.
        #[arg(long)]
        onnx: bool,
    },
    /// Makes a checkpoint of a file of weights: .safetensors, or .pth as torch.save writes it.
    Import {
        /// The file to read.
        file: PathBuf,
        /// A directory without checkpoints; it gets checkpoints/step-00000000, and, without a
        /// config.toml, an imported.toml for evaluate and predict.
        directory: PathBuf,
        /// The model, where the file does not say it.
        #[arg(long)]
        model: Option<String>,
        /// Channels, height and width of one sample, such as 3x224x224.
        #[arg(long)]
        input: Option<String>,
        /// Class names with commas between, or their number; where the file has another number, the
        /// last layer begins anew.
        #[arg(long)]
        classes: Option<String>,
        /// Scale of mlp and cnn11 (model.width) [default: as the file's shapes say]
        #[arg(long)]
        width: Option<f64>,
    },
}

/// Why a command stopped.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Weights(#[from] WeightsError),
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error("{0}")]
    Usage(String),
}

const CHECK_FAILED: u8 = 1;
const USAGE: u8 = 2;

/// Runs the subcommand: 0, 1 when a checkpoint is bad, 2 for a path or value that cannot be used.
pub fn run(args: &Args) -> ExitCode {
    let outcome = match args {
        Args::List { path, json } => entries(path).map(|entries| {
            show(&entries, *json);
            ExitCode::SUCCESS
        }),
        Args::Verify { path, json } => entries(path).map(|entries| verify(&entries, *json)),
        Args::Export { chosen, file, onnx } => format_of(file, *onnx).and_then(|format| {
            let (path, which) = chosen.weights()?;
            match format {
                Format::Onnx => export_onnx(&path, which, file),
                Format::Safetensors => export(&path, which, file),
            }
        }),
        Args::Import { file, directory, model, input, classes, width } => {
            given(model.as_deref(), input.as_deref(), classes.as_deref())
                .and_then(|given| import(file, directory, Given { width: *width, ..given }))
        }
    };
    outcome.unwrap_or_else(|failure| {
        say!("kintsugi checkpoint: {failure}");
        match failure {
            Failure::Checkpoint(CheckpointError::Gone { .. })
            | Failure::Weights(WeightsError::Checkpoint(CheckpointError::Gone { .. })) => {
                USAGE.into()
            }
            Failure::Checkpoint(CheckpointError::Damaged { .. } | CheckpointError::AllBad(_))
            | Failure::Weights(WeightsError::Checkpoint(_)) => CHECK_FAILED.into(),
            _ => USAGE.into(),
        }
    })
}

/// One line of `list`.
#[derive(Debug, Serialize)]
struct Entry {
    name: String,
    step: Option<u64>,
    bytes: Option<u64>,
    verified: bool,
    /// Why not; "marked" for one that a run has given up.
    problem: Option<String>,
}

fn entry(storage: &dyn Storage, folder: &Path) -> Result<Entry, CheckpointError> {
    let name = folder.file_name().map_or(String::new(), |name| name.to_string_lossy().into());
    let (manifest, problem) = match store::verify_files(storage, folder) {
        Ok(manifest) => (Some(manifest), None),
        Err(gone @ CheckpointError::Gone { .. }) => return Err(gone),
        Err(error) => (store::read_manifest(storage, folder).ok(), Some(error.to_string())),
    };
    Ok(Entry {
        name,
        step: manifest.as_ref().map(|manifest| manifest.step),
        bytes: manifest.as_ref().map(|manifest| manifest.bytes()),
        verified: problem.is_none(),
        problem,
    })
}

/// Oldest first; what a run has marked comes last.
fn entries(path: &Path) -> Result<Vec<Entry>, Failure> {
    let Named { root, folder } = weights::locate(path)?;
    let storage = FileSystem::new(root);
    if let Some(folder) = folder {
        return Ok(vec![entry(&storage, &folder)?]);
    }
    let mut entries = unmarked(&storage)?;
    for name in store::marked(&storage)? {
        let problem = Some("marked: a run has given it up".to_string());
        entries.push(Entry { name, step: None, bytes: None, verified: false, problem });
    }
    Ok(entries)
}

/// Those that a run may be writing and retiring meanwhile: the list is made anew where one of it is
/// gone, and what was read before is not read again.
fn unmarked(storage: &dyn Storage) -> Result<Vec<Entry>, CheckpointError> {
    let mut read: BTreeMap<(u64, PathBuf), Entry> = BTreeMap::new();
    let mut lists = 1;
    loop {
        let published: BTreeSet<_> = store::published(storage)?.into_iter().collect();
        read.retain(|named, _| published.contains(named));
        let unread: Vec<_> =
            published.into_iter().filter(|named| !read.contains_key(named)).collect();
        let mut gone = None;
        for named in unread {
            match entry(storage, &named.1) {
                Ok(entry) => _ = read.insert(named, entry),
                Err(error) => gone = Some(error),
            }
        }
        match gone {
            Some(_) if lists < store::LISTS_MAX => lists += 1,
            Some(error) if read.is_empty() => return Err(error),
            _ => return Ok(read.into_values().collect()),
        }
    }
}

fn show(entries: &[Entry], form: Form) {
    if form == Form::Json {
        return entries.iter().for_each(print_json);
    }
    if entries.is_empty() {
        say!("no checkpoints");
        return;
    }
    print_line!("{:<20} {:>10} {:>12}  verified", "checkpoint", "step", "size");
    for entry in entries {
        let step = entry.step.map_or("-".to_string(), |step| step.to_string());
        let size = entry.bytes.map_or("-".to_string(), amount);
        let verified = entry.problem.as_deref().map_or("yes".into(), |why| format!("no: {why}"));
        print_line!("{:<20} {step:>10} {size:>12}  {verified}", entry.name);
    }
}

/// Marked checkpoints are shown and do not count: a run has dealt with them.
fn verify(entries: &[Entry], form: Form) -> ExitCode {
    show(entries, form);
    let live: Vec<&Entry> = entries.iter().filter(|e| !e.name.ends_with(store::BAD)).collect();
    if live.is_empty() || live.iter().any(|entry| !entry.verified) {
        return CHECK_FAILED.into();
    }
    ExitCode::SUCCESS
}

/// What `export` writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Safetensors,
    Onnx,
}

/// By the file's ending, or by --onnx: no file gets a name that says something else than it holds.
fn format_of(file: &Path, onnx: bool) -> Result<Format, Failure> {
    let ending = file.extension().map(|ending| ending.to_string_lossy().to_lowercase());
    let ending = ending.filter(|ending| !ending.is_empty());
    match (ending.as_deref(), onnx) {
        (None, false) | (Some("safetensors"), false) => Ok(Format::Safetensors),
        (None, true) | (Some("onnx"), _) => Ok(Format::Onnx),
        (Some(other), true) => Err(Failure::Usage(format!(
            "{}: --onnx writes an ONNX file, whose name does not end in .{}: name it \
             NAME.onnx, or leave --onnx out",
            file.shown(),
            other.shown()
        ))),
        (Some(other), false) => Err(Failure::Usage(format!(
            "{}: no .{} files are written: name it NAME.safetensors (PyTorch reads it with \
             safetensors.torch.load_file) or NAME.onnx",
            file.shown(),
            other.shown()
        ))),
    }
}

fn export(path: &Path, which: Which, file: &Path) -> Result<ExitCode, Failure> {
    let snapshot = loaded(path, which)?;
    publish(&snapshot, which, &weights::export(&snapshot), file)
}

fn export_onnx(path: &Path, which: Which, file: &Path) -> Result<ExitCode, Failure> {
    let root = weights::locate(path)?.root;
    let snapshot = loaded(path, which)?;
    let bytes = onnx::bytes(path, &root, &snapshot).map_err(Failure::Usage)?;
    publish(&snapshot, which, &bytes, file)
}

/// The weights that are asked for; what had to be passed over for them is said.
fn loaded(path: &Path, which: Which) -> Result<Snapshot, WeightsError> {
    let Loaded { snapshot, passed_over } = weights::load(path, None)?;
    for why in passed_over {
        say!("warning: {why}");
    }
    weights::looked_at(snapshot, which)
}

fn publish(
    snapshot: &Snapshot,
    which: Which,
    bytes: &[u8],
    file: &Path,
) -> Result<ExitCode, Failure> {
    FileSystem::new("")
        .write_whole(file, &[bytes])
        .map_err(|error| Failure::Usage(format!("cannot write {}: {error}", file.shown())))?;
    let (step, size) = (snapshot.state.step, amount(bytes.len() as u64));
    let what = match which {
        Which::Trained => "",
        Which::Averaged => " (running average)",
    };
    print_line!("{}: {}{what} of step {step}, {size}", file.shown(), snapshot.model_name);
    Ok(ExitCode::SUCCESS)
}

fn given(
    model: Option<&str>,
    input: Option<&str>,
    classes: Option<&str>,
) -> Result<Given, Failure> {
    let shape = |text: &str| {
        weights::parse_input(text).ok_or_else(|| {
            Failure::Usage(format!("--input {text}: write channels x height x width: 3x224x224"))
        })
    };
    let names = |text: &str| match text.trim().parse::<u32>() {
        Ok(number) => Ok((0..number).map(|class| class.to_string()).collect()),
        Err(_) => named(text),
    };
    Ok(Given {
        model: model.map(str::to_string),
        input: input.map(shape).transpose()?,
        classes: classes.map(names).transpose()?,
        width: None,
    })
}

/// Classes by their names.
fn named(text: &str) -> Result<Vec<String>, Failure> {
    let names: Vec<String> = text.split(',').map(|name| name.trim().to_string()).collect();
    let unnamed = names.iter().position(String::is_empty);
    let twice = (1..names.len()).find(|&at| names[..at].contains(&names[at]));
    match (unnamed, twice) {
        (None, None) => Ok(names),
        (Some(at), _) => Err(Failure::Usage(format!("--classes: class {at} has no name"))),
        (_, Some(at)) => {
            let name = names[at].shown();
            Err(Failure::Usage(format!("--classes: {name} stands twice")))
        }
    }
}

fn import(file: &Path, directory: &Path, given: Given) -> Result<ExitCode, Failure> {
    let Imported { snapshot, width, remarks } =
        weights::import(file, &weights::read_file(file)?, given)?;
    for remark in remarks {
        say!("{}: {remark}", file.shown());
    }
    let storage = FileSystem::new(directory);
    if !store::published(&storage)?.is_empty() {
        let shown = directory.shown();
        return Err(Failure::Usage(format!("{shown} has checkpoints; give another directory")));
    }
    let report = store::write(&storage, &snapshot, 1, &|| true, &RealClock::default());
    report.result?;
    if let Err(why) = imported::configure(&storage, &snapshot, width) {
        say!("warning: no imported.toml for evaluate and predict: {why}");
    }
    let folder = directory.join(store::FOLDER).join(&report.name);
    print_line!("{}: {}, {}", folder.shown(), snapshot.model_name, amount(report.bytes));
    Ok(ExitCode::SUCCESS)
}
