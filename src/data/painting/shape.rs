//! The shapes of the procedural classes as signed distances (negative inside), in units where a
//! shape fills about the unit disc. Twelve have names; further classes are blobs whose outline
//! is a class-specific Fourier series, so that any number of classes can be drawn.

use crate::config::seed::{Stream, purpose};

/// An outline. Distances are exact for polygons and near enough elsewhere to soften an edge.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Shape {
    /// A filled circle.
    Disc,
    /// A thin straight stroke (clutter only).
    Bar,
    /// A circle line.
    Ring,
    /// The moon.
    Crescent,
    /// A closed line of corners.
    Polygon(&'static [[f32; 2]]),
    /// Three parallel strokes.
    Bars,
    /// Amplitudes and phases of the harmonics 2..=6 of its radius.
    Blob([[f32; 2]; 5]),
}

const SQUARE: [[f32; 2]; 4] = [[-0.75, -0.75], [0.75, -0.75], [0.75, 0.75], [-0.75, 0.75]];
const TRIANGLE: [[f32; 2]; 3] = [[0.0, -1.0], [0.9, 0.65], [-0.9, 0.65]];
const CROSS: [[f32; 2]; 12] = [
    [-0.28, -0.95],
    [0.28, -0.95],
    [0.28, -0.28],
    [0.95, -0.28],
    [0.95, 0.28],
    [0.28, 0.28],
    [0.28, 0.95],
    [-0.28, 0.95],
    [-0.28, 0.28],
    [-0.95, 0.28],
    [-0.95, -0.28],
    [-0.28, -0.28],
];
const ARROW: [[f32; 2]; 7] = [
    [0.0, -1.0],
    [0.75, -0.1],
    [0.27, -0.1],
    [0.27, 0.95],
    [-0.27, 0.95],
    [-0.27, -0.1],
    [-0.75, -0.1],
];
const HOURGLASS: [[f32; 2]; 6] =
    [[-0.8, -0.9], [0.8, -0.9], [0.12, 0.0], [0.8, 0.9], [-0.8, 0.9], [-0.12, 0.0]];
const STAR: [[f32; 2]; 10] = [
    [0.0, -1.0],
    [0.247, -0.34],
    [0.951, -0.309],
    [0.4, 0.13],
    [0.588, 0.809],
    [0.0, 0.42],
    [-0.588, 0.809],
    [-0.4, 0.13],
    [-0.951, -0.309],
    [-0.247, -0.34],
];
const HEART: [[f32; 2]; 12] = [
    [0.0, 0.95],
    [-0.55, 0.42],
    [-0.88, 0.0],
    [-0.9, -0.42],
    [-0.62, -0.72],
    [-0.28, -0.7],
    [0.0, -0.38],
    [0.28, -0.7],
    [0.62, -0.72],
    [0.9, -0.42],
    [0.88, 0.0],
    [0.55, 0.42],
];
const CORNER: [[f32; 2]; 6] =
    [[-0.85, -0.9], [-0.25, -0.9], [-0.25, 0.35], [0.85, 0.35], [0.85, 0.9], [-0.85, 0.9]];

const NAMES: [&str; Shape::NAMED as usize] = [
    "ring",
    "square",
    "triangle",
    "star",
    "cross",
    "crescent",
    "heart",
    "arrow",
    "hourglass",
    "bars",
    "disc",
    "corner",
];

/// The name of a class: its folder in an ImageFolder.
pub fn class_name(class: u32) -> String {
    match NAMES.get(class as usize) {
        Some(name) => (*name).to_owned(),
        None => format!("blob-{class:04}"),
    }
}

impl Shape {
    /// Classes that have a shape of their own; later ones are blobs.
    pub const NAMED: u32 = 12;

    /// The shape of a class.
    pub fn of_class(class: u32) -> Shape {
        match class {
            0 => Shape::Ring,
            1 => Shape::Polygon(&SQUARE),
            2 => Shape::Polygon(&TRIANGLE),
            3 => Shape::Polygon(&STAR),
            4 => Shape::Polygon(&CROSS),
            5 => Shape::Crescent,
            6 => Shape::Polygon(&HEART),
            7 => Shape::Polygon(&ARROW),
            8 => Shape::Polygon(&HOURGLASS),
            9 => Shape::Bars,
            10 => Shape::Disc,
            11 => Shape::Polygon(&CORNER),
            blob => {
                let mut stream = Stream::new(&[purpose::SYNTHETIC, u64::from(blob)]);
                Shape::Blob([0; 5].map(|_: i32| {
                    let amplitude = 0.05 + 0.2 * stream.unit() as f32;
                    [amplitude, std::f32::consts::TAU * stream.unit() as f32]
                }))
            }
        }
    }

    /// Signed distance of `at` from the outline.
    pub fn distance(&self, at: [f32; 2]) -> f32 {
        let [x, y] = at;
        let radius = x.hypot(y);
        match self {
            Shape::Disc => radius - 0.85,
            Shape::Bar => (x.abs() - 1.0).max(y.abs() - 0.12),
            Shape::Ring => (radius - 0.72).abs() - 0.2,
            Shape::Crescent => (radius - 0.95).max(0.75 - (x - 0.45).hypot(y)),
            Shape::Polygon(corners) => polygon(corners, at),
            Shape::Bars => {
                let offset = y - (y / 0.62).round().clamp(-1.0, 1.0) * 0.62;
                (x.abs() - 0.85).max(offset.abs() - 0.18)
            }
            Shape::Blob(harmonics) => {
                let angle = y.atan2(x);
                let series = (2..).zip(harmonics);
                let wave: f32 =
                    series.map(|(k, [a, phase])| a * (k as f32 * angle + phase).cos()).sum();
                (radius - 0.68 * (1.0 + wave)) * 0.8
            }
        }
    }
}

/// Exact signed distance to a polygon (Quilez, "2D distance functions").
fn polygon(corners: &[[f32; 2]], at: [f32; 2]) -> f32 {
    let mut squared = f32::INFINITY;
    let mut inside = false;
    let mut last = corners[corners.len() - 1];
    for &corner in corners {
        let edge = [last[0] - corner[0], last[1] - corner[1]];
        let from = [at[0] - corner[0], at[1] - corner[1]];
        let along =
            (from[0] * edge[0] + from[1] * edge[1]) / (edge[0] * edge[0] + edge[1] * edge[1]);
        let along = along.clamp(0.0, 1.0);
        let off = [from[0] - edge[0] * along, from[1] - edge[1] * along];
        squared = squared.min(off[0] * off[0] + off[1] * off[1]);
        let crosses = (corner[1] > at[1]) != (last[1] > at[1]);
        if crosses && at[0] < edge[0] * from[1] / edge[1] + corner[0] {
            inside = !inside;
        }
        last = corner;
    }
    if inside { -squared.sqrt() } else { squared.sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn polygon_distances_are_exact() {
        let near = |at, distance: f32| {
            let found = polygon(&SQUARE, at);
            assert!((found - distance).abs() < 1e-6, "{at:?}: {found}, not {distance}");
        };
        near([0.0, 0.0], -0.75);
        near([0.5, 0.0], -0.25);
        near([1.75, 0.0], 1.0);
        near([1.75, 1.75], 2f32.sqrt());
    }

    #[test]
    fn every_class_has_its_own_name_and_outline() {
        let outline = |class: u32| -> Vec<bool> {
            let shape = Shape::of_class(class);
            (0..400)
                .map(|i| {
                    shape.distance([(i % 20) as f32 / 10.0 - 1.0, (i / 20) as f32 / 10.0 - 1.0])
                })
                .map(|distance| distance < 0.0)
                .collect()
        };
        for class in 0..40 {
            let inside = outline(class).iter().filter(|&&inside| inside).count();
            assert!((60..320).contains(&inside), "class {class} covers {inside} of 400 cells");
            for other in 0..class {
                assert_ne!(class_name(class), class_name(other));
                let apart =
                    outline(class).iter().zip(outline(other)).filter(|(a, b)| **a != *b).count();
                assert!(apart >= 12, "classes {class} and {other} differ in {apart} cells");
            }
        }
    }
}
