//! What the keys of `[data]` that say how pictures are looked at must also be: within their ranges,
//! and none without effect.

use super::error::{ConfigError, refuse};
use super::{CropKind, Data, DataFormat};

/// Pixels of a side: what a decoder reads.
pub(super) const SIDE_MAX: u64 = 16_384;
/// The widest width / height of a random crop, either way.
const CROP_RATIO_MAX: f64 = 100.0;
/// Factors of 1 + this turn nearly every picture black and white.
const JITTER_MAX: f64 = 100.0;

/// Refuses what is out of range or has no effect.
pub(super) fn check(data: &Data) -> Result<(), ConfigError> {
    check_view(data)?;
    check_crop(data)?;
    check_colours(data)?;
    check_normalization(data)
}

fn check_view(data: &Data) -> Result<(), ConfigError> {
    let drawn = [
        ("data.crop", data.crop.map(|kind| format!("{kind:?}").to_lowercase())),
        ("data.flip", data.flip.map(|flip| flip.to_string())),
        ("data.color_jitter", data.color_jitter.map(|jitter| format!("{jitter:?}"))),
    ];
    for (key, value) in drawn {
        if let (Some(value), false) = (value, data.augment) {
            let reason = "data.augment = false shows the middle square: leave one of the keys out";
            return refuse(key, value, reason);
        }
    }
    if data.scaled_decoding == Some(true)
        && !matches!(data.format, DataFormat::ImageFolder | DataFormat::Tar)
    {
        let reason = "it is of JPEGs, which image_folder and tar hold: leave it out";
        return refuse("data.scaled_decoding", true, reason);
    }
    if let Some(resize) = data.resize
        && !(u64::from(data.image_size)..=SIDE_MAX).contains(&resize.into())
    {
        let reason = format!(
            "the middle {} pixels (data.image_size) of the resized picture are looked at: write {} \
             to {}",
            data.image_size, data.image_size, SIDE_MAX
        );
        return refuse("data.resize", resize, reason);
    }
    if let Some(flip) = data.flip
        && !(0.0..=1.0).contains(&flip)
    {
        return refuse("data.flip", flip, "it is a probability: write a number from 0 to 1");
    }
    Ok(())
}

/// Smallest deviation: levels are at most this many times stretched.
const DEVIATION_MIN: f64 = 1e-6;

/// What levels are normalised with.
fn check_normalization(data: &Data) -> Result<(), ConfigError> {
    for (key, numbers, least, range) in [
        ("data.mean", data.mean, 0.0, "from 0 to 1"),
        ("data.deviation", data.deviation, DEVIATION_MIN, "above 0, to 1"),
    ] {
        let Some(numbers) = numbers else { continue };
        let shown = format!("{numbers:?}");
        if !numbers.iter().all(|number| (least..=1.0).contains(number)) {
            let reason = format!("levels go from 0 to 1: write three numbers, each {range}");
            return refuse(key, shown, reason);
        }
        if data.format == DataFormat::Mnist && numbers.iter().any(|n| *n != numbers[0]) {
            return refuse(key, shown, "its pictures are grey: write one number three times");
        }
    }
    Ok(())
}

/// How far colours are changed. Grey pictures have none.
fn check_colours(data: &Data) -> Result<(), ConfigError> {
    let jitter = data.color_jitter.unwrap_or_default();
    for (name, value, largest) in [
        ("brightness", jitter.brightness, JITTER_MAX),
        ("contrast", jitter.contrast, JITTER_MAX),
        ("saturation", jitter.saturation, JITTER_MAX),
        ("hue", jitter.hue, 0.5),
    ] {
        if !(0.0..=largest).contains(&value) {
            let reason = format!("write a number from 0 (no change) to {largest}");
            return refuse(&format!("data.color_jitter.{name}"), value, reason);
        }
        let is_colour = matches!(name, "saturation" | "hue");
        if is_colour && value > 0.0 && data.format == DataFormat::Mnist {
            let reason = "its pictures are grey: leave it out";
            return refuse(&format!("data.color_jitter.{name}"), value, reason);
        }
    }
    Ok(())
}

/// The ranges of random crops.
fn check_crop(data: &Data) -> Result<(), ConfigError> {
    for (key, ends, least, most) in [
        ("data.crop_scale", data.crop_scale, f64::MIN_POSITIVE, 1.0),
        ("data.crop_ratio", data.crop_ratio, 1.0 / CROP_RATIO_MAX, CROP_RATIO_MAX),
    ] {
        let Some([low, high]) = ends else { continue };
        let shown = format!("[{low}, {high}]");
        if data.crop != Some(CropKind::Random) {
            return refuse(key, shown, "it is of random crops: write data.crop = \"random\" too");
        }
        if !(low >= least && low <= high && high <= most) {
            let range = if key == "data.crop_scale" { "above 0, to 1" } else { "from 0.01 to 100" };
            return refuse(key, shown, format!("write the least and the largest, both {range}"));
        }
    }
    Ok(())
}
