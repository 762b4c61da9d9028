//! Writes baseline JPEGs of every form that is decoded in parts: for `bench loader` and for tests,
//! which need chroma of half the size and restart markers.

use jpeg_encoder::{ColorType, Encoder, SamplingFactor};

use crate::data::Image;

/// How a picture is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// 1 to 100, as libjpeg scales the standard's steps.
    pub quality: u32,
    /// How many times luma is wider and higher than chroma: 1 or 2 each.
    pub chroma: [u32; 2],
    /// Units between restart markers; 0 = none.
    pub restart: u16,
}

/// The file of a grey or an RGB picture.
///
/// # Panics
/// The picture has other channels than its pixels, or no pixels.
pub fn encode(image: &Image, form: Form) -> Vec<u8> {
    let mut out = Vec::new();
    let mut encoder = Encoder::new(&mut out, form.quality as u8);
    encoder.set_sampling_factor(match form.chroma {
        [1, 1] => SamplingFactor::F_1_1,
        [2, 1] => SamplingFactor::F_2_1,
        _ => SamplingFactor::F_2_2,
    });
    if form.restart > 0 {
        encoder.set_restart_interval(form.restart);
    }
    let colours = if image.channels == 1 { ColorType::Luma } else { ColorType::Rgb };
    let written = encoder.encode(&image.pixels, image.width as u16, image.height as u16, colours);
    written.expect("a drawn picture has as many pixels as its sides say");
    out
}
