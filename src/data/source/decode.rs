//! From the bytes of a file to pixels. What a file is, its first bytes say, not its name.
//! EXIF orientation is ignored, as torchvision does.

use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use crate::data::Image;

/// Largest width and height that is decoded, in pixels.
const SIDE_MAX: usize = 16_384;

/// Decodes a JPEG (any colour space) or PNG (any depth; alpha is dropped) to RGB.
pub(super) fn rgb(bytes: &[u8]) -> Result<Image, String> {
    match bytes {
        [] => Err("the file is empty".into()),
        [0xFF, 0xD8, ..] => jpeg(bytes),
        [0x89, b'P', b'N', b'G', ..] => png(bytes),
        _ => Err("neither a JPEG nor a PNG file".into()),
    }
}

/// Strict: a truncated file is an error, not a grey lower half.
fn jpeg(bytes: &[u8]) -> Result<Image, String> {
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(SIDE_MAX)
        .set_max_height(SIDE_MAX)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    let pixels = decoder.decode().map_err(|error| format!("JPEG: {error:?}"))?;
    let (width, height) = decoder.dimensions().ok_or("JPEG: no dimensions")?;
    image(width, height, pixels)
}

fn png(bytes: &[u8]) -> Result<Image, String> {
    let decoded = image::load_from_memory_with_format(bytes, image::ImageFormat::Png)
        .map_err(|error| format!("PNG: {error}"))?
        .into_rgb8();
    let (width, height) = decoded.dimensions();
    image(width as usize, height as usize, decoded.into_raw())
}

fn image(width: usize, height: usize, pixels: Vec<u8>) -> Result<Image, String> {
    if width == 0 || height == 0 || width > SIDE_MAX || height > SIDE_MAX {
        return Err(format!("{width} x {height} pixels; 1 to {SIDE_MAX} are read"));
    }
    if pixels.len() != width * height * 3 {
        return Err(format!("{} bytes for {width} x {height} RGB pixels", pixels.len()));
    }
    Ok(Image { height: height as u32, width: width as u32, channels: 3, pixels })
}
