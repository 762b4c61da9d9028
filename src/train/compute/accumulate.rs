//! Accumulation: a micro-batch is computed in pieces, one after another, whose gradients are added.
//! Activations take the memory of one piece; batch norm sees one piece at a time.

use std::ops::Range;

use crate::config::seed;
use crate::engine::{Compute, EngineError, Outcome, Targets, WeightSource};
use crate::train::compute::moments::Moments;

/// What is computed: pictures, what they are, and the key that dropout is drawn from.
#[derive(Debug, Clone, Copy)]
pub struct MicroBatch<'a> {
    /// `[n, c, h, w]`.
    pub images: &'a [f32],
    /// Of n samples.
    pub targets: Targets<'a>,
    /// Seed, step, owner.
    pub key: [u64; 3],
}

/// Sums of earlier pieces, in the memory of the one before.
#[derive(Debug)]
pub struct Accumulator {
    moments: Moments,
    /// As long as the parameters.
    gradients: Vec<f32>,
    /// A piece's means and variances.
    statistics: Vec<f32>,
}

/// The samples of each piece: nearly equal ranges that tile `samples`, none empty but where there
/// is no sample at all.
pub fn pieces(samples: usize, pieces: usize) -> Vec<Range<usize>> {
    let pieces = pieces.clamp(1, samples.max(1));
    (0..pieces).map(|i| i * samples / pieces..(i + 1) * samples / pieces).collect()
}

/// Samples that have a piece of their own.
pub fn alone(samples: usize, number: usize) -> u64 {
    pieces(samples, number).iter().filter(|piece| piece.len() == 1).count() as u64
}

/// Dropout draws anew for each piece; of one piece the key is the micro-batch's own.
fn key_of([seed, step, owner]: [u64; 3], piece: usize) -> [u64; 3] {
    match piece {
        0 => [seed, step, owner],
        _ => [seed::key(&[seed, piece as u64]), step, owner],
    }
}

impl Accumulator {
    /// For a model whose norms are these.
    pub fn new(moments: Moments) -> Self {
        Self { moments, gradients: Vec::new(), statistics: Vec::new() }
    }

    /// `Compute::train` in so many pieces: `ready` is called in the last one, with the sums over
    /// all, added in the order of the pieces. `moments` receives the sums over samples of the
    /// pieces' moments.
    pub fn train(
        &mut self,
        engine: &mut (impl Compute + ?Sized),
        samples: MicroBatch<'_>,
        number: usize,
        weights: &dyn WeightSource,
        moments: &mut [f64],
        ready: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<Outcome, EngineError> {
        let MicroBatch { images, targets, key } = samples;
        let count = targets.labels.len();
        let ranges = pieces(count, number);
        let Self { moments: norms, gradients: kept, statistics } = self;
        statistics.resize(moments.len(), 0.0);
        moments.fill(0.0);
        if ranges.len() == 1 {
            let outcome = engine.train(images, targets, key, weights, statistics, ready)?;
            norms.add(statistics, count, weights, moments)?;
            return Ok(outcome);
        }
        let each = images.len() / count;
        let last = ranges.len() - 1;
        let mut total = Outcome::default();
        for (piece, range) in ranges.into_iter().enumerate() {
            let part = &images[range.start * each..range.end * each];
            let mut add = |offset: usize, gradients: &[f32]| {
                let end = offset + gradients.len();
                kept.resize(kept.len().max(end), 0.0);
                let sums = &mut kept[offset..end];
                match piece {
                    0 => sums.copy_from_slice(gradients),
                    _ => sums.iter_mut().zip(gradients).for_each(|(sum, g)| *sum += g),
                }
                if piece == last {
                    ready(offset, sums);
                }
            };
            let targets = targets.part(range);
            let outcome =
                engine.train(part, targets, key_of(key, piece), weights, statistics, &mut add)?;
            norms.add(statistics, targets.labels.len(), weights, moments)?;
            total.loss_sum += outcome.loss_sum;
            total.errors += outcome.errors;
            total.samples += outcome.samples;
        }
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Device;
    use crate::engine::{self, Flat};
    use crate::model::{catalogue, init, layout};

    #[test]
    fn pieces_tile_the_samples_and_none_is_empty() {
        assert_eq!(pieces(7, 3), [0..2, 2..4, 4..7]);
        assert_eq!(pieces(2, 5), [0..1, 1..2]);
        assert_eq!((pieces(0, 4).len(), pieces(0, 4)[0].clone()), (1, 0..0));
        assert_eq!((pieces(9, 1).len(), pieces(9, 1)[0].clone()), (1, 0..9));
    }

    /// A model without batch norm and dropout, so that pieces know nothing of each other: outcome
    /// and gradients of a micro-batch of 6, in so many pieces.
    fn trained(number: usize) -> (Outcome, Vec<f32>) {
        let graph = catalogue::build("mlp", [3, 8, 8], 10, 0.1).expect("in the catalogue");
        let layout = layout::of(&graph);
        let mut engine = engine::open(&Device::default(), &graph, 1).expect("there is a processor");
        let parameters = init::parameters(&graph, &layout, 1);
        let weights = Flat { parameters: &parameters, statistics: &[] };
        let images: Vec<f32> =
            (0..6 * 192).map(|i| ((i * 37 % 101) as f32 - 50.0) / 40.0).collect();
        // Smoothed and mixed, so that pieces of both lists are taken.
        let targets = Targets {
            labels: &[0, 3, 9, 3, 1, 7],
            partners: Some((&[7, 0, 3, 9, 3, 1], 0.75)),
            smoothing: 0.1,
        };
        let samples = MicroBatch { images: &images, targets, key: [1, 2, 3] };
        let mut gradients = vec![0.0; layout.parameters];
        let mut calls = 0;
        let mut ready = |offset: usize, values: &[f32]| {
            calls += 1;
            gradients[offset..offset + values.len()].copy_from_slice(values);
        };
        let mut accumulator = Accumulator::new(Moments::of(&graph, &layout, &[]));
        let outcome = accumulator
            .train(&mut *engine, samples, number, &weights, &mut [], &mut ready)
            .expect("it trains");
        assert_eq!(calls, layout.tensors.len(), "each tensor once");
        (outcome, gradients)
    }

    #[test]
    fn pieces_add_up_to_the_micro_batch() {
        let (whole, gradients) = trained(1);
        let largest = gradients.iter().fold(0.0f32, |most, g| most.max(g.abs()));
        assert!(largest > 0.0);
        for number in [2, 4, 6, 9] {
            let (outcome, pieced) = trained(number);
            assert_eq!((outcome.samples, outcome.errors), (whole.samples, whole.errors));
            assert!((outcome.loss_sum - whole.loss_sum).abs() < 1e-5 * whole.loss_sum);
            for (one, other) in gradients.iter().zip(&pieced) {
                assert!((one - other).abs() <= 1e-5 * largest, "{number}: {one} {other}");
            }
        }
    }
}
