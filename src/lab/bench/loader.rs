//! One core's way from JPEG files to normalised pixels: the loader as training runs it, and the
//! pipelines of torchvision that a user has today (`benches/loader.py`), pass by pass in turns over
//! the same files. Photographs of 500 x 375 pixels, quality 90, chroma of half the size; a random
//! crop resized to 224, flip, normalisation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use crate::config::{BadImage, CropKind, Data, DataFormat, Shown};
use crate::data::jpeg::{Form, encode};
use crate::data::loader::{Loader, LoaderOptions, Threads};
use crate::data::painting::photograph;
use crate::data::sampler::Order;
use crate::data::set::open;
use crate::data::{Normalization, Split};

use super::judge::{Judge, ratios, take_turns};
use super::runs::Runs;
use super::{Case, Report};

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// A python with torch, torchvision and pillow; without it the loader is measured alone
    #[arg(long)]
    pub python: Option<PathBuf>,
    /// What it runs
    #[arg(long, default_value = "benches/loader.py")]
    pub script: PathBuf,
    /// Pictures of a pass
    #[arg(long, default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..100_000))]
    pub files: u64,
    /// Pictures that the loader is asked for at once, as a worker asks for its micro-batch
    #[arg(long, default_value_t = 16)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..100_000))]
    pub micro_batch: u64,
    /// Times as wide and high as 500 x 375; above 1 scaled decoding takes turns, too
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    pub times: u32,
    /// Passes of each
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    pub turns: u32,
}

/// Width and height of the pictures.
const SIZE: [u32; 2] = [500, 375];
/// Width and height of what a model sees, in pixels.
const IMAGE_SIZE: u32 = 224;
const FORM: Form = Form { quality: 90, chroma: [2, 2], restart: 0 };
const OURS: &str = "kintsugi";
/// With `data.scaled_decoding`.
const SCALED: &str = "kintsugi, scaled";
/// The pipelines of `benches/loader.py`.
const JUDGES: [&str; 2] = ["pillow", "torchvision.io"];

/// Lets all take turns.
///
/// # Errors
/// What kept it from running, for a person.
pub fn run(options: &Options, runs: &Runs) -> Result<Report, String> {
    let folder = runs.directory("photographs");
    let sizes = write(&folder, options)?;
    let mut ours = vec![(OURS, Ours::open(&folder, options, None)?)];
    if options.times > 1 {
        ours.push((SCALED, Ours::open(&folder, options, Some(true))?));
    }
    let judge = match &options.python {
        Some(python) => Some(Judge::start(python, &options.script, &[folder.as_os_str()])?),
        None => None,
    };
    let each = options.files as f64;
    let samples = take_turns(runs, options.turns, each, judge, &JUDGES, |turn| {
        let pass = |(name, loader): &(_, Ours)| Ok((*name, loader.pass(u64::from(turn))?));
        ours.iter().map(pass).collect()
    })?;
    let phases = BTreeMap::new();
    let each = |(name, times): (&&str, &Vec<f64>)| {
        Case::of(&format!("{name}, each picture"), times, &phases)
    };
    let size = Case { unit: "bytes".into(), ..Case::of("file", &sizes, &phases) };
    let cases = samples.iter().map(each).chain([size]).collect();
    Ok(Report::of("loader", cases, ratios(&samples, OURS)))
}

/// Draws the pictures; the bytes of each.
fn write(folder: &Path, options: &Options) -> Result<Vec<f64>, String> {
    let class = |name: &str| folder.join(name);
    let at = |path: &Path, error: std::io::Error| format!("{}: {error}", path.shown());
    for name in ["even", "odd"] {
        std::fs::create_dir_all(class(name)).map_err(|error| at(&class(name), error))?;
    }
    let mut sizes = Vec::new();
    for number in 0..options.files {
        let [width, height] = SIZE.map(|side| side * options.times);
        let file = encode(&photograph::draw(number, width, height), FORM);
        let name = if number.is_multiple_of(2) { "even" } else { "odd" };
        let path = class(name).join(format!("{number:05}.jpg"));
        std::fs::write(&path, &file).map_err(|error| at(&path, error))?;
        sizes.push(file.len() as f64);
    }
    Ok(sizes)
}

/// The loader of a run without decode threads: who takes a micro-batch decodes it.
struct Ours {
    loader: Loader,
    steps_per_epoch: u64,
}

impl Ours {
    fn open(folder: &Path, measured: &Options, scaled: Option<bool>) -> Result<Self, String> {
        let data = Data {
            format: DataFormat::ImageFolder,
            train: Some(folder.to_owned()),
            image_size: IMAGE_SIZE,
            crop: Some(CropKind::Random),
            scaled_decoding: scaled,
            ..Data::default()
        };
        let set = open::open(&data, Split::Train, 0).map_err(|error| error.to_string())?;
        let order = Order::new(measured.files, 1, 0, measured.micro_batch);
        let order = order.map_err(|error| error.to_string())?;
        let options = LoaderOptions {
            threads: Threads::Fixed(0),
            prefetch: 0,
            steps: None,
            image_size: IMAGE_SIZE,
            channels: 3,
            augment: true,
            look: data.look(),
            normalization: Normalization::of(&data),
            seed: 0,
            bad_image: BadImage::Fatal,
        };
        let steps_per_epoch = order.steps_per_epoch();
        Ok(Self { loader: Loader::new(set, order, options), steps_per_epoch })
    }

    /// All pictures once; seconds.
    fn pass(&self, epoch: u64) -> Result<f64, String> {
        let begun = Instant::now();
        for step in epoch * self.steps_per_epoch..(epoch + 1) * self.steps_per_epoch {
            let batch = self.loader.take(step, 0).map_err(|error| error.to_string())?;
            // As a worker does that has used it.
            self.loader.give_back(batch);
        }
        Ok(begun.elapsed().as_secs_f64())
    }
}
