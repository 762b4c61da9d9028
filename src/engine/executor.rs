//! Runs a graph: keeps programs, one per batch size and direction, and has those whose values
//! leave the near tier priced, compared with what they take, and arranged again.

use std::sync::Arc;

use super::compute::{Compute, Watch};
use super::error::EngineError;
use super::memory::arrange::{Arranged, guessed};
use super::memory::expected::Expected;
use super::memory::outlook::{Compared, Outlook};
use super::memory::schedule::Costs;
use super::micro_batch::{self, Batch, inference, of_zeros};
use super::plan::operation::Direction;
use super::plan::steps::Draft;
use super::source::WeightSource;
use super::subject::Subject;
use super::targets::{Outcome, Targets};

/// Programs kept at once: a full and a ragged micro-batch, in training and evaluation, twice over.
const PROGRAMS_MAX: usize = 8;

/// Passes of zeros that are measured: the first one finds memory and weights that are not there.
const MEASURED: usize = 2;

/// What computes on a device: memory, the far tier, threads or streams. It runs one program at a
/// time.
pub trait Machine {
    /// What the device makes of a plan.
    type Program;

    /// What it computes.
    fn subject(&self) -> &Subject;

    /// The same.
    fn subject_mut(&mut self) -> &mut Subject;

    /// A program for this batch size, with memory; and where prices decide how its values lie, what
    /// they decide about.
    fn compile(
        &mut self,
        batch: usize,
        direction: Direction,
    ) -> Result<(Self::Program, Option<Unpriced>), EngineError>;

    /// Takes so much of the far tier for a program that can do with less; whether it is there.
    fn takes(&mut self, _far_bytes: usize) -> Result<bool, EngineError> {
        Ok(true)
    }

    /// Runs a program so from now on.
    fn hold(&mut self, program: &mut Self::Program, arranged: &Arranged)
    -> Result<(), EngineError>;

    /// What a program takes of the near tier.
    fn near_bytes(&self, program: &Self::Program) -> usize;

    /// It is not wanted any more.
    fn release(&mut self, program: Self::Program);

    /// Computes a micro-batch.
    fn run(
        &mut self,
        program: &mut Self::Program,
        batch: Batch<'_>,
    ) -> Result<Outcome, EngineError>;

    /// The same, with the seconds that each step took.
    fn run_timed(
        &mut self,
        program: &mut Self::Program,
        batch: Batch<'_>,
    ) -> Result<(Outcome, Vec<f64>), EngineError>;

    /// Bytes a second that values leave and come back with; `None`: nothing has to.
    fn rates(&mut self) -> Result<Option<[f64; 2]>, EngineError>;

    /// Reads what a program wants of the weights.
    fn load(
        &mut self,
        program: &Self::Program,
        weights: &dyn WeightSource,
    ) -> Result<(), EngineError>;

    /// The state has changed: no copy of weights is current.
    fn renew(&mut self);

    /// Whatever a program loads for many passes it loads in the next one.
    fn reload(&mut self) {}

    /// The calling thread is going to compute.
    fn enter(&mut self) {}

    /// These pictures are wanted later.
    fn foresee(&mut self, _images: &Arc<Vec<f32>>) {}
}

/// What is arranged once its steps have prices.
pub struct Unpriced {
    /// In core.
    pub draft: Draft,
    /// As the program runs it meanwhile.
    pub arranged: Arranged,
    /// Of its places.
    pub budget_bytes: Option<usize>,
}

/// A program that is kept.
struct Kept<P> {
    batch: usize,
    direction: Direction,
    program: P,
    /// What it is expected to take, where prices decided how it is arranged.
    outlook: Option<Outlook>,
    /// When it was wanted last.
    used: u64,
}

impl<P> Kept<P> {
    /// What each step of the draft takes here, with the first arrangement of it.
    fn measure<M: Machine<Program = P>>(
        &mut self,
        machine: &mut M,
        unpriced: &Unpriced,
    ) -> Result<Costs, EngineError> {
        let Unpriced { draft, arranged, .. } = unpriced;
        let graph = machine.subject().graph.clone();
        let mut passes = Vec::new();
        for _ in 0..MEASURED {
            machine.reload();
            let run = |batch: Batch<'_>| machine.run_timed(&mut self.program, batch);
            passes.push(of_zeros(&graph, self.batch, run)?.1);
        }
        // Nobody is to compute with zeros.
        machine.renew();
        let mut costs = guessed(draft);
        costs.step_seconds = arranged.step_seconds(&passes, &costs.step_seconds);
        if let Some(rates) = machine.rates()? {
            costs.rates = rates;
        }
        Ok(costs)
    }

    /// Takes the quickest arrangement by measured prices in place of the one at hand, which stays
    /// for good where the far tier has no room for another.
    fn improve<M: Machine<Program = P>>(
        &mut self,
        machine: &mut M,
        mut outlook: Outlook,
    ) -> Result<Option<Expected>, EngineError> {
        let Subject { graph, limits, .. } = machine.subject();
        let arranged = outlook.improve(graph, limits).clone();
        if !machine.takes(arranged.far_bytes)? {
            return Ok(None);
        }
        machine.hold(&mut self.program, &arranged)?;
        let expected = outlook.expected(self.batch, machine.near_bytes(&self.program));
        self.outlook = Some(outlook);
        Ok(Some(expected))
    }
}

/// Computes micro-batches of one model on one worker thread.
///
/// On devices of one kind, and for a fixed team size, the same inputs give the same bits, whatever
/// ran before, in whatever thread, beside whatever else, whatever leaves the near tier.
pub struct Executor<M: Machine> {
    pub(super) machine: M,
    programs: Vec<Kept<M::Program>>,
    clock: u64,
    /// What programs are expected to take, or took, that nobody has heard of yet.
    expected: Vec<Expected>,
}

impl<M: Machine> Executor<M> {
    /// For the calling thread.
    pub fn new(machine: M) -> Self {
        Self { machine, programs: Vec::new(), clock: 0, expected: Vec::new() }
    }

    /// The program for this batch size, compiled if there is none; the longest unused one goes.
    fn program(&mut self, batch: usize, direction: Direction) -> Result<usize, EngineError> {
        self.machine.enter();
        self.clock += 1;
        let wanted = |kept: &Kept<_>| kept.batch == batch && kept.direction == direction;
        if let Some(at) = self.programs.iter().position(wanted) {
            self.programs[at].used = self.clock;
            return Ok(at);
        }
        if self.programs.len() >= PROGRAMS_MAX {
            let oldest = (0..self.programs.len()).min_by_key(|&at| self.programs[at].used);
            let gone = self.programs.swap_remove(oldest.unwrap_or(0));
            self.machine.release(gone.program);
        }
        let (program, unpriced) = self.machine.compile(batch, direction)?;
        let mut kept = Kept { batch, direction, program, outlook: None, used: self.clock };
        if let Some(unpriced) = unpriced {
            let costs = kept.measure(&mut self.machine, &unpriced)?;
            let Unpriced { draft, arranged, budget_bytes } = unpriced;
            let outlook = Outlook::new(draft, arranged, costs, budget_bytes);
            self.expected.extend(kept.improve(&mut self.machine, outlook)?);
        }
        self.programs.push(kept);
        Ok(self.programs.len() - 1)
    }

    fn run(&mut self, at: usize, batch: Batch<'_>) -> Result<Outcome, EngineError> {
        let (machine, kept) = (&mut self.machine, &mut self.programs[at]);
        let Some(mut outlook) = kept.outlook.take_if(|outlook| outlook.is_open()) else {
            return machine.run(&mut kept.program, batch);
        };
        let (outcome, of_steps) = machine.run_timed(&mut kept.program, batch)?;
        let near_bytes = machine.near_bytes(&kept.program);
        match outlook.compare(&of_steps, kept.batch, near_bytes, &mut self.expected) {
            Compared::Surprised => self.expected.extend(kept.improve(machine, outlook)?),
            Compared::Stays => kept.outlook = Some(outlook),
        }
        Ok(outcome)
    }
}

impl<M: Machine> Compute for Executor<M> {
    fn prepare(&mut self, samples: usize) -> Result<(), EngineError> {
        self.program(samples, Direction::Training).map(drop)
    }

    fn renew(&mut self) {
        self.machine.renew();
    }

    fn load(&mut self, samples: usize, weights: &dyn WeightSource) -> Result<(), EngineError> {
        if samples == 0 {
            return Ok(());
        }
        let at = self.program(samples, Direction::Training)?;
        self.machine.load(&self.programs[at].program, weights)
    }

    fn foresee(&mut self, images: &Arc<Vec<f32>>) {
        self.machine.foresee(images);
    }

    fn watch(&mut self, watch: Watch) {
        self.machine.subject_mut().watch = watch;
    }

    fn take_expected(&mut self) -> Vec<Expected> {
        std::mem::take(&mut self.expected)
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
        let Subject { graph, layout, frozen, .. } = self.machine.subject();
        micro_batch::check(graph, images, targets)?;
        micro_batch::check_statistics(layout, statistics)?;
        if targets.labels.is_empty() {
            micro_batch::train_nothing(layout, frozen, statistics, ready);
            return Ok(Outcome::default());
        }
        let at = self.program(targets.labels.len(), Direction::Training)?;
        let (outcome, logarithms) = (Outcome::default(), None);
        let batch =
            Batch { images, targets, dropout_key, weights, statistics, ready, outcome, logarithms };
        self.run(at, batch)
    }

    fn infer(
        &mut self,
        images: &[f32],
        labels: &[u32],
        weights: &dyn WeightSource,
        logarithms: Option<&mut Vec<f32>>,
    ) -> Result<Outcome, EngineError> {
        micro_batch::check(&self.machine.subject().graph, images, labels.into())?;
        if labels.is_empty() {
            return Ok(Outcome::default());
        }
        let at = self.program(labels.len(), Direction::Inference)?;
        self.run(at, inference(images, labels, weights, &mut |_, _| {}, logarithms))
    }
}

#[cfg(test)]
mod tests;
