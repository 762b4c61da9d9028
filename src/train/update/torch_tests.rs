//! The rules and schedules against torch 2.15: numbers that `python tests/library/optimizers.py`
//! printed, from the same first weights and gradients.

use crate::cluster::resident::{SlotMut, SlotView, Slots};
use crate::config::{Config, Optimizer as Settings, OptimizerKind, Schedule, ScheduleKind, WarmUp};
use crate::model::parts::{self, AVERAGE, PARAMETERS, is_over_parameters};
use crate::model::{Layout, TensorKind, TensorSpec};
use crate::train::compute::gradients::Gradients;
use crate::train::compute::moments::{Moments, Seen};
use crate::train::update::optimizer::Optimizer;
use crate::train::update::schedule::{Length, learning_rate};

const PARAMETERS_LEN: usize = 13;
/// As in the script: updates, and samples that each gradient is summed over.
const STEPS: u64 = 4;
const COUNT: u64 = 4;

fn layout() -> Layout {
    let tensor = |name: &str, offset, len, kind, node| TensorSpec {
        name: name.into(),
        shape: vec![len],
        offset,
        kind,
        node,
    };
    let tensors = vec![
        tensor("conv.weight", 0, 6, TensorKind::Weight, 0),
        tensor("norm.weight", 6, 3, TensorKind::Bias, 1),
        tensor("head.weight", 9, 4, TensorKind::Weight, 2),
    ];
    Layout { tensors, parameters: PARAMETERS_LEN, statistics: 0 }
}

impl Optimizer {
    /// The whole next state at once. `statistics` (of `moments`) are sums over the samples that
    /// were `seen`, as the gradients are. Without any nothing was learned and the state is copied.
    /// False when the gradients hold something that is not a finite number, or the next weights
    /// would; then the state is copied too: such a step learns nothing.
    ///
    /// # Panics
    /// When a slice is not as long as the layout says, or the state has other parts than the rule.
    pub(super) fn apply(
        &self,
        current: &SlotView<'_>,
        next: &mut SlotMut<'_>,
        gradients: &Gradients<'_>,
        seen: Seen,
        learning_rate: f64,
        (statistics, moments): (&[f64], &Moments),
    ) -> bool {
        let nothing = seen.samples == 0;
        let sound = nothing || {
            let scales = self.scales(current.step + 1, learning_rate, seen.samples, gradients);
            let all = 0..current.part(PARAMETERS).len();
            let mut own = next.cut(&all, is_over_parameters);
            self.advance(&scales, all, gradients, current, &mut own)
                && self.follow(current, next, statistics, moments, seen)
        };
        if nothing || !sound {
            next.copy_from(current);
        }
        sound
    }
}

/// A part of the state after the script's steps.
fn part_of(settings: &Settings, part: &str) -> Vec<f32> {
    let config = Config { optimizer: settings.clone(), ..Config::default() };
    let mut slots = Slots::new(parts::shape(&layout(), &config));
    let (_, mut first) = slots.begin();
    let weights = first.part(PARAMETERS).iter_mut().enumerate();
    weights.for_each(|(i, w)| *w = (i as f32 - 5.0) / 8.0);
    if settings.ema_decay.is_some() {
        let [weights, average] = first.lend([PARAMETERS, AVERAGE]);
        average.copy_from_slice(weights);
    }
    slots.commit(0, 0, &[]);
    let optimizer = Optimizer::new(settings, &layout(), &[]);
    for step in 0..STEPS {
        let gradient = |i: u64| ((7 * i + 5 * step) % 13) as f32 - 6.0;
        let gradients = (0..PARAMETERS_LEN as u64).map(|i| gradient(i) / 16.0 * COUNT as f32);
        let gradients: Vec<f32> = gradients.collect();
        let (current, mut next) = slots.begin();
        assert!(optimizer.apply(
            &current,
            &mut next,
            &Gradients::numbers_of_all(&gradients),
            Seen { samples: COUNT, alone: 0 },
            settings.learning_rate,
            (&[], &Moments::default()),
        ));
        slots.commit(step + 1, 0, &[]);
    }
    slots.committed().part(part).to_vec()
}

fn trained(settings: &Settings) -> Vec<f32> {
    part_of(settings, PARAMETERS)
}

/// A few roundings apart: torch orders the same operations otherwise.
const ROUNDINGS: f32 = 1e-6;

fn assert_as_torch(settings: &Settings, torch: [f32; PARAMETERS_LEN]) {
    assert_close(&trained(settings), torch);
}

fn assert_close(ours: &[f32], torch: [f32; PARAMETERS_LEN]) {
    for (i, (ours, theirs)) in ours.iter().zip(torch).enumerate() {
        assert!((ours - theirs).abs() <= ROUNDINGS, "{i}: {ours} {theirs}");
    }
}

fn sgd() -> Settings {
    Settings { learning_rate: 0.1, weight_decay: 0.01, ..Settings::default() }
}

#[test]
fn every_rule_does_what_torch_does() {
    assert_as_torch(&sgd(), SGD);
    assert_as_torch(&Settings { nesterov: true, ..sgd() }, NESTEROV);
    let (betas, epsilon) = (Some([0.8, 0.99]), Some(1e-6));
    assert_as_torch(&Settings { name: OptimizerKind::AdamW, betas, epsilon, ..sgd() }, ADAMW);
    let (name, trust_coefficient) = (OptimizerKind::Lars, Some(0.02));
    assert_as_torch(&Settings { name, trust_coefficient, learning_rate: 0.5, ..sgd() }, LARS);
}

#[test]
fn clipping_and_rules_by_tensor_do_what_torch_does() {
    assert_as_torch(&Settings { clip_norm: Some(0.5), ..sgd() }, CLIPPED);
    assert_as_torch(&Settings { decay_norms_and_biases: true, ..sgd() }, NORMS_DECAYED);
    assert_as_torch(&Settings { body_factor: Some(0.1), ..sgd() }, TWO_RATES);
}

#[test]
fn the_average_of_weights_is_torchs_and_moves_none_of_them() {
    let averaged = Settings { ema_decay: Some(0.75), ..sgd() };
    assert_close(&part_of(&averaged, AVERAGE), AVERAGED);
    assert_eq!(trained(&averaged), trained(&sgd()));
}

#[test]
fn a_norm_that_is_short_enough_changes_no_bit() {
    let bits = |settings: &Settings| -> Vec<u32> {
        trained(settings).iter().map(|weight| weight.to_bits()).collect()
    };
    assert_eq!(bits(&Settings { clip_norm: Some(1e3), ..sgd() }), bits(&sgd()));
    assert_eq!(bits(&Settings { body_factor: Some(1.0), ..sgd() }), bits(&sgd()));
}

#[test]
fn every_schedule_does_what_torch_does() {
    let of = |kind, share, power| {
        let warm_up = WarmUp::Share(share);
        Schedule { kind, warm_up, power, ..Schedule::default() }
    };
    for (schedule, torch) in [
        (of(ScheduleKind::OneCycle, 0.3, None), ONE_CYCLE),
        (of(ScheduleKind::Polynomial, 0.0, Some(2)), POLYNOMIAL),
        (of(ScheduleKind::Cosine, 0.0, None), COSINE),
        (of(ScheduleKind::Step, 0.0, None), MULTI_STEP),
    ] {
        for (step, theirs) in torch.into_iter().enumerate() {
            let length = Length { steps: Some(torch.len() as u64), steps_per_epoch: 1 };
            let ours = learning_rate(&schedule, 0.4, step as u64, length);
            assert!((ours - theirs).abs() < 1e-11, "{schedule:?}: {step}: {ours} {theirs}");
        }
    }
}

const SGD: [f32; PARAMETERS_LEN] = [
    -0.4962902,
    -0.6134148,
    -0.3050188,
    -0.20226464,
    -0.11374747,
    -0.0109932665,
    0.23310623,
    0.1824,
    0.42655,
    0.45279944,
    0.61436033,
    0.64407074,
    0.80563176,
];
const NESTEROV: [f32; PARAMETERS_LEN] = [
    -0.46335974,
    -0.6497838,
    -0.2920736,
    -0.19991498,
    -0.1207874,
    -0.028628789,
    0.2722956,
    0.14541002,
    0.446395,
    0.46831864,
    0.61296535,
    0.6396048,
    0.7842516,
];
const ADAMW: [f32; PARAMETERS_LEN] = [
    -0.40475363,
    -0.77836907,
    -0.21519458,
    -0.24762821,
    -0.03658482,
    -0.068843745,
    0.35563892,
    0.10545109,
    0.5231841,
    0.38212395,
    0.68098384,
    0.56565875,
    0.7503636,
];
const LARS: [f32; PARAMETERS_LEN] = [
    -0.6054367,
    -0.5166927,
    -0.3644568,
    -0.24356432,
    -0.12347692,
    -0.0025844316,
    0.6655312,
    -0.087999985,
    0.63275003,
    0.485517,
    0.624122,
    0.7181483,
    0.8567533,
];
const CLIPPED: [f32; PARAMETERS_LEN] = [
    -0.5463769,
    -0.56541616,
    -0.33212224,
    -0.22077364,
    -0.1178676,
    -0.00651899,
    0.18910687,
    0.20991328,
    0.4055691,
    0.47017148,
    0.6163924,
    0.6844262,
    0.830647,
];
const NORMS_DECAYED: [f32; PARAMETERS_LEN] = [
    -0.4962902,
    -0.6134148,
    -0.3050188,
    -0.20226464,
    -0.11374747,
    -0.0109932665,
    0.23181763,
    0.18027808,
    0.423089,
    0.45279944,
    0.61436033,
    0.64407074,
    0.80563176,
];
const TWO_RATES: [f32; PARAMETERS_LEN] = [
    -0.61209786,
    -0.51135767,
    -0.36797884,
    -0.24522291,
    -0.1238598,
    -0.0011038692,
    0.13581061,
    0.24324,
    0.380155,
    0.45279944,
    0.61436033,
    0.64407074,
    0.80563176,
];
const ONE_CYCLE: [f64; 20] = [
    0.016,
    0.05266873708,
    0.14866873708,
    0.26733126292,
    0.36333126292,
    0.4,
    0.394985602494,
    0.380193852805,
    0.356366471028,
    0.32469826158,
    0.286777200717,
    0.244504808775,
    0.2000008,
    0.155496791225,
    0.113224399283,
    0.0753033384201,
    0.0436351289716,
    0.0198077471946,
    0.00501599750597,
    1.6e-06,
];
const POLYNOMIAL: [f64; 20] = [
    0.4, 0.361, 0.324, 0.289, 0.256, 0.225, 0.196, 0.169, 0.144, 0.121, 0.1, 0.081, 0.064, 0.049,
    0.036, 0.025, 0.016, 0.009, 0.004, 0.001,
];
const COSINE: [f64; 20] = [
    0.4,
    0.397537668119,
    0.390211303259,
    0.378201304838,
    0.361803398875,
    0.341421356237,
    0.317557050458,
    0.290798099948,
    0.261803398875,
    0.231286893008,
    0.2,
    0.168713106992,
    0.138196601125,
    0.109201900052,
    0.0824429495415,
    0.0585786437627,
    0.038196601125,
    0.0217986951623,
    0.00978869674097,
    0.00246233188097,
];
const MULTI_STEP: [f64; 20] = [
    0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.04, 0.04, 0.04, 0.04, 0.04, 0.004, 0.004,
    0.004, 0.004, 0.004,
];
const AVERAGED: [f32; PARAMETERS_LEN] = [
    -0.5604309,
    -0.54935324,
    -0.3352798,
    -0.22887658,
    -0.11012869,
    -0.0037254884,
    0.16936152,
    0.22233048,
    0.39544025,
    0.46688917,
    0.6191324,
    0.6920402,
    0.84428346,
];
