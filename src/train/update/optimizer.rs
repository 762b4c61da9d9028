//! The update, from the committed slot into the other one: which rule moves which elements. Weights
//! are decayed, biases and batch-norm parameters are not (He et al. 2019, "Bag of tricks", section
//! 3.1) unless asked for, frozen tensors are copied, running statistics follow the samples'
//! (`moments`). The rules themselves are in `rules`. The state is written range by range, so that
//! several threads can, while other sums are still on their way.

use std::ops::Range;
use std::sync::OnceLock;

use kintsugi_ffi::stream::{self, Source};

use crate::cluster::resident::{SlotMut, SlotView};
use crate::config::{self, OptimizerKind};
use crate::model::layout::are_below;
use crate::model::parts::{AVERAGE, EXP_AVG, EXP_AVG_SQ, MOMENTUM, PARAMETERS, STATISTICS};
use crate::model::{Layout, TensorKind, TensorSpec};
use crate::train::compute::gradients::Gradients;
use crate::train::compute::moments::{Moments, Seen};
use crate::train::update::rules::{
    self, AdamScalars, AdamW, Average, Lars, Nesterov, Sgd, Squares, Step,
};

/// What happens to a run of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    Trained {
        decay: Decay,
        part: Section,
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
enum Section {
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

/// What one step is scaled by.
#[derive(Debug, Clone)]
pub struct Scales {
    /// Number of the update, the first being 1.
    update: u64,
    learning_rate: f64,
    /// Of the summed gradient, clipping included.
    gradient: f32,
    /// By the number of a tensor whose own norm decides: what its rate is multiplied by, once
    /// somebody needed it. A tensor may be moved in many pieces.
    trust: Vec<OnceLock<f32>>,
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
                part: if head == Some(t.node) { Section::Head } else { Section::Body },
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

    /// Whether a step waits for the norm of the whole gradient.
    pub fn clips(&self) -> bool {
        self.clip_norm.is_some()
    }

    /// Whether a part of a tensor is moved by the norm of all its gradients.
    pub fn takes_norms(&self) -> bool {
        matches!(self.method, Method::Lars { .. })
    }

    /// Of the step that makes number `update` of gradients summed over so many samples. Reads the
    /// gradients where it `clips`.
    pub fn scales(
        &self,
        update: u64,
        learning_rate: f64,
        samples: u64,
        gradients: &Gradients<'_>,
    ) -> Scales {
        let mean = 1.0 / samples as f64;
        let gradient = mean
            * self.clip_norm.map_or(1.0, |clip_norm| {
                // Tensor by tensor of the sum over all ranks, so that it has the same bits on each.
                let trained = self.segments.iter().filter(|(_, rule)| *rule != Rule::Kept);
                let squares = trained.map(|(range, _)| rules::squares(gradients, range.clone()));
                rules::clip_factor(squares.sum::<f64>().sqrt() * mean, clip_norm)
            });
        let trust = self.segments.iter().filter_map(|(_, rule)| match rule {
            Rule::Trained { adapted, .. } => *adapted,
            Rule::Kept => None,
        });
        let trust = vec![OnceLock::new(); trust.max().map_or(0, |last| last + 1)];
        Scales { update, learning_rate, gradient: gradient as f32, trust }
    }

    /// Writes weights, the rule's own parts and the average of weights of `range`, over which
    /// `next` lies. Where a rule asks for a tensor's norm (LARS) `gradients` has all of every
    /// tensor that reaches into the range. False when something is not a finite number, or no
    /// weight (`LARGEST_WEIGHT`): such a step learns nothing, and the state is to be copied
    /// instead.
    ///
    /// # Panics
    /// When gradients are missing, or the state has other parts than the rule.
    pub fn advance(
        &self,
        scales: &Scales,
        range: Range<usize>,
        gradients: &Gradients<'_>,
        current: &SlotView<'_>,
        next: &mut SlotMut<'_>,
    ) -> bool {
        let whole = current.part(PARAMETERS);
        let of = |part: &str| &current.part(part)[range.clone()];
        let sound = match self.method {
            Method::AdamW { betas, epsilon } => {
                let adam = AdamScalars::new(betas, epsilon, scales.update);
                let state = [PARAMETERS, EXP_AVG, EXP_AVG_SQ];
                let rule = |_: &Range<usize>, _, step| AdamW { step, adam };
                self.by(&range, scales, gradients, rule, state.map(of), next.lend(state))
            }
            Method::Sgd { momentum } => {
                let state = [PARAMETERS, MOMENTUM];
                let rule = |_: &Range<usize>, _, step| Sgd { step, momentum };
                self.by(&range, scales, gradients, rule, state.map(of), next.lend(state))
            }
            Method::Nesterov { momentum } => {
                let state = [PARAMETERS, MOMENTUM];
                let rule = |_: &Range<usize>, _, step| Nesterov { step, momentum };
                self.by(&range, scales, gradients, rule, state.map(of), next.lend(state))
            }
            Method::Lars { momentum, trust } => {
                let state = [PARAMETERS, MOMENTUM];
                let rule = |tensor: &Range<usize>, adapted: Option<usize>, mut step: Step| {
                    if let Some(number) = adapted {
                        step.learning_rate *= scales.trust[number].get_or_init(|| {
                            let weights = Squares::of(&whole[tensor.clone()]);
                            let gradients = rules::squares(gradients, tensor.clone());
                            rules::trust_ratio(step, trust, weights, gradients)
                        });
                    }
                    Lars { step, momentum }
                };
                self.by(&range, scales, gradients, rule, state.map(of), next.lend(state))
            }
        };
        if let Some(gain) = self.average_gain {
            let [weights, average] = next.lend([PARAMETERS, AVERAGE]);
            // Of finite numbers, one of the weights' own scale.
            let before = [&current.part(AVERAGE)[range]];
            stream::apply(&Average { gain }, Source::Numbers(weights), before, [average]);
        }
        sound
    }

    /// The next running statistics, from sums of moments over the samples that were `seen`, and
    /// their average. `next` is the whole state. False, and nothing to be kept, when a sum is not a
    /// finite number, or what comes of it.
    pub fn follow(
        &self,
        current: &SlotView<'_>,
        next: &mut SlotMut<'_>,
        statistics: &[f64],
        moments: &Moments,
        seen: Seen,
    ) -> bool {
        assert_eq!(statistics.len(), self.statistics_len, "a sum for every statistic");
        if !statistics.iter().all(|sum| sum.is_finite()) {
            return false;
        }
        let running = next.part(STATISTICS);
        moments.follow(current.part(STATISTICS), statistics, seen, running);
        if !are_below(running, f32::INFINITY) {
            return false;
        }
        if let Some(gain) = self.average_gain {
            let parameters = current.part(PARAMETERS).len();
            let [running, average] = next.lend([STATISTICS, AVERAGE]);
            let before = [&current.part(AVERAGE)[parameters..]];
            let average = &mut average[parameters..];
            stream::apply(&Average { gain }, Source::Numbers(running), before, [average]);
        }
        true
    }

    /// Moves what lies in `range` by the rule that `rule` makes of a segment: its range, its number
    /// where its own norm decides, its scalars. Whether all is finite.
    fn by<const N: usize, R: stream::Rule<N, N>>(
        &self,
        range: &Range<usize>,
        scales: &Scales,
        gradients: &Gradients<'_>,
        rule: impl Fn(&Range<usize>, Option<usize>, Step) -> R,
        state: [&[f32]; N],
        mut written: [&mut [f32]; N],
    ) -> bool {
        let mut sound = true;
        let first = self.segments.partition_point(|(segment, _)| segment.end <= range.start);
        let reached = self.segments[first..].iter().take_while(|(s, _)| s.start < range.end);
        for (segment, what) in reached {
            let part = segment.start.max(range.start)..segment.end.min(range.end);
            let here = |at: &Range<usize>| at.start - range.start..at.end - range.start;
            let Rule::Trained { adapted, .. } = *what else {
                for (written, state) in written.iter_mut().zip(state) {
                    written[here(&part)].copy_from_slice(&state[here(&part)]);
                }
                continue;
            };
            let rule = rule(segment, adapted, self.step(*what, scales));
            let mut covered = 0;
            for (at, source) in gradients.within(part.clone()) {
                let state = state.map(|part| &part[here(&at)]);
                let written = written.each_mut().map(|part| &mut part[here(&at)]);
                sound &= stream::apply(&rule, source, state, written);
                covered += at.len();
            }
            assert_eq!(covered, part.len(), "a gradient for all that is trained");
        }
        sound
    }

    /// A trained segment's scalars.
    fn step(&self, rule: Rule, scales: &Scales) -> Step {
        let (decays, factor) = match rule {
            Rule::Trained { decay, part: Section::Body, .. } => (decay, self.body_factor),
            Rule::Trained { decay, part: Section::Head, .. } => (decay, 1.0),
            Rule::Kept => (Decay::Plain, 0.0),
        };
        Step {
            learning_rate: (scales.learning_rate * factor) as f32,
            weight_decay: if decays == Decay::Decayed { self.weight_decay } else { 0.0 },
            scale: scales.gradient,
        }
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
        let (current, mut next) = slots.begin();
        let gradients = Gradients::numbers_of_all(&gradients);
        let seen = Seen { samples: count, alone: 0 };
        optimizer.apply(
            &current,
            &mut next,
            &gradients,
            seen,
            0.1,
            (&[8.0; 5], &Moments::default()),
        );
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
        let of = |decay| Rule::Trained { decay, part: Section::Body, adapted: None };
        let (decayed, plain) = (of(Decay::Decayed), of(Decay::Plain));
        let parts = vec![(5..9, plain), (0..2, decayed), (2..4, decayed), (9..12, plain)];
        let expected = vec![(0..4, decayed), (4..5, Kept), (5..12, plain), (12..15, Kept)];
        assert_eq!(tile(parts, 15), expected);
    }
}
