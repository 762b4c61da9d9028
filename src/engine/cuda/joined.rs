//! Two calls as one, where memory would be written and read again between them. Pure, and no bit is
//! another: what lay in between was rounded as the result is.

use super::call::{Argument, Call, Line};

/// The first words of kernels' names.
const SUM: &str = "binary_";
const GRADIENT: &str = "pointwise_backward_";
const SUM_GRADIENT: &str = "sum_backward_";
/// What the kernels call addition and ReLU.
const ADD: Argument = Argument::Int(0);
const RELU: Argument = Argument::Int(0);

/// The same lines: a sum of gradients that goes straight through a ReLU, in the sum's own place, is
/// one call. `steps`: of each line, the step that it is of.
pub fn joined(lines: Vec<Line>, steps: &[usize]) -> (Vec<Line>, Vec<usize>) {
    let mut all: Vec<Line> = Vec::with_capacity(lines.len());
    let mut of = Vec::with_capacity(lines.len());
    for (line, &step) in lines.into_iter().zip(steps) {
        let both = all.last().and_then(|before| sum_gradient(before, &line));
        match both {
            Some(call) => *all.last_mut().expect("it was there") = Line::Call(call),
            None => {
                all.push(line);
                of.push(step);
            }
        }
    }
    (all, of)
}

fn sum_gradient(sum: &Line, gradient: &Line) -> Option<Call> {
    let (sum, gradient) = (launch(sum)?, launch(gradient)?);
    let element = sum.0.strip_prefix(SUM)?;
    let (&[a, b, sum_to, algorithm, count], &[seen, from, to, function, _, same]) =
        (sum.2, gradient.2)
    else {
        return None;
    };
    let alike = gradient.0.strip_prefix(GRADIENT) == Some(element) && count == same;
    let in_place = sum_to == from && from == to && seen != to;
    if !alike || !in_place || algorithm != ADD || function != RELU {
        return None;
    }
    let kernel = format!("{SUM_GRADIENT}{element}");
    Some(Call::Launch { kernel, blocks: sum.1, arguments: vec![seen, a, b, to, count] })
}

/// Its kernel, blocks and arguments.
fn launch(line: &Line) -> Option<(&str, [u32; 2], &[Argument])> {
    match line {
        Line::Call(Call::Launch { kernel, blocks, arguments }) => {
            Some((kernel, *blocks, arguments))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::cuda::script::Script;
    use crate::engine::plan::builder::Request;
    use crate::engine::plan::operation::Direction;
    use crate::engine::plan::tensor::ElementType;
    use crate::model::{catalogue, layout};

    #[test]
    fn gradients_of_residual_blocks_are_summed_and_masked_at_once() {
        // Behind the last block there is no sum.
        for (name, blocks) in [("resnet18", 8), ("resnet50", 16)] {
            let graph = catalogue::build(name, [3, 64, 64], 10, 1.0).expect("a model");
            let (layout, element) = (layout::of(&graph), ElementType::Bf16);
            let direction = Direction::Training;
            let request = Request {
                graph: &graph,
                layout: &layout,
                batch: 2,
                direction,
                element,
                frozen: &[],
            };
            let script = Script::new(request, None, &mut |draft| draft).expect("a script");
            let of = |kernel: &str| {
                let named = |line: &&Line| launch(line).is_some_and(|launch| launch.0 == kernel);
                script.lines.iter().filter(named).count()
            };
            assert_eq!(of("sum_backward_bf16"), blocks - 1, "{name}");
            assert_eq!(of("pointwise_backward_bf16"), 1, "{name}");
        }
    }
}
