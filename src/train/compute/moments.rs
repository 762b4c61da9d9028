//! Batch statistics on their way into the running ones: a micro-batch's mean and variance become
//! moments that add up over pieces, owners and ranks, and their sum becomes what one batch of all
//! samples would have had (the law of total variance: the means lie apart, too).
//!
//! The second moment is taken about the running mean, which all have alike, and in 64 bits: a
//! variance far smaller than the square of how far the mean lies from there would drown in it.

use std::ops::Range;

use crate::engine::{EngineError, WeightSource};
use crate::model::{Graph, LayerKind, Layout, TensorSpec};

/// The norms of a run that learn statistics.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Moments {
    norms: Vec<Norm>,
}

#[derive(Debug, Clone, PartialEq)]
struct Norm {
    mean: TensorSpec,
    variance: Range<usize>,
    /// Values of a channel in one sample.
    area: usize,
    momentum: f32,
}

/// Values must lie below `2^RANGE_BITS` multiples: 2048 of them sum without a wrap.
const RANGE_BITS: u32 = 51;
/// Words of a sum of moments.
pub const WORDS: usize = 3;
/// Fractional bits of each: the first holds values below 2^71, each further one what the one before
/// leaves, to 2^-60. There are few of them, so they may be wide, and need no unit of their own.
const STATISTIC_BITS: [i32; WORDS] = [-20, 20, 60];

/// Over what a step's statistics were summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Seen {
    pub samples: u64,
    /// Those that were computed alone (`Totals::alone`).
    pub alone: u64,
}

/// `count` values: what their mean squared distance from their mean lacks to be the variance that
/// running ones hold, as PyTorch's.
fn bessel(count: usize) -> f64 {
    count as f64 / count.saturating_sub(1).max(1) as f64
}

impl Moments {
    /// Of all norms but those whose statistics are `frozen` (tensors by their number; those beyond
    /// its end are not).
    pub fn of(graph: &Graph, layout: &Layout, frozen: &[bool]) -> Self {
        let find = |node: usize, suffix: &str| {
            let own = |t: &TensorSpec| t.node == node && t.name.ends_with(suffix);
            layout.tensors.iter().position(own)
        };
        let norm = |(index, node): (usize, &crate::model::Node)| {
            let LayerKind::BatchNorm { momentum, .. } = node.kind else { return None };
            let [mean, variance] = ["running_mean", "running_var"].map(|name| find(index, name));
            let (mean, variance) = (mean?, variance?);
            let is_frozen = frozen.get(mean).is_some_and(|&frozen| frozen);
            let area = node.shape[1] * node.shape[2];
            let tensor = |number: usize| &layout.tensors[number];
            let (mean, variance) = (tensor(mean).clone(), tensor(variance).range());
            (!is_frozen).then_some(Norm { mean, variance, area, momentum })
        };
        Self { norms: graph.nodes.iter().enumerate().filter_map(norm).collect() }
    }

    /// Adds to `sums` the moments over so many samples, of which `statistics` has mean and
    /// (biased) variance. `weights`: the state that they were computed with. Of one value a channel
    /// there are none.
    ///
    /// # Errors
    /// As of `WeightSource::read`.
    pub fn add(
        &self,
        statistics: &[f32],
        samples: usize,
        weights: &dyn WeightSource,
        sums: &mut [f64],
    ) -> Result<(), EngineError> {
        for Norm { mean, variance, area, .. } in &self.norms {
            if samples * area <= 1 {
                continue;
            }
            weights.read(mean, &mut |running| {
                for (channel, running) in running.iter().enumerate() {
                    let [first, second] = [mean.offset, variance.start].map(|at| at + channel);
                    let [now, spread] = [first, second].map(|at| f64::from(statistics[at]));
                    let off = now - f64::from(*running);
                    sums[first] += samples as f64 * now;
                    sums[second] += samples as f64 * (spread + off * off);
                }
            })?;
        }
        Ok(())
    }

    /// The next running statistics, from the sums of moments.
    pub fn follow(&self, running: &[f32], sums: &[f64], seen: Seen, next: &mut [f32]) {
        next.copy_from_slice(running);
        for Norm { mean, variance, area, momentum } in &self.norms {
            let samples = match area {
                1 => seen.samples.saturating_sub(seen.alone),
                _ => seen.samples,
            };
            if samples == 0 {
                continue;
            }
            let correction = bessel(samples as usize * area);
            let moved = |running: f32, now: f32| (1.0 - momentum) * running + momentum * now;
            for (mean, variance) in mean.range().zip(variance.clone()) {
                let [now, second] = [mean, variance].map(|at| sums[at] / samples as f64);
                let off = now - f64::from(running[mean]);
                let spread = (second - off * off).max(0.0) * correction;
                next[mean] = moved(running[mean], now as f32);
                next[variance] = moved(running[variance], spread as f32);
            }
        }
    }

    /// Makes the mean and (biased) variance of so many samples what running ones move towards: of
    /// one value a channel, and of norms that learn none, these themselves.
    pub fn towards(&self, statistics: &mut [f32], samples: usize, running: &[f32]) {
        let given = statistics.to_vec();
        statistics.copy_from_slice(running);
        for Norm { mean, variance, area, .. } in &self.norms {
            let count = samples * area;
            if count > 1 {
                statistics[mean.range()].copy_from_slice(&given[mean.range()]);
                for channel in variance.clone() {
                    statistics[channel] = (f64::from(given[channel]) * bessel(count)) as f32;
                }
            }
        }
    }
}

/// 1.5 x 2^52: among its neighbours whole numbers are next to each other.
const WHOLE: f64 = (3_u64 << 51) as f64;

/// The nearest whole number, halves to even, of one below `2^RANGE_BITS`: as a number and as an
/// integer. Others stay as large. Norms have many statistics, and it has no call and no branch.
fn rounded(value: f64) -> (f64, i64) {
    let beside = value + WHOLE;
    (beside - WHOLE, beside.to_bits().wrapping_sub(WHOLE.to_bits()).cast_signed())
}

/// Adds moments to their sums (`sum` holds all first words, then all second ones, and so on). Gives
/// 1 where one does not fit.
pub fn add_up(sum: &mut [i64], moments: &[f64]) -> u64 {
    let most = 2f64.powi(RANGE_BITS as i32);
    let (mut fits, mut rest) = (true, moments.to_vec());
    for (sums, bits) in sum.chunks_exact_mut(moments.len().max(1)).zip(STATISTIC_BITS) {
        let (up, down) = (2f64.powi(bits), 2f64.powi(-bits));
        for (sum, rest) in sums.iter_mut().zip(&mut rest) {
            let (whole, integer) = rounded(*rest * up);
            fits &= whole.abs() < most;
            *sum = sum.wrapping_add(integer);
            *rest -= whole * down;
        }
    }
    u64::from(!fits)
}

/// What sums of moments are as numbers.
pub fn load(sum: &[i64]) -> Vec<f64> {
    let mut moments = vec![0.0; sum.len() / WORDS];
    for (words, bits) in sum.chunks_exact(moments.len().max(1)).zip(STATISTIC_BITS) {
        let unit = 2f64.powi(-bits);
        moments.iter_mut().zip(words).for_each(|(moment, word)| *moment += *word as f64 * unit);
    }
    moments
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::seed::Stream;
    use crate::engine::Flat;
    use crate::model::layout;
    use crate::model::spec::GraphBuilder;

    const CHANNELS: usize = 3;
    const MOMENTUM: f32 = 0.25;

    /// A norm over planes of `side` x `side`, whose input is the image.
    fn model(side: usize) -> (Graph, Layout) {
        let mut builder = GraphBuilder::new("norm", [CHANNELS, side, side], CHANNELS);
        builder.then("bn", LayerKind::BatchNorm { epsilon: 1e-5, momentum: MOMENTUM });
        builder.then("pool", LayerKind::GlobalAvgPool);
        let graph = builder.finish().expect("a valid model");
        let layout = layout::of(&graph);
        (graph, layout)
    }

    /// Mean and biased variance, in f64.
    fn of(values: &[f64]) -> (f64, f64) {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let squares: f64 = values.iter().map(|x| (x - mean).powi(2)).sum();
        (mean, squares / values.len() as f64)
    }

    /// The next statistics from micro-batches of so many samples each, and torch's of all at once.
    fn followed(side: usize, parts: &[usize], running: f32, centre: f64) -> (Vec<f32>, Vec<f64>) {
        let (graph, layout) = model(side);
        let moments = Moments::of(&graph, &layout, &[]);
        let (mut stream, area) = (Stream::new(&[5, side as u64]), side * side);
        let before: Vec<f32> = [running; CHANNELS].into_iter().chain([2.0; CHANNELS]).collect();
        let weights = Flat { parameters: &[], statistics: &before };
        let (mut sums, mut all) = (vec![0.0; 2 * CHANNELS], vec![Vec::new(); CHANNELS]);
        for (number, &samples) in parts.iter().enumerate() {
            let mut own = vec![0.0f32; 2 * CHANNELS];
            for channel in 0..CHANNELS {
                // Owners' means lie apart.
                let shift = centre + number as f64 * 0.7;
                let values: Vec<f64> =
                    (0..samples * area).map(|_| stream.normal() + shift).collect();
                let (mean, variance) = of(&values);
                (own[channel], own[CHANNELS + channel]) = (mean as f32, variance as f32);
                all[channel].extend(values);
            }
            moments.add(&own, samples, &weights, &mut sums).expect("statistics are there");
        }
        let samples = parts.iter().sum::<usize>() as u64;
        let alone = parts.iter().filter(|&&samples| samples == 1).count() as u64;
        let mut next = vec![f32::NAN; 2 * CHANNELS];
        moments.follow(&before, &sums, Seen { samples, alone }, &mut next);
        let momentum = f64::from(MOMENTUM);
        let now: Vec<(f64, f64)> = all.iter().map(|values| of(values)).collect();
        let means =
            now.iter().map(|(mean, _)| (1.0 - momentum) * f64::from(running) + momentum * mean);
        let count = samples as usize * area;
        let spreads = now.iter().map(|(_, variance)| variance * bessel(count));
        let variances = spreads.map(|now| (1.0 - momentum) * 2.0 + momentum * now);
        (next, means.chain(variances).collect())
    }

    #[test]
    fn many_small_owners_give_what_one_batch_of_all_gives() {
        for (side, parts) in [
            (4, &[8][..]),
            (1, &[8]),
            (4, &[2, 2, 2, 2]),
            (1, &[2, 3, 2, 2, 3, 2]),
            (2, &[1, 1, 1, 1, 1, 1, 1, 1]),
        ] {
            // Far from 0, and far from what was running. An owner's own mean is of 32 bits, and so
            // is the distance of owners' means from each other.
            for (running, centre) in [(0.0, 0.0), (0.0, 3.0), (1e3, 1e3), (0.0, 3e3)] {
                let (given, wanted) = followed(side, parts, running, centre);
                for (at, (given, wanted)) in given.iter().zip(&wanted).enumerate() {
                    let off = (f64::from(*given) - wanted).abs();
                    let allowed = 1e-6 * wanted.abs().max(1.0) + 1e-7 * centre;
                    assert!(off <= allowed, "{side} {parts:?} {running} {at}: {given}, {wanted}");
                }
            }
        }
    }

    #[test]
    fn one_value_a_channel_leaves_statistics_alone() {
        let (given, _) = followed(1, &[1, 1, 1], 0.5, 3.0);
        assert_eq!(given, [0.5, 0.5, 0.5, 2.0, 2.0, 2.0]);
        // Beside others it does not count, either.
        let (mixed, _) = followed(1, &[4, 1], 0.5, 3.0);
        let (without, _) = followed(1, &[4], 0.5, 3.0);
        assert_eq!(mixed, without);
        let (graph, layout) = model(1);
        let mut own = [9.0; 2 * CHANNELS];
        Moments::of(&graph, &layout, &[]).towards(&mut own, 1, &[7.0; 2 * CHANNELS]);
        assert_eq!(own, [7.0; 2 * CHANNELS]);
    }

    #[test]
    fn frozen_norms_learn_nothing() {
        let (graph, layout) = model(2);
        let moments = Moments::of(&graph, &layout, &vec![true; layout.tensors.len()]);
        let mut next = [0.0; 2 * CHANNELS];
        let seen = Seen { samples: 8, alone: 0 };
        moments.follow(&[7.0; 2 * CHANNELS], &[99.0; 2 * CHANNELS], seen, &mut next);
        assert_eq!(next, [7.0; 2 * CHANNELS]);
    }

    #[test]
    fn a_single_micro_batch_moves_as_torch_does() {
        let (graph, layout) = model(2);
        let mut own: Vec<f32> = [1.0; CHANNELS].into_iter().chain([3.0; CHANNELS]).collect();
        Moments::of(&graph, &layout, &[]).towards(&mut own, 2, &[7.0; 2 * CHANNELS]);
        assert_eq!(own, [1.0, 1.0, 1.0, 24.0 / 7.0, 24.0 / 7.0, 24.0 / 7.0]);
    }

    #[test]
    fn moments_fit_up_to_two_to_the_seventy_first_and_nothing_else_does() {
        let fits = |moment: f64| add_up(&mut [0; WORDS], &[moment]) == 0;
        assert!([0.0, 1e-30, 3e9, 1e21, -1e21].into_iter().all(fits));
        let beyond = [2f64.powi(71), f64::INFINITY, f64::NAN];
        assert!(!beyond.into_iter().any(fits));
        assert!(load(&[]).is_empty());
    }

    proptest! {
        #[test]
        fn rounding_is_to_the_nearest_with_halves_to_even(
            value in -1e15f64..1e15,
            down in 0i32..60,
        ) {
            for value in [value * 2f64.powi(-down), value.trunc() / 2.0, value.trunc() + 0.5] {
                let whole = value.round_ties_even();
                prop_assert_eq!(rounded(value), (whole, whole as i64));
            }
        }

        #[test]
        fn statistics_have_the_same_bits_for_any_grouping_and_order(
            values in proptest::collection::vec((-1e6f64..1e6, -40i32..40), 2..20),
            cut in 0usize..20,
        ) {
            let values: Vec<f64> = values.iter().map(|(x, d)| x * 2f64.powi(-d)).collect();
            let sum_of = |part: &mut dyn Iterator<Item = &f64>| {
                let mut sum = vec![0; WORDS];
                for value in part {
                    assert_eq!(add_up(&mut sum, &[*value]), 0);
                }
                sum
            };
            let whole = sum_of(&mut values.iter());
            let cut = cut.min(values.len());
            let (left, right) = values.split_at(cut);
            let mut parts = sum_of(&mut right.iter().rev());
            parts.iter_mut().zip(sum_of(&mut left.iter())).for_each(|(a, b)| *a += b);
            prop_assert_eq!(&whole, &parts);
            let read = load(&whole)[0];
            let largest = values.iter().fold(0.0, |most: f64, value| most.max(value.abs()));
            let exact: f64 = values.iter().sum();
            prop_assert!((read - exact).abs() <= largest * 1e-14 + 1e-16, "{read} {exact}");
        }
    }
}
