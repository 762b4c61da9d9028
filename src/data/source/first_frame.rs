//! The first picture of a GIF as Pillow has it: where it does not fill its screen, the rest has the
//! transparent colour of the palette, else its first; where it reaches further, the screen grows.

use std::io::Cursor;

use gif::{ColorOutput, DecodeOptions, Decoder};

use super::sized::{image, refused_size};
use crate::data::Image;

/// What a colour that the palette does not have is made of: Pillow begins with a ramp of greys.
const COLOURS: usize = 256;

/// Decodes it to RGB.
///
/// # Errors
/// What is wrong with the file.
pub(super) fn gif(bytes: &[u8]) -> Result<Image, String> {
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::Indexed);
    let mut decoder = options.read_info(Cursor::new(bytes)).map_err(|error| error.to_string())?;
    let screen = [decoder.width(), decoder.height()].map(usize::from);
    let frame = decoder.next_frame_info().map_err(|error| error.to_string())?;
    let frame = frame.ok_or("there is no picture in it")?;
    let from = [frame.left, frame.top].map(usize::from);
    let size = [frame.width, frame.height].map(usize::from);
    let fill = frame.transparent.unwrap_or_default();
    let whole = [0, 1].map(|axis| screen[axis].max(from[axis] + size[axis]));
    if let Some(refused) = refused_size(whole[0], whole[1]) {
        return Err(refused);
    }
    let palette = palette(&decoder);
    let mut indices = vec![0; decoder.buffer_size()];
    decoder.read_into_buffer(&mut indices).map_err(|error| error.to_string())?;
    let mut all = vec![fill; whole[0] * whole[1]];
    if size[0] > 0 {
        for (row, of_frame) in indices.chunks_exact(size[0]).enumerate() {
            let start = (from[1] + row) * whole[0] + from[0];
            all[start..start + size[0]].copy_from_slice(of_frame);
        }
    }
    let pixels = all.iter().flat_map(|&index| palette[usize::from(index)]).collect();
    image(whole[0], whole[1], pixels)
}

fn palette(decoder: &Decoder<Cursor<&[u8]>>) -> [[u8; 3]; COLOURS] {
    let mut colours = std::array::from_fn(|grey| [grey as u8; 3]);
    let own = decoder.palette().unwrap_or_default();
    for (colour, own) in colours.iter_mut().zip(own.as_chunks().0) {
        *colour = *own;
    }
    colours
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A picture of so many pixels at `from` on a screen of 2 x 2, with three colours.
    fn written(from: [u16; 2], size: [u16; 2], transparent: Option<u8>) -> Vec<u8> {
        let palette = [10, 11, 12, 20, 21, 22, 30, 31, 32];
        let mut file = Vec::new();
        let mut encoder = gif::Encoder::new(&mut file, 2, 2, &palette).expect("a header");
        let frame = gif::Frame {
            left: from[0],
            top: from[1],
            width: size[0],
            height: size[1],
            transparent,
            buffer: vec![1; usize::from(size[0] * size[1])].into(),
            ..gif::Frame::default()
        };
        encoder.write_frame(&frame).expect("a frame");
        drop(encoder);
        file
    }

    fn read(file: &[u8]) -> ([u32; 2], Vec<u8>) {
        let image = gif(file).expect("a picture");
        ([image.width, image.height], image.pixels.iter().step_by(3).copied().collect())
    }

    #[test]
    fn what_a_first_picture_leaves_of_its_screen_is_as_pillow_fills_it() {
        assert_eq!(read(&written([0, 0], [2, 2], None)), ([2, 2], vec![20; 4]));
        assert_eq!(read(&written([1, 0], [1, 1], None)), ([2, 2], vec![10, 20, 10, 10]));
        assert_eq!(read(&written([0, 1], [1, 1], Some(2))), ([2, 2], vec![30, 30, 20, 30]));
        assert_eq!(read(&written([1, 1], [2, 1], None)).0, [3, 2], "the screen grows");
    }

    #[test]
    fn half_a_file_is_no_picture() {
        let whole = written([0, 0], [2, 2], None);
        for end in 0..whole.len() - 4 {
            assert!(gif(&whole[..end]).is_err(), "{end} bytes of {}", whole.len());
        }
    }
}
