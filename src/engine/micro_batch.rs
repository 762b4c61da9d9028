//! What a micro-batch must be whatever computes it, and what an empty one gives.

use super::error::EngineError;
use super::targets::Targets;
use crate::model::spec::elements;
use crate::model::{Graph, Layout, TensorKind};

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
    (layout, frozen): (&Layout, &[bool]),
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
