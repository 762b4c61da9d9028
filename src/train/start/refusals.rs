//! What a run is refused for that its configuration alone does not show: it needs the model, the
//! number of samples, the machine.

use kintsugi_ffi::cgroup;

use crate::config::Config;
use crate::model::{Graph, LayerKind, Layout, Node, TensorKind, TensorSpec, layout};
use crate::needs::{Load, needs};

use crate::train::TrainError;
use crate::train::compute::accumulate::pieces;
use crate::train::update::freeze::{check_freeze, frozen, frozen_in};

/// Samples of a norm at the least.
const ENOUGH: u64 = 2;

/// Refuses what would not fit, or not be what its keys ask for.
///
/// # Errors
/// The first reason.
pub(super) fn check(
    config: &Config,
    graph: &Graph,
    samples: u64,
    owners: u32,
) -> Result<(), TrainError> {
    let layout = &layout::of(graph);
    let need = needs(config, graph, Load { ranks: 1, samples, planned: None });
    let refuse = |reason: Option<String>| {
        reason.map_or(Ok(()), |reason| Err(TrainError::Configuration(reason)))
    };
    refuse(cgroup::total_memory_bytes().and_then(|memory| need.refusal(memory)))?;
    refuse(check_freeze(layout, &config.model.freeze).err().map(|error| error.to_string()))?;
    refuse(without_effect(config, layout))?;
    refuse(scaled_beyond(config, samples))?;
    refuse(too_few(config, graph, layout, samples, owners))
}

/// A rate that would be scaled for more samples than a step can have.
fn scaled_beyond(config: &Config, samples: u64) -> Option<String> {
    let (batch, reference) = (config.train.global_batch, config.schedule.reference_batch?);
    (batch > samples).then(|| {
        format!(
            "train.global_batch = {batch}, and the training set has {samples} samples: no step has \
             more, and schedule.reference_batch = {reference} would scale the learning rate for \
             {batch}: write train.global_batch = {samples} at most"
        )
    })
}

/// Keys that can have no effect on this model: as the configuration's own (`config/effect.rs`), but
/// they need its tensors.
fn without_effect(config: &Config, layout: &Layout) -> Option<String> {
    let freeze = &config.model.freeze;
    let tensors = layout.tensors.iter().zip(frozen(layout, freeze));
    let weights = tensors.filter(|(tensor, _)| tensor.kind != TensorKind::Statistic);
    let trained = weights.filter(|(_, frozen)| !frozen).map(|(tensor, _)| tensor);
    let trained: Vec<_> = trained.collect();
    let Some(last) = trained.iter().max_by_key(|tensor| tensor.node) else {
        return Some(format!(
            "model.freeze = {freeze:?} freezes every tensor of the model, and nothing would be \
             trained: leave out what begins the name of its last layer"
        ));
    };
    let factor = config.optimizer.body_factor.filter(|factor| *factor != 1.0)?;
    trained.iter().all(|tensor| tensor.node == last.node).then(|| {
        format!(
            "optimizer.body_factor = {factor} has no effect: it is of all but the last trained \
             layer, and only that of {} is trained: leave it out",
            last.name
        )
    })
}

/// A batch norm that sees one value of each channel learns nothing: the variance is 0, whatever the
/// picture. `None`: they see more. `samples` are the training set's, `owners` the run's. In an
/// epoch's short last step such norms use their running statistics, and leave them alone.
fn too_few(
    config: &Config,
    graph: &Graph,
    layout: &Layout,
    samples: u64,
    owners: u32,
) -> Option<String> {
    let (owners, parts) = (u64::from(owners.max(1)), u64::from(config.train.pieces()));
    let batch = config.train.global_batch.min(samples);
    // The smaller owners' share; where there are fewer samples than owners, who has any has one.
    let share = (batch / owners).max(1);
    let smallest = pieces(share as usize, parts as usize).iter().map(|piece| piece.len()).min()?;
    if smallest as u64 >= ENOUGH {
        return None;
    }
    let frozen = frozen_in(config, layout);
    let learns = |index: usize| {
        let own = |(at, t): (usize, &TensorSpec)| t.node == index && !frozen[at];
        layout.tensors.iter().enumerate().any(own)
    };
    let flat = |(index, node): &(usize, &Node)| {
        let one = node.shape[1] * node.shape[2] == 1;
        one && matches!(node.kind, LayerKind::BatchNorm { .. }) && learns(*index)
    };
    let (_, norm) = graph.nodes.iter().enumerate().find(flat)?;
    let wanted = ENOUGH * owners * parts;
    let pieces = match parts {
        1 => String::new(),
        _ => format!(" in train.accumulate = {parts} pieces"),
    };
    Some(format!(
        "layer `{}`: this batch norm would see one value of each channel, whose variance is 0 \
         whatever the picture, so that it learns nothing: {batch} samples a step over \
         {owners} owners{pieces} are 1 sample at a time. Write train.global_batch = {wanted} or \
         more (the smallest that will do here), fewer train.owners{}, or a larger data.image_size",
        norm.name,
        if parts > 1 { " or pieces" } else { "" },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::catalogue;

    /// Of a run that trains what begins so.
    fn refused_keys(trained: &[&str], body_factor: Option<f64>) -> String {
        let layout = layout::of(&catalogue::build("cnn11", [3, 32, 32], 10, 0.1).unwrap());
        let names = layout.tensors.iter().map(|tensor| tensor.name.clone());
        let is_trained = |name: &String| trained.iter().any(|begins| name.starts_with(begins));
        let mut config = Config::default();
        config.model.freeze = names.filter(|name| !is_trained(name)).collect();
        config.optimizer.body_factor = body_factor;
        without_effect(&config, &layout).unwrap_or_default()
    }

    #[test]
    fn what_would_train_nothing_or_has_nothing_to_multiply_is_refused() {
        assert_eq!(refused_keys(&["fc11."], None), "");
        assert!(refused_keys(&[], None).contains("freezes every tensor"));
        assert!(refused_keys(&["bn1.running"], None).contains("freezes every tensor"));
        assert_eq!(refused_keys(&["fc10.", "fc11."], Some(0.1)), "");
        assert!(refused_keys(&["fc11."], Some(0.1)).contains("only that of fc11."));
        assert_eq!(refused_keys(&["fc11."], Some(1.0)), "");
    }

    #[test]
    fn a_rate_is_not_scaled_for_samples_that_no_step_has() {
        let mut config = Config::default();
        config.train.global_batch = 500;
        assert_eq!(scaled_beyond(&config, 120), None, "the batch is what there is");
        config.schedule.reference_batch = Some(100);
        assert_eq!(scaled_beyond(&config, 500), None);
        let refused = scaled_beyond(&config, 499).expect("500 of 499");
        assert!(refused.contains("write train.global_batch = 499"), "{refused}");
    }

    fn refused_norms(
        model: &str,
        side: usize,
        samples: u64,
        change: impl Fn(&mut Config),
    ) -> Option<String> {
        let mut config = Config::default();
        config.train.owners = Some(4);
        change(&mut config);
        let graph = catalogue::build(model, [3, side, side], 10, 1.0).expect("in the catalogue");
        let owners = crate::config::resolve_owners(&config);
        too_few(&config, &graph, &layout::of(&graph), samples, owners)
    }

    #[test]
    fn one_value_a_channel_is_refused_with_the_layer_and_the_smallest_batch() {
        let text = refused_norms("mobilenet_v2", 32, 1000, |c| c.train.global_batch = 4);
        let text = text.expect("one sample an owner");
        assert!(
            text.contains("layer `features.") && text.contains("train.global_batch = 8"),
            "{text}"
        );
        // The batch that is named will do.
        assert_eq!(refused_norms("mobilenet_v2", 32, 1000, |c| c.train.global_batch = 8), None);
        assert_eq!(refused_norms("mobilenet_v2", 64, 1000, |c| c.train.global_batch = 4), None);
        // Some owners have two samples, others one.
        assert!(refused_norms("mobilenet_v2", 32, 1000, |c| c.train.global_batch = 7).is_some());
        // A set that is smaller than a batch.
        assert!(refused_norms("mobilenet_v2", 32, 5, |c| c.train.global_batch = 64).is_some());
        assert_eq!(refused_norms("resnet20", 32, 1000, |c| c.train.global_batch = 4), None);
    }

    #[test]
    fn pieces_of_one_sample_are_refused_too() {
        let pieces = |c: &mut Config, batch: u64| {
            (c.train.global_batch, c.train.accumulate) = (batch, Some(4));
        };
        let text =
            refused_norms("mobilenet_v2", 32, 1000, |c| pieces(c, 28)).expect("7 in 4 pieces");
        assert!(text.contains("4 pieces") && text.contains("= 32 or more"), "{text}");
        assert_eq!(refused_norms("mobilenet_v2", 32, 1000, |c| pieces(c, 32)), None);
    }

    #[test]
    fn frozen_norms_need_no_more() {
        let frozen = |c: &mut Config| {
            (c.train.global_batch, c.model.freeze) = (4, vec!["features".into()]);
        };
        assert_eq!(refused_norms("mobilenet_v2", 32, 1000, frozen), None);
    }
}
