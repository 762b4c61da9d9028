//! The toy's model, order and state: a vector, whole numbers, and what a rank ships.

use kintsugi::config::seed::{Stream, key, mix64};

use super::{Line, OWNERS, SAMPLES_PER_OWNER, WIDTH};

/// What the order says a step's ledger line is.
pub fn expected_line(step: u64) -> Line {
    let mix = samples_of_step(step).fold(0u64, |sum, id| sum.wrapping_add(mix64(id)));
    Line { step, count: u64::from(OWNERS) * SAMPLES_PER_OWNER, mix }
}

fn samples_of_step(step: u64) -> std::ops::Range<u64> {
    let batch = u64::from(OWNERS) * SAMPLES_PER_OWNER;
    (step - 1) * batch..step * batch
}

/// What a run knows: everything that a rank ships.
#[derive(Debug, Clone, PartialEq)]
pub struct State {
    pub step: u64,
    pub weights: Vec<f32>,
    pub momentum: Vec<f32>,
    pub ledger: Vec<Line>,
}

impl State {
    pub fn initial() -> Self {
        let mut stream = Stream::new(&[1, 1]);
        let weights = (0..WIDTH).map(|_| stream.unit() as f32 - 0.5).collect();
        Self { step: 0, weights, momentum: vec![0.0; WIDTH], ledger: Vec::new() }
    }

    pub fn words(&self) -> Vec<u64> {
        let floats = self.weights.iter().chain(&self.momentum);
        let lines = self.ledger.iter().flat_map(|line| [line.step, line.count, line.mix]);
        [self.step].into_iter().chain(floats.map(|f| u64::from(f.to_bits()))).chain(lines).collect()
    }

    pub fn from_words(words: &[u64]) -> Self {
        let floats = |from: usize| words[from..from + WIDTH].iter().map(|&w| float(w)).collect();
        let lines = words[1 + 2 * WIDTH..].chunks_exact(3);
        Self {
            step: words[0],
            weights: floats(1),
            momentum: floats(1 + WIDTH),
            ledger: lines.map(|l| Line { step: l[0], count: l[1], mix: l[2] }).collect(),
        }
    }

    pub fn digest(&self) -> u64 {
        key(&self.words())
    }

    pub fn apply(&mut self, gradient: &[f32], line: Line) {
        for ((weight, momentum), gradient) in
            self.weights.iter_mut().zip(&mut self.momentum).zip(gradient)
        {
            *momentum = 0.9 * *momentum + gradient / line.count as f32;
            *weight -= 0.1 * *momentum;
        }
        self.step = line.step;
        self.ledger.push(line);
    }
}

fn float(bits: u64) -> f32 {
    f32::from_bits(u32::try_from(bits).expect("32 bits were put in"))
}

/// What one owner's micro-batch gives: the unit of compute, the same whoever computes it.
#[derive(Debug, Clone)]
pub struct Part {
    pub gradient: Vec<f32>,
    pub count: u64,
    pub mix: u64,
}

pub fn compute(weights: &[f32], step: u64, owner: u32) -> Part {
    let mut part = Part { gradient: vec![0.0; WIDTH], count: 0, mix: 0 };
    let mine = |id: &u64| id % u64::from(OWNERS) == u64::from(owner);
    for id in samples_of_step(step).filter(mine) {
        let mut target = Stream::new(&[2, id]);
        for (sum, weight) in part.gradient.iter_mut().zip(weights) {
            *sum += (weight - target.unit() as f32) * (0.3 + weight * weight);
        }
        part.count += 1;
        part.mix = part.mix.wrapping_add(mix64(id));
    }
    part
}
