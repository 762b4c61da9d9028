//! What shows of a run once its training set is listed, before any step: its model, and what
//! refuses it. Ranks ask when they start, and `launch --check` and `init` before there are any.

use crate::cluster::processors::places::Wish;
use crate::config::{Config, Every};
use crate::data::sampler::Order;
use crate::data::source::Source;
use crate::engine::memory::limits::Limits;
use crate::engine::{self, Together, Work};
use crate::model::{Graph, Layout, catalogue, layout};
use crate::observe::build;
use crate::train::TrainError;
use crate::train::start::refusals;
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
    owners: u32,
    together: Together,
) -> Result<(), TrainError> {
    let owned = config.train.global_batch.div_ceil(u64::from(owners.max(1)));
    let work = Work {
        workers: u64::from(workers(config)),
        training: owned.div_ceil(u64::from(config.train.pieces())).max(1) as usize,
        evaluation: match config.evaluation.every {
            Every::Never => 0,
            _ => config.evaluation.batch as usize,
        },
        together,
    };
    let limits = Limits::of(config, work.workers as usize);
    let frozen = freeze::frozen_in(config, &model.layout);
    let threads = config.train.threads as usize;
    engine::check_room(&config.device, &model.graph, &frozen, work, threads, &limits)
        .map_err(|error| TrainError::Configuration(error.to_string()))
}

/// Workers of a rank here: no more threads than it has processors.
pub fn workers(config: &Config) -> u32 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as u32;
    Wish::of(config, 1).workers_on(processors)
}
