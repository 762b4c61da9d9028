//! `[data]` and `[staging]`: what a run is trained on, in which order, and how its bytes come.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::look::{ColorJitter, Crop, CropKind, Look};
use super::units::{CacheSize, Pace, Rate, Span};
use super::validation::Validation;

/// `data.format`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum DataFormat {
    ImageFolder,
    #[serde(rename = "cifar10")]
    Cifar10,
    #[serde(rename = "cifar100")]
    Cifar100,
    Mnist,
    Tar,
    Synthetic,
}

/// What to do with an image that cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadImage {
    /// Name it, count it, train without it.
    Skip,
    /// Name it and end the run with exit code 3.
    Fatal,
}

/// How the samples of one bundle are ordered in an epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WithinBundle {
    /// At random, anew in each epoch (Lee and Bahn).
    Reshuffle,
    /// Each odd epoch is the exact reverse of the epoch before it, bundles included.
    Reverse,
}

/// What a full cache does with a sample that it does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CachePolicy {
    /// Nothing: what is in stays (CoorDL's MinIO).
    Keep,
    /// It takes the place of those used least recently.
    Lru,
}

/// An emulated shared storage, for measurements: all processes of a machine that read the same set
/// with the same throttle share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Throttle {
    /// Bytes a second over all readers of the machine.
    pub rate: Rate,
    /// What each file takes before its first byte.
    #[serde(default = "no_latency")]
    pub latency: Span,
}

fn no_latency() -> Span {
    Span(Duration::ZERO)
}

/// `[data]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Data {
    /// The reader.
    pub format: DataFormat,
    /// Training set: a folder or file. Unset with `image_folder`: JPEGs are made on first use.
    pub train: Option<PathBuf>,
    /// Validation set, or a share of the training set.
    pub validation: Option<Validation>,
    /// Height and width in pixels that the model sees.
    pub image_size: u32,
    /// Samples of a synthesised training set (`synthetic`, or `image_folder` without paths).
    pub synthetic_samples: u64,
    /// Classes of a synthesised set.
    pub synthetic_classes: u32,
    /// Random crop (padding by an eighth of the size) and horizontal flip.
    pub augment: bool,
    /// Another crop than the shifted square. This key and the eight below have no value by default,
    /// so that a run without them keeps its fingerprint and its folder.
    pub crop: Option<CropKind>,
    /// Of random crops: least and largest share of the area; unset = 0.08 and 1.
    pub crop_scale: Option<[f64; 2]>,
    /// Of random crops: least and largest width / height; unset = 3/4 and 4/3.
    pub crop_ratio: Option<[f64; 2]>,
    /// Pixels that the shorter side is resized to before the middle is taken; unset = the largest
    /// middle square is resized.
    pub resize: Option<u32>,
    /// Probability of a mirrored picture; unset = 0.5.
    pub flip: Option<f64>,
    /// How far colours are changed at random; unset = not at all.
    pub color_jitter: Option<ColorJitter>,
    /// JPEGs are decoded at a half, a quarter or an eighth of their size where the view stays at
    /// least as large as what the model sees; unset = no.
    pub scaled_decoding: Option<bool>,
    /// Of red, green and blue: what is subtracted from a level (0 to 1); unset = what is usual for
    /// the format.
    pub mean: Option<[f64; 3]>,
    /// What the difference is divided by.
    pub deviation: Option<[f64; 3]>,
    /// Pictures of a micro-batch are blended in pairs, with a share drawn from Beta(this, this);
    /// unset: they are not. Has no value by default, as the keys above; so has the next one.
    pub mixup_alpha: Option<f64>,
    /// A box of each picture shows its partner's, with a share drawn from Beta(this, this).
    pub cutmix_alpha: Option<f64>,
    /// Decode threads per rank; 0 = as many as workers, then as measured.
    pub decode_threads: u32,
    /// Batches decoded ahead per rank; 0: each is read, decoded and trained on in turn.
    pub prefetch: u32,
    /// What to do with an image that cannot be decoded.
    pub bad_image: BadImage,
    /// Largest share (0..1) of an epoch's, or of an evaluation's, samples that may be skipped.
    pub bad_images_max: f64,
    /// How long a run waits for storage that does not answer.
    pub patience: Span,
    /// A bundle's share (above 0, to 1) of each owner's samples (Lee and Bahn); 1 = one bundle.
    pub bundle_ratio: f64,
    /// Bundles come in reverse in every other epoch (Lee and Bahn).
    pub alternating: bool,
    /// The order inside a bundle.
    pub within_bundle: WithinBundle,
    /// Encoded bytes of the training set that each node keeps in memory.
    pub cache: CacheSize,
    /// What a full cache does.
    pub cache_policy: CachePolicy,
    /// Emulated limits of the storage, for measurements.
    pub throttle: Option<Throttle>,
}

impl Default for Data {
    fn default() -> Self {
        Self {
            format: DataFormat::ImageFolder,
            train: None,
            validation: None,
            image_size: 32,
            synthetic_samples: 6000,
            synthetic_classes: 10,
            augment: true,
            crop: None,
            crop_scale: None,
            crop_ratio: None,
            resize: None,
            flip: None,
            color_jitter: None,
            scaled_decoding: None,
            mean: None,
            deviation: None,
            mixup_alpha: None,
            cutmix_alpha: None,
            decode_threads: 0,
            prefetch: 4,
            bad_image: BadImage::Skip,
            bad_images_max: 0.01,
            patience: Span(Duration::from_secs(600)),
            bundle_ratio: 1.0,
            alternating: false,
            within_bundle: WithinBundle::Reshuffle,
            cache: CacheSize::Off,
            cache_policy: CachePolicy::Keep,
            throttle: None,
        }
    }
}

impl Data {
    /// Whether errors can be measured: a folder of images, or shards, without another one has
    /// nothing for it, while the other formats, and a set that is made, have samples of their own.
    pub fn has_validation(&self) -> bool {
        let has_one = match self.format {
            DataFormat::ImageFolder => self.train.is_none(),
            DataFormat::Tar => false,
            _ => true,
        };
        has_one || self.validation.is_some()
    }

    /// What the keys ask for.
    pub fn look(&self) -> Look {
        let plain = Look::default();
        let crop = match self.crop {
            None => plain.crop,
            Some(CropKind::Center) => Crop::Centre,
            Some(CropKind::Random) => Crop::Random {
                scale: self.crop_scale.unwrap_or([0.08, 1.0]),
                ratio: self.crop_ratio.unwrap_or([3.0 / 4.0, 4.0 / 3.0]),
            },
        };
        Look {
            crop,
            resize: self.resize,
            flip: self.flip.unwrap_or(plain.flip),
            jitter: self.color_jitter.unwrap_or(plain.jitter),
            scaled_decoding: self.scaled_decoding.unwrap_or(plain.scaled_decoding),
        }
    }
}

/// When the training set is copied to node-local storage (Higuchi et al., section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StagingMode {
    /// Never: it is read where it lies.
    None,
    /// Whole, before the first step ("conventional staging").
    Before,
    /// In the order of its use, beside training ("run-time staging").
    During,
}

/// `[staging]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Staging {
    /// When.
    pub mode: StagingMode,
    /// Where to, on each node; unset = below `$TMPDIR` or `/tmp`.
    pub folder: Option<PathBuf>,
    /// Copy workers of a rank.
    pub workers: u32,
    /// They are processes, started before MPI, as the paper's are; else threads.
    pub processes: bool,
    /// How fast they copy.
    pub rate: Pace,
    /// What was copied stays when the run has completed.
    pub keep: bool,
}

impl Staging {
    /// Where copies go.
    pub fn place(&self) -> PathBuf {
        self.folder.clone().unwrap_or_else(|| {
            let temporary = std::env::var_os("TMPDIR").filter(|folder| !folder.is_empty());
            temporary.map_or_else(|| PathBuf::from("/tmp"), PathBuf::from)
        })
    }
}

impl Default for Staging {
    fn default() -> Self {
        Self {
            mode: StagingMode::None,
            folder: None,
            workers: 2,
            processes: false,
            rate: Pace::Auto,
            keep: false,
        }
    }
}
