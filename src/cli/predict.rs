//! `kintsugi predict CHECKPOINT IMAGE...`: what a model says of pictures.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use kintsugi_ffi::regular;
use serde::Serialize;

use crate::config::Shown;
use crate::data::loader::viewer::Viewer;
use crate::data::source::below;
use crate::lab::trained::scores::best;
use crate::lab::trained::{Trained, TrainedError};
use crate::observe::console::{print_line, say};

use super::arguments::{Chosen, crowd, fail, print_json};

/// Pictures that are computed at once.
const BATCH: usize = 32;
/// Largest file that is read as a picture.
const FILE_BYTES_MAX: u64 = 1 << 30;

/// Shows pictures to a model as evaluation does, and prints the most probable classes.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    chosen: Chosen,
    /// Pictures (JPEG, PNG, WebP, BMP, GIF, TIFF, PPM, PGM), or folders of them
    #[arg(required = true, value_name = "IMAGE")]
    images: Vec<PathBuf>,
    /// Classes that are named, the most probable first
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = crowd)]
    top: usize,
    /// Overrides one key of the run's configuration: section.key=value
    #[arg(short = 's', long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Computing threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = crowd)]
    threads: Option<usize>,
    /// One JSON object a picture, a line each
    #[arg(long)]
    json: bool,
}

/// A class and how probable it is.
#[derive(Debug, Serialize)]
struct Guess {
    class: usize,
    name: String,
    probability: f64,
}

/// A picture's line.
#[derive(Debug, Serialize)]
struct Line {
    file: String,
    top: Vec<Guess>,
}

/// Exit 3: a picture could not be read, or has no answer; all others were printed. Other codes are
/// the checkpoint's.
pub fn run(args: &Args) -> ExitCode {
    let opened = args.chosen.weights().map_err(TrainedError::from);
    let opened =
        opened.and_then(|(path, which)| Trained::open(&path, which, &args.set, args.threads));
    let trained = match opened {
        Ok(trained) => trained,
        Err(error) => return fail(error.exit_code(), error),
    };
    let images = match named(&args.images) {
        Ok(images) => images,
        Err(reason) => return fail(2, reason),
    };
    let viewer = Viewer::new(&trained.view());
    let mut asked = Asked { trained, viewer, top: args.top, json: args.json, failed: 0 };
    for files in images.chunks(BATCH) {
        if let Err(error) = asked.about(files) {
            return fail(error.exit_code(), error);
        }
    }
    match asked.failed {
        0 => ExitCode::SUCCESS,
        failed => fail(3, format!("{failed} of {} pictures have no answer", images.len())),
    }
}

/// Folders stand for all pictures below them.
fn named(images: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    let mut all = Vec::new();
    for image in images {
        if !image.is_dir() {
            all.push(image.clone());
            continue;
        }
        let found = below::pictures(image).map_err(|error| error.to_string())?;
        if found.is_empty() {
            return Err(format!("{}: no picture is below this folder", image.shown()));
        }
        all.extend(found);
    }
    Ok(all)
}

struct Asked {
    trained: Trained,
    viewer: Viewer,
    top: usize,
    json: bool,
    /// Pictures without an answer.
    failed: usize,
}

impl Asked {
    fn about(&mut self, files: &[PathBuf]) -> Result<(), TrainedError> {
        let (mut images, mut seen) = (Vec::new(), Vec::new());
        for file in files {
            match read(file).and_then(|bytes| self.viewer.append(&bytes, &mut images)) {
                Ok(()) => seen.push(file),
                Err(reason) => self.fail(file, &reason),
            }
        }
        let mut logarithms = Vec::new();
        self.trained.ask(&images, seen.len(), &mut logarithms)?;
        let classes = self.trained.snapshot.classes.len();
        for (file, row) in seen.into_iter().zip(logarithms.chunks_exact(classes)) {
            match best(row, self.top) {
                Some(found) => self.print(file, &found),
                None => self.fail(file, "the model's answer is no number: it has diverged"),
            }
        }
        Ok(())
    }

    fn fail(&mut self, file: &Path, reason: &str) {
        self.failed += 1;
        say!("error: {}: {reason}", file.shown());
    }

    fn print(&self, file: &Path, found: &[(usize, f64)]) {
        let names = &self.trained.snapshot.classes;
        let guess = |&(class, probability): &(usize, f64)| Guess {
            class,
            name: names[class].clone(),
            probability,
        };
        let line = Line { file: file.shown(), top: found.iter().map(guess).collect() };
        if self.json {
            return print_json(&line);
        }
        let guess =
            |guess: &Guess| format!("{} {:.1} %", guess.name.shown(), 100.0 * guess.probability);
        let guesses: Vec<String> = line.top.iter().map(guess).collect();
        print_line!("{}: {}", line.file, guesses.join(", "));
    }
}

/// A pipe or a device in a list of files is no picture, and is not opened.
fn read(file: &Path) -> Result<Vec<u8>, String> {
    regular::read(file, FILE_BYTES_MAX).map_err(|error| error.to_string())
}
