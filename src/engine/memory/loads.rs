//! Copies of weights as values of a plan, each with a step that loads it: so they have places in
//! the near tier as all other values, and may go and be loaded again. Pure.

use crate::engine::plan::steps::{Action, Draft, Step, When};
use crate::engine::plan::tensor::Place;

/// Makes values of a draft's weights, of those that are `placed`. What loads them comes first.
pub fn loading(mut draft: Draft, placed: &[bool]) -> Draft {
    let mut values: Vec<Option<usize>> = vec![None; draft.weights.len()];
    let mut steps = Vec::new();
    for step in &mut draft.steps {
        let Action::Run { arguments, .. } = &mut step.action else { continue };
        for (_, place) in arguments {
            let Some(weight) = place.weight().filter(|&weight| placed[weight]) else { continue };
            let value = *values[weight].get_or_insert_with(|| {
                let value = draft.bytes.len();
                // In whole words, as an arena is read.
                draft.bytes.push(draft.weights[weight].desc.bytes.next_multiple_of(4));
                let action = Action::Load { weight, value, when: When::Always };
                let (reads, writes, overwrites) = (Vec::new(), vec![value], Vec::new());
                steps.push(Step { node: step.node, action, reads, writes, overwrites });
                value
            });
            *place = Place::Value(value);
            if !step.reads.contains(&value) {
                step.reads.push(value);
            }
        }
    }
    steps.append(&mut draft.steps);
    Draft { steps, ..draft }
}
