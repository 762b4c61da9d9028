//! What shows of a run once its training set is listed, before any step: its model, and what
//! refuses it. Ranks ask when they start, and `launch --check` and `init` before there are any.

use std::collections::BTreeSet;

use crate::cluster::processors::places::Wish;
use crate::config::Config;
use crate::data::sampler::Order;
use crate::data::source::Source;
use crate::engine::memory::limits::Limits;
use crate::engine::plan::operation::Direction;
use crate::engine::{self, Together, Work};
use crate::model::{Graph, Layout, catalogue, layout};
use crate::observe::build;
use crate::train::TrainError;
use crate::train::compute::accumulate::pieces;
use crate::train::start::refusals;
use crate::train::start::sets::Sets;
use crate::train::state::arithmetic;
use crate::train::update::freeze;

/// A run's model, as its training set makes it.
pub struct Model {
    /// Layers.
    pub graph: Graph,
    /// Where its tensors lie.
    pub layout: Layout,
    /// What computes it here, as far as it decides bits.
    pub arithmetic: String,
}

/// The model of a run with so many owners.
///
/// # Errors
/// There is none, or it cannot be trained so.
pub fn model(config: &Config, train: &dyn Source, owners: u32) -> Result<Model, TrainError> {
    let size = config.data.image_size as usize;
    let input = [train.channels() as usize, size, size];
    let graph = catalogue::of(&config.model, input, train.classes().len())
        .map_err(|error| TrainError::Configuration(error.to_string()))?;
    let layout = layout::of(&graph);
    refusals::check(config, &graph, train.len(), owners)?;
    Order::of(config, train.len())?;
    let device = engine::arithmetic(&config.device, workers(config) as usize);
    let device = device.map_err(|error| TrainError::Configuration(error.to_string()))?;
    Ok(Model { graph, layout, arithmetic: arithmetic::of(&device, build::id()) })
}

/// Refuses what a rank's device has no room for, or a budget.
///
/// # Errors
/// What there is too little of.
pub fn check_room(
    config: &Config,
    model: &Model,
    sets: &Sets,
    owners: u32,
    together: Together,
) -> Result<(), TrainError> {
    let validation = sets.validation.as_ref().map_or(0, |set| set.source.len());
    let batches = batches(config, [sets.train.source.len(), validation], owners);
    let work = Work { workers: u64::from(workers(config)), batches, together };
    let limits = Limits::of(config, work.workers as usize);
    let frozen = freeze::frozen_in(config, &model.layout);
    let threads = config.train.threads as usize;
    engine::check_room(&config.device, &model.graph, &frozen, &work, threads, &limits)
        .map_err(|error| TrainError::Configuration(error.to_string()))
}

/// Every number of samples that is computed at a time, with so many for training and validation:
/// those of an epoch's short last step, too, which may take more memory than a larger one.
fn batches(config: &Config, samples: [u64; 2], owners: u32) -> Vec<(usize, Direction)> {
    let ([training, validation], owners) = (samples, u64::from(owners.max(1)));
    // What is taken at a time of so many: the full ones, and what is left.
    let taken = |all: u64, each: u64| [each.min(all), all % each.max(1)];
    let steps = taken(training, config.train.global_batch);
    let owned = steps.iter().flat_map(|step| [step / owners, step.div_ceil(owners)]);
    let number = config.train.pieces() as usize;
    let trained: BTreeSet<usize> =
        owned.flat_map(|owned| pieces(owned as usize, number)).map(|piece| piece.len()).collect();
    let evaluated = BTreeSet::from(taken(validation, u64::from(config.evaluation.batch)));
    let trained = trained.into_iter().map(|samples| (samples, Direction::Training));
    let evaluated = evaluated.into_iter().map(|part| (part as usize, Direction::Inference));
    trained.chain(evaluated).filter(|(samples, _)| *samples > 0).collect()
}

/// Workers of a rank here: no more threads than it has processors.
pub fn workers(config: &Config) -> u32 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    Wish::of(config, 1).workers_on(processors)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(
        global_batch: u64,
        accumulate: u32,
        samples: [u64; 2],
        owners: u32,
    ) -> [Vec<usize>; 2] {
        let mut config = Config::default();
        config.train.global_batch = global_batch;
        config.train.accumulate = Some(accumulate);
        config.evaluation.batch = 10;
        let all = batches(&config, samples, owners);
        [Direction::Training, Direction::Inference].map(|direction| {
            all.iter().filter(|(_, of)| *of == direction).map(|(samples, _)| *samples).collect()
        })
    }

    #[test]
    fn every_number_of_samples_that_comes_up_is_looked_at() {
        assert_eq!(sizes(8, 1, [15, 0], 1), [vec![7, 8], vec![]]);
        assert_eq!(sizes(8, 1, [16, 20], 1), [vec![8], vec![10]]);
        // The last step has 9 samples, in pieces of owners that have 2 or 3.
        assert_eq!(sizes(16, 1, [25, 13], 4), [vec![2, 3, 4], vec![3, 10]]);
        assert_eq!(sizes(16, 2, [25, 3], 4), [vec![1, 2], vec![3]]);
        assert_eq!(sizes(16, 1, [5, 0], 4), [vec![1, 2], vec![]]);
    }
}
