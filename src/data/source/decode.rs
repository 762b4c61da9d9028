//! From the bytes of a file to pixels. What a file is, its first bytes say, not its name.
//! What torchvision sees: EXIF orientation is ignored, but of a TIFF, which Pillow turns while it
//! reads it. Of several pictures in a file the first counts. Sixteen bits are scaled to eight,
//! where Pillow cuts them.

use std::io::Cursor;

use image::metadata::Orientation;
use image::{DynamicImage, ImageError, ImageFormat, ImageReader, Limits, RgbImage};
use tiff::tags::Tag;
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use super::Wanted;
use super::first_frame;
use super::sized::{SIDE_MAX, image, refused_size};
use crate::data::jpeg::{Jpeg, Scratch, has_disputed_colours};
use crate::data::{Area, Cut, Image};

/// The endings of the files that are read: torchvision's, and GIF.
pub(super) const EXTENSIONS: [&str; 10] =
    ["jpg", "jpeg", "png", "ppm", "bmp", "pgm", "tif", "tiff", "webp", "gif"];

/// Most memory that one picture may take while it is decoded.
const DECODED_BYTES_MAX: u64 = 1 << 30;

/// Decodes a picture of any colour space and depth to RGB; alpha is dropped.
pub(super) fn rgb(bytes: &[u8]) -> Result<Image, String> {
    match bytes {
        [] => Err("the file is empty".into()),
        [0xFF, 0xD8, ..] => jpeg(bytes),
        _ => match format(bytes) {
            Some((name, ImageFormat::Gif)) => {
                first_frame::gif(bytes).map_err(|error| format!("{name}: {error}"))
            }
            Some((name, format)) => other(bytes, name, format),
            None => Err("not a JPEG, PNG, WebP, BMP, GIF, TIFF, PPM or PGM file".into()),
        },
    }
}

/// Decodes what is wanted of a picture, or all of it.
pub(in crate::data) fn rgb_part(bytes: &[u8], wanted: Wanted<'_>) -> Result<Cut, String> {
    let Wanted { area, scratch } = wanted;
    match jpeg_part(bytes, area, scratch) {
        Some(cut) => Ok(cut),
        None => rgb(bytes).map(Cut::from),
    }
}

/// `None`: all of it is wanted, or it is no JPEG that can be decoded in parts.
fn jpeg_part(
    bytes: &[u8],
    wanted: &dyn Fn([u32; 2]) -> Option<Area>,
    scratch: &mut Scratch,
) -> Option<Cut> {
    let jpeg = Jpeg::open(bytes, scratch).ok()?;
    let whole = jpeg.size();
    let area = wanted(whole)?;
    let pixels = jpeg.decode(area).ok()?;
    let image = Image { width: area.size[0], height: area.size[1], channels: 3, pixels };
    Some(Cut { image, shrink: area.shrink, from: area.from, whole })
}

/// What the first bytes say of a file that is no JPEG.
fn format(bytes: &[u8]) -> Option<(&'static str, ImageFormat)> {
    Some(match bytes {
        [0x89, b'P', b'N', b'G', ..] => ("PNG", ImageFormat::Png),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => {
            ("WebP", ImageFormat::WebP)
        }
        [b'G', b'I', b'F', b'8', ..] => ("GIF", ImageFormat::Gif),
        // 42: TIFF, 43: BigTIFF.
        [b'I', b'I', 42 | 43, 0, ..] | [b'M', b'M', 0, 42 | 43, ..] => ("TIFF", ImageFormat::Tiff),
        [b'P', b'1'..=b'7', space, ..] if space.is_ascii_whitespace() || *space == b'#' => {
            ("PPM or PGM", ImageFormat::Pnm)
        }
        [b'B', b'M', ..] => ("BMP", ImageFormat::Bmp),
        _ => return None,
    })
}

/// Ends a JPEG.
const END: [u8; 2] = [0xff, 0xd9];

/// Strict: a truncated file is an error, not a grey lower half.
fn jpeg(bytes: &[u8]) -> Result<Image, String> {
    if has_disputed_colours(bytes) {
        let what = "its JFIF header says that its planes are luma and chroma, something else in it \
                    that they are red, green and blue: write it anew";
        return Err(format!("JPEG: {what}"));
    }
    let options = DecoderOptions::default()
        .set_strict_mode(true)
        .set_max_width(SIDE_MAX)
        .set_max_height(SIDE_MAX)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    let pixels = decoder.decode().map_err(|error| {
        // The decoder's words for it are advice to programmers.
        let mut header = JpegDecoder::new(ZCursor::new(bytes));
        header.set_options(options.set_max_width(usize::MAX).set_max_height(usize::MAX));
        let size = header.decode_headers().ok().and_then(|()| header.dimensions());
        let refused = size.and_then(|(width, height)| refused_size(width, height));
        format!("JPEG: {}", refused.unwrap_or_else(|| undecodable(bytes, &error)))
    })?;
    if !has_end(bytes) {
        let what = "its last scan has no end: part of the file was never written, or is cut off";
        return Err(format!("JPEG: {what}"));
    }
    let (width, height) = decoder.dimensions().ok_or("JPEG: no dimensions")?;
    image(width, height, pixels)
}

/// Whether an end marker follows the last scan (ITU-T T.81, B.2.1). Zeros, as a crash leaves them
/// for what was never written, decode to some picture.
fn has_end(bytes: &[u8]) -> bool {
    const SCAN: [u8; 2] = [0xff, 0xda];
    let last = |marker: [u8; 2]| bytes.windows(2).rposition(|two| *two == marker);
    bytes.ends_with(&END) || last(END) > last(SCAN)
}

/// The decoder's words, which end in a line of their own, and what they mostly mean.
fn undecodable(bytes: &[u8], error: &impl std::fmt::Debug) -> String {
    let cut = if bytes.ends_with(&END) { "" } else { "; the file is cut off, its end is missing" };
    format!("{}{cut}", format!("{error:?}").trim())
}

fn other(bytes: &[u8], name: &str, format: ImageFormat) -> Result<Image, String> {
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut limits = Limits::default();
    limits.max_image_width = Some(SIDE_MAX as u32);
    limits.max_image_height = Some(SIDE_MAX as u32);
    limits.max_alloc = Some(DECODED_BYTES_MAX);
    reader.limits(limits);
    let decoded = reader.decode().map_err(|error| {
        let size = ImageReader::with_format(Cursor::new(bytes), format).into_dimensions();
        let size = size.ok().filter(|_| matches!(error, ImageError::Limits(_)));
        let refused = size.map(|(width, height)| {
            refused_size(width as usize, height as usize).unwrap_or_else(|| {
                let most = DECODED_BYTES_MAX >> 20;
                format!("{width} x {height} pixels need more than {most} MiB: make it smaller")
            })
        });
        format!("{name}: {}", refused.unwrap_or_else(|| error.to_string()))
    })?;
    let levels: &[f32] = match &decoded {
        DynamicImage::ImageRgb32F(levels) => levels,
        DynamicImage::ImageRgba32F(levels) => levels,
        _ => &[],
    };
    // They would all become white, or black.
    if levels.iter().any(|level| !(0.0..=1.0).contains(level)) {
        return Err(format!("{name}: it has levels outside 0 to 1: convert it to 8 bits"));
    }
    let decoded = match format {
        ImageFormat::Tiff => as_told(bytes, decoded).map_err(|error| format!("{name}: {error}"))?,
        _ => decoded.into_rgb8(),
    };
    let (width, height) = decoded.dimensions();
    image(width as usize, height as usize, decoded.into_raw())
}

/// A TIFF's pixels as its tags say that they are to be taken (TIFF 6.0, sections 8 and 18).
fn as_told(bytes: &[u8], mut decoded: DynamicImage) -> Result<RgbImage, String> {
    /// A byte's first pixel is its lowest bit.
    const LOWEST_FIRST: u16 = 2;
    /// Colours are multiplied by alpha.
    const ASSOCIATED: u16 = 1;
    let mut tags = tiff::decoder::Decoder::new(Cursor::new(bytes)).map_err(|e| e.to_string())?;
    let mut first = |tag| {
        let values = tags.find_tag_unsigned_vec::<u16>(tag).map_err(|error| error.to_string())?;
        Ok::<_, String>(values.and_then(|values| values.first().copied()))
    };
    if first(Tag::FillOrder)? == Some(LOWEST_FIRST) {
        return Err("its bits are stored from the lowest on (FillOrder 2): write it anew".into());
    }
    let is_associated = first(Tag::ExtraSamples)? == Some(ASSOCIATED);
    let turned = first(Tag::Orientation)?.and_then(|tag| u8::try_from(tag).ok());
    if let Some(turned) = turned.and_then(Orientation::from_exif) {
        decoded.apply_orientation(turned);
    }
    if !(is_associated && decoded.color().has_alpha()) {
        return Ok(decoded.into_rgb8());
    }
    let mut divided = decoded.into_rgba8();
    for pixel in divided.pixels_mut() {
        let [colours @ .., alpha] = &mut pixel.0;
        // As Pillow: whole numbers, and nothing where nothing is to be seen.
        for colour in colours.iter_mut().filter(|_| *alpha > 0) {
            let whole = u16::from(u8::MAX) * u16::from(*colour) / u16::from(*alpha);
            *colour = whole.min(u16::from(u8::MAX)) as u8;
        }
    }
    Ok(DynamicImage::ImageRgba8(divided).into_rgb8())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_whose_rest_was_never_written_is_no_picture() {
        let encoded = |pixels: &[u8]| {
            let mut file = Vec::new();
            let mut encoder = image::codecs::jpeg::JpegEncoder::new_with_quality(&mut file, 90);
            encoder.encode(pixels, 64, 64, image::ExtendedColorType::Rgb8).expect("in memory");
            file
        };
        let noise: Vec<u8> =
            (0..64 * 64 * 3u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let whole = encoded(&noise);
        assert!(rgb(&whole).is_ok());
        // As a picture with something behind its end.
        assert!(rgb(&[&whole[..], b"trailer"].concat()).is_ok());
        let mut zeros = whole.clone();
        zeros[whole.len() / 2..].fill(0);
        assert!(rgb(&zeros).is_err(), "half of it is zeros");
    }

    #[test]
    fn a_tiff_is_turned_as_it_says() {
        // Two pixels side by side, black and white, of 8 bits; the tag is that of orientation.
        let tiff = |orientation: u16| {
            let tags: [(u16, u16); 9] = [
                (256, 2),
                (257, 1),
                (258, 8),
                (259, 1),
                (262, 1),
                (273, 8),
                (274, orientation),
                (278, 1),
                (279, 2),
            ];
            let mut file = b"II\x2a\0\x0a\0\0\0\x00\xff".to_vec();
            file.extend((tags.len() as u16).to_le_bytes());
            for (tag, value) in tags {
                let words = [tag, 3, 1, 0, value, 0];
                file.extend(words.iter().flat_map(|word| word.to_le_bytes()));
            }
            file.extend([0; 4]);
            file
        };
        let read = |orientation| {
            let image = rgb(&tiff(orientation)).expect("a picture");
            let first: Vec<u8> = image.pixels.iter().step_by(3).copied().collect();
            ([image.width, image.height], first)
        };
        assert_eq!(read(1), ([2, 1], vec![0, 255]));
        assert_eq!(read(2), ([2, 1], vec![255, 0]), "mirrored");
        assert_eq!(read(6), ([1, 2], vec![0, 255]), "turned to the right");
        assert_eq!(read(8), ([1, 2], vec![255, 0]), "turned to the left");
        assert_eq!(read(77), ([2, 1], vec![0, 255]), "says nothing");
    }

    #[test]
    fn a_tiffs_colours_are_divided_by_the_alpha_that_they_were_multiplied_by() {
        use tiff::encoder::{TiffEncoder, colortype::RGBA8};
        use tiff::tags::ExtraSamples;
        let tiff = |alpha: ExtraSamples, order: u16| {
            let mut file = Cursor::new(Vec::new());
            let mut encoder = TiffEncoder::new(&mut file).expect("a header");
            let mut picture = encoder.new_image::<RGBA8>(2, 1).expect("a picture");
            let tags = picture.encoder();
            tags.write_tag(Tag::FillOrder, order).expect("a tag");
            tags.write_tag(Tag::ExtraSamples, &[alpha.to_u16()][..]).expect("a tag");
            picture.write_data(&[100, 50, 200, 100, 7, 0, 9, 0]).expect("its pixels");
            rgb(&file.into_inner()).map(|image| image.pixels)
        };
        let as_stored = vec![100, 50, 200, 7, 0, 9];
        assert_eq!(tiff(ExtraSamples::UnassociatedAlpha, 1), Ok(as_stored));
        assert_eq!(tiff(ExtraSamples::AssociatedAlpha, 1), Ok(vec![255, 127, 255, 7, 0, 9]));
        let said = tiff(ExtraSamples::UnassociatedAlpha, 2).expect_err("its bits are reversed");
        assert!(said.contains("FillOrder 2"), "{said}");
    }

    #[test]
    fn planes_that_are_said_to_be_two_kinds_of_colours_are_refused() {
        let encoded = {
            let mut file = Vec::new();
            let mut encoder = image::codecs::jpeg::JpegEncoder::new_with_quality(&mut file, 90);
            let noise: Vec<u8> = (0..16 * 16 * 3).map(|i| (i * 37 % 251) as u8).collect();
            encoder.encode(&noise, 16, 16, image::ExtendedColorType::Rgb8).expect("in memory");
            file
        };
        assert_eq!(&encoded[6..11], b"JFIF\0");
        let mark = |transform: u8| {
            let body = [&b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0"[..], &[transform]].concat();
            [&encoded[..20], &body, &encoded[20..]].concat()
        };
        assert_eq!(rgb(&mark(1)), rgb(&encoded), "both say luma and chroma");
        let said = rgb(&mark(0)).expect_err("they differ");
        assert!(said.contains("luma and chroma, something else"), "{said}");
    }

    #[test]
    fn levels_that_no_8_bits_hold_are_refused() {
        let tiff = |level: f32| {
            let mut file = Cursor::new(Vec::new());
            let levels = image::ImageBuffer::from_pixel(2, 2, image::Rgb([level, 0.0, 0.5]));
            let picture = DynamicImage::ImageRgb32F(levels);
            picture.write_to(&mut file, ImageFormat::Tiff).expect("in memory");
            file.into_inner()
        };
        assert_eq!(rgb(&tiff(1.0)).expect("reads").pixels[..3], [255, 0, 128]);
        for level in [255.0, -1.0, f32::NAN] {
            let said = rgb(&tiff(level)).expect_err("out of range");
            assert!(said.contains("levels outside 0 to 1"), "{said}");
        }
    }

    #[test]
    fn a_picture_that_is_too_large_is_told_by_its_size() {
        // Headers and nothing else: who reads on would say so.
        let jpeg = |width: u16, height: u16| {
            let mut file = b"\xFF\xD8\xFF\xC0\x00\x11\x08".to_vec();
            file.extend([height.to_be_bytes(), width.to_be_bytes()].concat());
            file.extend(b"\x03\x01\x11\x00\x02\x11\x00\x03\x11\x00");
            file.extend(b"\xFF\xDA\x00\x0C\x03\x01\x00\x02\x00\x03\x00\x00\x3F\x00");
            file
        };
        let ppm = |width, height| format!("P6 {width} {height} 255\n").into_bytes();
        for (file, expected) in [
            (jpeg(16_400, 8), "JPEG: 16400 x 8 pixels; sides of 1 to 16384 are read: make it"),
            (jpeg(8, 65_535), "JPEG: 8 x 65535 pixels; sides of 1 to 16384 are read: make it"),
            (ppm(70_000, 2), "PPM or PGM: 70000 x 2 pixels; sides of 1 to 16384 are read"),
            (ppm(16_384, 16_384 + 1), "PPM or PGM: 16384 x 16385 pixels; sides of"),
        ] {
            let said = rgb(&file).expect_err(expected);
            assert!(said.starts_with(expected), "{said}");
        }
    }
}
