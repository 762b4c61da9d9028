//! How a script comes to be within the limits of the card's memory: written, measured where its
//! mode asks for prices, written again.

use super::backend::Planner;
use super::clock::Clock;
use super::machine::{Held, Machine};
use super::script::Script;
use crate::config::MemoryMode;
use crate::engine::error::EngineError;
use crate::engine::memory::arrange::{Arranged, guessed, least};
use crate::engine::memory::limits::Limits;
use crate::engine::memory::outlook::{Compared, Outlook};
use crate::engine::memory::schedule::Costs;
use crate::engine::memory::shown::MemoryPlan;
use crate::engine::micro_batch::{Batch, of_zeros};
use crate::engine::plan::builder::Request;
use crate::engine::plan::operation::Direction;
use crate::engine::plan::steps::Draft;
use crate::engine::targets::Outcome;
use crate::model::Graph;

/// Passes of zeros that are measured: the first one sends weights.
const MEASURED: usize = 2;

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
        (graph, limits): (&Graph, &Limits),
        work: (usize, Direction),
        besides_bytes: usize,
    ) -> Result<(), EngineError> {
        let wanted_bytes = self.script.arena_bytes + besides_bytes;
        if limits.budget_bytes.is_none_or(|budget| wanted_bytes <= budget) {
            return Ok(());
        }
        let plan = MemoryPlan::of(&self.draft, graph, &self.arranged, besides_bytes);
        Err(limits.refusal(work, wanted_bytes, &plan.most()))
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
        let (graph, layout, element) = (&self.graph, &self.layout, self.element);
        let request = Request { graph, layout, batch, direction, element, frozen: &self.frozen };
        let written = Written::least(request, Some(&mut self.plans), &self.limits)?;
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
        let work = (batch, Direction::Training);
        let limits = of_card(&self.limits, work.1);
        let (written, besides_bytes) = self.least(batch, work.1)?;
        written.check((&self.graph, &limits), work, besides_bytes)?;
        let Written { draft, arranged, .. } = written;
        Ok(MemoryPlan::within(&draft, &self.graph, &limits, arranged, besides_bytes))
    }

    /// A script for this batch size, with memory.
    pub fn write(&mut self, batch: usize, direction: Direction) -> Result<Held, EngineError> {
        let limits = of_card(&self.limits, direction);
        let (written, besides_bytes) = self.least(batch, direction)?;
        written.check((&self.graph, &limits), (batch, direction), besides_bytes)?;
        let Written { script, draft, arranged } = written;
        let mut held = self.bind(script, (batch, direction))?;
        held.again = arranged.again();
        self.moving.reserve(arranged.far_bytes)?;
        self.memory.fit(&self.card.context, &held.script, &self.limits)?;
        if limits.mode.recomputes() {
            let costs = self.measure(&held, &draft, &arranged)?;
            let budget_bytes = limits.budget_bytes.map(|budget| budget - besides_bytes);
            self.improve(&mut held, Outlook::new(draft, arranged, costs, budget_bytes))?;
        }
        Ok(held)
    }

    /// Takes the quickest arrangement by measured prices in place of the one at hand.
    fn improve(&mut self, held: &mut Held, mut outlook: Outlook) -> Result<(), EngineError> {
        let arranged = outlook.improve(&self.graph, &self.limits);
        let (graph, layout, element) = (&self.graph, &self.layout, self.element);
        let (batch, direction, frozen) = (held.batch, held.direction, &self.frozen[..]);
        let request = Request { graph, layout, batch, direction, element, frozen };
        // The same kernels: what was chosen is known.
        let mut script =
            Script::new(request, Some(&mut self.plans), &mut |_| arranged.draft.clone())?;
        (held.lines, held.kinds) = self.bound(&mut script)?;
        held.script = script;
        held.again = arranged.again();
        self.moving.reserve(arranged.far_bytes)?;
        self.memory.fit(&self.card.context, &held.script, &self.limits)?;
        self.expected.push(outlook.expected(held.batch, held.script.near_bytes(layout)));
        held.outlook = Some(outlook);
        Ok(())
    }

    /// A pass whose time is compared with what was expected.
    pub fn run_compared(
        &mut self,
        held: &mut Held,
        batch: Batch<'_>,
    ) -> Result<Outcome, EngineError> {
        let mut outlook = held.outlook.take().expect("there is one to compare with");
        let mut clock = Clock::new(&self.card.context);
        let outcome = self.run(held, batch, Some(&mut clock))?;
        let of_steps = of_steps(held, &clock)?;
        let of = (held.batch, held.script.near_bytes(&self.layout));
        match outlook.compare(&of_steps, of, &mut self.expected) {
            Compared::Surprised => self.improve(held, outlook)?,
            Compared::Stays => held.outlook = Some(outlook),
        }
        Ok(outcome)
    }

    /// What each step of the draft takes here, with the first arrangement of it.
    fn measure(
        &mut self,
        held: &Held,
        draft: &Draft,
        arranged: &Arranged,
    ) -> Result<Costs, EngineError> {
        let mut costs = guessed(draft);
        let graph = self.graph.clone();
        let mut passes = Vec::new();
        for _ in 0..MEASURED {
            let mut clock = Clock::new(&self.card.context);
            of_zeros(&graph, held.batch, |batch| self.run(held, batch, Some(&mut clock)))?;
            passes.push(of_steps(held, &clock)?);
        }
        // Nobody is to compute with zeros.
        self.memory.copies.renew();
        costs.step_seconds = arranged.step_seconds(&passes, &costs.step_seconds);
        if let Some(rates) = self.moving.rates(&self.memory.arena)? {
            costs.rates = rates;
        }
        Ok(costs)
    }
}

/// Seconds of each step of a script's plan.
fn of_steps(held: &Held, clock: &Clock) -> Result<Vec<f64>, EngineError> {
    let mut seconds = vec![0.0; held.again.len()];
    for (&step, milliseconds) in held.script.steps.iter().zip(clock.milliseconds()?) {
        seconds[step] += milliseconds / 1e3;
    }
    Ok(seconds)
}
