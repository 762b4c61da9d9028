//! Runs a graph: keeps programs, one per batch size and direction.

use super::machine::{Held, Machine};
use crate::engine::compute::{Compute, Watch};
use crate::engine::error::EngineError;
use crate::engine::memory::arrange::Choice;
use crate::engine::memory::expected::Expected;
use crate::engine::memory::limits::Limits;
use crate::engine::memory::outlook::Outlook;
use crate::engine::memory::shown::MemoryPlan;
use crate::engine::micro_batch::{self, Batch, inference};
use crate::engine::plan::operation::Direction;
use crate::engine::plan::tensor::ElementType;
use crate::engine::source::WeightSource;
use crate::engine::targets::{Outcome, Targets};
use crate::model::Graph;

/// Programs kept at once: a full and a ragged micro-batch, in training and evaluation, twice over.
const PROGRAMS_MAX: usize = 8;

/// Computes micro-batches of one model on one worker thread.
///
/// For a fixed team size, kind of processor and library the same inputs give the same bits,
/// whatever ran before, in whatever thread, beside whatever else, whatever leaves the near tier.
pub struct Executor {
    machine: Machine,
    programs: Vec<Held>,
    clock: u64,
}

impl Executor {
    /// An executor for the calling thread, with a team of `threads` OpenMP threads (a constant of
    /// the run: it decides the last bits).
    pub fn new(graph: &Graph, element: ElementType, threads: usize) -> Result<Self, EngineError> {
        let machine = Machine::new(graph, element, threads)?;
        Ok(Self { machine, programs: Vec::new(), clock: 0 })
    }

    /// The same, which computes no gradients of these tensors.
    pub fn freezing(mut self, frozen: &[bool]) -> Self {
        self.machine.frozen = frozen.to_vec();
        self
    }

    /// The same, which holds no more of the near tier than that.
    pub fn within(mut self, limits: Limits) -> Self {
        self.machine.limits = limits;
        self
    }

    /// The same, whose memory of activations is no number before every micro-batch, nor where a
    /// value has left.
    pub fn soiled(mut self) -> Self {
        self.machine.soiled = true;
        self
    }

    /// Refuses a budget of the near tier that is too small for what is going to be computed, with
    /// the least that would do, and a spill folder without room for so many workers. Keeps nothing.
    pub fn check(&self, work: [(usize, Direction); 2], workers: u64) -> Result<(), EngineError> {
        self.machine.check(work, workers)
    }

    /// The smallest budget that training would do with.
    pub fn smallest_budget(&self, batch: usize) -> Result<u64, EngineError> {
        self.machine.smallest_budget(batch).map(|bytes| bytes as u64)
    }

    /// What would become of the values of training, by guessed prices. Allocates nothing.
    pub fn memory_plan(&self, batch: usize) -> Result<MemoryPlan, EngineError> {
        self.machine.memory_plan(batch)
    }

    /// All that the planner could do within the budget, by guessed prices. Allocates nothing.
    pub fn choices(&self, batch: usize) -> Result<Vec<Choice>, EngineError> {
        self.machine.choices(batch)
    }

    #[cfg(test)]
    /// Bytes that live from the forward into the backward pass of a micro-batch of `batch`.
    pub fn saved_bytes(&mut self, batch: usize) -> Result<u64, EngineError> {
        let held = self.program(batch.max(1), Direction::Training)?;
        Ok(self.programs[held].program.plan.draft.saved_bytes() as u64)
    }

    /// The program for this batch size, compiled if there is none; the longest unused one goes.
    fn program(&mut self, batch: usize, direction: Direction) -> Result<usize, EngineError> {
        self.machine.team.enter();
        self.clock += 1;
        let wanted = |held: &Held| held.batch == batch && held.direction == direction;
        if let Some(at) = self.programs.iter().position(wanted) {
            self.programs[at].used = self.clock;
            return Ok(at);
        }
        if self.programs.len() >= PROGRAMS_MAX {
            let oldest = (0..self.programs.len()).min_by_key(|&at| self.programs[at].used);
            let gone = self.programs.swap_remove(oldest.unwrap_or(0));
            gone.weights.into_iter().for_each(|at| self.machine.weights.release(at));
        }
        let held = self.machine.compile(batch, direction)?;
        self.programs.push(Held { used: self.clock, ..held });
        Ok(self.programs.len() - 1)
    }

    fn run(&mut self, at: usize, batch: Batch<'_>) -> Result<Outcome, EngineError> {
        let held = &mut self.programs[at];
        match held.outlook.as_ref().is_some_and(Outlook::is_open) {
            true => self.machine.run_compared(held, batch),
            false => self.machine.run(held, batch, &mut |_, _| {}),
        }
    }
}

impl Compute for Executor {
    /// Compiles what `train` needs.
    fn prepare(&mut self, samples: usize) -> Result<(), EngineError> {
        self.program(samples, Direction::Training).map(drop)
    }

    /// Weights change into a program's layouts once per state, not per micro-batch.
    fn renew(&mut self) {
        self.machine.renew();
    }

    fn load(&mut self, samples: usize, weights: &dyn WeightSource) -> Result<(), EngineError> {
        if samples == 0 {
            return Ok(());
        }
        let held = self.program(samples, Direction::Training)?;
        for &at in &self.programs[held].weights {
            self.machine.weights.refresh(at, weights)?;
        }
        Ok(())
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
        let held = self.program(targets.labels.len(), Direction::Training)?;
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
        let held = self.program(labels.len(), Direction::Inference)?;
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
        let held = self.program(samples, Direction::Inference)?;
        self.run(held, inference(images, labels, weights, &mut |_, _| {}, Some(into))).map(drop)
    }
}

#[cfg(test)]
mod tests;
