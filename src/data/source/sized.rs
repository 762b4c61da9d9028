//! Pixels that are a picture, of a size that is read.

use crate::data::Image;

/// Largest width and height that is decoded, in pixels.
pub(super) const SIDE_MAX: usize = 16_384;

/// Why a picture of this size is not read.
pub(super) fn refused_size(width: usize, height: usize) -> Option<String> {
    let sides = [width, height];
    let text =
        || format!("{width} x {height} pixels; sides of 1 to {SIDE_MAX} are read: make it smaller");
    sides.iter().any(|side| !(1..=SIDE_MAX).contains(side)).then(text)
}

/// RGB pixels as a picture, where its size is read and they are as many.
pub(super) fn image(width: usize, height: usize, pixels: Vec<u8>) -> Result<Image, String> {
    if let Some(refused) = refused_size(width, height) {
        return Err(refused);
    }
    if pixels.len() != width * height * 3 {
        return Err(format!("{} bytes for {width} x {height} RGB pixels", pixels.len()));
    }
    Ok(Image { height: height as u32, width: width as u32, channels: 3, pixels })
}
