//! What each kind of call takes in one micro-batch of training: for benches. With weights on the
//! card already it waits for the host only at the beginning; where they are sent what all takes is
//! more by what it waited.

use std::collections::BTreeMap;

use super::clock::Took;
use super::machine::Machine;
use crate::config::Precision;
use crate::engine::compute::Compute;
use crate::engine::error::EngineError;
use crate::engine::executor::Executor;
use crate::engine::memory::limits::Limits;
use crate::engine::seat::Seat;
use crate::engine::source::Flat;
use crate::engine::subject::Subject;
use crate::model::{Graph, init, layout};

/// Micro-batches before those that are timed: memory is taken in the first.
const BEFORE: usize = 2;

/// By kind of call, in a micro-batch of so many samples: with the weights there, and sent.
///
/// # Errors
/// No card, or what it says.
pub fn times(
    precision: Precision,
    seat: Seat,
    graph: &Graph,
    samples: usize,
) -> Result<[BTreeMap<String, Took>; 2], EngineError> {
    let subject = Subject::new(graph, precision.element(), &[], &Limits::none());
    let mut executor = Executor::new(Machine::new(subject, precision, seat)?);
    let layout = &layout::of(graph);
    let parameters = init::parameters(graph, layout, 1);
    let mut statistics = init::statistics(layout);
    let running = statistics.clone();
    let pixels = samples * graph.input.iter().product::<usize>();
    let images: Vec<f32> = (0..pixels).map(|at| ((at % 251) as f32 - 125.0) / 100.0).collect();
    let labels: Vec<u32> = (0..samples).map(|at| (at * 37 % graph.classes) as u32).collect();
    let mut timed = Vec::new();
    for turn in 0..BEFORE + 2 {
        if turn != BEFORE {
            executor.renew();
        }
        executor.machine.took = (turn >= BEFORE).then(BTreeMap::new);
        let weights = &Flat { parameters: &parameters, statistics: &running };
        let ready = &mut |_: usize, _: &[f32]| {};
        executor.train(&images, (&labels).into(), [1; 3], weights, &mut statistics, ready)?;
        timed.extend(executor.machine.took.take());
    }
    Ok([timed.remove(0), timed.remove(0)])
}
