//! From a decoded image to what the engine takes: crop, resize, random colours, shift and flip,
//! normalise. A pure function of the image and of (seed, epoch, sample): threads and order of
//! work never show in the result.

use kintsugi_ffi::resize::{Part, Picture, Resizer};

use crate::config::seed::{Stream, purpose};
use crate::config::{Crop, Look};
use crate::data::jpeg::Scratch;
use crate::data::{Area, Cut, Image, Normalization, Shrink};

use super::crop::{self, CropBox};
use super::jitter::{self, Changes};

/// How a sample is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::data) enum View {
    /// The middle: evaluation.
    Centre,
    /// Crop, shift, flip and colours drawn for this (epoch, sample).
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
pub(in crate::data) struct Recipe {
    size: u32,
    channels: u32,
    look: Look,
    seed: u64,
    /// Byte level to normalised value, per channel.
    tables: Vec<[f32; 256]>,
}

/// A thread's own resizer and buffers.
#[derive(Default)]
pub(in crate::data) struct Bench {
    /// What the store brought of the sample at hand.
    pub(in crate::data) bytes: Vec<u8>,
    /// What decoding a part of a picture needs.
    pub(in crate::data) scratch: Scratch,
    resizer: Resizer,
    pixels: Vec<u8>,
}

/// A thread's buffer keeps this much between two samples; what one large file took beyond it is
/// given back.
const BUFFER_KEPT_MAX: usize = 16 << 20;

impl Bench {
    /// Gives back what only a large file needed.
    pub(in crate::data) fn trim(&mut self) {
        if self.bytes.capacity() > BUFFER_KEPT_MAX {
            self.bytes = Vec::new();
        }
    }
}

/// The draws of one view.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Draws {
    /// What is looked at.
    part: CropBox,
    /// Pixels by which the picture moves.
    shift: [i64; 2],
    flip: bool,
    changes: Changes,
}

impl Draws {
    /// Nothing is drawn.
    fn still(part: CropBox) -> Self {
        Self { part, shift: [0, 0], flip: false, changes: [None; 4] }
    }
}

impl Recipe {
    /// `size` in pixels, `channels` 1 or 3 of the result.
    ///
    /// It looks as a run without keys does; `looking` says otherwise.
    pub(in crate::data) fn new(
        size: u32,
        channels: u32,
        seed: u64,
        constants: Normalization,
    ) -> Self {
        let tables = (0..channels.min(3) as usize)
            .map(|c| {
                std::array::from_fn(|level| {
                    (level as f32 / 255.0 - constants.mean[c]) / constants.deviation[c]
                })
            })
            .collect();
        Self { size, channels, look: Look::default(), seed, tables }
    }

    /// The same, with this look.
    pub(in crate::data) fn looking(self, look: Look) -> Self {
        Self { look, ..self }
    }

    /// Height and width of what the engine gets.
    pub(in crate::data) fn side(&self) -> usize {
        self.size as usize
    }

    /// Values of one sample.
    pub(in crate::data) fn values(&self) -> usize {
        (self.channels * self.size * self.size) as usize
    }

    /// `image`: width and height, at least 1.
    fn draws(&self, view: View, image: [u32; 2]) -> Draws {
        let View::Drawn { epoch, sample } = view else {
            return Draws::still(self.middle(image));
        };
        let stream = &mut Stream::new(&[self.seed, purpose::AUGMENT, epoch, sample]);
        let (part, shift) = match self.look.crop {
            Crop::Shifted => {
                let reach = u64::from(self.size / SHIFT);
                let part = crop::square(stream.unit(), image);
                let shift = [0; 2].map(|_: i32| stream.below(2 * reach + 1) as i64 - reach as i64);
                (part, shift)
            }
            Crop::Centre => (self.middle(image), [0, 0]),
            Crop::Random { scale, ratio } => (crop::random(stream, scale, ratio, image), [0, 0]),
        };
        let flip = stream.unit() >= 1.0 - self.look.flip;
        Draws { part, shift, flip, changes: jitter::draw(stream, self.look.jitter) }
    }

    /// What a view of the middle shows.
    fn middle(&self, image: [u32; 2]) -> CropBox {
        match self.look.resize {
            None => crop::square(0.5, image),
            Some(shorter) => crop::resized(shorter, self.size, image),
        }
    }

    /// Whether the view's part is cut out before it is resized.
    fn cuts(&self, view: View) -> bool {
        matches!((self.look.crop, view), (Crop::Random { .. }, View::Drawn { .. }))
    }

    /// Whether the view shows the middle of a resized picture.
    fn resizes(&self, view: View) -> bool {
        let middle = view == View::Centre || self.look.crop == Crop::Centre;
        middle && self.look.resize.is_some()
    }

    /// What of a picture of this width and height is enough for the view; `None`: all of it.
    ///
    /// A random crop is cut out and then resized. Of other views the resizing filter reaches over
    /// the edge, as it does where a picture is resized first and cropped then. Of those of the
    /// largest square all of the picture is decoded, which keeps the bits of runs without keys.
    /// With scaled decoding all views take what leaves the resizing the least to do.
    pub(in crate::data) fn area(&self, view: View, image: [u32; 2]) -> Option<Area> {
        let part = self.draws(view, image).part;
        let shrink = match self.look.scaled_decoding {
            true => Shrink::most([part.width, part.height], self.size),
            false => Shrink::None,
        };
        let partly = self.cuts(view) || self.resizes(view) || shrink != Shrink::None;
        partly.then(|| {
            let CropBox { left, top, width, height } = part.decoded(shrink);
            let [wide, high] = image.map(|side| side.div_ceil(shrink.times()));
            let axes = [(left, width, wide), (top, height, high)].map(|(from, length, whole)| {
                let reach = match self.cuts(view) {
                    true => 0.0,
                    false => (length / f64::from(self.size)).max(1.0) + 1.0,
                };
                let end = (from + length + reach).ceil().min(f64::from(whole)) as u32;
                let start = (from - reach).floor().max(0.0) as u32;
                (start, end - start)
            });
            Area { shrink, from: axes.map(|axis| axis.0), size: axes.map(|axis| axis.1) }
        })
    }

    /// Writes the sample's `[channels, size, size]` values to `out`, which has their number. The
    /// cut holds what the view shows of its picture.
    pub(in crate::data) fn fill(
        &self,
        bench: &mut Bench,
        cut: &Cut,
        view: View,
        out: &mut [f32],
    ) -> Result<(), String> {
        let draws = self.show(bench, cut, view)?;
        jitter::apply(&draws.changes, &mut bench.pixels, cut.image.channels);
        self.normalise(&bench.pixels, draws, out);
        Ok(())
    }

    /// Leaves what the view shows in the bench, as it was drawn.
    fn show(&self, bench: &mut Bench, cut: &Cut, view: View) -> Result<Draws, String> {
        let Cut { image, shrink, from, whole } = cut;
        check(image)?;
        let draws = self.draws(view, *whole);
        let part = draws.part.decoded(*shrink);
        let [left, top] = [part.left - f64::from(from[0]), part.top - f64::from(from[1])];
        if left < 0.0 || top < 0.0 {
            return Err("the decoder left out what the view shows".into());
        }
        let part = CropBox { left, top, ..part };
        match self.cuts(view) && *shrink == Shrink::None {
            false => self.resize(bench, image, part)?,
            true => {
                let CropBox { left, top, width, height } = part;
                let within = [left, top, width, height].map(|side| side as u32);
                self.resize_part(bench, image, Part::Cut(within))?;
            }
        }
        Ok(draws)
    }

    /// The middle of the image as `size x size` bytes: what evaluation keeps.
    pub(in crate::data) fn thumbnail(
        &self,
        bench: &mut Bench,
        cut: &Cut,
    ) -> Result<Box<[u8]>, String> {
        self.show(bench, cut, View::Centre)?;
        Ok(bench.pixels.as_slice().into())
    }

    /// Writes a thumbnail's normalised values.
    pub(in crate::data) fn fill_from_thumbnail(&self, pixels: &[u8], out: &mut [f32]) {
        self.normalise(pixels, Draws::still(crop::square(0.5, [self.size; 2])), out);
    }

    /// Leaves `part` of a checked image in the bench, as `size x size` pixels in the image's own
    /// channels.
    fn resize(&self, bench: &mut Bench, image: &Image, part: CropBox) -> Result<(), String> {
        let Image { width, height, pixels, .. } = image;
        bench.pixels.clear();
        let asked = f64::from(self.size);
        let whole = [part.left, part.top, part.width, part.height] == [0.0, 0.0, asked, asked];
        if whole && [*width, *height] == [self.size; 2] {
            bench.pixels.extend_from_slice(pixels);
            return Ok(());
        }
        // A product may reach over the edge by its rounding.
        let columns = part.width.min(f64::from(*width) - part.left);
        let rows = part.height.min(f64::from(*height) - part.top);
        self.resize_part(bench, image, Part::Seen([part.left, part.top, columns, rows]))
    }

    fn resize_part(&self, bench: &mut Bench, image: &Image, part: Part) -> Result<(), String> {
        let &Image { width, height, channels, ref pixels } = image;
        let picture = Picture { width, height, channels, pixels };
        bench.pixels.resize((self.size * self.size * channels) as usize, 0);
        bench.resizer.resize(picture, part, self.size, &mut bench.pixels)
    }

    /// Writes `pixels` (`size x size`, interleaved, 1 or 3 channels) as normalised planes,
    /// moved and flipped. What moves in from outside is 0, the mean colour.
    fn normalise(&self, pixels: &[u8], draws: Draws, out: &mut [f32]) {
        assert_eq!(out.len(), self.values(), "a sample has its own number of values");
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
        out.fill(0.0);
        for (channel, plane) in out.chunks_exact_mut(size * size).enumerate() {
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
    fn normalise_colours(&self, pixels: &[u8], draws: Draws, out: &mut [f32]) {
        let size = self.size as usize;
        let planes = out.chunks_exact_mut(size * size).zip(&self.tables);
        for (channel, (plane, table)) in planes.enumerate() {
            let write = |(value, pixel): (&mut f32, &[u8; 3])| {
                *value = table[usize::from(pixel[channel])];
            };
            for (values, row) in plane.chunks_exact_mut(size).zip(pixels.chunks_exact(3 * size)) {
                let row = row.as_chunks::<3>().0.iter();
                match draws.flip {
                    false => values.iter_mut().zip(row).for_each(write),
                    true => values.iter_mut().zip(row.rev()).for_each(write),
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
mod tests;
