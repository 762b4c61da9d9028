//! Which part of a training picture is looked at: a pure function of the picture's size and of
//! the sample's own stream. Sides and ratios of random crops follow torchvision's definition of
//! `RandomResizedCrop` (ten tries, then the middle). No C library has a part in a box's bits.

use crate::config::exact::{exponential, logarithm};
use crate::config::seed::Stream;
use crate::data::Shrink;

/// A part of a picture, in its own pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CropBox {
    pub(super) left: f64,
    pub(super) top: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

impl CropBox {
    /// The same of a picture that was decoded smaller, in its pixels.
    pub(super) fn decoded(self, shrink: Shrink) -> Self {
        let times = f64::from(shrink.times());
        let Self { left, top, width, height } = self;
        let [left, top, width, height] = [left, top, width, height].map(|side| side / times);
        Self { left, top, width, height }
    }
}

/// Draws of an area and a ratio before the middle is taken.
const TRIES_MAX: u32 = 10;

/// The largest square, at `along` (0..1) of the longer side.
pub(super) fn square(along: f64, [width, height]: [u32; 2]) -> CropBox {
    let side = f64::from(width.min(height));
    let start = |length: u32| (along * (f64::from(length) - side)).floor();
    CropBox { left: start(width), top: start(height), width: side, height: side }
}

/// The middle square of `size` pixels of the picture whose shorter side has been resized to
/// `shorter` pixels, which is not less: torchvision's `Resize` and `CenterCrop`, whose whole
/// numbers of pixels these are. In the picture's own pixels.
pub(super) fn resized(shorter: u32, size: u32, picture: [u32; 2]) -> CropBox {
    let short = u64::from(picture[0].min(picture[1]));
    let resized = picture.map(|side| u64::from(shorter) * u64::from(side) / short);
    let [(left, width), (top, height)] = [0, 1].map(|axis| {
        let scale = f64::from(picture[axis]) / resized[axis] as f64;
        let from = ((resized[axis] - u64::from(size)) as f64 / 2.0).round_ties_even();
        (from * scale, f64::from(size) * scale)
    });
    CropBox { left, top, width, height }
}

/// A box whose share of the area lies in `scale` and whose width / height lies in `ratio`.
///
/// Where none of the tries fits into the picture it is the largest middle box of an allowed ratio.
pub(super) fn random(
    stream: &mut Stream,
    scale: [f64; 2],
    ratio: [f64; 2],
    [width, height]: [u32; 2],
) -> CropBox {
    let (wide, high) = (f64::from(width), f64::from(height));
    let logs = ratio.map(logarithm);
    for _ in 0..TRIES_MAX {
        let area = wide * high * between(stream, scale);
        let aspect = exponential(between(stream, logs));
        let side = |square: f64| square.sqrt().round_ties_even();
        let (w, h) = (side(area * aspect), side(area / aspect));
        if (1.0..=wide).contains(&w) && (1.0..=high).contains(&h) {
            // Whole numbers below 2^32: exact in both types.
            let top = stream.below((high - h) as u64 + 1) as f64;
            let left = stream.below((wide - w) as u64 + 1) as f64;
            return CropBox { left, top, width: w, height: h };
        }
    }
    middle(ratio, [wide, high])
}

/// The largest middle box of an allowed ratio. It has at least one pixel, where torchvision's
/// rounding may leave none.
fn middle([least, most]: [f64; 2], [wide, high]: [f64; 2]) -> CropBox {
    let found = wide / high;
    let (w, h) = if found < least {
        (wide, (wide / least).round_ties_even().clamp(1.0, high))
    } else if found > most {
        ((high * most).round_ties_even().clamp(1.0, wide), high)
    } else {
        (wide, high)
    };
    CropBox {
        left: ((wide - w) / 2.0).floor(),
        top: ((high - h) / 2.0).floor(),
        width: w,
        height: h,
    }
}

fn between(stream: &mut Stream, [low, high]: [f64; 2]) -> f64 {
    low + (high - low) * stream.unit()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SCALE: [f64; 2] = [0.08, 1.0];
    const RATIO: [f64; 2] = [3.0 / 4.0, 4.0 / 3.0];

    proptest! {
        #[test]
        fn a_part_lies_inside_the_picture(
            size in [1u32..3000, 1u32..3000],
            key in any::<u64>(),
            low in 0.001f64..1.0,
            flat in 0.01f64..1.0,
        ) {
            let ratio = [flat, 1.0 / flat];
            let part = random(&mut Stream::new(&[key]), [low, 1.0], ratio, size);
            prop_assert!(part.left >= 0.0 && part.top >= 0.0);
            prop_assert!(part.width >= 1.0 && part.height >= 1.0);
            prop_assert!(part.left + part.width <= f64::from(size[0]));
            prop_assert!(part.top + part.height <= f64::from(size[1]));
        }
    }

    #[test]
    fn shares_and_ratios_keep_to_their_ranges_and_fill_them() {
        let size = [500, 375];
        let (mut smallest, mut largest, mut left, mut right) = (1.0f64, 0.0f64, 0, 0);
        for key in 0..4000 {
            let part = random(&mut Stream::new(&[key]), SCALE, RATIO, size);
            let share = part.width * part.height / (500.0 * 375.0);
            // A side is rounded to a pixel; the smallest has about 106.
            assert!((0.078..=1.0).contains(&share), "{share} of {key}");
            let ratio = part.width / part.height;
            assert!((0.74..1.35).contains(&ratio), "{ratio} of {key}");
            (smallest, largest) = (smallest.min(share), largest.max(share));
            left += u32::from(part.left == 0.0);
            right += u32::from(part.left + part.width == 500.0);
        }
        assert!(smallest < 0.09 && largest > 0.9, "{smallest} to {largest}");
        assert!(left > 0 && right > 0, "{left} at the left edge, {right} at the right");
    }

    #[test]
    fn what_no_try_fits_takes_the_middle() {
        let of = |size| random(&mut Stream::new(&[7]), [1.0, 1.0], RATIO, size);
        // 4/3 of 30 rows; 4/3 of 30 columns.
        assert_eq!(of([300, 30]), CropBox { left: 130.0, top: 0.0, width: 40.0, height: 30.0 });
        assert_eq!(of([30, 300]), CropBox { left: 0.0, top: 130.0, width: 30.0, height: 40.0 });
        let whole = CropBox { left: 0.0, top: 0.0, width: 40.0, height: 30.0 };
        assert_eq!(middle([1.0, 2.0], [40.0, 30.0]), whole, "its own ratio is allowed");
    }

    #[test]
    fn the_middle_of_a_resized_picture_has_its_shape_and_lies_inside() {
        // 500 x 375 becomes 341 x 256; the middle 224 begin at 58 (58.5) and 16.
        let CropBox { left, top, width, height } = resized(256, 224, [500, 375]);
        let (wide, high) = (500.0 / 341.0, 375.0 / 256.0);
        assert_eq!([left, top], [58.0 * wide, 16.0 * high]);
        assert_eq!([width, height], [224.0 * wide, 224.0 * high]);
        for picture in [[1, 1], [1, 900], [16_384, 3], [37, 36]] {
            for (shorter, size) in [(8, 8), (9, 8), (64, 1)] {
                let part = resized(shorter, size, picture);
                assert!(part.left >= 0.0 && part.top >= 0.0, "{part:?}");
                let (right, bottom) = (part.left + part.width, part.top + part.height);
                assert!(right <= f64::from(picture[0]) + 1e-6, "{part:?} of {picture:?}");
                assert!(bottom <= f64::from(picture[1]) + 1e-6, "{part:?} of {picture:?}");
            }
        }
    }

    #[test]
    fn the_square_slides_along_the_longer_side() {
        let at = |along| square(along, [30, 10]);
        assert_eq!(at(0.0), CropBox { left: 0.0, top: 0.0, width: 10.0, height: 10.0 });
        assert_eq!(at(0.5).left, 10.0);
    }
}
