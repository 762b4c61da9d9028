//! What a micro-batch is whatever computes it: what it must be, what it is given and gives, and
//! what an empty one gives.

use super::error::EngineError;
use super::logarithms::log_probabilities;
use super::plan::steps::Classifier;
use super::source::{Flat, WeightSource};
use super::targets::{Outcome, Targets};
use crate::model::spec::elements;
use crate::model::{Graph, Layout, TensorKind, layout};

/// Refuses pictures and labels that do not fit each other or the model.
pub fn check(graph: &Graph, images: &[f32], targets: Targets<'_>) -> Result<(), EngineError> {
    let (Targets { labels, partners, .. }, classes) = (targets, graph.classes);
    same("images", images.len(), labels.len() * elements(graph.input))?;
    let partners = partners.map_or(labels, |(partners, _)| partners);
    same("partners", partners.len(), labels.len())?;
    for labels in [labels, partners] {
        if let Some(sample) = labels.iter().position(|&label| label as usize >= classes) {
            return Err(EngineError::Label { sample, label: labels[sample], classes });
        }
    }
    Ok(())
}

/// Refuses room for statistics that is not the layout's.
pub fn check_statistics(layout: &Layout, statistics: &[f32]) -> Result<(), EngineError> {
    same("statistics", statistics.len(), layout.statistics)
}

fn same(what: &'static str, given: usize, wanted: usize) -> Result<(), EngineError> {
    if given == wanted { Ok(()) } else { Err(EngineError::Length { what, given, wanted }) }
}

/// Zeros: for statistics, and for every tensor that is trained.
pub fn train_nothing(
    layout: &Layout,
    frozen: &[bool],
    statistics: &mut [f32],
    ready: &mut dyn FnMut(usize, &[f32]),
) {
    statistics.fill(0.0);
    for (index, tensor) in layout.tensors.iter().enumerate().rev() {
        let frozen = frozen.get(index).is_some_and(|&frozen| frozen);
        if tensor.kind != TensorKind::Statistic && !frozen {
            ready(tensor.offset, &vec![0.0; tensor.elements()]);
        }
    }
}

/// What is read and written besides a program's own values.
pub struct Batch<'a> {
    /// `[n, c, h, w]`.
    pub images: &'a [f32],
    /// What they are.
    pub targets: Targets<'a>,
    /// Of the streams that masks are drawn from.
    pub dropout_key: [u64; 3],
    /// The state at hand.
    pub weights: &'a dyn WeightSource,
    /// Receives means and variances.
    pub statistics: &'a mut [f32],
    /// Receives gradients, each with where its tensor lies in the layout.
    pub ready: &'a mut dyn FnMut(usize, &[f32]),
    /// What came of it.
    pub outcome: Outcome,
    /// Receives the log-probabilities.
    pub logarithms: Option<&'a mut Vec<f32>>,
}

impl Batch<'_> {
    /// Takes in rows of logits. Of a classifier within the model only its loss counts.
    pub fn answered(&mut self, logits: &[f32], classes: usize, of: Classifier) {
        let logits = &logits[..self.targets.labels.len() * classes];
        let mut logarithms = Vec::with_capacity(logits.len());
        log_probabilities(logits, classes, &mut logarithms);
        let scored = self.targets.score(&logarithms, classes);
        if let Classifier::Auxiliary(weight) = of {
            self.outcome.loss_sum += f64::from(weight) * scored.loss_sum;
            return;
        }
        self.outcome = scored;
        if let Some(into) = self.logarithms.as_mut() {
            into.append(&mut logarithms);
        }
    }
}

/// One that is only looked at.
pub fn inference<'a>(
    images: &'a [f32],
    labels: &'a [u32],
    weights: &'a dyn WeightSource,
    ready: &'a mut dyn FnMut(usize, &[f32]),
    logarithms: Option<&'a mut Vec<f32>>,
) -> Batch<'a> {
    let (outcome, statistics, dropout_key) = (Outcome::default(), &mut [] as &mut [f32], [0; 3]);
    let targets = labels.into();
    Batch { images, targets, dropout_key, weights, statistics, ready, outcome, logarithms }
}

/// Has a micro-batch of zeros computed, of whose results nobody hears, with weights of zeros.
pub fn of_zeros<R>(graph: &Graph, samples: usize, compute: impl FnOnce(Batch<'_>) -> R) -> R {
    let layout = layout::of(graph);
    let images = vec![0.0; samples * elements(graph.input)];
    let labels = vec![0; samples];
    let (parameters, running) = (vec![0.0; layout.parameters], vec![0.0; layout.statistics]);
    let weights = &Flat { parameters: &parameters, statistics: &running };
    let mut statistics = vec![0.0; layout.statistics];
    compute(Batch {
        images: &images,
        targets: (&labels).into(),
        dropout_key: [0; 3],
        weights,
        statistics: &mut statistics,
        ready: &mut |_, _| {},
        outcome: Outcome::default(),
        logarithms: None,
    })
}
