//! `kintsugi data`: make an image folder, say what is in a data set, stage one ahead of its run.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::ArgAction;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::Deserialize;
use serde::de::IntoDeserializer;

use crate::config::{Data, DataFormat, Shown, Validation};
use crate::data::painting::synth::{self, SynthOptions};
use crate::data::set::open::open;
use crate::data::{DataError, Split};
use crate::observe::console::print_line;
use crate::observe::refusal::is_folder;
use crate::observe::spans::amount;

use super::arguments::{Form, fail, form, print_json};

use report::{DATA_ERROR, bar, print, report};

mod bundles;
pub(super) mod neighbours;
pub(super) mod report;
mod stage;

/// Makes, inspects and stages data sets.
#[derive(Debug, clap::Subcommand)]
pub enum Args {
    /// Write a JPEG image folder of procedural pictures
    Synth(SynthOptions),
    /// Decode a whole data set and say what is in it; of a configuration also what bundles hold
    Inspect(Inspect),
    Stage(stage::Args),
}

#[derive(Debug, clap::Args)]
pub struct Inspect {
    /// The training set: a folder of class folders, or what --format says (of tar shards a pattern
    /// too); or a configuration (*.toml), whose sets and order of samples are looked at
    #[arg(value_name = "TRAIN|CONFIG")]
    train: PathBuf,
    /// Overrides one key of the configuration: section.key=value
    #[arg(short = 's', long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The validation set, with the same classes; or a share to split off, such as 10%
    #[arg(long, value_parser = |text: &str| text.parse::<Validation>())]
    validation: Option<Validation>,
    /// How the set is stored
    #[arg(long, default_value = "image_folder", value_parser = format())]
    format: DataFormat,
    /// One JSON object on stdout
    #[arg(long, action = ArgAction::SetTrue, value_parser = form())]
    json: Form,
}

/// Formats of sets that lie somewhere, as configurations name them.
fn format() -> impl TypedValueParser<Value = DataFormat> {
    let names = ["image_folder", "cifar10", "cifar100", "mnist", "tar"];
    PossibleValuesParser::new(names).try_map(|name| {
        DataFormat::deserialize(IntoDeserializer::<serde::de::value::Error>::into_deserializer(
            name.as_str(),
        ))
    })
}

/// The code of a place that cannot be used.
const REFUSED: u8 = 2;

/// Runs the subcommand: 0, 3 when a set cannot be used, or 2 when a place cannot.
pub fn run(args: &Args) -> ExitCode {
    let done = match args {
        Args::Synth(options) => synthesise(options),
        Args::Inspect(options) => inspect(options),
        Args::Stage(options) => stage::run(options),
    };
    done.unwrap_or_else(|error| {
        let code = if matches!(error, DataError::Place(_)) { REFUSED } else { DATA_ERROR };
        fail(code, error)
    })
}

fn synthesise(options: &SynthOptions) -> Result<ExitCode, DataError> {
    let bar = bar(options.train_samples + options.validation_samples, "drawing");
    let start = Instant::now();
    let written = synth::write(options, &|done, _| bar.set_position(done));
    bar.finish_and_clear();
    let written = written?;
    print_line!(
        "{} images of {} classes, {}, in {:.1} s\ndata.train = {:?}\ndata.validation = {:?}",
        written.images,
        options.classes,
        amount(written.bytes),
        start.elapsed().as_secs_f64(),
        options.folder.join("train"),
        options.folder.join("validation"),
    );
    Ok(ExitCode::SUCCESS)
}

fn inspect(args: &Inspect) -> Result<ExitCode, DataError> {
    let named = args.train.extension().is_some_and(|ending| ending == "toml");
    let unknown = |error: std::io::Error| DataError::Store(error.to_string());
    if named && !is_folder(&args.train).map_err(unknown)? {
        if args.validation.is_some() {
            let reason = "--validation: the configuration names it; -s data.validation=... does";
            return Ok(fail(2, reason));
        }
        return bundles::inspect(&args.train, &args.set, args.json);
    }
    if !args.set.is_empty() {
        return Ok(fail(2, format!("-s: {} is no configuration (*.toml)", args.train.shown())));
    }
    let data = Data {
        format: args.format,
        train: Some(args.train.clone()),
        validation: args.validation.clone(),
        ..Data::default()
    };
    let train = open(&data, Split::Train, 0)?;
    let mut reports = vec![report(&train, Split::Train, args.train.shown())?];
    if let Some(place) = &args.validation {
        let set = open(&data, Split::Validation, 0)?;
        reports.push(report(&set, Split::Validation, place.shown())?);
    }
    let usable = reports.iter().all(|report| report.usable);
    if args.json == Form::Json {
        let neighbours = neighbours::parted(&data, 0)?;
        print_json(&serde_json::json!({
            "usable": usable, "splits": reports, "neighbours": neighbours
        }));
    } else {
        reports.iter().for_each(print);
        neighbours::print(&data, 0)?;
    }
    Ok(if usable { ExitCode::SUCCESS } else { ExitCode::from(DATA_ERROR) })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(subcommand)]
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
        let opened = open(&data, Split::Train, 0).expect("opens");
        let found = report(&opened, Split::Train, set.shown()).expect("there");
        assert_eq!((found.samples, found.bad.len(), found.usable), (40, 1, true));
        assert_eq!(found.bad[0].name, words(&bad));
        assert!(found.classes.iter().all(|class| class.samples == 4));
        let width = found.width.expect("39 images");
        assert!((40..=56).contains(&width.min) && width.min < width.max && width.max <= 56);
    }

    #[test]
    fn a_configuration_is_inspected_with_its_bundles() {
        let root = tempfile::tempdir().expect("temporary folder");
        let config = root.path().join("run.toml");
        let text = "[data]\nformat = \"synthetic\"\nsynthetic_samples = 400\n\
                    bundle_ratio = 0.1\n[train]\nsteps = 1\nowners = 4\n";
        std::fs::write(&config, text).expect("written");
        let path = config.to_str().expect("plain name");
        let code = |code: u8| format!("{:?}", ExitCode::from(code));
        assert_eq!(line(&["inspect", path]), code(0));
        assert_eq!(line(&["inspect", path, "--json"]), code(0));
        assert_eq!(line(&["inspect", path, "-s", "data.bundle_ratio=2.0"]), code(2));
        assert_eq!(line(&["inspect", path, "--validation", path]), code(2));
        assert_eq!(line(&["inspect", path, "-s", "train.owners=401"]), code(3), "no order");
        let folder = root.path().to_str().expect("plain name");
        assert_eq!(line(&["inspect", folder, "-s", "run.seed=2"]), code(2));
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
