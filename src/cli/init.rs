//! `kintsugi init`: from a folder of pictures to a configuration that runs as it is. It looks at
//! the pictures, chooses what suits them and this machine (`choice`), says so, and names the next
//! command.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use kintsugi_ffi::cgroup;

use crate::cluster::processors::machine::Machine;
use crate::config::{Config, Data, Shown, Validation, parse, resolve_owners};
use crate::data::sampler::Order;
use crate::data::set::DataSet;
use crate::data::set::open::open;
use crate::data::{DataError, Split};
use crate::model::catalogue;
use crate::needs::{Limit, Load, needs, planned};
use crate::observe::console::print_line;
use crate::observe::refusal::is_folder;
use crate::train::TrainError;
use crate::train::start::feasible;

use super::arguments::fail;
use super::data::report::{self, DATA_ERROR};
use choice::{Choice, Machinery, Seen};

mod choice;
mod split;

/// Looks at a folder of pictures and writes a configuration that trains on it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// One sub-folder per class; or two such folders, train and val (or validation, test)
    folder: PathBuf,
    /// A name of the catalogue or the path of a *.toml model [default: by the pictures' size]
    #[arg(long)]
    model: Option<String>,
    /// Ranks of the run [default: by this machine's processors and memory]
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=2048))]
    ranks: Option<u32>,
    /// The file to write [default: NAME.toml here, after the folder]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Writes over a file that is there
    #[arg(long)]
    force: bool,
}

/// Longest look at the pictures.
const LOOK_MAX: Duration = Duration::from_secs(60);
/// Names of the two folders of a set that is split already.
const TRAIN: [&str; 2] = ["train", "training"];
const VALIDATION: [&str; 4] = ["val", "validation", "valid", "test"];
/// For whoever has the labels elsewhere.
const LABELS: &str = "Labels in a CSV file are not read: pictures go into one folder for each \
                      class (src/data/README.md sorts them so)";
/// Unreadable pictures that are named.
const NAMED: usize = 3;
/// Seeds what is opened; it shows in nothing.
const SEED: u64 = 1;

/// Why nothing was written, with the exit code.
struct Refused(u8, String);

fn usage(reason: impl Display) -> Refused {
    Refused(2, reason.to_string())
}

impl From<DataError> for Refused {
    fn from(error: DataError) -> Self {
        match error {
            DataError::Place(reason) => Self(2, reason),
            error => Self(DATA_ERROR, error.to_string()),
        }
    }
}

impl From<TrainError> for Refused {
    fn from(error: TrainError) -> Self {
        Self(error.exit_code(), error.to_string())
    }
}

/// 0 with a file written; 2 where that cannot be, 3 where the pictures cannot be used.
pub fn run(args: &Args) -> ExitCode {
    match init(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Refused(code, reason)) => fail(code, reason),
    }
}

fn init(args: &Args) -> Result<(), Refused> {
    let root = args.folder.canonicalize().map_err(|error| {
        Refused(DATA_ERROR, format!("{}: {error}: name a folder", args.folder.shown()))
    })?;
    if !is_folder(&root).map_err(|error| Refused(DATA_ERROR, error.to_string()))? {
        let text = format!("{} is a file: name the folder of pictures. {LABELS}", root.shown());
        return Err(Refused(DATA_ERROR, text));
    }
    let name = name_of(&root);
    let output = args.output.clone().unwrap_or_else(|| format!("{name}.toml").into());
    if output.exists() && !args.force {
        let text = "is there already: --force writes over it, --output FILE names another";
        return Err(usage(format!("{} {text}", output.shown())));
    }
    if root.to_str().is_none() {
        return Err(usage(format!(
            "{}: its path is not UTF-8, and a configuration is",
            root.shown()
        )));
    }
    let (train, validation) =
        halves(&root).map_err(|error| Refused(DATA_ERROR, error.to_string()))?;
    let mut data = Data { train: Some(train), validation, ..Data::default() };
    let set = open(&Data { validation: None, ..data.clone() }, Split::Train, SEED)?;
    let seen = look(&data, &set)?;
    print_line!("{}", seen.line(&root));
    let (validation, said) = match data.validation.take() {
        Some(place) => (place, Vec::new()),
        None => split::choose(&data, seen.samples, SEED)?,
    };
    data.validation = Some(validation);
    said.iter().chain(&seen.warnings).for_each(|line| print_line!("{line}"));
    let of_training = open(&data, Split::Train, SEED)?;
    let choice = chosen(args, &name, &data, &seen, &of_training)?;
    let text = choice.text(&seen);
    let config = written(&output, &text)?;
    print_line!("{}", choice.line(steps(&config, &of_training)?));
    let output = output.shown();
    print_line!("written: {output}");
    print_line!("next: kintsugi launch {output}    (--check looks at all of it first)");
    Ok(())
}

/// What the run and its file are called: as the folder, or of a half of a set as the whole.
fn name_of(root: &Path) -> String {
    let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    let own = name(root).filter(|name| !TRAIN.contains(&name.as_str()));
    let name = own.or_else(|| name(root.parent()?)).unwrap_or_else(|| "pictures".into());
    name.chars().map(|c| if c.is_control() { '_' } else { c }).collect()
}

/// Where the training pictures lie, and those for validation where they have a folder.
///
/// # Errors
/// Whether there is one of these cannot be told.
fn halves(root: &Path) -> io::Result<(PathBuf, Option<Validation>)> {
    let below = |names: &[&str]| {
        for folder in names.iter().map(|name| root.join(name)) {
            if is_folder(&folder)? {
                return Ok(Some(folder));
            }
        }
        io::Result::Ok(None)
    };
    match below(&TRAIN)? {
        Some(train) => Ok((train, below(&VALIDATION)?.map(Validation::Place))),
        None => Ok((root.to_owned(), None)),
    }
}

/// What there is in the folder.
fn look(data: &Data, set: &DataSet) -> Result<Seen, Refused> {
    let source = &*set.source;
    let classes = report::counted(source);
    if let [only] = classes.as_slice() {
        let text = format!(
            "{}: all {} pictures are of one class ({}): a classifier needs two at least, each with \
             a folder of its own. {LABELS}",
            data.train.as_deref().map(Path::shown).unwrap_or_default(),
            only.samples,
            only.name.shown()
        );
        return Err(Refused(DATA_ERROR, text));
    }
    let looked = report::look(set, Split::Train, Some(LOOK_MAX))?;
    let sides = looked.widths.iter().zip(&looked.heights).map(|(w, h)| *w.min(h)).collect();
    let Some(sides) = report::range(sides) else {
        let text = format!("none of {} pictures can be decoded", looked.count);
        let first = looked.bad.first().map(|(_, bad)| format!(" ({}: {})", bad.name, bad.reason));
        return Err(Refused(DATA_ERROR, text + &first.unwrap_or_default()));
    };
    let validation_samples = match &data.validation {
        Some(Validation::Place(_)) => Some(open(data, Split::Validation, SEED)?.source.len()),
        _ => None,
    };
    let mut warnings: Vec<String> = source.remarks().to_vec();
    let bad = looked.bad.len() as u64;
    for (_, bad) in looked.bad.iter().take(NAMED) {
        warnings.push(format!("warning: {} cannot be decoded: {}", bad.name, bad.reason));
    }
    let (samples, counts) = (source.len(), (bad, looked.count));
    Ok(Seen { samples, classes, sides, counts, validation_samples, warnings })
}

/// What suits the pictures and this machine; the model and the memory that it takes decide with.
fn chosen(
    args: &Args,
    name: &str,
    data: &Data,
    seen: &Seen,
    train: &DataSet,
) -> Result<Choice, Refused> {
    let samples = train.source.len();
    if let Some(ranks) = args.ranks.filter(|ranks| u64::from(*ranks) > samples) {
        return Err(usage(format!(
            "-n {ranks}: the training set has {samples}: each rank needs one"
        )));
    }
    let machinery = Machinery { processors: Machine::here().capacity, ranks: args.ranks };
    let model = match &args.model {
        Some(model) if model.ends_with(".toml") => {
            Some(std::path::absolute(model).map_err(usage)?.to_string_lossy().into_owned())
        }
        model => model.clone(),
    };
    let mut choice = Choice::of(name, data, seen, samples, machinery, model);
    loop {
        let config = choice.config().map_err(usage)?;
        let side = config.data.image_size as usize;
        let input = [train.source.channels() as usize, side, side];
        let built = catalogue::of(&config.model, input, seen.classes.len());
        // Many a model takes no such small pictures.
        if built.is_err() && choice.enlarge() {
            continue;
        }
        let model = feasible::model(&config, &*train.source, resolve_owners(&config))?;
        let planned = planned(&config, &model.graph, samples);
        let load = Load { ranks: config.run.ranks.into(), samples, planned };
        let need = needs(&config, &model.graph, load).bytes(Limit::Memory);
        let fits = cgroup::available_memory_bytes().is_none_or(|free| need <= free);
        if fits || args.ranks.is_some() || !choice.fewer_ranks() {
            return Ok(choice);
        }
    }
}

/// Writes it as soon as it reads as a configuration.
fn written(output: &Path, text: &str) -> Result<Config, Refused> {
    let failed = |error: std::io::Error| usage(format!("{}: {error}", output.shown()));
    let mut part = output.as_os_str().to_owned();
    part.push(format!(".part-{}", std::process::id()));
    let part = PathBuf::from(part);
    let written = std::fs::write(&part, text).map_err(failed);
    let read = written.and_then(|()| parse::load(&part, &[]).map_err(usage));
    let moved = read.and_then(|config| {
        std::fs::rename(&part, output).map_err(failed)?;
        Ok(config)
    });
    moved.inspect_err(|_| {
        // The reason is what was refused.
        let _ = std::fs::remove_file(&part);
    })
}

fn steps(config: &Config, train: &DataSet) -> Result<u64, Refused> {
    let order = Order::of(config, train.source.len())?;
    Ok(order.steps_per_epoch().saturating_mul(config.train.epochs.unwrap_or(0)))
}
