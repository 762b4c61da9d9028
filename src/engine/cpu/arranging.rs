//! How a program comes to be within the limits of the near tier: planned, measured where its mode
//! asks for prices, planned again.

use super::machine::{Held, Machine};
use super::moving::Moving;
use super::outlook::Outlook;
use super::program::Program;
use crate::config::MemoryMode;
use crate::engine::error::EngineError;
use crate::engine::memory::arrange::{Arranged, arrange, guessed};
use crate::engine::memory::expected::Expected;
use crate::engine::memory::limits::Limits;
use crate::engine::memory::schedule::Costs;
use crate::engine::memory::shown::MemoryPlan;
use crate::engine::micro_batch::Batch;
use crate::engine::plan::builder::Request;
use crate::engine::plan::operation::Direction;
use crate::engine::plan::steps::Draft;
use crate::engine::source::Flat;
use crate::engine::targets::Outcome;
use crate::model::Graph;
use crate::model::spec::elements;
use crate::observe::spans::amount;

/// Passes of zeros that are measured: the first one finds memory that is not there yet.
const MEASURED: usize = 2;

/// Passes that are compared with what was expected of them.
const COMPARED: u32 = 4;
/// By how much the quickest of them may differ before everything is planned again, once.
const TOLERANCE: f64 = 0.1;

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
        let mut most = (0, work[0]);
        for (samples, direction) in work {
            let (program, _, arranged) = self.smallest(samples.max(1), direction)?;
            let held = program.weights_bytes(&self.layout) + program.plan.arena_bytes;
            most = if held > most.0 { (held, (samples, direction)) } else { most };
            Moving::check(&self.limits, arranged.far_bytes * workers as usize)?;
        }
        let (wanted_bytes, (samples, direction)) = most;
        match self.limits.budget_bytes {
            Some(budget) if wanted_bytes > budget => {
                Err(refusal(&self.limits, (samples, direction), wanted_bytes))
            }
            _ => Ok(()),
        }
    }

    /// The smallest budget with which a micro-batch of training can be computed.
    pub fn smallest_budget(&self, samples: usize) -> Result<usize, EngineError> {
        let (program, ..) = self.smallest(samples, Direction::Training)?;
        Ok(program.weights_bytes(&self.layout) + program.plan.arena_bytes)
    }

    /// What would become of the values of training, by guessed prices.
    pub fn memory_plan(&self, batch: usize) -> Result<MemoryPlan, EngineError> {
        let Planned { draft, arranged, weights_bytes, .. } =
            self.planned(batch, Direction::Training)?;
        let budget = self.limits.budget_bytes.map(|budget| budget - weights_bytes);
        let better = arrange(&draft, &self.graph, &self.limits, &guessed(&draft), budget);
        let arranged = better.unwrap_or(arranged);
        let budget_bytes = self.limits.budget_bytes.map(|budget| budget as u64);
        let plan = MemoryPlan::of(&draft, &self.graph, &arranged, weights_bytes);
        Ok(MemoryPlan { budget_bytes, ..plan })
    }

    fn limits_of(&self, direction: Direction) -> Limits {
        match direction {
            Direction::Training => self.limits.clone(),
            // Nothing waits for a backward pass.
            Direction::Inference => Limits { mode: MemoryMode::InCore, ..self.limits.clone() },
        }
    }

    /// The program that takes the least of the near tier, its draft in core, and as it runs.
    fn smallest(
        &self,
        batch: usize,
        direction: Direction,
    ) -> Result<(Program, Draft, Arranged), EngineError> {
        let limits = self.limits_of(direction);
        let (graph, layout, element) = (&self.graph, &self.layout, self.element);
        let request = Request { graph, layout, batch, direction, element, frozen: &self.frozen };
        let mut first = None;
        let program = Program::new(&self.team.context, request, &mut |draft| {
            let arranged = least(&draft, graph, &limits);
            let runs = arranged.draft.clone();
            first = Some((draft, arranged));
            Ok(runs)
        })?;
        let (draft, arranged) = first.expect("it was planned");
        Ok((program, draft, arranged))
    }

    /// The same, refused where it does not fit.
    fn planned(&self, batch: usize, direction: Direction) -> Result<Planned, EngineError> {
        let (program, draft, arranged) = self.smallest(batch, direction)?;
        let weights_bytes = program.weights_bytes(&self.layout);
        let wanted_bytes = weights_bytes + program.plan.arena_bytes;
        match self.limits.budget_bytes {
            Some(budget) if wanted_bytes > budget => {
                Err(refusal(&self.limits, (batch, direction), wanted_bytes))
            }
            _ => Ok(Planned { program, draft, arranged, weights_bytes }),
        }
    }

    /// A program for this batch size, with memory.
    pub fn compile(&mut self, batch: usize, direction: Direction) -> Result<Held, EngineError> {
        let Planned { program, draft, arranged, weights_bytes } = self.planned(batch, direction)?;
        let limits = self.limits_of(direction);
        let mut weights = Vec::with_capacity(program.weights.len());
        for wanted in &program.weights {
            weights.push(self.weights.acquire(wanted)?);
        }
        self.moving.reserve(&limits, arranged.far_bytes)?;
        self.reserve(program.plan.arena_bytes);
        let (used, outlook, again) = (0, None, arranged.again());
        let mut held = Held { batch, direction, program, weights, used, again, outlook };
        let budget_bytes = limits.budget_bytes.map(|budget| budget - weights_bytes);
        if limits.mode == MemoryMode::Unified {
            // What a pager moves hangs on no price.
            let graph = &self.graph;
            let fitted = arrange(&draft, graph, &limits, &guessed(&draft), budget_bytes);
            self.hold(&mut held, &fitted.unwrap_or(arranged))?;
        } else if limits.mode.recomputes() {
            let costs = self.measure(&mut held, &draft, &arranged)?;
            let (left, best_seconds, is_first) = (COMPARED, f64::INFINITY, true);
            let outlook =
                Outlook { draft, arranged, budget_bytes, costs, left, best_seconds, is_first };
            self.improve(&mut held, outlook)?;
        }
        Ok(held)
    }

    /// Takes the quickest arrangement by measured prices in place of the one at hand.
    fn improve(&mut self, held: &mut Held, outlook: Outlook) -> Result<(), EngineError> {
        let Outlook { draft, costs, budget_bytes, .. } = &outlook;
        // By other prices there may be none as small as the first: that one stays.
        let better = arrange(draft, &self.graph, &self.limits, costs, *budget_bytes).ok();
        let arranged = better.unwrap_or_else(|| outlook.arranged.priced(draft, costs));
        self.hold(held, &arranged)?;
        let outlook = Outlook { arranged, ..outlook };
        self.expected.push(expected(held, &outlook));
        held.outlook = Some(outlook);
        Ok(())
    }

    /// Runs a program so from now on.
    fn hold(&mut self, held: &mut Held, arranged: &Arranged) -> Result<(), EngineError> {
        self.moving.reserve(&self.limits, arranged.far_bytes)?;
        let plan = arranged.draft.clone().place();
        self.reserve(plan.arena_bytes);
        held.program.plan = plan;
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
        let (mut all, mut seconds) = (0.0, vec![None; outlook.draft.steps.len()]);
        let took = &mut |at: usize, took: f64| {
            all += took;
            if let Some(step) = outlook.arranged.origins[at] {
                seconds[step] = Some(took);
            }
        };
        let outcome = self.run(held, batch, took)?;
        for (cost, took) in outlook.costs.step_seconds.iter_mut().zip(seconds) {
            // The one before was of zeros, or of other passes.
            *cost = took.map_or(*cost, |took| match outlook.left {
                COMPARED => took,
                _ => took.min(*cost),
            });
        }
        outlook.left -= 1;
        outlook.best_seconds = outlook.best_seconds.min(all);
        if outlook.left == 0 {
            let took_seconds = Some(outlook.best_seconds);
            self.expected.push(Expected { took_seconds, ..expected(held, &outlook) });
            if outlook.error().abs() > TOLERANCE && std::mem::replace(&mut outlook.is_first, false)
            {
                (outlook.left, outlook.best_seconds) = (COMPARED, f64::INFINITY);
                self.improve(held, outlook)?;
                return Ok(outcome);
            }
        }
        held.outlook = Some(outlook);
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
        let mut seconds = vec![f64::INFINITY; draft.steps.len()];
        let samples = held.batch;
        let images = vec![0.0; samples * elements(self.graph.input)];
        let labels = vec![0; samples];
        let parameters = vec![0.0; self.layout.parameters];
        let running = vec![0.0; self.layout.statistics];
        let weights = &Flat { parameters: &parameters, statistics: &running };
        let mut statistics = vec![0.0; self.layout.statistics];
        for _ in 0..MEASURED {
            let took = &mut |at: usize, took: f64| {
                if let Some(step) = arranged.origins[at] {
                    seconds[step] = seconds[step].min(took);
                }
            };
            let batch = Batch {
                images: &images,
                targets: (&labels).into(),
                dropout_key: [0; 3],
                weights,
                statistics: &mut statistics,
                ready: &mut |_, _| {},
                outcome: Outcome::default(),
                logarithms: None,
            };
            self.run(held, batch, took)?;
        }
        // Nobody is to compute with zeros.
        self.weights.renew();
        costs.step_seconds = seconds;
        if let Some(rates) = self.moving.rates()? {
            costs.rates = rates;
        }
        Ok(costs)
    }
}

/// The arrangement that takes the least of the near tier; of modes that have no choice their own.
fn least(draft: &Draft, graph: &Graph, limits: &Limits) -> Arranged {
    let budget_bytes = match limits.mode {
        mode if mode.fits_a_budget() => Some(0),
        _ => None,
    };
    arrange(draft, graph, limits, &guessed(draft), budget_bytes)
        .expect("without a budget there is always one")
}

fn refusal(
    limits: &Limits,
    (samples, direction): (usize, Direction),
    wanted_bytes: usize,
) -> EngineError {
    let budget = limits.budget_bytes.unwrap_or(0);
    let (what, instead) = match (direction, limits.mode) {
        (Direction::Inference, _) => ("evaluation of", ", or lower evaluation.batch"),
        (_, MemoryMode::Planned) => ("a micro-batch of", ", or raise train.accumulate"),
        _ => (
            "a micro-batch of",
            ", set memory.mode = \"planned\", which holds the least, or raise train.accumulate",
        ),
    };
    EngineError::Refused(format!(
        "device.memory_budget: {what} {samples} samples takes {wanted_bytes} B ({}) of the near \
         tier at the least with memory.mode = {}, and a worker may take {budget} B ({}): raise \
         device.memory_budget, which a rank's workers share{instead}",
        amount(wanted_bytes as u64),
        mode(limits.mode),
        amount(budget as u64),
    ))
}

/// What a program is expected to take.
fn expected(held: &Held, outlook: &Outlook) -> Expected {
    Expected {
        samples: held.batch,
        near_bytes: held.program.plan.arena_bytes as u64,
        far_bytes: outlook.arranged.far_bytes as u64,
        forecast: outlook.arranged.forecast,
        took_seconds: None,
    }
}

/// As it is written.
fn mode(mode: MemoryMode) -> String {
    toml::Value::try_from(mode).map_or_else(|_| format!("{mode:?}"), |mode| mode.to_string())
}
