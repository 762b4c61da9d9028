//! The pictures that a bench of staging trains on, as on a share, and when copies of them came.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::config::{Shown, parse};
use crate::data::Split;
use crate::data::painting::synth::{self, SynthOptions};
use crate::data::sampler::Order;
use crate::data::set::{DataSet, open};
use crate::data::staging::key::Key;
use crate::data::staging::place;
use crate::observe::console::say;
use crate::observe::pipeline::Course;

use super::super::runs::Runs;

/// Pixels that pictures are drawn for, whatever the model sees: files of some 15 KB, as a share of
/// photographs has them, where those for 32 pixels have 2 KB.
const PICTURE_PIXELS: u32 = 128;

/// The set of one bench, and when its copies came.
pub struct Share {
    /// The key that names it.
    pub key: String,
    /// Its samples and where they lie.
    pub set: DataSet,
    /// In which order they are read.
    pub order: Order,
    /// Of all files.
    pub bytes: u64,
}

/// The mode of a run that stages nothing.
pub const NONE: &str = "none";

/// The keys of a run that stages so, into this folder, where copies stay; where nothing is staged
/// they would do nothing.
pub fn staged(mode: &str, local: &Path) -> Vec<String> {
    let mut keys = vec![format!("staging.mode={mode}")];
    if mode != NONE {
        keys.push(format!("staging.folder={}", local.shown()));
        keys.push("staging.keep=true".into());
    }
    keys
}

impl Share {
    /// Draws it into `folder`, as `config` says with these keys.
    ///
    /// # Errors
    /// What is wrong with the configuration, or with the disk.
    pub fn draw(config: &Path, keys: &[String], folder: PathBuf) -> Result<Self, String> {
        let train = folder.join("train");
        let key = format!("data.train={}", train.shown());
        // Its sizes are those of a set that is made; from then on it is one that is there.
        let mut config = parse::load(config, keys).map_err(|error| error.to_string())?;
        config.data.train = Some(train);
        let options = SynthOptions {
            folder,
            classes: config.data.synthetic_classes,
            train_samples: config.data.synthetic_samples,
            validation_samples: config.data.synthetic_classes.into(),
            image_size: PICTURE_PIXELS,
            seed: config.run.seed,
        };
        say!("drawing {} pictures", options.train_samples);
        synth::write(&options, &|_, _| {}).map_err(|error| error.to_string())?;
        let set = open::open(&config.data, Split::Train, config.run.seed);
        let set = set.map_err(|error| error.to_string())?;
        let order = Order::of(&config, set.source.len()).map_err(|error| error.to_string())?;
        let located = (0..set.source.len()).filter_map(|id| set.source.location(id));
        let bytes = located.map(|location| location.extent.length()).sum();
        Ok(Self { key, set, order, bytes })
    }

    /// Files of the owners' micro-batches of one step.
    fn files_of(&self, step: u64, owners: &[u32]) -> Vec<PathBuf> {
        let samples = owners.iter().flat_map(|&owner| self.order.owner_samples(step, owner));
        let located = samples.filter_map(|id| Some(self.set.source.location(id)?.file.into()));
        located.collect()
    }

    /// For each step of the first epoch, when all that is read up to it was there: seconds since
    /// 1970, from the times of the copies below `base`.
    ///
    /// # Errors
    /// A copy is missing.
    pub fn copied_at(&self, base: &Path) -> Result<Vec<f64>, String> {
        let root = copies_below(base)?;
        let owners: Vec<u32> = (0..self.order.owners).collect();
        let mut latest = 0.0_f64;
        let times = (0..self.order.steps_per_epoch()).map(|step| {
            for file in self.files_of(step, &owners) {
                let copy = Key::of(&file).path(&root);
                let facts = std::fs::metadata(&copy);
                let facts =
                    facts.map_err(|error| format!("the copy of {}: {error}", file.shown()))?;
                latest = latest.max(facts.mtime() as f64 + facts.mtime_nsec() as f64 / 1e9);
            }
            Ok(latest)
        });
        times.collect()
    }

    /// The course of a run with the times of its copies.
    ///
    /// # Errors
    /// A copy is missing.
    pub fn with_copies(&self, mut course: Course, base: &Path) -> Result<Course, String> {
        let copied_at = self.copied_at(base)?;
        let mut first_step = 0;
        for stage in &mut course.stages {
            let ready = copied_at.get(first_step as usize).copied().unwrap_or_default();
            stage.ready_seconds = (ready - course.began).max(0.0);
            first_step = stage.step;
        }
        Ok(course)
    }
}

/// A folder for the copies of one run.
pub fn local_folder(runs: &Runs, name: &str) -> Result<PathBuf, String> {
    let local = runs.directory(name);
    std::fs::create_dir(&local).map_err(|error| format!("{}: {error}", local.shown()))?;
    Ok(local)
}

/// The staging folder that a run made below `base`.
fn copies_below(base: &Path) -> Result<PathBuf, String> {
    let entries = std::fs::read_dir(base).map_err(|error| format!("{}: {error}", base.shown()))?;
    let named = entries.flatten().filter(|entry| {
        entry.file_name().to_string_lossy().starts_with(place::PREFIX) && entry.path().is_dir()
    });
    let mut paths = named.map(|entry| entry.path());
    paths.next().ok_or_else(|| format!("{}: nothing was staged there", base.shown()))
}
