//! From a decoded image to what the engine takes: crop, resize, random shift and flip,
//! normalise. A pure function of the image and of (seed, epoch, sample): threads and order of
//! work never show in the result.

use fast_image_resize::images::{CroppedImage, Image as Target, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};

use crate::config::Crop;
use crate::config::seed::{Stream, purpose};

use super::crop::{self, Part};
use super::jpeg::Scratch;
use super::{Area, Cut, Image, Normalization};

/// How a sample is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    /// The middle square: evaluation.
    Centre,
    /// A crop, shift and flip drawn for this (epoch, sample).
    Drawn {
        /// From 0.
        epoch: u64,
        /// Its id.
        sample: u64,
    },
}

/// Shifts reach this fraction of the size to each side (He et al. 2015, section 4.2: 4 of 32).
const SHIFT: u32 = 8;

/// What every sample of a run goes through.
pub(super) struct Recipe {
    size: u32,
    channels: u32,
    crop: Crop,
    seed: u64,
    /// Byte level to normalised value, per channel.
    tables: Vec<[f32; 256]>,
}

/// A thread's own resizer and buffers.
#[derive(Default)]
pub(super) struct Bench {
    /// What the store brought of the sample at hand.
    pub(super) bytes: Vec<u8>,
    /// What decoding a part of a picture needs.
    pub(super) scratch: Scratch,
    resizer: Resizer,
    pixels: Vec<u8>,
}

/// A thread's buffer keeps this much between two samples; what one large file took beyond it is
/// given back.
const BUFFER_KEPT_MAX: usize = 16 << 20;

impl Bench {
    /// Gives back what only a large file needed.
    pub(super) fn trim(&mut self) {
        if self.bytes.capacity() > BUFFER_KEPT_MAX {
            self.bytes = Vec::new();
        }
    }
}

/// The draws of one view.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Draws {
    /// What is looked at.
    part: Part,
    /// Pixels by which the picture moves.
    shift: [i64; 2],
    flip: bool,
}

impl Recipe {
    /// `size` in pixels, `channels` 1 or 3 of the result.
    ///
    /// Drawn views show the largest square, shifted; `cropped` says otherwise.
    pub(super) fn new(size: u32, channels: u32, seed: u64, constants: Normalization) -> Self {
        let tables = (0..channels.min(3) as usize)
            .map(|c| {
                std::array::from_fn(|level| {
                    (level as f32 / 255.0 - constants.mean[c]) / constants.deviation[c]
                })
            })
            .collect();
        Self { size, channels, crop: Crop::Shifted, seed, tables }
    }

    /// The same, with drawn views that show what `crop` says.
    pub(super) fn cropped(self, crop: Crop) -> Self {
        Self { crop, ..self }
    }

    /// Values of one sample.
    pub(super) fn values(&self) -> usize {
        (self.channels * self.size * self.size) as usize
    }

    /// `image`: width and height, at least 1.
    fn draws(&self, view: View, image: [u32; 2]) -> Draws {
        let View::Drawn { epoch, sample } = view else {
            return Draws { part: crop::square(0.5, image), shift: [0, 0], flip: false };
        };
        let stream = &mut Stream::new(&[self.seed, purpose::AUGMENT, epoch, sample]);
        let (part, shift) = match self.crop {
            Crop::Shifted => {
                let reach = u64::from(self.size / SHIFT);
                let part = crop::square(stream.unit(), image);
                let shift = [0; 2].map(|_: i32| stream.below(2 * reach + 1) as i64 - reach as i64);
                (part, shift)
            }
            Crop::Centre => (crop::square(0.5, image), [0, 0]),
            Crop::Random { scale, ratio } => (crop::random(stream, scale, ratio, image), [0, 0]),
        };
        Draws { part, shift, flip: stream.below(2) == 1 }
    }

    /// What of a picture of this width and height is enough for the view; `None`: all of it.
    ///
    /// A random crop is cut out and then resized. Of other views the resizing filter reaches over
    /// the edge, as it does where a picture is resized first and cropped then.
    pub(super) fn area(&self, view: View, image: [u32; 2]) -> Option<Area> {
        if !matches!((self.crop, view), (Crop::Random { .. }, View::Drawn { .. })) {
            return None;
        }
        let Part { left, top, width, height } = self.draws(view, image).part;
        // Whole numbers of a random crop, below 2^32.
        let [from, size] = [[left, top], [width, height]].map(|pair| pair.map(|side| side as u32));
        Some(Area { from, size })
    }

    /// Appends the sample's `[channels, size, size]` values to `out`. The cut holds what the view
    /// shows of its picture.
    pub(super) fn append(
        &self,
        bench: &mut Bench,
        cut: &Cut,
        view: View,
        out: &mut Vec<f32>,
    ) -> Result<(), String> {
        let Cut { image, from, whole } = cut;
        check(image)?;
        let draws = self.draws(view, *whole);
        match self.area(view, *whole) {
            None => self.resize(bench, image, draws.part)?,
            Some(area) => {
                let moved = [0, 1].map(|axis| area.from[axis].checked_sub(from[axis]));
                let [Some(left), Some(top)] = moved else {
                    return Err("the decoder left out what the crop shows".into());
                };
                self.resize_cut(bench, image, Area { from: [left, top], ..area })?;
            }
        }
        self.normalise(&bench.pixels, draws, out);
        Ok(())
    }

    /// The middle square of the image as `size x size` bytes: what evaluation keeps.
    pub(super) fn thumbnail(&self, bench: &mut Bench, image: &Image) -> Result<Box<[u8]>, String> {
        check(image)?;
        self.resize(bench, image, crop::square(0.5, [image.width, image.height]))?;
        Ok(bench.pixels.as_slice().into())
    }

    /// Appends a thumbnail's normalised values.
    pub(super) fn append_thumbnail(&self, pixels: &[u8], out: &mut Vec<f32>) {
        self.normalise(pixels, self.draws(View::Centre, [self.size; 2]), out);
    }

    /// Leaves `part` of a checked image in the bench, as `size x size` pixels in the image's own
    /// channels.
    fn resize(&self, bench: &mut Bench, image: &Image, part: Part) -> Result<(), String> {
        let Image { width, height, channels, pixels } = image;
        let pixel = if *channels == 1 { PixelType::U8 } else { PixelType::U8x3 };
        bench.pixels.clear();
        let asked = f64::from(self.size);
        let whole = [part.width, part.height] == [asked; 2];
        if whole && [*width, *height] == [self.size; 2] {
            bench.pixels.extend_from_slice(pixels);
            return Ok(());
        }
        bench.pixels.resize((self.size * self.size * channels) as usize, 0);
        let options = ResizeOptions::new()
            .resize_alg(ResizeAlg::Convolution(FilterType::Bilinear))
            .crop(part.left, part.top, part.width, part.height);
        let source = ImageRef::new(*width, *height, pixels, pixel).map_err(|e| e.to_string())?;
        Target::from_slice_u8(self.size, self.size, &mut bench.pixels, pixel)
            .map_err(|error| error.to_string())
            .and_then(|mut target| {
                let resized = bench.resizer.resize(&source, &mut target, &options);
                resized.map_err(|error| error.to_string())
            })
    }

    /// The same for an area of the image, beyond which nothing is looked at.
    fn resize_cut(&self, bench: &mut Bench, image: &Image, area: Area) -> Result<(), String> {
        let Image { width, height, channels, pixels } = image;
        let pixel = if *channels == 1 { PixelType::U8 } else { PixelType::U8x3 };
        bench.pixels.resize((self.size * self.size * channels) as usize, 0);
        let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let source = ImageRef::new(*width, *height, pixels, pixel).map_err(|e| text(&e))?;
        let Area { from: [left, top], size: [columns, rows] } = area;
        let source = CroppedImage::new(&source, left, top, columns, rows).map_err(|e| text(&e))?;
        let mut target = Target::from_slice_u8(self.size, self.size, &mut bench.pixels, pixel)
            .map_err(|e| text(&e))?;
        bench.resizer.resize(&source, &mut target, &options).map_err(|e| text(&e))
    }

    /// Appends `pixels` (`size x size`, interleaved, 1 or 3 channels) as normalised planes,
    /// moved and flipped. What moves in from outside is 0, the mean colour.
    fn normalise(&self, pixels: &[u8], draws: Draws, out: &mut Vec<f32>) {
        let size = self.size as usize;
        let from = pixels.len() / (size * size);
        let [right, down] = draws.shift;
        if [right, down] == [0, 0] && [from as u32, self.channels] == [3, 3] {
            return self.normalise_colours(pixels, draws, out);
        }
        let within = |shift: i64| {
            let (low, high) = (shift.max(0), (size as i64 + shift).min(size as i64));
            low as usize..high as usize
        };
        let start = out.len();
        out.resize(start + self.values(), 0.0);
        for (channel, plane) in out[start..].chunks_exact_mut(size * size).enumerate() {
            let table = &self.tables[channel];
            for y in within(down) {
                let row = (y as i64 - down) as usize * size;
                let target = &mut plane[y * size..(y + 1) * size];
                for x in within(right) {
                    let column = (x as i64 - right) as usize;
                    let column = if draws.flip { size - 1 - column } else { column };
                    let at = (row + column) * from;
                    let level = match (from, self.channels) {
                        (3, 3) => pixels[at + channel],
                        (3, _) => luma(&pixels[at..at + 3]),
                        _ => pixels[at],
                    };
                    target[x] = table[usize::from(level)];
                }
            }
        }
    }
}

impl Recipe {
    /// The same for colours that stay where they are: nearly all of a run's pictures.
    fn normalise_colours(&self, pixels: &[u8], draws: Draws, out: &mut Vec<f32>) {
        let size = self.size as usize;
        out.reserve(self.values());
        for (channel, table) in self.tables.iter().enumerate() {
            let level = |pixel: &[u8; 3]| table[usize::from(pixel[channel])];
            for row in pixels.chunks_exact(3 * size) {
                let row = row.as_chunks::<3>().0.iter();
                match draws.flip {
                    false => out.extend(row.map(level)),
                    true => out.extend(row.rev().map(level)),
                }
            }
        }
    }
}

/// An image has 1 or 3 channels and as many bytes as its size says.
fn check(image: &Image) -> Result<(), String> {
    let Image { width, height, channels, pixels } = image;
    if !matches!(channels, 1 | 3) {
        return Err(format!("{channels} channels; 1 and 3 are known"));
    }
    let expected = u64::from(*width) * u64::from(*height) * u64::from(*channels);
    if expected == 0 || pixels.len() as u64 != expected {
        return Err(format!("{} bytes for {width} x {height} pixels", pixels.len()));
    }
    Ok(())
}

/// Grey level of an RGB pixel (ITU-R BT.601).
fn luma(rgb: &[u8]) -> u8 {
    let [red, green, blue] = [0, 1, 2].map(|c| u32::from(rgb[c]));
    ((299 * red + 587 * green + 114 * blue + 500) / 1000) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(size: u32, channels: u32) -> Recipe {
        Recipe::new(size, channels, 1, Normalization { mean: [0.0; 3], deviation: [1.0; 3] })
    }

    fn picture(width: u32, height: u32, level: impl Fn(u32, u32) -> u8) -> Image {
        let at = |i: u32| [level(i % width, i / width); 3];
        Image { width, height, channels: 3, pixels: (0..width * height).flat_map(at).collect() }
    }

    fn run(recipe: &Recipe, image: &Image, view: View) -> Vec<f32> {
        let mut out = Vec::new();
        recipe
            .append(&mut Bench::default(), &image.clone().into(), view, &mut out)
            .expect("prepared");
        out
    }

    #[test]
    fn planes_hold_normalised_channels() {
        let image = Image { width: 2, height: 1, channels: 3, pixels: vec![0, 51, 255, 255, 0, 0] };
        let image = Image { height: 2, pixels: image.pixels.repeat(2), ..image };
        let recipe = Recipe::new(2, 3, 1, Normalization { mean: [0.5; 3], deviation: [0.5; 3] });
        let close = run(&recipe, &image, View::Centre)
            .iter()
            .zip([-1.0, 1.0, -1.0, 1.0, -0.6, -1.0, -0.6, -1.0, 1.0, -1.0, 1.0, -1.0])
            .all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(close);
    }

    #[test]
    fn the_centre_view_takes_the_middle_square() {
        // Columns 0..10 black, 10..20 white, 20..30 black: the middle square is white.
        let image = picture(30, 10, |x, _| if (10..20).contains(&x) { 255 } else { 0 });
        assert!(run(&identity(10, 3), &image, View::Centre).iter().all(|&v| v == 1.0));
        // The filter reaches over the crop's edge, as far as the picture goes.
        let half = run(&identity(5, 3), &image, View::Centre);
        assert!(half.iter().enumerate().all(|(i, &v)| v > if i % 5 % 4 == 0 { 0.8 } else { 0.99 }));
    }

    #[test]
    fn grey_and_colour_meet() {
        let grey = Image { width: 1, height: 1, channels: 1, pixels: vec![102] };
        assert_eq!(run(&identity(1, 3), &grey, View::Centre), vec![0.4; 3]);
        let red = Image { width: 1, height: 1, channels: 3, pixels: vec![255, 0, 0] };
        assert_eq!(run(&identity(1, 1), &red, View::Centre), vec![76.0 / 255.0]);
    }

    #[test]
    fn views_move_and_flip_within_their_reach_and_depend_on_the_sample_only() {
        let image = picture(32, 32, |x, y| if (x, y) == (16, 16) { 255 } else { 0 });
        let recipe = identity(32, 3);
        let mut places = std::collections::BTreeSet::new();
        for sample in 0..600 {
            let view = View::Drawn { epoch: 3, sample };
            let out = run(&recipe, &image, view);
            assert_eq!(out, run(&recipe, &image, view));
            let at = out[..1024].iter().position(|&v| v > 0.5).expect("the dot stays inside");
            places.insert((at % 32, at / 32));
        }
        // 9 x 9 shifts of the dot at 16 or, flipped, at 15: columns 11..=20, rows 12..=20.
        assert!(places.iter().all(|&(x, y)| (11..=20).contains(&x) && (12..=20).contains(&y)));
        assert!(places.len() > 80, "{} of 90 places", places.len());
    }

    #[test]
    fn random_crops_depend_on_the_sample_only_and_show_what_was_drawn() {
        // Brightness grows to the right only: the columns' levels tell the crop's place.
        let image = picture(200, 100, |x, _| x as u8);
        let crop = Crop::Random { scale: [0.08, 1.0], ratio: [0.75, 4.0 / 3.0] };
        let recipe = identity(20, 3).cropped(crop);
        let mut flips = 0;
        for sample in 0..100 {
            let view = View::Drawn { epoch: 1, sample };
            let out = run(&recipe, &image, view);
            assert_eq!(out, run(&recipe, &image, view));
            let Draws { part, flip, .. } = recipe.draws(view, [200, 100]);
            let middle = (out[9] + out[10]) / 2.0 * 255.0;
            let expected = part.left + part.width / 2.0 - 0.5;
            assert!((f64::from(middle) - expected).abs() <= 1.0, "{middle}, not {expected}");
            assert_eq!(out[0] > out[19], flip, "of {sample}");
            flips += u32::from(flip);
        }
        assert!((25..75).contains(&flips), "{flips} of 100 are flipped");
    }

    #[test]
    fn a_centre_crop_is_the_evaluations_view_or_its_mirror() {
        let image = picture(30, 12, |x, y| (x * 8 + y) as u8);
        let recipe = identity(6, 1).cropped(Crop::Centre);
        let plain = run(&recipe, &image, View::Centre);
        let mirror: Vec<f32> = plain.chunks(6).flat_map(|row| row.iter().rev().copied()).collect();
        let of = |sample| run(&recipe, &image, View::Drawn { epoch: 0, sample });
        let seen: Vec<_> = (0..40).map(of).collect();
        assert!(seen.iter().all(|out| *out == plain || *out == mirror));
        assert!(seen.contains(&plain) && seen.contains(&mirror));
    }

    #[test]
    fn what_moves_in_is_the_mean_colour() {
        let recipe = Recipe::new(8, 3, 1, Normalization::IMAGENET);
        let image = picture(8, 8, |_, _| 255);
        let mut out = Vec::new();
        let draws = Draws { part: crop::square(0.0, [8, 8]), shift: [1, -1], flip: true };
        recipe.normalise(&image.pixels, draws, &mut out);
        let zeros = out[..64].iter().filter(|&&v| v == 0.0).count();
        assert_eq!(zeros, 15, "one row and one column");
    }

    #[test]
    fn what_cannot_be_an_image_is_an_error() {
        let wrong = Image { width: 4, height: 4, channels: 3, pixels: vec![0; 47] };
        let none = Image { width: 0, height: 4, channels: 3, pixels: vec![] };
        let four = Image { width: 1, height: 1, channels: 4, pixels: vec![0; 4] };
        for image in [wrong, none, four] {
            let result = identity(4, 3).append(
                &mut Bench::default(),
                &image.clone().into(),
                View::Centre,
                &mut Vec::new(),
            );
            assert!(result.is_err(), "{image:?}");
        }
    }
}
