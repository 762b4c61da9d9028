//! Procedural pictures: one outlined class shape among clutter, on a textured ground. Position,
//! scale, rotation, colour, fill, contrast, occlusion and noise are nuisance. A part of the
//! pictures is easy and a part next to impossible, so that a small network learns fast at first
//! and keeps improving for minutes.

use std::f32::consts::TAU;

use crate::config::seed::{self, Stream, purpose};
use crate::data::Image;

use super::shape::Shape;

/// Ranges of what varies from picture to picture: `[easy, hard]` ends.
const RADIUS: [f32; 2] = [0.46, 0.26];
const CONTRAST: [f32; 2] = [165.0, 45.0];
const NOISE: [f32; 2] = [2.0, 20.0];
const GROUND: [f32; 2] = [6.0, 28.0];
const CLUTTER: [f32; 2] = [0.0, 6.0];
/// Above 1, easy pictures are more frequent than hard ones.
const HARDNESS: f32 = 1.8;
/// Standard deviation of a shape's hue around the one typical of its class, in turns: colour is
/// a hint that is learned first, and wrong often enough.
const HUE_SPREAD: f64 = 0.09;
/// Steps from class to class around the colour circle (the golden section), in turns.
const HUE_STEP: f32 = 0.618_034;
/// Pictures harder than this have something lying over the shape.
const OCCLUDED_FROM: f32 = 0.55;

/// Largest rotation of a shape, in radians.
const TILT: f32 = 0.5;

type Colour = [f32; 3];

/// How the inside of a shape is painted.
#[derive(Clone, Copy)]
enum Fill {
    Plain,
    Stripes { angle: f32, period: f32 },
    Checks { period: f32 },
    Fade { angle: f32 },
    Outline { width: f32 },
}

/// One thing in the picture; lengths in pixels.
struct Mark {
    shape: Shape,
    centre: [f32; 2],
    radius: f32,
    rotation: f32,
    stretch: f32,
    colour: Colour,
    second: Colour,
    fill: Fill,
}

/// A canvas of floating point colours, interleaved.
struct Canvas {
    width: u32,
    height: u32,
    pixels: Vec<Colour>,
}

fn between(stream: &mut Stream, low: f32, high: f32) -> f32 {
    low + (high - low) * stream.unit() as f32
}

fn lerp(ends: [f32; 2], at: f32) -> f32 {
    ends[0] + (ends[1] - ends[0]) * at
}

/// A colour of that hue (in turns), saturation and value (0..1), as levels 0..255.
fn hsv(hue: f32, saturation: f32, value: f32) -> Colour {
    [0.0, 2.0 / 3.0, 1.0 / 3.0].map(|shift: f32| {
        let ramp = ((hue + shift).rem_euclid(1.0) * 6.0 - 3.0).abs() - 1.0;
        255.0 * value * (1.0 - saturation + saturation * ramp.clamp(0.0, 1.0))
    })
}

/// A colour of about that hue, at least `contrast` away from `from` (Euclidean in RGB); the
/// farthest of a bounded number of draws when none is.
fn colour_away(stream: &mut Stream, hue: f32, from: Colour, contrast: f32) -> Colour {
    const DRAWS: usize = 16;
    let mut best = (0.0, from);
    for _ in 0..DRAWS {
        let saturation = between(stream, 0.4, 1.0);
        let draw = hsv(hue, saturation, between(stream, 0.3, 1.0));
        let apart = (0..3).map(|c| (draw[c] - from[c]).powi(2)).sum::<f32>().sqrt();
        if apart >= contrast {
            return draw;
        }
        if apart > best.0 {
            best = (apart, draw);
        }
    }
    best.1
}

/// Draws the picture of `class` that the key names: the same key, the same picture.
///
/// `key` is (seed, split, id); `width` and `height` in pixels; the result has 3 channels.
pub fn draw(class: u32, key: [u64; 3], width: u32, height: u32) -> Image {
    let stream = &mut Stream::new(&[key[0], purpose::SYNTHETIC, key[1], key[2]]);
    let side = width.min(height) as f32;
    let hard = (stream.unit() as f32).powf(HARDNESS);
    let saturation = between(stream, 0.0, 0.45);
    let ground = hsv(stream.unit() as f32, saturation, between(stream, 0.05, 0.7));
    let mut canvas = Canvas::textured(stream, [width, height], ground, lerp(GROUND, hard));

    let subject = subject(stream, class, hard, [width as f32, height as f32], ground);
    let count = stream.below(1 + lerp(CLUTTER, hard) as u64);
    for _ in 0..count {
        let clutter = clutter(stream, side, [width as f32, height as f32], ground);
        canvas.paint(&clutter);
    }
    canvas.paint(&subject);
    if hard > OCCLUDED_FROM {
        let mut bar = clutter(stream, side, [width as f32, height as f32], ground);
        bar.centre = subject.centre;
        bar.shape = Shape::Bar;
        bar.radius = subject.radius * between(stream, 0.5, 1.1);
        canvas.paint(&bar);
    }
    canvas.develop(stream, lerp(NOISE, hard))
}

/// The class shape itself.
fn subject(stream: &mut Stream, class: u32, hard: f32, size: [f32; 2], ground: Colour) -> Mark {
    let side = size[0].min(size[1]);
    let radius = side * lerp(RADIUS, hard) * between(stream, 0.85, 1.1);
    let slack = |length: f32| (length - 1.7 * radius).max(0.0) / 2.0;
    let contrast = lerp(CONTRAST, hard);
    let hue = class as f32 * HUE_STEP + (stream.normal() * HUE_SPREAD) as f32;
    let colour = colour_away(stream, hue, ground, contrast);
    let other = hue + between(stream, -0.2, 0.2);
    Mark {
        shape: Shape::of_class(class),
        centre: size.map(|length| length / 2.0 + between(stream, -1.0, 1.0) * slack(length)),
        radius,
        rotation: between(stream, -TILT, TILT),
        stretch: between(stream, 0.82, 1.22),
        colour,
        second: colour_away(stream, other, ground, contrast * 0.8),
        fill: fill(stream, radius),
    }
}

fn fill(stream: &mut Stream, radius: f32) -> Fill {
    let angle = between(stream, 0.0, TAU);
    let period = (radius * between(stream, 0.35, 0.7)).max(3.0);
    match stream.below(6) {
        0 | 1 => Fill::Plain,
        2 => Fill::Stripes { angle, period },
        3 => Fill::Checks { period },
        4 => Fill::Fade { angle },
        _ => Fill::Outline { width: (radius * 0.16).max(1.3) },
    }
}

/// Something that is not the subject: a bar, a dot, or a small shape of any class.
fn clutter(stream: &mut Stream, side: f32, size: [f32; 2], ground: Colour) -> Mark {
    let kind = stream.below(4);
    let (shape, radius) = match kind {
        0 | 1 => (Shape::Bar, side * between(stream, 0.15, 0.5)),
        2 => (Shape::Disc, side * between(stream, 0.03, 0.09)),
        _ => {
            let other = stream.below(u64::from(Shape::NAMED)) as u32;
            (Shape::of_class(other), side * between(stream, 0.07, 0.14))
        }
    };
    let hue = stream.unit() as f32;
    Mark {
        shape,
        centre: size.map(|length| between(stream, 0.0, 1.0) * length),
        radius,
        rotation: between(stream, 0.0, TAU),
        stretch: 1.0,
        colour: colour_away(stream, hue, ground, 60.0),
        second: ground,
        fill: Fill::Plain,
    }
}

impl Canvas {
    /// A ground with a slope of light, two waves and soft patches of `depth` grey levels.
    fn textured(stream: &mut Stream, size: [u32; 2], ground: Colour, depth: f32) -> Self {
        const GRID: usize = 6;
        let mut grid = [[0f32; GRID + 1]; GRID + 1];
        grid.iter_mut().flatten().for_each(|patch| *patch = between(stream, -1.0, 1.0));
        let tint: Colour = [0; 3].map(|_: i32| between(stream, 0.3, 1.0));
        let slope = [between(stream, -1.0, 1.0), between(stream, -1.0, 1.0)];
        let wave = [0; 2].map(|_: i32| {
            let (angle, turns) = (between(stream, 0.0, TAU), between(stream, 1.0, 7.0));
            (turns * TAU * angle.cos(), turns * TAU * angle.sin(), between(stream, 0.0, TAU))
        });
        let mut pixels = Vec::with_capacity((size[0] * size[1]) as usize);
        for row in 0..size[1] {
            let y = row as f32 / size[1] as f32;
            for column in 0..size[0] {
                let x = column as f32 / size[0] as f32;
                let waves: f32 = wave.iter().map(|(a, b, c)| (a * x + b * y + c).sin()).sum();
                let light = slope[0] * (x - 0.5) + slope[1] * (y - 0.5);
                let level = depth * (0.4 * waves + 1.2 * patch(&grid, x, y) + light);
                pixels.push([0, 1, 2].map(|c| ground[c] + tint[c] * level));
            }
        }
        Self { width: size[0], height: size[1], pixels }
    }

    /// Lays a mark over what is there, with soft edges.
    fn paint(&mut self, mark: &Mark) {
        let reach = mark.radius * 1.6 + 1.0;
        let span = |centre: f32, length: u32| {
            let low = (centre - reach).floor().clamp(0.0, length as f32);
            let high = (centre + reach).ceil().clamp(0.0, length as f32);
            low as u32..high as u32
        };
        let (sin, cos) = mark.rotation.sin_cos();
        for row in span(mark.centre[1], self.height) {
            for column in span(mark.centre[0], self.width) {
                let x = (column as f32 + 0.5 - mark.centre[0]) / mark.radius;
                let y = (row as f32 + 0.5 - mark.centre[1]) / mark.radius;
                let at = [(cos * x + sin * y) * mark.stretch, (cos * y - sin * x) / mark.stretch];
                let (cover, colour) = mark.ink(at);
                let pixel = &mut self.pixels[(row * self.width + column) as usize];
                for c in 0..3 {
                    pixel[c] += (colour[c] - pixel[c]) * cover;
                }
            }
        }
    }

    /// Exposure and sensor noise; rounds to bytes.
    fn develop(&self, stream: &mut Stream, noise: f32) -> Image {
        let gain = between(stream, 0.75, 1.2);
        let offset = between(stream, -18.0, 18.0);
        let key = stream.next_u64();
        let mut pixels = Vec::with_capacity(self.pixels.len() * 3);
        for (i, pixel) in self.pixels.iter().enumerate() {
            // One word a pixel: three channels of two summed 10-bit uniforms.
            let word = seed::mix64(key.wrapping_add(i as u64));
            for (c, level) in pixel.iter().enumerate() {
                let bits = (word >> (20 * c)) as u32;
                let draw = ((bits & 1023) + ((bits >> 10) & 1023)) as f32 / 1023.0 - 1.0;
                // The sum of two uniforms has a standard deviation of 0.408.
                let value = level * gain + offset + draw * noise / 0.408;
                pixels.push(value.round().clamp(0.0, 255.0) as u8);
            }
        }
        Image { height: self.height, width: self.width, channels: 3, pixels }
    }
}

/// Bilinear lookup of the patch grid at `x`, `y` in `0..1`.
fn patch<const N: usize>(grid: &[[f32; N]; N], x: f32, y: f32) -> f32 {
    let cells = (N - 1) as f32;
    let (x, y) = (x * cells, y * cells);
    let (column, row) = ((x as usize).min(N - 2), (y as usize).min(N - 2));
    let (x, y) = (x - column as f32, y - row as f32);
    let top = grid[row][column] * (1.0 - x) + grid[row][column + 1] * x;
    let bottom = grid[row + 1][column] * (1.0 - x) + grid[row + 1][column + 1] * x;
    top * (1.0 - y) + bottom * y
}

impl Mark {
    /// How much of the pixel at `at` (in radii) it covers, 0..1, and with which colour.
    fn ink(&self, at: [f32; 2]) -> (f32, Colour) {
        let distance = self.shape.distance(at) * self.radius;
        let cover = |distance: f32| (0.5 - distance).clamp(0.0, 1.0);
        let along = |angle: f32| (at[0] * angle.cos() + at[1] * angle.sin()) * self.radius;
        let mixed = |share: f32| {
            [0, 1, 2].map(|c| self.colour[c] + (self.second[c] - self.colour[c]) * share)
        };
        match self.fill {
            Fill::Plain => (cover(distance), self.colour),
            Fill::Stripes { angle, period } => {
                let wave = (along(angle) * TAU / period).sin();
                (cover(distance), mixed((wave * 2.0 + 0.5).clamp(0.0, 1.0)))
            }
            Fill::Checks { period } => {
                let wave = (at[0] * self.radius * TAU / period).sin()
                    * (at[1] * self.radius * TAU / period).sin();
                (cover(distance), mixed((wave * 3.0 + 0.5).clamp(0.0, 1.0)))
            }
            Fill::Fade { angle } => {
                (cover(distance), mixed((along(angle) / self.radius * 0.5 + 0.5).clamp(0.0, 1.0)))
            }
            Fill::Outline { width } => (cover((distance + width).abs() - width), self.colour),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_key_draws_the_same_picture_and_another_key_another() {
        let picture = draw(3, [1, 0, 7], 44, 51);
        assert_eq!((picture.width, picture.height, picture.channels), (44, 51, 3));
        assert_eq!(picture.pixels.len(), 44 * 51 * 3);
        assert_eq!(picture, draw(3, [1, 0, 7], 44, 51));
        assert_ne!(picture, draw(3, [1, 1, 7], 44, 51));
        assert_ne!(picture, draw(4, [1, 0, 7], 44, 51));
    }

    #[test]
    fn pictures_of_a_class_differ_in_more_than_noise() {
        let mean = |image: &Image| {
            image.pixels.iter().map(|&p| f64::from(p)).sum::<f64>() / image.pixels.len() as f64
        };
        let means: Vec<f64> = (0..50).map(|id| mean(&draw(0, [1, 0, id], 32, 32))).collect();
        let spread =
            means.iter().cloned().fold(0.0, f64::max) - means.iter().cloned().fold(255.0, f64::min);
        assert!(spread > 60.0, "means spread over {spread:.0} grey levels");
    }

    #[test]
    fn tiny_and_flat_pictures_are_drawn() {
        for (width, height) in [(1, 1), (2, 9), (300, 3)] {
            assert_eq!(draw(9, [5, 0, 0], width, height).width, width);
        }
    }
}
