//! How pictures are looked at: the keys of `[data]` that say it, and what they mean together.

use serde::{Deserialize, Serialize};

/// `data.crop`
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CropKind {
    /// A box of random area and ratio, as torchvision's `RandomResizedCrop` draws it.
    Random,
    /// The middle square, as evaluation sees it.
    Center,
}

/// What of a training picture is looked at while `data.augment` holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Crop {
    /// The largest square at a random place, shifted by up to an eighth of the size.
    Shifted,
    /// The middle square.
    Centre,
    /// A box drawn by its share of the area and by its width / height.
    Random {
        /// Least and largest share of the picture's area, above 0, to 1.
        scale: [f64; 2],
        /// Least and largest width / height.
        ratio: [f64; 2],
    },
}

/// `data.color_jitter`: torchvision's `ColorJitter`. Factors are drawn from `1 - x` (0 at least) to
/// `1 + x`, the hue's turn from `-hue` to `hue`. What is 0 stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ColorJitter {
    /// From 0.
    pub brightness: f64,
    /// From 0.
    pub contrast: f64,
    /// From 0.
    pub saturation: f64,
    /// In turns of the colour circle, 0 to 0.5.
    pub hue: f64,
}

/// How pictures are looked at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Look {
    /// What drawn views show.
    pub crop: Crop,
    /// Of views of the middle: pixels of the whole picture's shorter side after resizing. `None`:
    /// the largest middle square is resized.
    pub resize: Option<u32>,
    /// Probability that a drawn view is mirrored.
    pub flip: f64,
    /// How far the colours of drawn views are changed.
    pub jitter: ColorJitter,
    /// JPEGs are decoded smaller where the view is at least twice as wide and high as what the
    /// model sees.
    pub scaled_decoding: bool,
}

impl Default for Look {
    /// What a run without these keys does.
    fn default() -> Self {
        let jitter = ColorJitter::default();
        Self { crop: Crop::Shifted, resize: None, flip: 0.5, jitter, scaled_decoding: false }
    }
}
