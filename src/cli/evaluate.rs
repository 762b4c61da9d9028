//! `kintsugi evaluate CHECKPOINT [--data DIR]`: how often a checkpoint is right, in one process.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use serde::Serialize;

use crate::config::{Config, DataFormat, Shown};
use crate::data::bad_images::{check_any, check_share};
use crate::data::loader::evaluation::Evaluation;
use crate::data::set::open::open;
use crate::data::{DataError, Split};
use crate::lab::report::command_line;
use crate::lab::trained::page::{self, About};
use crate::lab::trained::scores::{Confused, OfClass, Scores};
use crate::lab::trained::{Trained, TrainedError};
use crate::observe::console::print_line;
use crate::observe::refusal::is_folder;
use crate::observe::storage::{FileSystem, Storage};

use super::arguments::{Chosen, crowd, fail, print_json};

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    chosen: Chosen,
    /// The validation set [default: that of the checkpoint's run]
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Overrides one key of the run's configuration: section.key=value
    #[arg(short = 's', long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Computing threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = crowd)]
    threads: Option<usize>,
    /// Receives one self-contained HTML page: what each class is taken for
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
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
    top1: f64,
    top5: f64,
    loss: f64,
    seconds: f64,
    /// Class by class.
    classes: Vec<OfClass>,
    /// Pairs of classes, the most frequent first.
    confused: Vec<Confused>,
    #[serde(skip)]
    sentence: String,
}

/// Measures and prints. Exit 1: --report could not be written; the others are the checkpoint's.
pub fn run(args: &Args) -> ExitCode {
    match evaluate(args) {
        Ok(measured) if args.json => print_json(&measured),
        Ok(measured) => print(&measured),
        Err(Failure::Trained(error)) => return fail(error.exit_code(), error),
        Err(Failure::Report(error)) => return fail(1, error),
    }
    ExitCode::SUCCESS
}

/// Classes that are printed, at most: all, or those that are recognised least.
const CLASSES_PRINTED_MAX: usize = 20;
/// Pairs of classes that are printed.
const CONFUSED_PRINTED_MAX: usize = 3;

fn print(measured: &Measured) {
    print_line!("{}", measured.sentence);
    let mut classes: Vec<(f64, &OfClass)> =
        measured.classes.iter().filter_map(|of| Some((of.top1?, of))).collect();
    let all = classes.len();
    if all > CLASSES_PRINTED_MAX {
        classes.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        classes.truncate(CLASSES_PRINTED_MAX);
        print_line!("the {CLASSES_PRINTED_MAX} of {all} classes with the largest errors:");
    }
    for (top1, of) in classes {
        let (error, name) = (100.0 * (1.0 - top1), of.name.shown());
        print_line!("  error {error:6.2} %  of {:6} samples  {name}", of.samples);
    }
    let name = |class: usize| measured.classes.get(class).map_or("?".into(), |of| of.name.shown());
    for pair in measured.confused.iter().take(CONFUSED_PRINTED_MAX) {
        let (class, taken_for) = (name(pair.class), name(pair.taken_for));
        print_line!("  {} of {class} are taken for {taken_for}", pair.samples);
    }
}

enum Failure {
    Trained(TrainedError),
    Report(String),
}

impl<E: Into<TrainedError>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::Trained(error.into())
    }
}

fn evaluate(args: &Args) -> Result<Measured, Failure> {
    let begun = Instant::now();
    let (path, which) = args.chosen.weights().map_err(TrainedError::from)?;
    let mut trained = Trained::open(&path, which, &args.set, args.threads)?;
    match &args.data {
        Some(folder) => name_set(folder, &mut trained.config)?,
        None if belongs_to_no_set(&trained) => {
            let text = "an imported checkpoint does not say which set it is of: name one with \
                        --data";
            return Err(TrainedError::Usage(text.into()).into());
        }
        None => {}
    }
    let (scores, skipped) =
        measure(&mut trained, args.data.as_deref()).map_err(|error| match error {
            TrainedError::Data(error) if args.data.is_some() => error.of_option("--data").into(),
            other => other,
        })?;
    let snapshot = &trained.snapshot;
    let (model, step) = (snapshot.model_name.clone(), snapshot.state.step);
    let checkpoint = path.shown();
    let names = &snapshot.classes;
    if let Some(file) = &args.report {
        let command = command_line();
        let about = About { model: &model, step, checkpoint: &checkpoint, command: &command };
        write(file, &page::render(&about, names, &scores)).map_err(Failure::Report)?;
    }
    let (error, seconds) = (scores.error(), begun.elapsed().as_secs_f64());
    let sentence = format!(
        "{model} at step {step}: error {:.2} %{}, loss {:.4} over {} samples ({skipped} skipped) \
         in {seconds:.1} s",
        100.0 * error,
        page::among_five(names, &scores),
        scores.loss(),
        scores.samples(),
    );
    Ok(Measured {
        checkpoint,
        model,
        step,
        samples: scores.samples(),
        skipped,
        error,
        top1: 1.0 - error,
        top5: scores.top5(),
        loss: scores.loss(),
        seconds,
        classes: scores.of_classes(names),
        confused: scores.confused(),
        sentence,
    })
}

/// Shows all of the validation set to the model; also the samples that could not be read. `named`:
/// what --data says.
fn measure(trained: &mut Trained, named: Option<&Path>) -> Result<(Scores, u64), TrainedError> {
    let config = trained.config.clone();
    let set = open(&config.data, Split::Validation, config.run.seed)?;
    let (source, known) = (&set.source, &trained.snapshot.classes);
    if source.classes() != known {
        return Err(TrainedError::Usage(other_classes(source.classes(), known, named)));
    }
    let mut scores = Scores::new(known.len());
    // Every picture is used once: nothing is worth keeping.
    let evaluation = Evaluation::new(set, &trained.view(), 0);
    let (mut logarithms, mut skipped) = (Vec::new(), 0);
    let part = u64::from(config.evaluation.batch.max(1));
    for first in (0..evaluation.len()).step_by(part as usize) {
        let batch = evaluation.batch(first, part.min(evaluation.len() - first))?;
        logarithms.clear();
        trained.ask(&batch.images, batch.labels.len(), &mut logarithms)?;
        scores.add(&logarithms, &batch.labels);
        skipped += batch.skipped;
    }
    let count = scores.samples() + skipped;
    let which = || "of the evaluation".into();
    let check = |checked: Result<(), DataError>| checked.map_err(TrainedError::from);
    check(check_any(Split::Validation, skipped, count, which))?;
    let most = config.data.bad_images_max;
    check(check_share(Split::Validation, skipped, count, most, which))?;
    Ok((scores, skipped))
}

/// Classes that are named of each kind, at most.
const CLASSES_NAMED_MAX: usize = 5;

/// The refusal of a set that has other classes than the checkpoint knows.
fn other_classes(found: &[String], known: &[String], named: Option<&Path>) -> String {
    let beyond = |all: &[String], others: &[String]| {
        let beyond: Vec<String> =
            all.iter().filter(|name| !others.contains(name)).map(|name| name.shown()).collect();
        let more = beyond.len().saturating_sub(CLASSES_NAMED_MAX);
        let first = beyond[..beyond.len() - more].join(", ");
        if more > 0 { format!("{first} and {more} more") } else { first }
    };
    let (new, missing) = (beyond(found, known), beyond(known, found));
    let mut differs = vec![format!("{} classes for the checkpoint's {}", found.len(), known.len())];
    differs.extend((!new.is_empty()).then(|| format!("it has {new}")));
    differs.extend((!missing.is_empty()).then(|| format!("it lacks {missing}")));
    if new.is_empty() && missing.is_empty() {
        differs = vec!["they stand in another order".into()];
    }
    let differs = differs.join("; ");
    match named {
        Some(folder) => format!(
            "--data {}: this is not the checkpoint's set, its classes are others ({differs}): name \
             one with the classes that it was trained on",
            folder.shown()
        ),
        None => format!(
            "the set of the configuration has other classes than the checkpoint was trained on \
             ({differs}): name the set it belongs to with --data"
        ),
    }
}

/// Whether nobody has said what to measure on: where no set is named, one would be made up.
fn belongs_to_no_set(trained: &Trained) -> bool {
    let data = &trained.config.data;
    let is_named = data.train.is_some() || data.validation.is_some();
    let imported = trained.snapshot.state.config_fingerprint == 0;
    imported && !is_named && data.format != DataFormat::Synthetic
}

/// The set that --data names.
fn name_set(folder: &Path, config: &mut Config) -> Result<(), TrainedError> {
    if config.data.format == DataFormat::Synthetic {
        let text = "the run trained on a synthetic set: say what --data holds, for example \
                    -s data.format=image_folder";
        return Err(TrainedError::Usage(text.into()));
    }
    // One folder stands for both splits: only its validation half is read.
    let half = validation_folder(folder).map_err(|error| DataError::Store(error.to_string()))?;
    config.data.train = Some(half.clone());
    config.data.validation = Some(half.into());
    Ok(())
}

/// A set's own `validation` half where it has one.
///
/// # Errors
/// Whether it has one cannot be told.
fn validation_folder(folder: &Path) -> io::Result<PathBuf> {
    let half = folder.join("validation");
    Ok(if is_folder(&half)? { half } else { folder.to_path_buf() })
}

fn write(file: &Path, page: &str) -> Result<(), String> {
    let name = file.file_name().ok_or_else(|| format!("{}: is no file", file.shown()))?;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    FileSystem::new(folder.unwrap_or(Path::new(".")))
        .replace(Path::new(name), page.as_bytes())
        .map_err(|error| format!("{}: {error}", file.shown()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_other_classes_says_which_and_whether_it_was_named() {
        let classes = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let (abc, many) = (classes("a b c"), classes("a 1 2 3 4 5 6 7"));
        let named = Some(Path::new("sets/other"));
        let told = other_classes(&many, &abc, named);
        assert!(told.starts_with("--data sets/other: this is not the checkpoint's set"), "{told}");
        assert!(!told.contains("with --data"), "it was given: {told}");
        for part in
            ["8 classes for the checkpoint's 3", "has 1, 2, 3, 4, 5 and 2 more", "lacks b, c"]
        {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert!(other_classes(&classes("c b a"), &abc, named).contains("another order"));
        assert!(
            other_classes(&many, &abc, None).contains("name the set it belongs to with --data")
        );
    }
}
