//! Runs a graph: owns activation memory and programs, one per batch size and direction.

use kintsugi_ffi::arena::Arena;
use kintsugi_ffi::dnnl;

use super::bf16;
use super::operands::Operands;
use super::program::Program;
use super::team::Team;
use super::weights::Weights;
use crate::engine::compute::Compute;
use crate::engine::error::EngineError;
use crate::engine::micro_batch::{self, Batch, inference};
use crate::engine::plan::builder::Request;
use crate::engine::plan::operation::Direction;
use crate::engine::plan::steps::Action;
use crate::engine::plan::tensor::ElementType;
use crate::engine::source::WeightSource;
use crate::engine::targets::{Outcome, Targets};
use crate::model::{Graph, Layout, layout};

/// Programs kept at once: a full and a ragged micro-batch, in training and evaluation, twice over.
const PROGRAMS_MAX: usize = 8;

/// A program with the weight copies that it holds.
struct Held {
    batch: usize,
    direction: Direction,
    program: Program,
    weights: Vec<usize>,
    used: u64,
}

/// Computes micro-batches of one model on one worker thread.
///
/// For a fixed team size, instruction set and library the same inputs give the same bits, whatever
/// ran before, in whatever thread, beside whatever else.
pub struct Executor {
    graph: Graph,
    layout: Layout,
    element: ElementType,
    frozen: Vec<bool>,
    team: Team,
    arena: Arena,
    weights: Weights,
    programs: Vec<Held>,
    clock: u64,
    /// Whether the arena is filled with `SOIL` before a micro-batch.
    soiled: bool,
}

/// All bits set: no number in f32, and no two in bf16.
const SOIL: f32 = f32::from_bits(u32::MAX);

impl Executor {
    /// An executor for the calling thread, with a team of `threads` OpenMP threads (a constant of
    /// the run: it decides the last bits). `layout` must be the graph's own.
    pub fn new(
        graph: &Graph,
        layout: &Layout,
        element: ElementType,
        threads: usize,
    ) -> Result<Self, EngineError> {
        if layout::of(graph) != *layout {
            return Err(EngineError::Layout("use model::layout::of on the same graph".into()));
        }
        bf16::check(element, &dnnl::isa())?;
        let team = Team::new(threads)?;
        let weights = Weights::new(&team.context, layout);
        Ok(Self {
            graph: graph.clone(),
            layout: layout.clone(),
            element,
            frozen: Vec::new(),
            team,
            arena: Arena::zeroed(0),
            weights,
            programs: Vec::new(),
            clock: 0,
            soiled: false,
        })
    }

    /// The same, which computes no gradients of these tensors.
    pub fn freezing(self, frozen: &[bool]) -> Self {
        Self { frozen: frozen.to_vec(), ..self }
    }

    /// The same, whose memory of activations is no number before every micro-batch.
    pub fn soiled(self) -> Self {
        Self { soiled: true, ..self }
    }

    #[cfg(test)]
    /// Bytes that live from the forward into the backward pass of a micro-batch of `batch`.
    pub fn saved_bytes(&mut self, batch: usize) -> Result<u64, EngineError> {
        let held = self.program(batch.max(1), Direction::Training)?;
        Ok(self.programs[held].program.plan.draft.saved_bytes() as u64)
    }

    /// The program for this batch size, compiled if there is none; the longest unused one goes.
    fn program(&mut self, batch: usize, direction: Direction) -> Result<usize, EngineError> {
        self.team.enter();
        self.clock += 1;
        let wanted = |held: &Held| held.batch == batch && held.direction == direction;
        if let Some(at) = self.programs.iter().position(wanted) {
            self.programs[at].used = self.clock;
            return Ok(at);
        }
        if self.programs.len() >= PROGRAMS_MAX {
            let oldest = (0..self.programs.len()).min_by_key(|&at| self.programs[at].used);
            let gone = self.programs.swap_remove(oldest.unwrap_or(0));
            gone.weights.into_iter().for_each(|at| self.weights.release(at));
        }
        let (graph, layout, element) = (&self.graph, &self.layout, self.element);
        let frozen = &self.frozen;
        let request = Request { graph, layout, batch, direction, element, frozen };
        let program = Program::new(&self.team.context, request)?;
        let mut weights = Vec::with_capacity(program.weights.len());
        for wanted in &program.weights {
            weights.push(self.weights.acquire(wanted)?);
        }
        let arena_bytes = program.plan.arena_bytes;
        if self.arena.bytes() < arena_bytes {
            // The old one goes first: nothing in it is needed between micro-batches.
            self.arena = Arena::zeroed(0);
            self.arena = Arena::zeroed(arena_bytes);
        }
        self.programs.push(Held { batch, direction, program, weights, used: self.clock });
        Ok(self.programs.len() - 1)
    }

    fn run(&mut self, held: usize, mut batch: Batch<'_>) -> Result<Outcome, EngineError> {
        if self.soiled {
            self.arena.as_mut_slice().fill(SOIL);
        }
        let Held { program, weights, .. } = &mut self.programs[held];
        let Program { plan, primitives, .. } = program;
        let (arena, classes) = (&self.arena, self.graph.classes);
        for action in &plan.actions {
            let Action::Run { kernel, arguments } = action else {
                batch.perform(action, arena, classes);
                continue;
            };
            let primitive = primitives[*kernel].as_mut();
            let primitive = primitive.expect("every kernel that runs was compiled");
            let operands = Operands { arguments, copies: weights };
            operands.refresh(&mut self.weights, batch.weights)?;
            operands.run(primitive, &self.weights, batch.weights, arena, batch.images)?;
        }
        Ok(batch.outcome)
    }
}

impl Compute for Executor {
    /// Compiles what `train` needs.
    fn prepare(&mut self, samples: usize) -> Result<(), EngineError> {
        self.program(samples, Direction::Training).map(drop)
    }

    /// Weights change into a program's layouts once per state, not per micro-batch.
    fn renew(&mut self) {
        self.weights.renew();
    }

    fn load(&mut self, samples: usize, weights: &dyn WeightSource) -> Result<(), EngineError> {
        if samples == 0 {
            return Ok(());
        }
        let held = self.program(samples, Direction::Training)?;
        for &at in &self.programs[held].weights {
            self.weights.refresh(at, weights)?;
        }
        Ok(())
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
        micro_batch::check(&self.graph, images, targets)?;
        micro_batch::check_statistics(&self.layout, statistics)?;
        if targets.labels.is_empty() {
            micro_batch::train_nothing((&self.layout, &self.frozen), statistics, ready);
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
        micro_batch::check(&self.graph, images, labels.into())?;
        if labels.is_empty() {
            return Ok(Outcome::default());
        }
        let held = self.program(labels.len(), Direction::Inference)?;
        self.run(held, inference((images, labels), weights, &mut |_, _| {}, None))
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
        micro_batch::check(&self.graph, images, labels.into())?;
        if samples == 0 {
            return Ok(());
        }
        let held = self.program(samples, Direction::Inference)?;
        self.run(held, inference((images, labels), weights, &mut |_, _| {}, Some(into))).map(drop)
    }
}

#[cfg(test)]
mod tests;
