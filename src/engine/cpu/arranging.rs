//! How a program comes to be within the limits of the near tier: planned, measured where its mode
//! asks for prices, planned again.

use super::machine::{Held, Machine};
use super::moving::Moving;
use super::program::Program;
use crate::config::MemoryMode;
use crate::engine::error::EngineError;
use crate::engine::memory::arrange::{
    Arranged, Choice, TooSmall, arrange, choices, guessed, least,
};
use crate::engine::memory::limits::Limits;
use crate::engine::memory::outlook::{Compared, Outlook};
use crate::engine::memory::schedule::Costs;
use crate::engine::memory::shown::MemoryPlan;
use crate::engine::micro_batch::{Batch, of_zeros};
use crate::engine::plan::builder::Request;
use crate::engine::plan::operation::Direction;
use crate::engine::plan::steps::Draft;
use crate::engine::targets::Outcome;

/// Passes of zeros that are measured: the first one finds memory that is not there yet.
const MEASURED: usize = 2;

/// A program, before it has memory.
struct Planned {
    program: Program,
    /// In core.
    draft: Draft,
    /// As the program runs it.
    arranged: Arranged,
    weights_bytes: usize,
}

impl Machine {
    /// Refuses a budget of the near tier that is too small for what is going to be computed, with
    /// the least that would do, and a spill folder without room for so many workers. Keeps nothing.
    pub fn check(&self, work: [(usize, Direction); 2], workers: u64) -> Result<(), EngineError> {
        let mut most: Option<(usize, EngineError)> = None;
        for (samples, direction) in work {
            let planned = match self.planned(samples.max(1), direction)? {
                Ok(planned) => planned,
                Err((wanted_bytes, refused)) => {
                    if most.as_ref().is_none_or(|(most_bytes, _)| wanted_bytes > *most_bytes) {
                        most = Some((wanted_bytes, refused));
                    }
                    continue;
                }
            };
            Moving::check(&self.limits, planned.arranged.far_bytes * workers as usize)?;
        }
        most.map_or(Ok(()), |(_, refused)| Err(refused))
    }

    /// The smallest budget with which a micro-batch of training can be computed, where steps find
    /// near what they touch.
    pub fn smallest_budget(&self, samples: usize) -> Result<usize, EngineError> {
        // Of whatever may go within a budget.
        let limits = Limits { budget_bytes: Some(0), ..self.limits.clone() };
        let (program, ..) = self.smallest(&limits, (samples, Direction::Training))?;
        Ok(program.weights_bytes(&self.layout) + program.plan.arena_bytes)
    }

    /// What would become of the values of training, by guessed prices.
    pub fn memory_plan(&self, batch: usize) -> Result<MemoryPlan, EngineError> {
        let Planned { draft, arranged, weights_bytes, .. } =
            self.fitting(batch, Direction::Training)?;
        let (graph, limits) = (&self.graph, &self.limits);
        Ok(MemoryPlan::within(&draft, graph, limits, arranged, weights_bytes))
    }

    /// All that the planner could do within the budget, by guessed prices.
    pub fn choices(&self, batch: usize) -> Result<Vec<Choice>, EngineError> {
        let Planned { draft, weights_bytes, .. } = self.fitting(batch, Direction::Training)?;
        let budget = self.limits.budget_bytes.map_or(usize::MAX, |budget| budget - weights_bytes);
        Ok(choices(&draft, &guessed(&draft), budget))
    }

    /// The program that takes the least of the near tier, its draft in core, and as it runs.
    fn smallest(
        &self,
        limits: &Limits,
        (batch, direction): (usize, Direction),
    ) -> Result<(Program, Draft, Arranged), EngineError> {
        let limits = limits.in_direction(direction);
        let (graph, layout, element) = (&self.graph, &self.layout, self.element);
        let request = Request { graph, layout, batch, direction, element, frozen: &self.frozen };
        let mut first = None;
        let program = Program::new(&self.team.context, request, limits.copies(), &mut |draft| {
            let arranged = least(&draft, graph, &limits);
            let runs = arranged.draft.clone();
            first = Some((draft, arranged));
            Ok(runs)
        })?;
        let (draft, arranged) = first.expect("it was planned");
        Ok((program, draft, arranged))
    }

    /// The same within the budget. `Ok(Err(_))`: it does not fit, with the least that would do.
    fn planned(
        &self,
        batch: usize,
        direction: Direction,
    ) -> Result<Result<Planned, (usize, EngineError)>, EngineError> {
        let (program, draft, arranged) = self.smallest(&self.limits, (batch, direction))?;
        let weights_bytes = program.weights_bytes(&self.layout);
        let mut planned = Planned { program, draft, arranged, weights_bytes };
        let wanted_bytes = weights_bytes + planned.program.plan.arena_bytes;
        let budget = self.limits.budget_bytes.unwrap_or(usize::MAX);
        if wanted_bytes <= budget {
            return Ok(Ok(planned));
        }
        let limits = &self.limits.in_direction(direction);
        let wanted_bytes = match self.remote(&planned, limits, budget) {
            Ok(arranged) => {
                planned.program.plan = arranged.draft.clone().place();
                planned.arranged = arranged;
                return Ok(Ok(planned));
            }
            Err(TooSmall { wanted_bytes }) => wanted_bytes,
        };
        let plan =
            MemoryPlan::of(&planned.draft, &self.graph, &planned.arranged, planned.weights_bytes);
        let refused = self.limits.refusal((batch, direction), wanted_bytes, &plan.most());
        Ok(Err((wanted_bytes, refused)))
    }

    /// What a pager does where steps touch more than there is; of other modes nothing helps then.
    fn remote(
        &self,
        planned: &Planned,
        limits: &Limits,
        budget: usize,
    ) -> Result<Arranged, TooSmall> {
        let Planned { program, draft, weights_bytes, .. } = planned;
        let near = budget.saturating_sub(*weights_bytes).max(1);
        let arranged = match limits.mode {
            MemoryMode::Unified => arrange(draft, &self.graph, limits, &guessed(draft), Some(near)),
            _ => Err(TooSmall { wanted_bytes: program.plan.arena_bytes }),
        };
        arranged.map_err(|TooSmall { wanted_bytes }| TooSmall {
            wanted_bytes: wanted_bytes + weights_bytes,
        })
    }

    /// The same, refused where it does not fit.
    fn fitting(&self, batch: usize, direction: Direction) -> Result<Planned, EngineError> {
        self.planned(batch, direction)?.map_err(|(_, refused)| refused)
    }

    /// A program for this batch size, with memory.
    pub fn compile(&mut self, batch: usize, direction: Direction) -> Result<Held, EngineError> {
        let Planned { program, draft, arranged, weights_bytes } = self.fitting(batch, direction)?;
        let limits = self.limits.in_direction(direction);
        let mut weights = Vec::with_capacity(program.weights.len());
        for (wanted, is_apart) in program.weights.iter().zip(program.are_apart()) {
            let copy = self.weights.acquire(wanted)?;
            if is_apart {
                self.weights.reserve(copy);
            }
            weights.push(copy);
        }
        self.moving.reserve(&limits, arranged.far_bytes)?;
        self.reserve(&program.plan);
        self.programs += 1;
        let (used, outlook, again, number) = (0, None, arranged.again(), self.programs);
        let mut held = Held { batch, direction, program, weights, used, again, outlook, number };
        let budget_bytes = limits.budget_bytes.map(|budget| budget - weights_bytes);
        if limits.mode.recomputes() {
            let costs = self.measure(&mut held, &draft, &arranged)?;
            self.improve(&mut held, Outlook::new(draft, arranged, costs, budget_bytes))?;
        } else if limits.mode == MemoryMode::Unified || budget_bytes.is_some() {
            // What a pager moves, and which copies of weights have room, hangs on no price.
            let graph = &self.graph;
            let fitted = arrange(&draft, graph, &limits, &guessed(&draft), budget_bytes);
            self.hold(&mut held, &fitted.unwrap_or(arranged))?;
        }
        Ok(held)
    }

    /// Takes the quickest arrangement by measured prices in place of the one at hand.
    fn improve(&mut self, held: &mut Held, mut outlook: Outlook) -> Result<(), EngineError> {
        let arranged = outlook.improve(&self.graph, &self.limits);
        self.hold(held, arranged)?;
        self.expected.push(outlook.expected(held.batch, held.near_bytes(&self.layout)));
        held.outlook = Some(outlook);
        Ok(())
    }

    /// Runs a program so from now on.
    fn hold(&mut self, held: &mut Held, arranged: &Arranged) -> Result<(), EngineError> {
        self.moving.reserve(&self.limits, arranged.far_bytes)?;
        let plan = arranged.draft.clone().place();
        self.reserve(&plan);
        held.program.plan = plan;
        self.loaded = None;
        held.again = arranged.again();
        Ok(())
    }

    /// A pass whose time is compared with what was expected.
    pub fn run_compared(
        &mut self,
        held: &mut Held,
        batch: Batch<'_>,
    ) -> Result<Outcome, EngineError> {
        let mut outlook = held.outlook.take().expect("there is one to compare with");
        let mut of_steps = Vec::new();
        let outcome = self.run(held, batch, &mut |_, took| of_steps.push(took))?;
        let of = (held.batch, held.near_bytes(&self.layout));
        match outlook.compare(&of_steps, of, &mut self.expected) {
            Compared::Surprised => self.improve(held, outlook)?,
            Compared::Stays => held.outlook = Some(outlook),
        }
        Ok(outcome)
    }

    /// What each step of the draft takes here, with the first arrangement of it.
    fn measure(
        &mut self,
        held: &mut Held,
        draft: &Draft,
        arranged: &Arranged,
    ) -> Result<Costs, EngineError> {
        let mut costs = guessed(draft);
        let graph = self.graph.clone();
        let mut passes = Vec::new();
        for _ in 0..MEASURED {
            let mut of_steps = Vec::new();
            // What is kept is loaded, too.
            self.loaded = None;
            of_zeros(&graph, held.batch, |batch| {
                self.run(held, batch, &mut |_, took| of_steps.push(took))
            })?;
            passes.push(of_steps);
        }
        // Nobody is to compute with zeros.
        self.renew();
        costs.step_seconds = arranged.step_seconds(&passes, &costs.step_seconds);
        if let Some(rates) = self.moving.rates()? {
            costs.rates = rates;
        }
        Ok(costs)
    }
}
