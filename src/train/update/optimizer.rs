//! SGD with momentum from the committed slot into the other one: weights are decayed,
//! biases and batch-norm parameters are not (He et al. 2019, "Bag of tricks", section 3.1), frozen
//! tensors are copied, running statistics follow the samples' mean statistics.

use std::ops::Range;

use kintsugi_ffi::stream::{self, SgdStep};
use thiserror::Error;

use crate::cluster::resident::{SlotMut, SlotView};
use crate::config;
use crate::model::{Graph, LayerKind, Layout, TensorKind, TensorSpec};
use crate::train::state::parts::{MOMENTUM, PARAMETERS, STATISTICS};

/// A setting that cannot be followed.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum OptimizerError {
    /// Only SGD is there.
    #[error("optimizer.name = \"{0}\" is not known; write \"sgd\"")]
    UnknownName(String),
    /// A value outside its range.
    #[error("optimizer.{key} = {value} is out of range; write a number {range}")]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// What was written.
        value: f64,
        /// What may be written.
        range: &'static str,
    },
    /// A prefix without a tensor is a typing error, not a wish.
    #[error("model.freeze names \"{0}\", but no tensor of the model begins so; the first is {1}")]
    NothingToFreeze(String, String),
}

/// What happens to a run of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    Decayed,
    Plain,
    Kept,
}

/// The update rule of one run. Pure: all state is in the slots.
#[derive(Debug, Clone, PartialEq)]
pub struct Optimizer {
    momentum: f32,
    weight_decay: f32,
    /// Tile the parameter vector; neighbours differ.
    segments: Vec<(Range<usize>, Rule)>,
    /// One a statistic tensor, in the layout's order; frozen ones are kept.
    statistics: Vec<(Range<usize>, Rule)>,
    statistics_len: usize,
}

/// What `Optimizer::new` takes for granted: names, ranges, prefixes.
pub fn check(
    settings: &config::Optimizer,
    layout: &Layout,
    freeze: &[String],
) -> Result<(), OptimizerError> {
    if settings.name != "sgd" {
        return Err(OptimizerError::UnknownName(settings.name.clone()));
    }
    let out = |key, value, range| Err(OptimizerError::OutOfRange { key, value, range });
    if !settings.learning_rate.is_finite() || settings.learning_rate < 0.0 {
        return out("learning_rate", settings.learning_rate, "of at least 0");
    }
    if !(0.0..1.0).contains(&settings.momentum) {
        return out("momentum", settings.momentum, "from 0 to below 1");
    }
    if !settings.weight_decay.is_finite() || settings.weight_decay < 0.0 {
        return out("weight_decay", settings.weight_decay, "of at least 0");
    }
    let unused = |prefix: &&String| !layout.tensors.iter().any(|t| t.name.starts_with(*prefix));
    match freeze.iter().find(unused) {
        Some(prefix) => {
            let first = layout.tensors.first().map_or(String::new(), |t| t.name.clone());
            Err(OptimizerError::NothingToFreeze(prefix.clone(), first))
        }
        None => Ok(()),
    }
}

/// The momentum of every running statistic, one a statistic tensor in the layout's order.
pub fn statistics_momentum(graph: &Graph, layout: &Layout) -> Vec<f32> {
    let statistics = layout.tensors.iter().filter(|t| t.kind == TensorKind::Statistic);
    let momentum = |tensor: &TensorSpec| match graph.nodes.get(tensor.node).map(|n| &n.kind) {
        Some(LayerKind::BatchNorm { momentum, .. }) => *momentum,
        // Nothing else has statistics; zero leaves them as they are.
        _ => 0.0,
    };
    statistics.map(momentum).collect()
}

impl Optimizer {
    /// The rule for a layout; `freeze` are name prefixes of tensors that are not trained (their
    /// running statistics stay too). See `check`.
    pub fn new(settings: &config::Optimizer, layout: &Layout, freeze: &[String]) -> Self {
        let frozen = |t: &TensorSpec| freeze.iter().any(|prefix| t.name.starts_with(prefix));
        let elements = |t: &TensorSpec| t.offset..t.offset + t.shape.iter().product::<usize>();
        let rule = |t: &TensorSpec| match t.kind {
            _ if frozen(t) => Rule::Kept,
            TensorKind::Weight => Rule::Decayed,
            TensorKind::Bias | TensorKind::Statistic => Rule::Plain,
        };
        let of_kind = |statistic: bool| {
            let kind = move |t: &&TensorSpec| (t.kind == TensorKind::Statistic) == statistic;
            layout.tensors.iter().filter(kind).map(|t| (elements(t), rule(t))).collect()
        };
        Self {
            momentum: settings.momentum as f32,
            weight_decay: settings.weight_decay as f32,
            segments: tile(of_kind(false), layout.parameters),
            statistics: of_kind(true),
            statistics_len: layout.statistics,
        }
    }

    /// Writes the next state. `gradients` and `batch_statistics_sums` are sums over `count`
    /// samples (statistics: over owners of samples times statistic); `statistics_momentum` has one
    /// number a statistic tensor, in the layout's order. With a count of 0 nothing was learned and
    /// the state is copied. False when the gradients hold something that is not a finite number, or
    /// the next weights would; then the state is copied too: such a step learns nothing.
    ///
    /// # Panics
    /// When a slice is not as long as the layout says.
    #[expect(clippy::too_many_arguments, reason = "one step's inputs, each of its own kind")]
    pub fn apply(
        &self,
        current: SlotView<'_>,
        mut next: SlotMut<'_>,
        gradients: &[f32],
        count: u64,
        learning_rate: f64,
        batch_statistics_sums: &[f32],
        statistics_momentum: &[f32],
    ) -> bool {
        assert_eq!(batch_statistics_sums.len(), self.statistics_len, "a sum for every statistic");
        assert_eq!(statistics_momentum.len(), self.statistics.len(), "one momentum a tensor");
        if count == 0 {
            next.copy_from(&current);
            return true;
        }
        let mut finite = batch_statistics_sums.iter().all(|sum| sum.is_finite());
        let scale = (1.0 / count as f64) as f32;
        let (weights, velocity) = (current.part(PARAMETERS), current.part(MOMENTUM));
        let [next_weights, next_velocity, statistics] =
            next.take([PARAMETERS, MOMENTUM, STATISTICS]);
        assert_eq!(gradients.len(), weights.len(), "a gradient for every parameter");
        assert_eq!(statistics.len(), self.statistics_len, "statistics as in the layout");
        for (range, rule) in &self.segments {
            let range = range.clone();
            let w_out = &mut next_weights[range.clone()];
            let v_out = &mut next_velocity[range.clone()];
            let (w, v) = (&weights[range.clone()], &velocity[range.clone()]);
            if *rule == Rule::Kept {
                w_out.copy_from_slice(w);
                v_out.copy_from_slice(v);
                continue;
            }
            let weight_decay = if *rule == Rule::Decayed { self.weight_decay } else { 0.0 };
            let (learning_rate, momentum) = (learning_rate as f32, self.momentum);
            let step = SgdStep { learning_rate, momentum, weight_decay, scale };
            finite &= stream::sgd(step, w, v, &gradients[range], w_out, v_out);
        }
        statistics.copy_from_slice(current.part(STATISTICS));
        if !finite {
            next_weights.copy_from_slice(weights);
            next_velocity.copy_from_slice(velocity);
            return false;
        }
        for ((range, rule), &momentum) in self.statistics.iter().zip(statistics_momentum) {
            if *rule != Rule::Kept {
                let sums = &batch_statistics_sums[range.clone()];
                for (running, sum) in statistics[range.clone()].iter_mut().zip(sums) {
                    *running = (1.0 - momentum) * *running + momentum * (sum * scale);
                }
            }
        }
        true
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
    use crate::train::state::parts;

    fn tensor(name: &str, offset: usize, len: usize, kind: TensorKind) -> TensorSpec {
        TensorSpec { name: name.into(), shape: vec![len], offset, kind, node: 0 }
    }

    fn layout() -> Layout {
        let tensors = vec![
            tensor("conv.weight", 0, 20, TensorKind::Weight),
            tensor("bn.weight", 20, 3, TensorKind::Bias),
            tensor("bn.running_mean", 0, 3, TensorKind::Statistic),
            tensor("fc.weight", 23, 10, TensorKind::Weight),
            tensor("head.running_var", 3, 2, TensorKind::Statistic),
        ];
        Layout { tensors, parameters: 33, statistics: 5 }
    }

    fn settings() -> config::Optimizer {
        config::Optimizer { weight_decay: 0.01, ..config::Optimizer::default() }
    }

    fn started() -> Slots {
        let mut slots = Slots::new(parts::shape(&layout(), config::ExchangeKind::Synchronous));
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
        let optimizer = Optimizer::new(&settings(), &layout(), &freeze);
        let gradients: Vec<f32> = (0..33).map(|i| (i as f32).sin() * 4.0).collect();
        let (current, next) = slots.begin();
        optimizer.apply(current, next, &gradients, count, 0.1, &[8.0; 5], &[0.1, 0.5]);
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
    fn running_statistics_follow_the_mean_over_samples() {
        let slots = stepped(&[], 4);
        let expected = [2.0, 2.0, 2.0, 2.0, 2.0];
        // (1 - m) * 2 + m * (8 / 4) = 2 for both momenta; another count moves them apart.
        assert_eq!(slots.committed().part(STATISTICS), expected);
        let slots = stepped(&[], 2);
        for (got, expected) in
            slots.committed().part(STATISTICS).iter().zip([2.2, 2.2, 2.2, 3.0, 3.0])
        {
            assert!((got - expected).abs() < 1e-6, "{got} {expected}");
        }
    }

    #[test]
    fn frozen_tensors_and_their_statistics_stay() {
        let (before, after) = (started(), stepped(&["bn", "fc."], 2));
        let (before, after) = (before.committed(), after.committed());
        assert_eq!(after.part(PARAMETERS)[20..], before.part(PARAMETERS)[20..]);
        assert_eq!(after.part(MOMENTUM)[20..], before.part(MOMENTUM)[20..]);
        assert_eq!(after.part(STATISTICS)[..3], before.part(STATISTICS)[..3]);
        assert_ne!(after.part(PARAMETERS)[..20], before.part(PARAMETERS)[..20]);
        assert_ne!(after.part(STATISTICS)[3..], before.part(STATISTICS)[3..]);
    }

    #[test]
    fn a_step_of_no_samples_changes_nothing() {
        let (before, after) = (started(), stepped(&[], 0));
        assert_eq!(after.committed().part(PARAMETERS), before.committed().part(PARAMETERS));
        assert_eq!(after.committed().part(STATISTICS), before.committed().part(STATISTICS));
    }

    #[test]
    fn segments_tile_the_vector_and_neighbours_differ() {
        use Rule::{Decayed, Kept, Plain};
        let parts = vec![(5..9, Plain), (0..2, Decayed), (2..4, Decayed), (9..12, Plain)];
        let expected = vec![(0..4, Decayed), (4..5, Kept), (5..12, Plain), (12..15, Kept)];
        assert_eq!(tile(parts, 15), expected);
    }

    #[test]
    fn bad_settings_are_named() {
        let ok = settings();
        assert_eq!(check(&ok, &layout(), &["fc".into()]), Ok(()));
        let adam = config::Optimizer { name: "adam".into(), ..settings() };
        assert!(check(&adam, &layout(), &[]).unwrap_err().to_string().contains("write \"sgd\""));
        let fast = config::Optimizer { momentum: 1.0, ..settings() };
        assert!(check(&fast, &layout(), &[]).unwrap_err().to_string().contains("momentum = 1"));
        let wrong = check(&ok, &layout(), &["fcc".into()]).unwrap_err().to_string();
        assert!(wrong.contains("\"fcc\"") && wrong.contains("conv.weight"), "{wrong}");
    }
}
