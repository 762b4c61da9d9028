//! Writes baseline JPEGs of every form that is decoded in parts: for `bench loader` and for tests,
//! which need chroma of half the size and restart markers. Plain and slow.

use std::f32::consts::{FRAC_1_SQRT_2, PI};

use super::bits::NATURAL;
use super::standard::{CONSTANT, Codes, STEPS, VARYING};
use crate::data::Image;

/// How a picture is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Form {
    /// 1 to 100, as libjpeg scales the standard's steps.
    pub quality: u32,
    /// How many times luma is wider and higher than chroma: 1 or 2 each.
    pub chroma: [u32; 2],
    /// Units between restart markers; 0 = none.
    pub restart: u16,
}

/// One plane of levels, whose edges go on for ever.
struct Levels {
    width: usize,
    height: usize,
    levels: Vec<f32>,
}

impl Levels {
    fn at(&self, x: usize, y: usize) -> f32 {
        self.levels[y.min(self.height - 1) * self.width + x.min(self.width - 1)]
    }

    /// Means of `across x down` levels.
    fn smaller(&self, [across, down]: [usize; 2]) -> Self {
        let (width, height) = (self.width.div_ceil(across), self.height.div_ceil(down));
        let mean = |i: usize| {
            let (x, y) = (i % width * across, i / width * down);
            let all = (0..down).flat_map(|dy| (0..across).map(move |dx| (dx, dy)));
            all.map(|(dx, dy)| self.at(x + dx, y + dy)).sum::<f32>() / (across * down) as f32
        };
        Self { width, height, levels: (0..width * height).map(mean).collect() }
    }
}

/// The picture (1 or 3 channels, at least one pixel) as a file.
pub fn encode(image: &Image, form: Form) -> Vec<u8> {
    let times = if image.channels == 1 { [1, 1] } else { form.chroma };
    let planes = planes(image, times.map(|times| times as usize));
    let steps = STEPS.map(|steps| scaled(steps, form.quality));
    let mut out = header(image, &steps[..planes.len().min(2)], times, form.restart);
    let unit = times.map(|times| 8 * times as usize);
    let across = (image.width as usize).div_ceil(unit[0]);
    let down = (image.height as usize).div_ceil(unit[1]);
    let mut bits = Bits { out: &mut out, buffer: 0, held: 0 };
    let mut constants = [0; 3];
    for index in 0..across * down {
        if form.restart > 0 && index > 0 && index.is_multiple_of(usize::from(form.restart)) {
            bits.finish();
            let number = index / usize::from(form.restart) - 1;
            bits.out.extend([0xFF, 0xD0 + (number % 8) as u8]);
            constants = [0; 3];
        }
        let (x, y) = (index % across, index / across);
        for (plane, levels) in planes.iter().enumerate() {
            let kind = plane.min(1);
            let [wide, high] = if plane == 0 { times.map(|t| t as usize) } else { [1, 1] };
            for block in 0..wide * high {
                let (bx, by) = (x * wide + block % wide, y * high + block / wide);
                let values = transformed(levels, 8 * bx, 8 * by, &steps[kind]);
                bits.block(&values, kind, &mut constants[plane]);
            }
        }
    }
    bits.finish();
    out.extend([0xFF, 0xD9]);
    out
}

/// Grey, or luma and chroma (JFIF).
fn planes(image: &Image, times: [usize; 2]) -> Vec<Levels> {
    let (width, height) = (image.width as usize, image.height as usize);
    let of = |weights: [f32; 3], middle: f32| {
        let pixels = image.pixels.chunks_exact(image.channels as usize);
        let level = |pixel: &[u8]| {
            let sum = pixel.iter().zip(weights).map(|(&level, weight)| f32::from(level) * weight);
            sum.sum::<f32>() + middle
        };
        Levels { width, height, levels: pixels.map(level).collect() }
    };
    if image.channels == 1 {
        return vec![of([1.0, 0.0, 0.0], -128.0)];
    }
    vec![
        of([0.299, 0.587, 0.114], -128.0),
        of([-0.168_736, -0.331_264, 0.5], 0.0).smaller(times),
        of([0.5, -0.418_688, -0.081_312], 0.0).smaller(times),
    ]
}

fn scaled(steps: [u16; 64], quality: u32) -> [u16; 64] {
    let percent = if quality < 50 { 5000 / quality.max(1) } else { 200 - 2 * quality.min(100) };
    steps.map(|step| ((u32::from(step) * percent + 50) / 100).clamp(1, 255) as u16)
}

fn segment(out: &mut Vec<u8>, marker: u8, body: &[u8]) {
    out.extend([0xFF, marker]);
    out.extend((body.len() as u16 + 2).to_be_bytes());
    out.extend(body);
}

fn header(image: &Image, steps: &[[u16; 64]], times: [u32; 2], restart: u16) -> Vec<u8> {
    let mut out = vec![0xFF, 0xD8];
    for (index, steps) in steps.iter().enumerate() {
        let values = NATURAL[..64].iter().map(|&at| steps[usize::from(at)] as u8);
        segment(&mut out, 0xDB, &std::iter::once(index as u8).chain(values).collect::<Vec<_>>());
    }
    let planes = if image.channels == 1 { 1 } else { 3 };
    let mut frame = vec![8];
    frame.extend((image.height as u16).to_be_bytes());
    frame.extend((image.width as u16).to_be_bytes());
    frame.push(planes);
    let mut scan = vec![planes];
    for plane in 0..planes {
        let blocks = if plane == 0 { (times[0] << 4 | times[1]) as u8 } else { 0x11 };
        let kind = plane.min(1);
        frame.extend([plane + 1, blocks, kind]);
        scan.extend([plane + 1, kind << 4 | kind]);
    }
    scan.extend([0, 63, 0]);
    segment(&mut out, 0xC0, &frame);
    for (kind, (constant, varying)) in CONSTANT.iter().zip(&VARYING).enumerate() {
        for (class, codes) in [constant, varying].into_iter().enumerate() {
            let name = (class << 4 | kind) as u8;
            let body = [&[name], &codes.counts[..], codes.symbols].concat();
            segment(&mut out, 0xC4, &body);
        }
    }
    if restart > 0 {
        segment(&mut out, 0xDD, &restart.to_be_bytes());
    }
    segment(&mut out, 0xDA, &scan);
    out
}

/// The quantised cosine transform of a block, in natural order.
fn transformed(levels: &Levels, x: usize, y: usize, steps: &[u16; 64]) -> [i32; 64] {
    let wave = |at: usize, frequency: usize| {
        let scale = if frequency == 0 { FRAC_1_SQRT_2 / 2.0 } else { 0.5 };
        scale * ((2 * at + 1) as f32 * frequency as f32 * PI / 16.0).cos()
    };
    let waves: [[f32; 8]; 8] = std::array::from_fn(|f| std::array::from_fn(|at| wave(at, f)));
    let along = |row: [f32; 8]| waves.map(|wave| wave.iter().zip(row).map(|(a, b)| a * b).sum());
    let rows: [[f32; 8]; 8] =
        std::array::from_fn(|dy| along(std::array::from_fn(|dx| levels.at(x + dx, y + dy))));
    let columns: [[f32; 8]; 8] = std::array::from_fn(|u| along(rows.map(|row| row[u])));
    std::array::from_fn(|at| {
        let value: f32 = columns[at % 8][at / 8];
        (value / f32::from(steps[at])).round() as i32
    })
}

/// Bits with the most significant first; a byte of ones is followed by one of zeros.
struct Bits<'a> {
    out: &'a mut Vec<u8>,
    buffer: u64,
    held: u32,
}

impl Bits<'_> {
    fn put(&mut self, bits: u32, count: u32) {
        self.buffer = self.buffer << count | u64::from(bits);
        self.held += count;
        while self.held >= 8 {
            self.held -= 8;
            let byte = (self.buffer >> self.held) as u8;
            self.out.push(byte);
            if byte == 0xFF {
                self.out.push(0);
            }
        }
    }

    /// Fills the last byte with ones.
    fn finish(&mut self) {
        let free = (8 - self.held) % 8;
        self.put((1 << free) - 1, free);
        self.buffer = 0;
    }

    fn code(&mut self, codes: &Codes, symbol: u8) {
        let (mut code, mut index) = (0, 0);
        for (count, length) in codes.counts.iter().zip(1..) {
            for _ in 0..*count {
                if codes.symbols[index] == symbol {
                    return self.put(code, length);
                }
                (code, index) = (code + 1, index + 1);
            }
            code <<= 1;
        }
    }

    /// A symbol (zeros before the value, its size) and the value.
    fn value(&mut self, codes: &Codes, zeros: u8, value: i32) {
        let size = 32 - value.unsigned_abs().leading_zeros();
        self.code(codes, zeros << 4 | size as u8);
        let bits = if value < 0 { value + (1 << size) - 1 } else { value };
        self.put(bits as u32, size);
    }

    fn block(&mut self, values: &[i32; 64], kind: usize, constant: &mut i32) {
        self.value(&CONSTANT[kind], 0, values[0] - *constant);
        *constant = values[0];
        let mut zeros = 0;
        for &at in &NATURAL[1..64] {
            let value = values[usize::from(at)];
            if value == 0 {
                zeros += 1;
                continue;
            }
            while zeros > 15 {
                self.code(&VARYING[kind], 0xF0);
                zeros -= 16;
            }
            self.value(&VARYING[kind], zeros, value);
            zeros = 0;
        }
        if zeros > 0 {
            self.code(&VARYING[kind], 0);
        }
    }
}
