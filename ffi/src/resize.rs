//! Resizing of pictures: the library's code is made for the kinds of pixels that we have, here,
//! where it is optimised and compiled once, whatever the crate above is compiled for.

use fast_image_resize as library;
use library::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use library::pixels::{U8, U8x3};
use library::{FilterType, PixelTrait, ResizeAlg, ResizeOptions};

/// Bytes of pixels, row by row.
#[derive(Debug, Clone, Copy)]
pub struct Picture<'a> {
    /// Of the whole.
    pub width: u32,
    /// Of the whole.
    pub height: u32,
    /// Bytes of a pixel: 1 or 3.
    pub channels: u32,
    /// The bytes.
    pub pixels: &'a [u8],
}

/// What is seen of a picture.
#[derive(Debug, Clone, Copy)]
pub enum Part {
    /// `[left, top, width, height]`; the filter reaches over its edge.
    Seen([f64; 4]),
    /// The same in whole pixels; nothing beyond is looked at.
    Cut([u32; 4]),
}

/// Resizes with the buffers that it keeps.
#[derive(Default)]
pub struct Resizer(library::Resizer);

impl Resizer {
    /// Makes `size x size` pixels of the part, by the convolution whose kernel is a triangle
    /// ("bilinear", with antialiasing).
    ///
    /// # Errors
    /// Text: lengths do not fit, or the part reaches over the picture.
    pub fn resize(
        &mut self,
        picture: Picture<'_>,
        part: Part,
        size: u32,
        into: &mut [u8],
    ) -> Result<(), String> {
        let resized = match picture.channels {
            1 => self.resize_of::<U8>(picture, part, size, into),
            3 => self.resize_of::<U8x3>(picture, part, size, into),
            channels => Err(format!("pixels of {channels} bytes").into()),
        };
        resized.map_err(|error| error.to_string())
    }

    fn resize_of<P: PixelTrait>(
        &mut self,
        picture: Picture<'_>,
        part: Part,
        size: u32,
        into: &mut [u8],
    ) -> Result<(), Box<dyn std::error::Error>> {
        let Picture { width, height, pixels, .. } = picture;
        let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
        let ([left, top, columns, rows], options) = match part {
            Part::Cut(within) => (within, options),
            Part::Seen([left, top, columns, rows]) => {
                ([0, 0, width, height], options.crop(left, top, columns, rows))
            }
        };
        let source = TypedImageRef::<P>::from_buffer(width, height, pixels)?;
        let source = TypedCroppedImage::from_ref(&source, left, top, columns, rows)?;
        let mut target = TypedImage::<P>::from_buffer(size, size, into)?;
        Ok(self.0.resize_typed(&source, &mut target, &options)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_is_cut_out_looks_at_nothing_beyond_and_one_that_is_seen_does() {
        let pixels: Vec<u8> = (0..16 * 16).map(|at| if at % 16 < 8 { 0 } else { 255 }).collect();
        let picture = Picture { width: 16, height: 16, channels: 1, pixels: &pixels };
        let resized = |part| {
            let mut into = vec![7; 4];
            Resizer::default().resize(picture, part, 2, &mut into).map(|()| into)
        };
        assert_eq!(resized(Part::Cut([0, 0, 8, 16])), Ok(vec![0; 4]));
        let seen = resized(Part::Seen([0.0, 0.0, 8.0, 16.0])).expect("it lies within");
        assert!(seen[0] == 0 && seen[1] > 0, "{seen:?}");
        assert!(resized(Part::Cut([9, 0, 8, 16])).is_err());
        assert!(Resizer::default().resize(picture, Part::Cut([0, 0, 8, 8]), 2, &mut []).is_err());
    }
}
