//! Pictures with the statistics of photographs: power falls with the square of the frequency
//! (Field 1987), so every doubling of the frequency has the same share of the contrast. What an
//! encoder and a decoder have to do depends on that, and not on what is shown.

use crate::config::seed::{Stream, purpose};
use crate::data::Image;

/// Standard deviation of luma in grey levels, and of what colours add to it.
const LUMA_DEVIATION: f32 = 45.0;
const COLOUR_DEVIATION: f32 = 14.0;
/// Pixels between the finest details of luma and of colours.
const LUMA_FINEST: u32 = 1;
const COLOUR_FINEST: u32 = 8;

/// The picture of this number.
pub fn draw(number: u64, width: u32, height: u32) -> Image {
    let stream = &mut Stream::new(&[purpose::SYNTHETIC, number, u64::from(width)]);
    let luma = field(stream, [width, height], LUMA_FINEST);
    let colours = [0; 2].map(|_: i32| field(stream, [width, height], COLOUR_FINEST));
    let pixel = |at: usize| {
        let (y, [a, b]) = (128.0 + LUMA_DEVIATION * luma[at], [0, 1].map(|c| colours[c][at]));
        [a, -(a + b) / 2.0, b].map(|c| (y + COLOUR_DEVIATION * c).clamp(0.0, 255.0) as u8)
    };
    let pixels = (0..luma.len()).flat_map(pixel).collect();
    Image { width, height, channels: 3, pixels }
}

/// Sums of smooth noise of all scales from `finest` to the picture's own: mean 0, deviation 1.
fn field(stream: &mut Stream, [width, height]: [u32; 2], finest: u32) -> Vec<f32> {
    let mut sum = vec![0.0; (width * height) as usize];
    let mut scale = finest;
    while scale < width.max(height) {
        let across = width.div_ceil(scale) + 1;
        let knots: Vec<f32> =
            (0..across * (height.div_ceil(scale) + 1)).map(|_| stream.normal() as f32).collect();
        let knot = |x: u32, y: u32| knots[(y * across + x) as usize];
        for (at, sum) in sum.iter_mut().enumerate() {
            let (x, y) = (at as u32 % width, at as u32 / width);
            let part = |along: u32| (along % scale) as f32 / scale as f32;
            let (kx, ky, fx, fy) = (x / scale, y / scale, part(x), part(y));
            let top = knot(kx, ky) * (1.0 - fx) + knot(kx + 1, ky) * fx;
            let bottom = knot(kx, ky + 1) * (1.0 - fx) + knot(kx + 1, ky + 1) * fx;
            *sum += top * (1.0 - fy) + bottom * fy;
        }
        scale *= 2;
    }
    let count = sum.len() as f32;
    let mean = sum.iter().sum::<f32>() / count;
    let deviation = (sum.iter().map(|v| (v - mean) * (v - mean)).sum::<f32>() / count).sqrt();
    sum.iter().map(|v| (v - mean) / deviation.max(f32::MIN_POSITIVE)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_draws_its_picture_and_halving_it_halves_no_contrast() {
        let picture = draw(7, 256, 200);
        assert_eq!(picture, draw(7, 256, 200));
        assert_ne!(picture, draw(8, 256, 200));
        // Contrast between neighbours in the picture, and in its half: equal where power falls
        // with the square of the frequency.
        let green = |x: usize, y: usize| f32::from(picture.pixels[(y * 256 + x) * 3 + 1]);
        let half = |x: usize, y: usize| {
            (green(2 * x, 2 * y)
                + green(2 * x + 1, 2 * y)
                + green(2 * x, 2 * y + 1)
                + green(2 * x + 1, 2 * y + 1))
                / 4.0
        };
        let contrast = |at: &dyn Fn(usize, usize) -> f32, width: usize, height: usize| {
            let all = (0..height).flat_map(|y| (0..width - 1).map(move |x| (x, y)));
            let steps = all.map(|(x, y)| (at(x + 1, y) - at(x, y)).powi(2));
            (steps.sum::<f32>() / ((width - 1) * height) as f32).sqrt()
        };
        let (fine, coarse) = (contrast(&green, 256, 200), contrast(&half, 128, 100));
        assert!((0.6..1.6).contains(&(fine / coarse)), "{fine} and {coarse} grey levels");
    }
}
