//! `kintsugi data`: make an image folder, and say what is in a data set.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use crate::config::{Data, DataFormat, Shown};
use crate::data::open::open;
use crate::data::set::DataSet;
use crate::data::source::Source;
use crate::data::synth::{self, SynthOptions};
use crate::data::{DataError, Split};
use crate::observe::console::{self, print_line, say};

/// Exit code of a set that is missing, unreadable or changed (README, "Exit codes").
const DATA_ERROR: u8 = 3;
/// Most threads that decode at once.
const THREADS_MAX: usize = 16;
/// Bad files that the table shows; `--json` lists all.
const BAD_SHOWN: usize = 20;

/// Makes and inspects data sets.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Write a JPEG image folder of procedural pictures
    Synth(Synth),
    /// Decode a whole data set and say what is in it
    Inspect(Inspect),
}

#[derive(Debug, clap::Args)]
struct Synth {
    /// Receives train/ and validation/; must not exist yet
    folder: PathBuf,
    /// Number of classes
    #[arg(long, default_value_t = 10)]
    classes: u32,
    /// Training images
    #[arg(long, default_value_t = 6000)]
    train: u64,
    /// Validation images
    #[arg(long, default_value_t = 1000)]
    validation: u64,
    /// Pixels that the model sees; the files are 1.25 to 1.75 times that
    #[arg(long, default_value_t = 32)]
    image_size: u32,
    /// The same seed draws the same pictures
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, clap::Args)]
struct Inspect {
    /// The training set: a folder of class folders, or what --format says
    train: PathBuf,
    /// The validation set; its classes must be the same
    #[arg(long)]
    validation: Option<PathBuf>,
    /// How the set is stored
    #[arg(long, value_enum, default_value_t = Format::ImageFolder)]
    format: Format,
    /// One JSON object on stdout
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum Format {
    #[value(name = "image_folder")]
    ImageFolder,
    Cifar10,
    Cifar100,
    Mnist,
}

impl Format {
    fn config(self) -> DataFormat {
        match self {
            Format::ImageFolder => DataFormat::ImageFolder,
            Format::Cifar10 => DataFormat::Cifar10,
            Format::Cifar100 => DataFormat::Cifar100,
            Format::Mnist => DataFormat::Mnist,
        }
    }
}

/// Runs the subcommand: 0, or 3 when a set cannot be used.
pub fn run(args: &Args) -> ExitCode {
    let done = match &args.command {
        Command::Synth(options) => synthesise(options),
        Command::Inspect(options) => inspect(options),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            say!("error: {error}");
            ExitCode::from(DATA_ERROR)
        }
    }
}

/// A bar on a terminal, nothing elsewhere.
fn bar(total: u64, what: &str) -> ProgressBar {
    let bar = console::bar::bar(Some(total));
    let style = ProgressStyle::with_template("{msg} {wide_bar} {human_pos}/{human_len} {eta}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message(what.to_owned());
    bar
}

fn synthesise(args: &Synth) -> Result<ExitCode, DataError> {
    let options = SynthOptions {
        folder: args.folder.clone(),
        classes: args.classes,
        train_samples: args.train,
        validation_samples: args.validation,
        image_size: args.image_size,
        seed: args.seed,
    };
    let bar = bar(args.train + args.validation, "drawing");
    let start = Instant::now();
    let written = synth::write(&options, &|done, _| bar.set_position(done));
    bar.finish_and_clear();
    let written = written?;
    print_line!(
        "{} images of {} classes, {:.1} MB, in {:.1} s\ndata.train = {:?}\ndata.validation = {:?}",
        written.images,
        args.classes,
        written.bytes as f64 / 1e6,
        start.elapsed().as_secs_f64(),
        args.folder.join("train"),
        args.folder.join("validation"),
    );
    Ok(ExitCode::SUCCESS)
}

/// What is said of one split.
#[derive(Debug, Serialize)]
struct Report {
    split: &'static str,
    path: String,
    samples: u64,
    channels: u32,
    classes: Vec<ClassCount>,
    width: Option<Range>,
    height: Option<Range>,
    bad: Vec<BadFile>,
    images_per_second: f64,
    fingerprint: String,
    /// What is not read, and what its owner should look at.
    remarks: Vec<String>,
    usable: bool,
}

#[derive(Debug, Serialize)]
struct ClassCount {
    name: String,
    samples: u64,
}

#[derive(Debug, Serialize)]
struct Range {
    min: u32,
    median: u32,
    max: u32,
}

#[derive(Debug, Serialize)]
struct BadFile {
    name: String,
    reason: String,
}

/// Sizes and bad files, as found by several threads.
#[derive(Default)]
struct Found {
    widths: Vec<u32>,
    heights: Vec<u32>,
    bad: Vec<(u64, BadFile)>,
}

fn inspect(args: &Inspect) -> Result<ExitCode, DataError> {
    let data = Data {
        format: args.format.config(),
        train: Some(args.train.clone()),
        validation: args.validation.clone(),
        ..Data::default()
    };
    let mut reports = vec![report(&data, Split::Train, &args.train)?];
    if let Some(path) = &args.validation {
        reports.push(report(&data, Split::Validation, path)?);
    }
    let usable = reports.iter().all(|report| report.usable);
    if args.json {
        let whole = serde_json::json!({ "usable": usable, "splits": reports });
        print_line!("{whole}");
    } else {
        reports.iter().for_each(print);
    }
    Ok(if usable { ExitCode::SUCCESS } else { ExitCode::from(DATA_ERROR) })
}

fn report(data: &Data, split: Split, path: &Path) -> Result<Report, DataError> {
    let set = open(data, split, 0)?;
    let source = &set.source;
    let start = Instant::now();
    let mut found = decode_all(&set, split);
    found.bad.sort_unstable_by_key(|(id, _)| *id);
    let mut counts = vec![0u64; source.classes().len()];
    (0..source.len()).for_each(|id| counts[source.label(id) as usize] += 1);
    let classes = source.classes().iter().zip(counts);
    Ok(Report {
        split: split.name(),
        path: path.shown(),
        samples: source.len(),
        channels: source.channels(),
        classes: classes
            .map(|(name, samples)| ClassCount { name: name.clone(), samples })
            .collect(),
        usable: !found.widths.is_empty(),
        width: range(found.widths),
        height: range(found.heights),
        bad: found.bad.into_iter().map(|(_, bad)| bad).collect(),
        images_per_second: source.len() as f64 / start.elapsed().as_secs_f64(),
        fingerprint: format!("{:016x}", source.fingerprint()),
        remarks: source.remarks().to_vec(),
    })
}

fn range(mut values: Vec<u32>) -> Option<Range> {
    values.sort_unstable();
    let median = *values.get(values.len() / 2)?;
    Some(Range { min: *values.first()?, median, max: *values.last()? })
}

fn decode_all(set: &DataSet, split: Split) -> Found {
    let source = &*set.source;
    let next = AtomicU64::new(0);
    let all = Mutex::new(Found::default());
    let bar = bar(source.len(), split.name());
    let work = || {
        let (mut own, mut bytes) = (Found::default(), Vec::new());
        loop {
            let id = next.fetch_add(1, Ordering::Relaxed);
            if id >= source.len() {
                break;
            }
            match set.read(id, &mut bytes) {
                Ok(image) => {
                    own.widths.push(image.width);
                    own.heights.push(image.height);
                }
                Err(error) => own.bad.push((id, bad_file(source, id, error))),
            }
            bar.inc(1);
        }
        let mut all = all.lock().unwrap_or_else(|poison| poison.into_inner());
        all.widths.append(&mut own.widths);
        all.heights.append(&mut own.heights);
        all.bad.append(&mut own.bad);
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().min(THREADS_MAX));
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    bar.finish_and_clear();
    all.into_inner().unwrap_or_else(|poison| poison.into_inner())
}

fn bad_file(source: &dyn Source, id: u64, error: DataError) -> BadFile {
    match error {
        DataError::Sample { name, reason } => BadFile { name, reason },
        DataError::Set(reason) | DataError::Store(reason) => {
            BadFile { name: source.name(id), reason }
        }
    }
}

fn print(report: &Report) {
    print_line!(
        "{} {}: {} samples, {} classes, {} channels, fingerprint {}",
        report.split,
        report.path,
        report.samples,
        report.classes.len(),
        report.channels,
        report.fingerprint
    );
    for class in &report.classes {
        print_line!("  {:>8}  {}", class.samples, class.name.shown());
    }
    let show = |range: &Range| format!("{} / {} / {}", range.min, range.median, range.max);
    if let (Some(width), Some(height)) = (&report.width, &report.height) {
        print_line!(
            "  width {}, height {} (min / median / max); {:.0} images/s",
            show(width),
            show(height),
            report.images_per_second
        );
    }
    for remark in &report.remarks {
        print_line!("  {remark}");
    }
    if !report.bad.is_empty() {
        print_line!("  {} bad of {}:", report.bad.len(), report.samples);
    }
    for bad in report.bad.iter().take(BAD_SHOWN) {
        print_line!("    {}: {}", bad.name, bad.reason);
    }
    if report.bad.len() > BAD_SHOWN {
        print_line!("    ... (--json lists all)");
    }
    if !report.usable {
        print_line!("  nothing in it can be decoded: not usable");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn line(words: &[&str]) -> String {
        let words = std::iter::once("data").chain(words.iter().copied());
        let line: Line = clap::Parser::try_parse_from(words).expect("parses");
        format!("{:?}", run(&line.args))
    }

    #[test]
    fn what_synth_writes_inspect_finds_whole() {
        let root = tempfile::tempdir().expect("temporary folder");
        let set = root.path().join("set");
        let words = |path: &Path| path.to_str().expect("plain name").to_owned();
        let success = format!("{:?}", ExitCode::SUCCESS);
        let unusable = format!("{:?}", ExitCode::from(3));
        let synth = ["synth", &words(&set), "--train", "40", "--validation", "10"];
        assert_eq!(line(&synth), success);
        assert_eq!(line(&synth), unusable, "it exists");
        let (train, validation) = (words(&set.join("train")), words(&set.join("validation")));
        assert_eq!(line(&["inspect", &train, "--validation", &validation, "--json"]), success);
        assert_eq!(line(&["inspect", &words(&set)]), unusable, "the root is no split");

        let data = Data { train: Some(set.join("train")), ..Data::default() };
        let bad = set.join("train/star/000001.jpg");
        std::fs::write(&bad, "no image").expect("written");
        let found = report(&data, Split::Train, &set).expect("opens");
        assert_eq!((found.samples, found.bad.len(), found.usable), (40, 1, true));
        assert_eq!(found.bad[0].name, words(&bad));
        assert!(found.classes.iter().all(|class| class.samples == 4));
        let width = found.width.expect("39 images");
        assert!((40..=56).contains(&width.min) && width.min < width.max && width.max <= 56);
    }

    #[test]
    fn a_set_without_one_readable_image_is_not_usable() {
        let root = tempfile::tempdir().expect("temporary folder");
        std::fs::create_dir(root.path().join("cat")).expect("created");
        std::fs::write(root.path().join("cat/0.jpg"), "no image").expect("written");
        let path = root.path().to_str().expect("plain name");
        assert_eq!(line(&["inspect", path]), format!("{:?}", ExitCode::from(3)));
    }
}
