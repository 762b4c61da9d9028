//! Random changes of colour, as torchvision's `ColorJitter` defines them: brightness, contrast,
//! saturation and hue, in drawn order, each with a drawn factor. Levels are those that Pillow gives
//! (its `ImageEnhance` and its colour space HSV of eight bits), bit for bit.

use crate::config::ColorJitter;
use crate::config::seed::Stream;

/// One change of a picture's colours.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Change {
    /// Towards black, or away from it.
    Brightness(f32),
    /// Towards the picture's mean grey, or away from it.
    Contrast(f32),
    /// Towards each pixel's own grey, or away from it.
    Saturation(f32),
    /// So many 255ths of a turn of the colour circle.
    Hue(u8),
}

/// What is done to a picture, in this order.
pub(super) type Changes = [Option<Change>; 4];

/// Draws the order first, then a factor for each change that is not 0.
pub(super) fn draw(stream: &mut Stream, ranges: ColorJitter) -> Changes {
    if ranges == ColorJitter::default() {
        return [None; 4];
    }
    let mut order = [0, 1, 2, 3];
    for last in (1..order.len()).rev() {
        order.swap(last, stream.below(last as u64 + 1) as usize);
    }
    let ColorJitter { brightness, contrast, saturation, hue } = ranges;
    let mut factor = |reach: f64| {
        let low = (1.0 - reach).max(0.0);
        (reach > 0.0).then(|| (low + (1.0 + reach - low) * stream.unit()) as f32)
    };
    let factors = [brightness, contrast, saturation].map(&mut factor);
    // Whole steps towards zero; a turn to the left is one to the right modulo 256.
    let turn = (hue > 0.0).then(|| (255.0 * (2.0 * stream.unit() - 1.0) * hue) as i32 as u8);
    order.map(|kind| match kind {
        0 => factors[0].map(Change::Brightness),
        1 => factors[1].map(Change::Contrast),
        2 => factors[2].map(Change::Saturation),
        _ => turn.map(Change::Hue),
    })
}

/// Changes interleaved pixels of 1 or 3 channels. Grey has neither saturation nor hue.
pub(super) fn apply(changes: &Changes, pixels: &mut [u8], channels: u32) {
    for change in changes.iter().flatten() {
        match (*change, channels) {
            (Change::Brightness(factor), _) => all(pixels, |level| blend(0, level, factor)),
            (Change::Contrast(factor), _) => {
                let mean = mean(pixels, channels);
                all(pixels, |level| blend(mean, level, factor));
            }
            (Change::Saturation(factor), 3) => {
                for pixel in pixels.as_chunks_mut::<3>().0 {
                    let grey = grey(*pixel);
                    *pixel = pixel.map(|level| blend(grey, level, factor));
                }
            }
            (Change::Hue(turn), 3) => {
                for pixel in pixels.as_chunks_mut::<3>().0 {
                    let [hue, saturation, value] = to_hsv(*pixel);
                    *pixel = to_rgb([hue.wrapping_add(turn), saturation, value]);
                }
            }
            (Change::Saturation(_) | Change::Hue(_), _) => {}
        }
    }
}

/// Maps every level by a function of the level alone.
fn all(pixels: &mut [u8], level: impl Fn(u8) -> u8) {
    let table: [u8; 256] = std::array::from_fn(|index| level(index as u8));
    for pixel in pixels {
        *pixel = table[usize::from(*pixel)];
    }
}

/// From `base` at factor 0 over `level` at 1 and beyond; cut off, not rounded.
fn blend(base: u8, level: u8, factor: f32) -> u8 {
    let (base, level) = (f32::from(base), f32::from(level));
    // The conversion keeps to 0..=255.
    (base + factor * (level - base)) as u8
}

/// Grey of a pixel (ITU-R BT.601 in 65,536ths).
fn grey([red, green, blue]: [u8; 3]) -> u8 {
    let sum = 19_595 * u32::from(red) + 38_470 * u32::from(green) + 7_471 * u32::from(blue);
    ((sum + 0x8000) >> 16) as u8
}

/// Mean grey, rounded.
fn mean(pixels: &[u8], channels: u32) -> u8 {
    let (sum, count): (u64, usize) = match channels {
        3 => {
            let pixels = pixels.as_chunks::<3>().0;
            (pixels.iter().map(|pixel| u64::from(grey(*pixel))).sum(), pixels.len())
        }
        _ => (pixels.iter().map(|&level| u64::from(level)).sum(), pixels.len()),
    };
    (sum as f64 / count.max(1) as f64 + 0.5) as u8
}

/// Hue, saturation and value (Smith 1978), each in 255ths.
fn to_hsv(pixel: [u8; 3]) -> [u8; 3] {
    let [red, green, blue] = pixel;
    let most = red.max(green).max(blue);
    let range = most - red.min(green).min(blue);
    if range == 0 {
        return [0, 0, most];
    }
    // How far each lies below the largest, in shares of the range.
    let [red_off, green_off, blue_off] =
        pixel.map(|level| f32::from(most - level) / f32::from(range));
    let sixths = if red == most {
        f64::from(blue_off - green_off)
    } else if green == most {
        f64::from((2.0 + f64::from(red_off) - f64::from(blue_off)) as f32)
    } else {
        f64::from((4.0 + f64::from(green_off) - f64::from(red_off)) as f32)
    };
    let hue = ((sixths / 6.0 + 1.0) % 1.0) as f32;
    let saturation = f32::from(range) / f32::from(most);
    [(f64::from(hue) * 255.0) as u8, (f64::from(saturation) * 255.0) as u8, most]
}

/// The way back.
fn to_rgb([hue, saturation, value]: [u8; 3]) -> [u8; 3] {
    if saturation == 0 {
        return [value; 3];
    }
    let sixths = f64::from(hue) * 6.0 / 255.0;
    let sector = sixths.floor();
    let along = f64::from((sixths - sector) as f32);
    let share = f64::from(f32::from(saturation) / 255.0);
    let level = |part: f64| (f64::from(value) * (1.0 - part)).round() as u8;
    let (least, falling, rising) =
        (level(share), level(share * along), level(share * (1.0 - along)));
    match sector as u32 % 6 {
        0 => [value, rising, least],
        1 => [falling, value, least],
        2 => [least, value, rising],
        3 => [least, falling, value],
        4 => [rising, least, value],
        _ => [value, least, falling],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: ColorJitter =
        ColorJitter { brightness: 0.4, contrast: 0.3, saturation: 1.5, hue: 0.1 };

    #[test]
    fn factors_fill_their_ranges_and_every_order_comes() {
        let mut orders = std::collections::BTreeSet::new();
        let mut ends = [[f32::MAX, f32::MIN]; 4];
        for key in 0..2000 {
            let changes = draw(&mut Stream::new(&[key]), ALL);
            assert_eq!(changes, draw(&mut Stream::new(&[key]), ALL));
            let seen = changes.map(|change| match change.expect("none is 0") {
                Change::Brightness(factor) => (0, factor),
                Change::Contrast(factor) => (1, factor),
                Change::Saturation(factor) => (2, factor),
                Change::Hue(turn) => (3, f32::from(turn as i8)),
            });
            orders.insert(seen.map(|(kind, _)| kind));
            for (kind, factor) in seen {
                ends[kind] = [ends[kind][0].min(factor), ends[kind][1].max(factor)];
            }
        }
        assert_eq!(orders.len(), 24);
        let ranges = [[0.6, 1.4], [0.7, 1.3], [0.0, 2.5], [-25.0, 25.0]];
        for ([low, high], range) in ends.into_iter().zip(ranges) {
            let slack = 0.01 * (range[1] - range[0]);
            assert!(low >= range[0] && low < range[0] + slack, "{low} of {range:?}");
            assert!(high <= range[1] && high > range[1] - slack, "{high} of {range:?}");
        }
    }

    #[test]
    fn what_is_zero_is_left_out_and_nothing_at_all_draws_nothing() {
        let stream = &mut Stream::new(&[1]);
        assert_eq!(draw(stream, ColorJitter::default()), [None; 4]);
        assert_eq!(stream.next_u64(), Stream::new(&[1]).next_u64());
        let only = ColorJitter { contrast: 0.5, ..ColorJitter::default() };
        let changes = draw(stream, only);
        assert_eq!(changes.iter().flatten().count(), 1);
        assert!(changes.iter().flatten().all(|change| matches!(change, Change::Contrast(_))));
    }

    #[test]
    fn each_change_does_what_its_name_says() {
        let of = |change: Change, mut pixels: [u8; 6]| {
            apply(&[Some(change), None, None, None], &mut pixels, 3);
            pixels
        };
        let pixels = [200, 100, 50, 10, 20, 30];
        assert_eq!(of(Change::Brightness(0.5), pixels), [100, 50, 25, 5, 10, 15]);
        assert_eq!(of(Change::Brightness(2.0), pixels), [255, 200, 100, 20, 40, 60]);
        assert_eq!(of(Change::Brightness(1.0), pixels), pixels);
        // Greys 124 and 18, mean 71.
        assert_eq!(of(Change::Contrast(0.0), pixels), [71; 6]);
        assert_eq!(of(Change::Saturation(0.0), pixels), [124, 124, 124, 18, 18, 18]);
        // A third of a turn: red to green, green to blue.
        let pure = [255, 0, 0, 0, 255, 0];
        assert_eq!(of(Change::Hue(85), pure), [0, 255, 0, 0, 0, 255]);
        let mut grey = [7, 200];
        apply(&[Some(Change::Hue(9)), Some(Change::Saturation(0.1)), None, None], &mut grey, 1);
        assert_eq!(grey, [7, 200]);
    }

    #[test]
    fn hue_saturation_and_value_come_back_as_nearly_the_same_colour() {
        for word in 0..4000u64 {
            let [_, red, green, blue, ..] = Stream::new(&[word]).next_u64().to_le_bytes();
            let back = to_rgb(to_hsv([red, green, blue]));
            let apart = [red, green, blue].iter().zip(back).map(|(a, b)| a.abs_diff(b)).max();
            // 255 hues: a sixth of the circle has 42 of them for up to 255 levels.
            assert!(apart <= Some(7), "{:?} became {back:?}", [red, green, blue]);
        }
    }
}
