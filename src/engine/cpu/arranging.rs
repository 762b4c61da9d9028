//! What the executor asks of processors: programs within the limits of the near tier, planned, and
//! again where their steps were priced.

use super::machine::{Held, Machine};
use super::moving::Moving;
use super::program::Program;
use crate::config::MemoryMode;
use crate::engine::error::EngineError;
use crate::engine::executor::{self, Unpriced};
use crate::engine::memory::arrange::{
    Arranged, Choice, TooSmall, all_kept, arrange, choices, guessed, least,
};
use crate::engine::memory::far::Place;
use crate::engine::memory::limits::Limits;
use crate::engine::memory::schedule::rewritten;
use crate::engine::memory::sequence::Uses;
use crate::engine::memory::shown::MemoryPlan;
use crate::engine::micro_batch::Batch;
use crate::engine::plan::operation::Direction;
use crate::engine::plan::steps::Draft;
use crate::engine::source::WeightSource;
use crate::engine::subject::Subject;
use crate::engine::targets::Outcome;

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
    pub fn check(&self, work: &[(usize, Direction)], workers: u64) -> Result<(), EngineError> {
        let mut most: Option<(usize, EngineError)> = None;
        for &(samples, direction) in work {
            if self.is_roomy(samples, direction)? {
                continue;
            }
            let planned = match self.planned(samples, direction)? {
                Ok(planned) => planned,
                Err((wanted_bytes, refused)) => {
                    if most.as_ref().is_none_or(|(most_bytes, _)| wanted_bytes > *most_bytes) {
                        most = Some((wanted_bytes, refused));
                    }
                    continue;
                }
            };
            Moving::check(&self.subject.limits, planned.arranged.far_bytes * workers as usize)?;
        }
        most.map_or(Ok(()), |(_, refused)| Err(refused))
    }

    /// Whether all may stay, which shows sooner than what the planner would do: that takes no more.
    fn is_roomy(&self, batch: usize, direction: Direction) -> Result<bool, EngineError> {
        let limits = &self.subject.limits;
        if limits.far != Place::Ram || !limits.mode.recomputes() {
            return Ok(false);
        }
        let request = self.subject.request(batch, direction);
        let program = Program::new(&self.team.context, request, limits.copies(), &mut |draft| {
            Ok(rewritten(&draft, &all_kept(&Uses::of(&draft))).0)
        })?;
        let bytes = program.weights_bytes(&self.subject.layout) + program.plan.arena_bytes;
        Ok(limits.budget_bytes.is_none_or(|budget| bytes <= budget))
    }

    /// The smallest budget with which a micro-batch of training can be computed, where steps find
    /// near what they touch.
    pub fn smallest_budget(&self, samples: usize) -> Result<usize, EngineError> {
        // Of whatever may go within a budget.
        let limits = Limits { budget_bytes: Some(0), ..self.subject.limits.clone() };
        let (program, ..) = self.smallest(&limits, samples, Direction::Training)?;
        Ok(program.weights_bytes(&self.subject.layout) + program.plan.arena_bytes)
    }

    /// What would become of the values of training, by guessed prices.
    pub fn memory_plan(&self, batch: usize) -> Result<MemoryPlan, EngineError> {
        let Planned { draft, arranged, weights_bytes, .. } =
            self.fitting(batch, Direction::Training)?;
        let (graph, limits) = (&self.subject.graph, &self.subject.limits);
        Ok(MemoryPlan::within(&draft, graph, limits, arranged, weights_bytes))
    }

    /// All that the planner could do within the budget, by guessed prices.
    pub fn choices(&self, batch: usize) -> Result<Vec<Choice>, EngineError> {
        let Planned { draft, weights_bytes, .. } = self.fitting(batch, Direction::Training)?;
        let budget =
            self.subject.limits.budget_bytes.map_or(usize::MAX, |budget| budget - weights_bytes);
        Ok(choices(&draft, &guessed(&draft), budget))
    }

    /// The program that takes the least of the near tier, its draft in core, and as it runs.
    fn smallest(
        &self,
        limits: &Limits,
        batch: usize,
        direction: Direction,
    ) -> Result<(Program, Draft, Arranged), EngineError> {
        let limits = limits.in_direction(direction);
        let (graph, request) = (&self.subject.graph, self.subject.request(batch, direction));
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
        let (program, draft, arranged) = self.smallest(&self.subject.limits, batch, direction)?;
        let weights_bytes = program.weights_bytes(&self.subject.layout);
        let mut planned = Planned { program, draft, arranged, weights_bytes };
        let wanted_bytes = weights_bytes + planned.program.plan.arena_bytes;
        let budget = self.subject.limits.budget_bytes.unwrap_or(usize::MAX);
        if wanted_bytes <= budget {
            return Ok(Ok(planned));
        }
        let limits = &self.subject.limits.in_direction(direction);
        let wanted_bytes = match self.remote(&planned, limits, budget) {
            Ok(arranged) => {
                planned.program.plan = arranged.draft.clone().place();
                planned.arranged = arranged;
                return Ok(Ok(planned));
            }
            Err(TooSmall { wanted_bytes }) => wanted_bytes,
        };
        // What is said is of the arrangement that would do with that.
        if let Ok(arranged) = self.remote(&planned, limits, wanted_bytes) {
            planned.arranged = arranged;
        }
        let plan = MemoryPlan::of(
            &planned.draft,
            &self.subject.graph,
            &planned.arranged,
            planned.weights_bytes,
        );
        let refused = self.subject.limits.refusal(batch, direction, wanted_bytes, &plan.most());
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
            MemoryMode::Unified => {
                arrange(draft, &self.subject.graph, limits, &guessed(draft), Some(near))
            }
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
        let Planned { program, draft, arranged, weights_bytes } = self.fitting(batch, direction)?;
        let limits = self.subject.limits.in_direction(direction);
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
        let (again, number) = (arranged.again(), self.programs);
        let mut held = Held { program, weights, again, number };
        let budget_bytes = limits.budget_bytes.map(|budget| budget - weights_bytes);
        if limits.mode.recomputes() {
            return Ok((held, Some(Unpriced { draft, arranged, budget_bytes })));
        }
        if limits.mode == MemoryMode::Unified || budget_bytes.is_some() {
            // What a pager moves, and which copies of weights have room, hangs on no price.
            let graph = &self.subject.graph;
            let fitted = arrange(&draft, graph, &limits, &guessed(&draft), budget_bytes);
            self.hold(&mut held, &fitted.unwrap_or(arranged))?;
        }
        Ok((held, None))
    }

    fn takes(&mut self, far_bytes: usize) -> Result<bool, EngineError> {
        self.moving.extend(&self.subject.limits, far_bytes)
    }

    fn hold(&mut self, held: &mut Held, arranged: &Arranged) -> Result<(), EngineError> {
        self.moving.reserve(&self.subject.limits, arranged.far_bytes)?;
        let plan = arranged.draft.clone().place();
        self.reserve(&plan);
        held.program.plan = plan;
        self.loaded = None;
        held.again = arranged.again();
        Ok(())
    }

    fn near_bytes(&self, held: &Held) -> usize {
        held.program.plan.arena_bytes + held.program.weights_bytes(&self.subject.layout)
    }

    fn release(&mut self, held: Held) {
        held.weights.into_iter().for_each(|at| self.weights.release(at));
    }

    fn run(&mut self, held: &mut Held, batch: Batch<'_>) -> Result<Outcome, EngineError> {
        self.compute(held, batch, &mut |_, _| {})
    }

    fn run_timed(
        &mut self,
        held: &mut Held,
        batch: Batch<'_>,
    ) -> Result<(Outcome, Vec<f64>), EngineError> {
        let mut of_steps = Vec::new();
        let outcome = self.compute(held, batch, &mut |_, took| of_steps.push(took))?;
        Ok((outcome, of_steps))
    }

    fn rates(&mut self) -> Result<Option<[f64; 2]>, EngineError> {
        Ok(self.moving.rates(&self.arena))
    }

    fn load(&mut self, held: &Held, weights: &dyn WeightSource) -> Result<(), EngineError> {
        held.weights.iter().try_for_each(|&at| self.weights.refresh(at, weights))
    }

    fn renew(&mut self) {
        self.weights.renew();
        self.loaded = None;
    }

    fn reload(&mut self) {
        self.loaded = None;
    }

    fn enter(&mut self) {
        self.team.enter();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::plan::tensor::ElementType;
    use crate::model::catalogue;

    /// What is said of a pager's budget of no bytes.
    fn refusal(far: Place) -> String {
        let graph = catalogue::build("resnet20", [3, 32, 32], 10, 1.0).expect("in the catalogue");
        let (mode, budget_bytes) = (MemoryMode::Unified, Some(0));
        let limits = Limits { mode, budget_bytes, far, ..Limits::none() };
        let subject = Subject::new(&graph, ElementType::F32, &[], &limits);
        let machine = Machine::new(subject, 1).expect("there is a processor");
        machine.fitting(40, Direction::Training).map(drop).expect_err("too small").to_string()
    }

    #[test]
    fn the_least_that_would_do_is_no_less_than_the_most_that_it_holds() {
        let said = refusal(Place::Ram);
        let megabytes: Vec<f64> =
            said.split('(').filter_map(|text| text.split_once(" MB")?.0.parse().ok()).collect();
        assert!(megabytes.len() == 2 && megabytes[0] >= megabytes[1], "{said}");
        assert!(!said.contains("memory.far"), "{said}");
        let on_disk = refusal(Place::File(std::env::temp_dir()));
        assert!(on_disk.contains("set memory.far = \"ram\""), "{on_disk}");
    }

    #[test]
    fn the_planner_is_not_asked_where_all_may_stay_and_takes_no_more() {
        let graph = catalogue::build("cnn3", [3, 16, 16], 10, 1.0).expect("in the catalogue");
        let within = |mode, budget_bytes| {
            let limits = Limits { mode, budget_bytes: Some(budget_bytes), ..Limits::none() };
            let subject = Subject::new(&graph, ElementType::F32, &[], &limits);
            Machine::new(subject, 1).expect("there is a processor")
        };
        for mode in [MemoryMode::Recompute, MemoryMode::Planned] {
            let in_core = within(MemoryMode::InCore, usize::MAX);
            let all = in_core.memory_plan(7).expect("there is room").near_bytes()[1] as usize;
            let is_roomy = |bytes| within(mode, bytes).is_roomy(7, Direction::Training);
            assert_eq!((is_roomy(all), is_roomy(all - 1)), (Ok(true), Ok(false)));
            let least = within(mode, all).smallest_budget(7).expect("planned");
            assert!(least <= all, "{least} {all}");
        }
    }
}
