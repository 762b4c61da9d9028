//! Runs a graph on a card: keeps scripts, one per batch size and direction.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::clock::Took;
use super::convolutions::Precision;
use super::machine::{Held, Machine};
use crate::engine::compute::{Compute, Watch};
use crate::engine::error::EngineError;
use crate::engine::memory::expected::Expected;
use crate::engine::memory::limits::Limits;
use crate::engine::memory::outlook::Outlook;
use crate::engine::memory::shown::MemoryPlan;
use crate::engine::micro_batch::{self, Batch, inference};
use crate::engine::plan::operation::Direction;
use crate::engine::seat::Seat;
use crate::engine::source::WeightSource;
use crate::engine::targets::{Outcome, Targets};
use crate::model::Graph;

/// Scripts kept at once: a full and a ragged micro-batch, in training and evaluation, twice over.
const SCRIPTS_MAX: usize = 8;

/// Computes micro-batches of one model on one worker thread, on its card. Where several share one,
/// each has its own memory there.
///
/// On cards of one kind the same inputs give the same bits, whatever leaves the card meanwhile.
pub struct Executor {
    machine: Machine,
    held: Vec<Held>,
    age: u64,
}

impl Executor {
    /// An executor for the calling thread. No gradients are computed of the tensors that are
    /// `frozen`.
    pub fn new(
        graph: &Graph,
        precision: Precision,
        seat: Seat,
        frozen: &[bool],
        limits: &Limits,
    ) -> Result<Self, EngineError> {
        let machine = Machine::new(graph, precision, seat, frozen, limits)?;
        Ok(Self { machine, held: Vec::new(), age: 0 })
    }

    /// The same, whose memory of activations is no number before every micro-batch, nor where a
    /// value has left.
    pub fn soiled(mut self) -> Self {
        self.machine.soiled = true;
        self
    }

    /// The smallest budget that training would do with.
    pub fn smallest_budget(&mut self, batch: usize) -> Result<u64, EngineError> {
        self.machine.smallest_budget(batch).map(|bytes| bytes as u64)
    }

    /// What would become of the values of training, by guessed prices.
    pub fn memory_plan(&mut self, batch: usize) -> Result<MemoryPlan, EngineError> {
        self.machine.memory_plan(batch)
    }

    /// From now on calls are timed: `took` says what they took in the last micro-batch.
    pub fn timed(&mut self) {
        self.machine.took = Some(BTreeMap::new());
    }

    /// By kind of call.
    pub fn took(&mut self) -> BTreeMap<String, Took> {
        self.machine.took.take().unwrap_or_default()
    }

    /// The script for this batch size, written if there is none; the longest unused one goes.
    fn script(&mut self, batch: usize, direction: Direction) -> Result<usize, EngineError> {
        self.age += 1;
        let wanted = |held: &Held| held.batch == batch && held.direction == direction;
        if let Some(at) = self.held.iter().position(wanted) {
            self.held[at].used = self.age;
            return Ok(at);
        }
        if self.held.len() >= SCRIPTS_MAX {
            let oldest = (0..self.held.len()).min_by_key(|&at| self.held[at].used);
            let gone = self.held.swap_remove(oldest.unwrap_or(0));
            gone.copies.into_iter().for_each(|at| self.machine.memory.copies.release(at));
        }
        let held = self.machine.write(batch, direction)?;
        self.held.push(Held { used: self.age, ..held });
        Ok(self.held.len() - 1)
    }

    fn run(&mut self, at: usize, batch: Batch<'_>) -> Result<Outcome, EngineError> {
        let held = &mut self.held[at];
        match held.outlook.as_ref().is_some_and(Outlook::is_open) {
            true => self.machine.run_compared(held, batch),
            false => self.machine.run(held, batch, None),
        }
    }
}

impl Compute for Executor {
    fn prepare(&mut self, samples: usize) -> Result<(), EngineError> {
        self.script(samples, Direction::Training).map(drop)
    }

    fn renew(&mut self) {
        self.machine.memory.copies.renew();
    }

    fn load(&mut self, samples: usize, weights: &dyn WeightSource) -> Result<(), EngineError> {
        if samples == 0 {
            return Ok(());
        }
        let held = self.script(samples, Direction::Training)?;
        for number in 0..self.held[held].copies.len() {
            let (wanted, machine) = ((&self.held[held], number), &mut self.machine);
            let with = (&machine.streams, &machine.plans);
            Machine::refresh(&mut machine.memory, with, wanted, (weights, &machine.crew))?;
        }
        // What is in staging memory may be exchanged from here on.
        self.machine.streams.synchronize()
    }

    fn foresee(&mut self, images: &Arc<Vec<f32>>) {
        self.machine.foreseen = Some(Arc::clone(images));
    }

    fn watch(&mut self, watch: Watch) {
        self.machine.watch = watch;
    }

    fn take_expected(&mut self) -> Vec<Expected> {
        std::mem::take(&mut self.machine.expected)
    }

    fn train(
        &mut self,
        images: &[f32],
        targets: Targets<'_>,
        dropout_key: [u64; 3],
        weights: &dyn WeightSource,
        statistics: &mut [f32],
        ready: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<Outcome, EngineError> {
        micro_batch::check(&self.machine.graph, images, targets)?;
        micro_batch::check_statistics(&self.machine.layout, statistics)?;
        if targets.labels.is_empty() {
            micro_batch::train_nothing(
                &self.machine.layout,
                &self.machine.frozen,
                statistics,
                ready,
            );
            return Ok(Outcome::default());
        }
        let held = self.script(targets.labels.len(), Direction::Training)?;
        let (outcome, logarithms) = (Outcome::default(), None);
        let batch =
            Batch { images, targets, dropout_key, weights, statistics, ready, outcome, logarithms };
        self.run(held, batch)
    }

    fn evaluate(
        &mut self,
        images: &[f32],
        labels: &[u32],
        weights: &dyn WeightSource,
    ) -> Result<Outcome, EngineError> {
        micro_batch::check(&self.machine.graph, images, labels.into())?;
        if labels.is_empty() {
            return Ok(Outcome::default());
        }
        let held = self.script(labels.len(), Direction::Inference)?;
        self.run(held, inference(images, labels, weights, &mut |_, _| {}, None))
    }

    fn log_probabilities(
        &mut self,
        images: &[f32],
        samples: usize,
        weights: &dyn WeightSource,
        into: &mut Vec<f32>,
    ) -> Result<(), EngineError> {
        // No label is looked at.
        let labels = &vec![0; samples];
        micro_batch::check(&self.machine.graph, images, labels.into())?;
        if samples == 0 {
            return Ok(());
        }
        let held = self.script(samples, Direction::Inference)?;
        self.run(held, inference(images, labels, weights, &mut |_, _| {}, Some(into))).map(drop)
    }
}
