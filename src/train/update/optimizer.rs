//! The update, from the committed slot into the other one: which rule moves which elements. Weights
//! are decayed, biases and batch-norm parameters are not (He et al. 2019, "Bag of tricks", section
//! 3.1) unless asked for, frozen tensors are copied, running statistics follow the samples'
//! (`moments`). The rules themselves are in `rules`; plain SGD is `stream::sgd`.

use std::ops::Range;

use kintsugi_ffi::stream::{self, SgdStep};

use crate::cluster::resident::{SlotMut, SlotView};
use crate::config::{self, OptimizerKind};
use crate::model::parts::{AVERAGE, EXP_AVG, EXP_AVG_SQ, MOMENTUM, PARAMETERS, STATISTICS};
use crate::model::{Layout, TensorKind, TensorSpec};
use crate::train::compute::gradients::Gradients;
use crate::train::compute::moments::{Moments, Seen};
use crate::train::update::rules::{self, AdamW, Read, Squares, Step};

/// What happens to a run of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    Trained {
        decay: Decay,
        part: Part,
        /// The tensor's number, where its own norm decides its rate.
        adapted: Option<usize>,
    },
    Kept,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decay {
    Decayed,
    Plain,
}

/// Which part of the model: fine-tuning moves them at two rates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    Body,
    /// The last layer that is trained.
    Head,
}

/// How weights are moved.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Method {
    Sgd { momentum: f32 },
    Nesterov { momentum: f32 },
    AdamW { betas: [f64; 2], epsilon: f64 },
    Lars { momentum: f32, trust: f64 },
}

impl Method {
    fn of(settings: &config::Optimizer) -> Self {
        let momentum = settings.momentum as f32;
        match settings.name {
            OptimizerKind::Sgd if settings.nesterov => Self::Nesterov { momentum },
            OptimizerKind::Sgd => Self::Sgd { momentum },
            OptimizerKind::AdamW => {
                Self::AdamW { betas: settings.betas(), epsilon: settings.epsilon() }
            }
            OptimizerKind::Lars => Self::Lars { momentum, trust: settings.trust_coefficient() },
        }
    }
}

/// The update rule of one run. Pure: all state is in the slots.
#[derive(Debug, Clone, PartialEq)]
pub struct Optimizer {
    method: Method,
    weight_decay: f32,
    clip_norm: Option<f64>,
    body_factor: f64,
    /// What the average of the weights gains in a step.
    average_gain: Option<f32>,
    /// Tile the parameter vector; neighbours differ.
    segments: Vec<(Range<usize>, Rule)>,
    statistics_len: usize,
}

/// What a step is scaled by: one over the samples, and its rate.
#[derive(Debug, Clone, Copy)]
struct Scales {
    /// Number of the update, the first being 1.
    update: u64,
    learning_rate: f64,
    /// Of the summed gradient, clipping included.
    gradient: f32,
}

impl Optimizer {
    /// The rule for a layout; `frozen`: tensors, by their number, that stay as they are; those
    /// beyond its end do not. See `freeze`.
    pub fn new(settings: &config::Optimizer, layout: &Layout, frozen: &[bool]) -> Self {
        let is_frozen = |number: usize| frozen.get(number).is_some_and(|&frozen| frozen);
        let elements = |t: &TensorSpec| t.offset..t.offset + t.shape.iter().product::<usize>();
        let numbered = layout.tensors.iter().enumerate();
        let trained = numbered.filter(|(_, t)| t.kind != TensorKind::Statistic);
        let head = trained.filter(|(number, _)| !is_frozen(*number)).map(|(_, t)| t.node).max();
        let rule = |number: usize, t: &TensorSpec| {
            if is_frozen(number) {
                return Rule::Kept;
            }
            let weight = t.kind == TensorKind::Weight;
            let decays = weight || settings.decay_norms_and_biases;
            // LARS leaves vectors alone: their norms say little, and they are not decayed.
            let adapts = weight && settings.name == OptimizerKind::Lars;
            Rule::Trained {
                decay: if decays { Decay::Decayed } else { Decay::Plain },
                part: if head == Some(t.node) { Part::Head } else { Part::Body },
                adapted: adapts.then_some(number),
            }
        };
        let numbered = layout.tensors.iter().enumerate();
        let trained = numbered.filter(|(_, t)| t.kind != TensorKind::Statistic);
        let parts = trained.map(|(number, t)| (elements(t), rule(number, t))).collect();
        Self {
            method: Method::of(settings),
            weight_decay: settings.weight_decay as f32,
            clip_norm: settings.clip_norm,
            body_factor: settings.body_factor.unwrap_or(1.0),
            average_gain: settings.ema_decay.map(|decay| (1.0 - decay) as f32),
            segments: tile(parts, layout.parameters),
            statistics_len: layout.statistics,
        }
    }

    /// Writes the next state. `gradients` and `statistics` (of `moments`) are sums over the samples
    /// that were `seen`. Without any nothing was learned and the state is copied. False when the
    /// gradients hold something that is not a finite number, or the next weights would; then the
    /// state is copied too: such a step learns nothing.
    ///
    /// # Panics
    /// When a slice is not as long as the layout says, or the state has other parts than the rule.
    pub fn apply(
        &self,
        current: SlotView<'_>,
        mut next: SlotMut<'_>,
        gradients: Gradients<'_>,
        seen: Seen,
        learning_rate: f64,
        (statistics, moments): (&[f32], &Moments),
    ) -> bool {
        assert_eq!(statistics.len(), self.statistics_len, "a sum for every statistic");
        let count = seen.samples;
        let Some(summed) = gradients.parameters().filter(|_| count > 0) else {
            next.copy_from(&current);
            return count == 0;
        };
        assert_eq!(summed, current.part(PARAMETERS).len(), "a gradient each");
        let gradient = self.gradient_scale(gradients, count);
        let scales = Scales { update: current.step + 1, learning_rate, gradient };
        let finite = statistics.iter().all(|sum| sum.is_finite());
        let finite = self.move_weights(&current, &mut next, gradients, scales) && finite;
        if !finite {
            next.copy_from(&current);
            return false;
        }
        let running = next.part(STATISTICS);
        moments.follow(current.part(STATISTICS), statistics, seen, running);
        if let Some(gain) = self.average_gain {
            let [weights, running, average] = next.lend([PARAMETERS, STATISTICS, AVERAGE]);
            let (of_weights, of_running) = average.split_at_mut(weights.len());
            let (before, running_before) = current.part(AVERAGE).split_at(weights.len());
            // Of finite numbers, one of the weights' own scale.
            rules::average(gain, weights, before, of_weights);
            rules::average(gain, running, running_before, of_running);
        }
        true
    }

    /// What summed gradients are multiplied by: one over the samples, less where the norm of the
    /// whole mean gradient is too long. The norm is taken of the sum over all ranks, tensor by
    /// tensor, so that it has the same bits on each.
    fn gradient_scale(&self, gradients: Gradients<'_>, count: u64) -> f32 {
        let mean = 1.0 / count as f64;
        let Some(clip_norm) = self.clip_norm else { return mean as f32 };
        let trained = self.segments.iter().filter(|(_, rule)| *rule != Rule::Kept);
        let squares = trained.map(|(range, _)| rules::squares(gradients, range));
        let norm = squares.sum::<f64>().sqrt() * mean;
        (mean * rules::clip_factor(norm, clip_norm)) as f32
    }

    /// Weights and the rule's own parts. False when something is not a finite number.
    fn move_weights(
        &self,
        current: &SlotView<'_>,
        next: &mut SlotMut<'_>,
        gradients: Gradients<'_>,
        scales: Scales,
    ) -> bool {
        let w = current.part(PARAMETERS);
        match self.method {
            Method::AdamW { betas, epsilon } => {
                let scalars = AdamW::new(betas, epsilon, scales.update);
                let (m, q) = (current.part(EXP_AVG), current.part(EXP_AVG_SQ));
                let [w_out, m_out, q_out] = next.lend([PARAMETERS, EXP_AVG, EXP_AVG_SQ]);
                self.over_segments(scales, |range, _, step| {
                    let at = range.clone();
                    let Some(step) = step else {
                        w_out[at.clone()].copy_from_slice(&w[at.clone()]);
                        m_out[at.clone()].copy_from_slice(&m[at.clone()]);
                        q_out[at.clone()].copy_from_slice(&q[at]);
                        return true;
                    };
                    let mut sound = true;
                    gradients.numbers(at, |at, g| {
                        let read = Read { w: &w[at.clone()], g };
                        let moments = [&m[at.clone()], &q[at.clone()]];
                        let out = [&mut m_out[at.clone()], &mut q_out[at.clone()]];
                        sound &= rules::adamw(step, scalars, read, moments, &mut w_out[at], out);
                    });
                    sound
                })
            }
            Method::Sgd { .. } | Method::Nesterov { .. } | Method::Lars { .. } => {
                let v = current.part(MOMENTUM);
                let [w_out, v_out] = next.lend([PARAMETERS, MOMENTUM]);
                self.over_segments(scales, |range, rule, step| {
                    let at = range.clone();
                    let Some(step) = step else {
                        w_out[at.clone()].copy_from_slice(&w[at.clone()]);
                        v_out[at.clone()].copy_from_slice(&v[at]);
                        return true;
                    };
                    self.with_velocity((at, rule, step), gradients, (w, v), (w_out, v_out))
                })
            }
        }
    }

    /// One run of elements, by a rule that keeps a velocity.
    fn with_velocity(
        &self,
        (range, rule, step): (Range<usize>, Rule, Step),
        gradients: Gradients<'_>,
        (w, v): (&[f32], &[f32]),
        (w_out, v_out): (&mut [f32], &mut [f32]),
    ) -> bool {
        let mut sound = true;
        match self.method {
            Method::Nesterov { momentum } => gradients.numbers(range, |at, g| {
                let read = Read { w: &w[at.clone()], g };
                let out = (&mut w_out[at.clone()], &mut v_out[at.clone()]);
                sound &= rules::nesterov(step, momentum, read, &v[at], out);
            }),
            Method::Lars { momentum, trust } => {
                let local = match rule {
                    Rule::Trained { adapted: Some(_), .. } => {
                        let weights = Squares::of(&w[range.clone()]);
                        rules::trust_ratio(step, trust, weights, rules::squares(gradients, &range))
                    }
                    _ => 1.0,
                };
                gradients.numbers(range, |at, g| {
                    let read = Read { w: &w[at.clone()], g };
                    let out = (&mut w_out[at.clone()], &mut v_out[at.clone()]);
                    sound &= rules::lars(step, (momentum, local), read, &v[at], out);
                });
            }
            Method::Sgd { momentum } => {
                let Step { learning_rate, weight_decay, scale } = step;
                let step = SgdStep { learning_rate, momentum, weight_decay, scale };
                gradients.pieces(range, |at, g| {
                    let (w, v) = (&w[at.clone()], &v[at.clone()]);
                    sound &= stream::sgd(step, w, v, g, &mut w_out[at.clone()], &mut v_out[at]);
                });
            }
            Method::AdamW { .. } => unreachable!("AdamW keeps no velocity"),
        }
        sound
    }

    /// Every segment with its scalars; none for what stays. Whether all were finite.
    fn over_segments(
        &self,
        scales: Scales,
        mut each: impl FnMut(&Range<usize>, Rule, Option<Step>) -> bool,
    ) -> bool {
        let mut finite = true;
        for (range, rule) in &self.segments {
            let step = match *rule {
                Rule::Kept => None,
                Rule::Trained { decay, part, .. } => Some(Step {
                    learning_rate: match part {
                        Part::Body => (scales.learning_rate * self.body_factor) as f32,
                        Part::Head => scales.learning_rate as f32,
                    },
                    weight_decay: if decay == Decay::Decayed { self.weight_decay } else { 0.0 },
                    scale: scales.gradient,
                }),
            };
            finite &= each(range, *rule, step);
        }
        finite
    }
}

/// Sorts, joins neighbours of one rule, and fills what no tensor covers with `Kept`.
fn tile(mut parts: Vec<(Range<usize>, Rule)>, len: usize) -> Vec<(Range<usize>, Rule)> {
    parts.sort_by_key(|(range, _)| range.start);
    let mut tiles: Vec<(Range<usize>, Rule)> = Vec::new();
    let mut push = |range: Range<usize>, rule: Rule| match tiles.last_mut() {
        _ if range.is_empty() => {}
        Some((last, same)) if *same == rule && last.end == range.start => last.end = range.end,
        _ => tiles.push((range, rule)),
    };
    let mut covered = 0;
    for (range, rule) in parts {
        assert!(range.start >= covered && range.end <= len, "tensors lie apart, within the vector");
        push(covered..range.start, Rule::Kept);
        covered = range.end;
        push(range, rule);
    }
    push(covered..len, Rule::Kept);
    tiles
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::resident::Slots;
    use crate::model::parts;
    use crate::train::update::freeze::frozen;

    fn layout() -> Layout {
        use TensorKind::{Bias, Statistic, Weight};
        let tensor = |(node, name, offset, length, kind): (usize, &str, _, _, _)| TensorSpec {
            name: name.into(),
            shape: vec![length],
            offset,
            kind,
            node,
        };
        let tensors = [
            (0, "conv.weight", 0, 20, Weight),
            (1, "bn.weight", 20, 3, Bias),
            (1, "bn.running_mean", 0, 3, Statistic),
            (2, "fc.weight", 23, 10, Weight),
            (3, "head.running_var", 3, 2, Statistic),
        ];
        let tensors = tensors.map(tensor).to_vec();
        Layout { tensors, parameters: 33, statistics: 5 }
    }

    fn settings() -> config::Optimizer {
        config::Optimizer { weight_decay: 0.01, ..config::Optimizer::default() }
    }

    fn started() -> Slots {
        let mut slots = Slots::new(parts::shape(&layout(), &config::Config::default()));
        let (_, mut first) = slots.begin();
        for (i, w) in first.part(PARAMETERS).iter_mut().enumerate() {
            *w = i as f32 * 0.1 - 1.0;
        }
        first.part(MOMENTUM).fill(0.5);
        first.part(STATISTICS).fill(2.0);
        slots.commit(0, 0, &[]);
        slots
    }

    fn stepped(freeze: &[&str], count: u64) -> Slots {
        let mut slots = started();
        let freeze: Vec<String> = freeze.iter().map(|name| (*name).to_string()).collect();
        let frozen = frozen(&layout(), &freeze);
        let optimizer = Optimizer::new(&settings(), &layout(), &frozen);
        let gradients: Vec<f32> = (0..33).map(|i| (i as f32).sin() * 4.0).collect();
        let (current, next) = slots.begin();
        let gradients = Gradients::Plain(&gradients);
        let seen = Seen { samples: count, alone: 0 };
        optimizer.apply(current, next, gradients, seen, 0.1, (&[8.0; 5], &Moments::default()));
        slots.commit(1, 0, &[]);
        slots
    }

    #[test]
    fn only_weights_are_decayed() {
        let slots = stepped(&[], 4);
        for (i, (&w, &v)) in started()
            .committed()
            .part(PARAMETERS)
            .iter()
            .zip(slots.committed().part(MOMENTUM))
            .enumerate()
        {
            let decay = if (20..23).contains(&i) { 0.0 } else { 0.01 };
            let gradient = (i as f32).sin() * 4.0;
            assert_eq!(v, 0.9 * 0.5 + (0.25 * gradient + decay * w), "{i}");
            assert_eq!(slots.committed().part(PARAMETERS)[i], w - 0.1 * v, "{i}");
        }
    }

    #[test]
    fn frozen_tensors_stay() {
        let (before, after) = (started(), stepped(&["bn", "fc."], 2));
        let (before, after) = (before.committed(), after.committed());
        assert_eq!(after.part(PARAMETERS)[20..], before.part(PARAMETERS)[20..]);
        assert_eq!(after.part(MOMENTUM)[20..], before.part(MOMENTUM)[20..]);
        assert_ne!(after.part(PARAMETERS)[..20], before.part(PARAMETERS)[..20]);
    }

    #[test]
    fn a_step_of_no_samples_changes_nothing() {
        let (before, after) = (started(), stepped(&[], 0));
        assert_eq!(after.committed().part(PARAMETERS), before.committed().part(PARAMETERS));
        assert_eq!(after.committed().part(STATISTICS), before.committed().part(STATISTICS));
    }

    #[test]
    fn segments_tile_the_vector_and_neighbours_differ() {
        use Rule::Kept;
        let of = |decay| Rule::Trained { decay, part: Part::Body, adapted: None };
        let (decayed, plain) = (of(Decay::Decayed), of(Decay::Plain));
        let parts = vec![(5..9, plain), (0..2, decayed), (2..4, decayed), (9..12, plain)];
        let expected = vec![(0..4, decayed), (4..5, Kept), (5..12, plain), (12..15, Kept)];
        assert_eq!(tile(parts, 15), expected);
    }
}
