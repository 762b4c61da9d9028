//! Tests of the decoder of parts, against itself (a part is a piece of the whole) and against the
//! whole decoder (levels and verdicts).

use proptest::prelude::*;
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

use super::*;
use crate::data::painting::photograph;
use crate::data::{Area, Image, Shrink};

/// The whole decoder as `source::decode` asks it; `None`: it refuses.
fn whole_decoder(bytes: &[u8]) -> Option<Vec<u8>> {
    let options =
        DecoderOptions::default().set_strict_mode(true).jpeg_set_out_colorspace(ColorSpace::RGB);
    JpegDecoder::new_with_options(ZCursor::new(bytes), options).decode().ok()
}

fn decode(bytes: &[u8], scratch: &mut Scratch, area: Area) -> Option<Vec<u8>> {
    Jpeg::open(bytes, scratch).ok()?.decode(area).ok()
}

fn whole(bytes: &[u8], scratch: &mut Scratch) -> Option<Vec<u8>> {
    smaller(bytes, scratch, Shrink::None)
}

/// The whole picture, smaller.
fn smaller(bytes: &[u8], scratch: &mut Scratch, shrink: Shrink) -> Option<Vec<u8>> {
    let jpeg = Jpeg::open(bytes, scratch).ok()?;
    let size = jpeg.size().map(|side| side.div_ceil(shrink.times()));
    jpeg.decode(Area { shrink, from: [0, 0], size }).ok()
}

const SHRINKS: [Shrink; 4] = [Shrink::None, Shrink::Half, Shrink::Quarter, Shrink::Eighth];

fn picture(number: u64, [width, height]: [u32; 2], channels: u32) -> Image {
    let mut image = photograph::draw(number, width, height);
    if channels == 1 {
        image.pixels = image.pixels.iter().step_by(3).copied().collect();
        image.channels = 1;
    }
    image
}

fn forms() -> impl Strategy<Value = (u32, Form)> {
    let chroma = prop::sample::select(vec![[1, 1], [2, 1], [2, 2]]);
    let channels = prop::sample::select(vec![1u32, 3, 3, 3]);
    (channels, chroma, 5u32..=100, prop::sample::select(vec![0u16, 0, 1, 3, 50])).prop_map(
        |(channels, chroma, quality, restart)| (channels, Form { quality, chroma, restart }),
    )
}

/// The pixels of an area of a whole RGB picture.
fn piece(pixels: &[u8], width: u32, area: Area) -> Vec<u8> {
    let row = |y: u32| {
        let start = ((area.from[1] + y) * width + area.from[0]) as usize * 3;
        &pixels[start..start + area.size[0] as usize * 3]
    };
    (0..area.size[1]).flat_map(|y| row(y).to_vec()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn a_part_is_a_piece_of_the_whole(
        (channels, form) in forms(),
        size in [6u32..120, 1u32..120],
        number in 0u64..50,
        shares in [0.0f64..1.0, 0.0..1.0, 0.0..1.0, 0.0..1.0],
        shrink in prop::sample::select(SHRINKS.to_vec()),
    ) {
        let bytes = encode(&picture(number, size, channels), form);
        let scratch = &mut Scratch::default();
        let all = smaller(&bytes, scratch, shrink).expect("a file of our kind");
        let size = size.map(|side| side.div_ceil(shrink.times()));
        prop_assert_eq!(all.len(), 3 * (size[0] * size[1]) as usize);
        let side = |axis: usize| 1 + (shares[axis] * f64::from(size[axis])) as u32;
        let part = [0, 1].map(|axis| side(axis).min(size[axis]));
        let from = [0, 1].map(|axis| {
            (shares[2 + axis] * f64::from(size[axis] - part[axis] + 1)) as u32
        });
        let area = Area { shrink, from, size: part };
        // The same buffers as before, and others.
        let found = decode(&bytes, scratch, area);
        prop_assert_eq!(&found, &Some(piece(&all, size[0], area)));
        prop_assert_eq!(&found, &decode(&bytes, &mut Scratch::default(), area));
    }

    /// What is decoded smaller is the mean of the pixels that became one: each of them is rounded
    /// by up to a half, and so is the mean.
    #[test]
    fn a_smaller_picture_is_the_mean_of_the_whole_one(
        quality in 5u32..=100,
        size in [8u32..100, 8u32..100],
        number in 0u64..50,
        shrink in prop::sample::select(SHRINKS[1..].to_vec()),
    ) {
        let form = Form { quality, chroma: [1, 1], restart: 0 };
        let bytes = encode(&picture(number, size, 1), form);
        let all = whole(&bytes, &mut Scratch::default()).expect("a file of our kind");
        let small = smaller(&bytes, &mut Scratch::default(), shrink).expect("the same file");
        let times = shrink.times();
        let stride = size[0].div_ceil(times);
        for y in 0..size[1] / times {
            for x in 0..size[0] / times {
                let from = [x * times, y * times];
                let square = Area { shrink: Shrink::None, from, size: [times; 2] };
                let square = piece(&all, size[0], square);
                // Levels beyond the ends were cut off in the whole picture only.
                if square.iter().any(|level| matches!(level, 0 | 255)) {
                    continue;
                }
                let mean = square.iter().copied().map(f64::from).sum::<f64>() / square.len() as f64;
                let found = f64::from(small[3 * (y * stride + x) as usize]);
                prop_assert!((found - mean).abs() <= 1.05, "{found}, not {mean}, at {x} {y}");
            }
        }
    }

    /// The two round transforms, interpolation and colours differently: luma by up to 2, chroma by
    /// up to 3, of which blue takes 1.77 times.
    #[test]
    fn levels_are_those_of_the_whole_decoder(
        (channels, form) in forms(),
        size in [16u32..120, 8u32..120],
        number in 0u64..50,
    ) {
        let bytes = encode(&picture(number, size, channels), form);
        let ours = whole(&bytes, &mut Scratch::default()).expect("a file of our kind");
        let theirs = whole_decoder(&bytes).expect("a good file");
        let differences = || ours.iter().zip(&theirs).map(|(&a, &b)| a.abs_diff(b));
        prop_assert!(differences().all(|d| d <= 8), "{:?}", differences().max());
        let sum: u64 = differences().map(u64::from).sum();
        prop_assert!(sum as f64 <= 0.8 * ours.len() as f64, "{sum} over {}", ours.len());
    }

    /// What we accept whole the whole decoder accepts; of the rest it is asked.
    #[test]
    fn a_damaged_file_is_judged_as_the_whole_decoder_judges_it(
        (channels, form) in forms(),
        size in [6u32..60, 1u32..60],
        damage in prop::collection::vec((0.0f64..1.0, any::<u8>()), 1..4),
        cut in prop::option::of(0.0f64..1.0),
    ) {
        let mut bytes = encode(&picture(1, size, channels), form);
        for (place, value) in damage {
            let at = (place * bytes.len() as f64) as usize;
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate((cut * bytes.len() as f64) as usize);
        }
        let scratch = &mut Scratch::default();
        if let Some(ours) = whole(&bytes, scratch) {
            let theirs = whole_decoder(&bytes);
            prop_assert!(theirs.is_some(), "accepted here only");
            prop_assert_eq!(theirs.map(|pixels| pixels.len()), Some(ours.len()));
        }
        // Any part of it, and the same buffers for a good file.
        let area = Area { shrink: Shrink::None, from: [0, 0], size: [1, 1] };
        let _ = decode(&bytes, scratch, area);
        let good = encode(&picture(2, size, channels), form);
        prop_assert_eq!(whole(&good, scratch), whole(&good, &mut Scratch::default()));
    }

    #[test]
    fn noise_is_no_file(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let file = [&[0xFF, 0xD8], &bytes[..]].concat();
        prop_assert!(whole(&file, &mut Scratch::default()).is_none());
    }
}

#[test]
fn a_file_cut_anywhere_is_refused_even_if_the_part_lies_before_the_cut() {
    let form = Form { quality: 80, chroma: [2, 2], restart: 0 };
    let bytes = encode(&picture(3, [40, 40], 3), form);
    let area = Area { shrink: Shrink::None, from: [0, 0], size: [8, 8] };
    let scratch = &mut Scratch::default();
    assert!(decode(&bytes, scratch, area).is_some());
    for end in 0..bytes.len() {
        assert_eq!(decode(&bytes[..end], scratch, area), None, "cut at {end}");
    }
}

#[test]
fn other_forms_and_areas_outside_are_not_ours() {
    let form = Form { quality: 80, chroma: [2, 2], restart: 0 };
    let good = encode(&picture(3, [40, 40], 3), form);
    let scratch = &mut Scratch::default();
    for (shrink, from, size) in [
        (Shrink::None, [0, 0], [41, 1]),
        (Shrink::None, [40, 0], [1, 1]),
        (Shrink::None, [0, 0], [0, 1]),
        (Shrink::None, [1, 1], [1, u32::MAX]),
        (Shrink::Half, [0, 0], [21, 1]),
        (Shrink::Eighth, [0, 5], [1, 1]),
    ] {
        let area = Area { shrink, from, size };
        assert_eq!(decode(&good, scratch, area), None, "{area:?}");
    }
    let frame = good.windows(2).position(|two| two == [0xFF, 0xC0]).expect("a frame");
    let with = |at: usize, value: u8| {
        let mut file = good.clone();
        file[frame + at] = value;
        whole(&file, &mut Scratch::default())
    };
    assert_eq!(with(1, 0xC2), None, "progressive");
    assert_eq!(with(4, 12), None, "twelve bits");
    assert_eq!(with(9, 4), None, "four planes");
    assert_eq!(with(11, 0x41), None, "other sizes of chroma");
}

#[test]
fn factors_of_nothing_and_symbols_that_no_difference_has_are_not_ours() {
    let good = encode(&picture(3, [40, 40], 1), Form { quality: 80, chroma: [1, 1], restart: 0 });
    let damaged = |marker: u8, byte: usize, value: u8| {
        let mut bytes = good.clone();
        let at = bytes.windows(2).position(|pair| pair == [0xFF, marker]).expect("a segment");
        bytes[at + byte] = value;
        whole(&bytes, &mut Scratch::default())
    };
    assert!(damaged(0xC0, 11, 0x11).is_some(), "as it was");
    assert_eq!(damaged(0xC0, 11, 0), None, "no block in a unit");
    assert!(damaged(0xC4, 21, 0).is_some(), "as it was");
    assert_eq!(damaged(0xC4, 21, 12), None, "twelve bits of difference");
}
