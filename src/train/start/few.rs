//! A batch norm that sees one value of each channel learns nothing: the variance is 0, whatever the
//! picture. A run whose whole steps would be so is refused before it begins. In an epoch's short
//! last step such norms use their running statistics, and leave them alone.

use crate::config::Config;
use crate::model::{Graph, LayerKind, Layout, Node, TensorSpec};
use crate::train::compute::accumulate::pieces;
use crate::train::update::freeze::frozen_in;

/// Samples of a norm at the least.
const ENOUGH: u64 = 2;

/// Why norms of this run would see one value; `None`: they see more. `samples` are the training
/// set's, `owners` the run's.
pub(in crate::train) fn refusal(
    config: &Config,
    (graph, layout): (&Graph, &Layout),
    (samples, owners): (u64, u32),
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
    use crate::model::{catalogue, layout};

    fn refused(
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
        refusal(&config, (&graph, &layout::of(&graph)), (samples, owners))
    }

    #[test]
    fn one_value_a_channel_is_refused_with_the_layer_and_the_smallest_batch() {
        let text = refused("mobilenet_v2", 32, 1000, |c| c.train.global_batch = 4);
        let text = text.expect("one sample an owner");
        assert!(
            text.contains("layer `features.") && text.contains("train.global_batch = 8"),
            "{text}"
        );
        // The batch that is named will do.
        assert_eq!(refused("mobilenet_v2", 32, 1000, |c| c.train.global_batch = 8), None);
        assert_eq!(refused("mobilenet_v2", 64, 1000, |c| c.train.global_batch = 4), None);
        // Some owners have two samples, others one.
        assert!(refused("mobilenet_v2", 32, 1000, |c| c.train.global_batch = 7).is_some());
        // A set that is smaller than a batch.
        assert!(refused("mobilenet_v2", 32, 5, |c| c.train.global_batch = 64).is_some());
        assert_eq!(refused("resnet20", 32, 1000, |c| c.train.global_batch = 4), None);
    }

    #[test]
    fn pieces_of_one_sample_are_refused_too() {
        let pieces = |c: &mut Config, batch: u64| {
            (c.train.global_batch, c.train.accumulate) = (batch, Some(4));
        };
        let text = refused("mobilenet_v2", 32, 1000, |c| pieces(c, 28)).expect("7 in 4 pieces");
        assert!(text.contains("4 pieces") && text.contains("= 32 or more"), "{text}");
        assert_eq!(refused("mobilenet_v2", 32, 1000, |c| pieces(c, 32)), None);
    }

    #[test]
    fn frozen_norms_need_no_more() {
        let frozen = |c: &mut Config| {
            (c.train.global_batch, c.model.freeze) = (4, vec!["features".into()]);
        };
        assert_eq!(refused("mobilenet_v2", 32, 1000, frozen), None);
    }
}
