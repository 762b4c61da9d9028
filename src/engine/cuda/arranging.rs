//! What the executor asks of a card: scripts within the limits of its memory, written, and again
//! where their steps were priced.

use std::sync::Arc;

use super::backend::Planner;
use super::clock::Clock;
use super::machine::{Held, Machine};
use super::script::Script;
use crate::config::MemoryMode;
use crate::engine::error::EngineError;
use crate::engine::executor::{self, Unpriced};
use crate::engine::memory::arrange::{Arranged, least};
use crate::engine::memory::limits::Limits;
use crate::engine::memory::shown::MemoryPlan;
use crate::engine::micro_batch::Batch;
use crate::engine::plan::builder::Request;
use crate::engine::plan::operation::Direction;
use crate::engine::plan::steps::Draft;
use crate::engine::source::WeightSource;
use crate::engine::subject::Subject;
use crate::engine::targets::Outcome;
use crate::model::Graph;

/// A script, before it has memory.
pub struct Written {
    /// What a card is told.
    pub script: Script,
    /// In core.
    pub draft: Draft,
    /// As the script has it.
    pub arranged: Arranged,
}

impl Written {
    /// The one that takes the least of the card.
    ///
    /// # Errors
    /// Nothing can be planned.
    pub fn least(
        request: Request<'_>,
        planner: Option<&mut dyn Planner>,
        limits: &Limits,
    ) -> Result<Self, EngineError> {
        let limits = of_card(limits, request.direction);
        let mut first = None;
        let script = Script::new(request, planner, &mut |draft| {
            let arranged = least(&draft, request.graph, &limits);
            let runs = arranged.draft.clone();
            first = Some((draft, arranged));
            runs
        })?;
        let (draft, arranged) = first.expect("it was planned");
        Ok(Self { script, draft, arranged })
    }

    /// Refuses it where it takes more than a budget, with so many bytes besides its arena.
    ///
    /// # Errors
    /// It does.
    pub fn check(
        &self,
        graph: &Graph,
        limits: &Limits,
        batch: usize,
        direction: Direction,
        besides_bytes: usize,
    ) -> Result<(), EngineError> {
        let wanted_bytes = self.script.arena_bytes + besides_bytes;
        if limits.budget_bytes.is_none_or(|budget| wanted_bytes <= budget) {
            return Ok(());
        }
        let plan = MemoryPlan::of(&self.draft, graph, &self.arranged, besides_bytes);
        Err(limits.refusal(batch, direction, wanted_bytes, &plan.most()))
    }
}

/// Managed memory is the driver's to move: for the script all is there.
fn of_card(limits: &Limits, direction: Direction) -> Limits {
    let limits = limits.in_direction(direction);
    match limits.mode {
        MemoryMode::Unified => Limits { mode: MemoryMode::InCore, ..limits },
        _ => limits,
    }
}

impl Machine {
    /// The script that takes the least, and the bytes that it takes besides its arena.
    fn least(
        &mut self,
        batch: usize,
        direction: Direction,
    ) -> Result<(Written, usize), EngineError> {
        let Subject { layout, limits, .. } = &self.subject;
        let request = self.subject.request(batch, direction);
        let written = Written::least(request, Some(&mut self.plans), limits)?;
        let besides_bytes = written.script.besides_bytes(layout);
        Ok((written, besides_bytes))
    }

    /// The smallest budget with which a micro-batch of training can be computed.
    pub fn smallest_budget(&mut self, samples: usize) -> Result<usize, EngineError> {
        let (written, besides_bytes) = self.least(samples, Direction::Training)?;
        Ok(written.script.arena_bytes + besides_bytes)
    }

    /// What would become of the values of training, by guessed prices.
    pub fn memory_plan(&mut self, batch: usize) -> Result<MemoryPlan, EngineError> {
        let direction = Direction::Training;
        let limits = of_card(&self.subject.limits, direction);
        let (written, besides_bytes) = self.least(batch, direction)?;
        written.check(&self.subject.graph, &limits, batch, direction, besides_bytes)?;
        let Written { draft, arranged, .. } = written;
        Ok(MemoryPlan::within(&draft, &self.subject.graph, &limits, arranged, besides_bytes))
    }

    fn make_room(&mut self, held: &mut Held, arranged: &Arranged) -> Result<(), EngineError> {
        held.again = arranged.again();
        self.moving.reserve(arranged.far_bytes)?;
        self.memory.fit(&self.card.context, &held.script, &self.subject.limits)
    }
}

impl executor::Machine for Machine {
    type Program = Held;

    fn subject(&self) -> &Subject {
        &self.subject
    }

    fn subject_mut(&mut self) -> &mut Subject {
        &mut self.subject
    }

    fn compile(
        &mut self,
        batch: usize,
        direction: Direction,
    ) -> Result<(Held, Option<Unpriced>), EngineError> {
        let limits = of_card(&self.subject.limits, direction);
        let (written, besides_bytes) = self.least(batch, direction)?;
        written.check(&self.subject.graph, &limits, batch, direction, besides_bytes)?;
        let Written { script, draft, arranged } = written;
        let mut held = self.bind(script, batch, direction)?;
        self.make_room(&mut held, &arranged)?;
        let budget_bytes = limits.budget_bytes.map(|budget| budget - besides_bytes);
        let unpriced = Unpriced { draft, arranged, budget_bytes };
        Ok((held, limits.mode.recomputes().then_some(unpriced)))
    }

    fn hold(&mut self, held: &mut Held, arranged: &Arranged) -> Result<(), EngineError> {
        let request = self.subject.request(held.batch, held.direction);
        // The same kernels: what was chosen is known.
        let mut script =
            Script::new(request, Some(&mut self.plans), &mut |_| arranged.draft.clone())?;
        (held.lines, held.kinds) = self.bound(&mut script)?;
        held.script = script;
        self.make_room(held, arranged)
    }

    fn near_bytes(&self, held: &Held) -> usize {
        held.script.near_bytes(&self.subject.layout)
    }

    fn release(&mut self, held: Held) {
        held.copies.into_iter().for_each(|at| self.memory.copies.release(at));
    }

    fn run(&mut self, held: &mut Held, batch: Batch<'_>) -> Result<Outcome, EngineError> {
        self.compute(held, batch, None)
    }

    fn run_timed(
        &mut self,
        held: &mut Held,
        batch: Batch<'_>,
    ) -> Result<(Outcome, Vec<f64>), EngineError> {
        let mut clock = Clock::new(&self.card.context);
        let outcome = self.compute(held, batch, Some(&mut clock))?;
        let mut of_steps = vec![0.0; held.again.len()];
        for (&step, milliseconds) in held.script.steps.iter().zip(clock.milliseconds()?) {
            of_steps[step] += milliseconds / 1e3;
        }
        Ok((outcome, of_steps))
    }

    fn rates(&mut self) -> Result<Option<[f64; 2]>, EngineError> {
        self.moving.rates(&self.memory.arena)
    }

    fn load(&mut self, held: &Held, weights: &dyn WeightSource) -> Result<(), EngineError> {
        for number in 0..held.copies.len() {
            self.refresh(held, number, weights)?;
        }
        // What is in staging memory may be exchanged from here on.
        self.streams.synchronize()
    }

    fn renew(&mut self) {
        self.memory.copies.renew();
    }

    fn foresee(&mut self, images: &Arc<Vec<f32>>) {
        self.foreseen = Some(Arc::clone(images));
    }
}
