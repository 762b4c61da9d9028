//! From files to micro-batches: where samples lie and how they decode (`source`), what brings
//! their bytes (`store`, `staging`, `tiers`), their order (`sampler`), what a model sees of them
//! (`view`), and what decodes them ahead (`loader`). `painting` makes sets to try it all on.

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use image::{Area, Cut, Image, Shrink};
pub use index::{Cache, Occasion};

use crate::config::{Data, DataFormat};
use crate::observe::refusal::Meaning;

pub mod bad_images;
mod image;
mod index;
pub mod jpeg;
pub mod loader;
pub mod painting;
pub mod pickle;
pub mod sampler;
pub mod set;
pub mod source;
pub mod staging;
pub mod store;
pub mod tiers;
mod unfinished;
pub mod view;

/// What can be wrong with a data set.
#[derive(Debug, Error)]
pub enum DataError {
    /// The set cannot be used at all: exit code 3.
    #[error("{0}")]
    Set(String),
    /// A place that was to be written to cannot be: exit code 2.
    #[error("{0}")]
    Place(String),
    /// The storage does not answer: nothing of it can be had now.
    #[error("{0}")]
    Store(String),
    /// One sample cannot be decoded.
    #[error("{name}: {reason}")]
    Sample {
        /// Path or index.
        name: String,
        /// What the decoder said.
        reason: String,
    },
    /// One sample cannot be had, and what lies beside it can: it was there when the set was listed.
    #[error("{name}: {reason}")]
    Lost {
        /// Path or index.
        name: String,
        /// What its storage said.
        reason: String,
    },
}

impl DataError {
    /// The same, where an option of a command gave what a key of the configuration gives else.
    #[must_use]
    pub fn of_option(self, option: &str) -> Self {
        let told =
            |text: String| text.replace("data.train", option).replace("data.validation", option);
        match self {
            Self::Set(text) => Self::Set(told(text)),
            Self::Store(text) => Self::Store(told(text)),
            other => other,
        }
    }
}

impl From<store::FetchError> for DataError {
    fn from(error: store::FetchError) -> Self {
        match error.meaning {
            Meaning::NotNow => Self::Store(error.reason),
            Meaning::Absent | Meaning::Damaged | Meaning::NotAllowed => Self::Set(error.reason),
        }
    }
}

/// Per channel: what is subtracted from a level (0..1), and what the difference is divided by.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Normalization {
    /// Of red, green, blue; grey sets have it three times.
    pub mean: [f32; 3],
    /// Of red, green, blue.
    pub deviation: [f32; 3],
}

impl Normalization {
    /// ImageNet's training set (torchvision's constants): image folders.
    pub const IMAGENET: Self =
        Self { mean: [0.485, 0.456, 0.406], deviation: [0.229, 0.224, 0.225] };
    /// CIFAR-10's training set.
    pub const CIFAR10: Self =
        Self { mean: [0.4914, 0.4822, 0.4465], deviation: [0.2470, 0.2435, 0.2616] };
    /// CIFAR-100's training set.
    pub const CIFAR100: Self =
        Self { mean: [0.5071, 0.4865, 0.4409], deviation: [0.2673, 0.2564, 0.2762] };
    /// MNIST's training set.
    pub const MNIST: Self = Self { mean: [0.1307; 3], deviation: [0.3081; 3] };

    /// Those in force: `data.mean` and `data.deviation`, else what is usual for the format.
    pub fn of(data: &Data) -> Self {
        let usual = match data.format {
            DataFormat::Cifar10 => Self::CIFAR10,
            DataFormat::Cifar100 => Self::CIFAR100,
            DataFormat::Mnist => Self::MNIST,
            DataFormat::ImageFolder | DataFormat::Tar | DataFormat::Synthetic => Self::IMAGENET,
        };
        let asked = |numbers: [f64; 3]| numbers.map(|number| number as f32);
        Self {
            mean: data.mean.map_or(usual.mean, asked),
            deviation: data.deviation.map_or(usual.deviation, asked),
        }
    }

    /// As files say it of themselves: names and texts.
    pub fn texts(&self) -> [(&'static str, String); 2] {
        let text = |numbers: [f32; 3]| serde_json::to_string(&numbers).expect("numbers are JSON");
        [("mean", text(self.mean)), ("deviation", text(self.deviation))]
    }

    /// What such texts say.
    pub fn from_texts<'a>(text: impl Fn(&str) -> Option<&'a String>) -> Option<Self> {
        let numbers = |key| serde_json::from_str(text(key)?).ok();
        Some(Self { mean: numbers("mean")?, deviation: numbers("deviation")? })
    }
}

/// Which part of a data set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Split {
    /// What is learned from.
    Train,
    /// What the error is measured on.
    Validation,
}

impl Split {
    /// `"train"` or `"validation"`: the configuration key and the folder name.
    pub fn name(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Validation => "validation",
        }
    }

    /// `"data.train"` or `"data.validation"`: the configuration key that names it.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Split::Train => "data.train",
            Split::Validation => "data.validation",
        }
    }

    /// Separates the random streams of the splits.
    pub(crate) fn number(self) -> u64 {
        match self {
            Split::Train => 0,
            Split::Validation => 1,
        }
    }
}

/// Whom the samples of a micro-batch were mixed with.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Mixed {
    /// The other label of each sample.
    pub partners: Vec<u32>,
    /// What a sample keeps of its own, 0 to 1; the rest is its partner's.
    pub share: f32,
}

/// One owner's micro-batch, ready for the engine.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Batch {
    /// `[images, channels, size, size]`, normalised, without the skipped ones.
    pub images: Vec<f32>,
    /// One a sample of `images`.
    pub labels: Vec<u32>,
    /// Whom each was mixed with.
    pub mixed: Option<Mixed>,
    /// Samples that this micro-batch stands for, skipped ones included.
    pub count: u64,
    /// Of them, those that could not be decoded, or be had.
    pub skipped: u64,
    /// Of them, those that were not as they were when the set was listed: lost, or of another
    /// length.
    pub altered: u64,
    /// Wrapping sum over the contents of those that could be had ([`set::Fetched`]).
    pub contents: u64,
    /// Wrapping sum of `sampler::mix(epoch, id)` over all `count`.
    pub mix: u64,
}
