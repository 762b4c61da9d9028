//! What computes: activation memory, copies of weights, the far tier, one team of threads. It runs
//! one program at a time.

use std::sync::Arc;
use std::time::Instant;

use kintsugi_ffi::arena::Arena;
use kintsugi_ffi::dnnl;

use super::bf16;
use super::moving::Moving;
use super::operands::Operands;
use super::program::Program;
use super::team::Team;
use super::weights::Weights;
use crate::engine::compute::Passing;
use crate::engine::error::EngineError;
use crate::engine::micro_batch::Batch;
use crate::engine::plan::operation::Access;
use crate::engine::plan::steps::{Action, Plan, Way, When};
use crate::engine::subject::Subject;
use crate::engine::targets::Outcome;

/// A program with the weight copies that it holds.
pub struct Held {
    /// What runs.
    pub program: Program,
    /// Its copies.
    pub weights: Vec<usize>,
    /// Which of its steps have run before when they run.
    pub again: Vec<bool>,
    /// Its own, among all of a worker.
    pub number: u64,
}

/// Of one worker.
pub struct Machine {
    /// What it computes.
    pub subject: Subject,
    /// Threads that compute.
    pub team: Team,
    /// The near tier, but for weights.
    pub arena: Arc<Arena>,
    /// Copies of weights.
    pub weights: Weights,
    /// The far tier.
    pub moving: Moving,
    /// Whose weights lie in places among values, of the state at hand: a program's number.
    pub loaded: Option<u64>,
    /// Programs so far.
    pub programs: u64,
}

/// All bits set: no number in f32, and no two in bf16.
const SOIL: f32 = f32::from_bits(u32::MAX);

impl Machine {
    /// For the calling thread, with a team of `threads` OpenMP threads (a constant of the run: it
    /// decides the last bits).
    pub fn new(subject: Subject, threads: usize) -> Result<Self, EngineError> {
        bf16::check(subject.element, &dnnl::isa())?;
        Team::check(threads)?;
        let team = Team::new(threads)?;
        let weights = Weights::new(&team.context, &subject.layout);
        Ok(Self {
            subject,
            team,
            arena: Arc::new(Arena::zeroed(0)),
            weights,
            moving: Moving::default(),
            loaded: None,
            programs: 0,
        })
    }

    /// Memory for the values of a program.
    pub fn reserve(&mut self, plan: &Plan) {
        let bytes = plan.arena_bytes + plan.remote_bytes;
        if self.arena.bytes() < bytes {
            // The old one goes first: nothing in it is needed between micro-batches.
            self.arena = Arc::new(Arena::zeroed(0));
            self.arena = Arc::new(Arena::zeroed(bytes));
            self.loaded = None;
        }
    }

    /// Computes a micro-batch. `took`: how many seconds each step of the plan did.
    pub fn compute(
        &mut self,
        held: &mut Held,
        batch: Batch<'_>,
        took: &mut dyn FnMut(usize, f64),
    ) -> Result<Outcome, EngineError> {
        if self.subject.soiled {
            let arena = Arc::get_mut(&mut self.arena).expect("nothing is copied between passes");
            arena.as_mut_slice().fill(SOIL);
            self.loaded = None;
        }
        let is_loaded = self.loaded.take() == Some(held.number);
        let outcome = self.pass(held, is_loaded, batch, took);
        match outcome {
            Ok(_) => self.loaded = Some(held.number),
            Err(_) => self.moving.give_up(),
        }
        outcome
    }

    /// `is_loaded`: what the program loads for many passes is there.
    fn pass(
        &mut self,
        held: &mut Held,
        is_loaded: bool,
        mut batch: Batch<'_>,
        took: &mut dyn FnMut(usize, f64),
    ) -> Result<Outcome, EngineError> {
        let Held { program, weights, again, .. } = held;
        let Program { plan, primitives, .. } = program;
        let (arena, classes) = (&self.arena, self.subject.graph.classes);
        let Subject { watch, limits, soiled, .. } = &mut self.subject;
        for (at, action) in plan.actions.iter().enumerate() {
            let begun = Instant::now();
            if again[at] {
                watch(Passing::Recompute);
            }
            limits.pace(plan.draft.crossing_bytes(at));
            match action {
                Action::Run { kernel, arguments } => {
                    let primitive = primitives[*kernel].as_mut();
                    let primitive = primitive.expect("every kernel that runs was compiled");
                    let operands = Operands { arguments, copies: weights };
                    operands.refresh(&mut self.weights, batch.weights)?;
                    operands.run(primitive, &self.weights, batch.weights, arena, batch.images)?;
                }
                Action::BeginCopy { way, value, far_offset } => {
                    self.moving.begin(*way, arena, *value, *far_offset);
                    watch(match way {
                        Way::Out => Passing::SwapOut,
                        Way::In => Passing::SwapIn,
                    });
                }
                Action::EndCopy { way, value, far_offset } => {
                    self.moving.end(*way, *far_offset)?;
                    if *way == Way::Out && (*soiled || cfg!(debug_assertions)) {
                        // Whoever reads it there now shall see it.
                        let mut gone = arena.lease([(*value, Access::Write)]);
                        gone.slice_mut(0).fill(SOIL);
                    }
                }
                Action::Load { when: When::Stale, .. } if is_loaded => {}
                Action::Load { weight, value, .. } => {
                    let mut place = arena.lease([(*value, Access::Write)]);
                    self.weights.load(weights[*weight], batch.weights, place.slice_mut(0))?;
                }
                _ => batch.perform(action, arena, classes),
            }
            took(at, begun.elapsed().as_secs_f64());
        }
        Ok(batch.outcome)
    }
}
