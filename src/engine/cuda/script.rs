//! A plan as what a card is told, in order: calls, copies, and weights that are wanted now. What
//! goes there with a micro-batch and what comes back has its place in staging memory. Pure.

use super::backend::{Cuda, Planner};
use super::call::{At, Call, Line};
use super::copies;
use super::joined::joined;
use super::launches;
use crate::config::seed::{self, purpose};
use crate::engine::error::EngineError;
use crate::engine::plan::builder::Request;
use crate::engine::plan::compile::compile;
use crate::engine::plan::operation::{Refusal, Role};
use crate::engine::plan::placement::{ALIGN_BYTES, Span};
use crate::engine::plan::steps::{Action, Classifier, Draft, Plan, Taken, WeightUse};
use crate::engine::plan::taps::Taps;
use crate::engine::plan::tensor::Place;
use crate::model::Layout;
use crate::model::spec::elements;

/// What comes of a micro-batch, in the order in which it does.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Output {
    /// What a classifier says.
    Logits { of: Classifier },
    /// A finished gradient, where its tensor lies in the layout, and the taps that see data.
    Gradient { offset: usize, elements: usize, taps: Option<Taps> },
    /// A batch's mean or variance, where it lies among the statistics.
    Statistics { into: usize, channels: usize },
}

/// A gradient of the loss with respect to log-probabilities: follows from the labels alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seed {
    /// In staging memory.
    pub at: usize,
    /// Whose loss.
    pub of: Classifier,
}

/// All of it.
#[derive(Debug)]
pub struct Script {
    /// In order.
    pub lines: Vec<Line>,
    /// Of each line, the plan's step that it is of.
    pub steps: Vec<usize>,
    /// In order.
    pub outputs: Vec<Output>,
    /// In the order of the plan.
    pub weights: Vec<WeightUse>,
    /// Nodes whose masks are drawn.
    pub masks: Vec<usize>,
    /// What is written before.
    pub seeds: Vec<Seed>,
    /// What is sent before anything else, from the start of staging memory on: the pictures, then
    /// the keys of masks.
    pub sent_bytes: usize,
    /// Where the keys begin.
    pub keys_at: usize,
    /// Staging memory in all.
    pub staging_bytes: usize,
    /// Of the arena.
    pub arena_bytes: usize,
}

const F32_BYTES: usize = 4;
const KEY_BYTES: usize = 8;

impl Script {
    /// For what is asked, with the plans of somebody who knows them. `arranged`: the draft as it is
    /// to run.
    pub fn new(
        request: Request<'_>,
        planner: Option<&mut dyn Planner>,
        arranged: &mut dyn FnMut(Draft) -> Draft,
    ) -> Result<Self, EngineError> {
        let mut backend = Cuda::new(planner);
        let draft = Draft { taken: Taken::Later, ..compile(request, &mut backend)? };
        let plan = arranged(draft).place();
        let mut writer = Writer::new(&request, &plan, &backend);
        for (at, (step, action)) in plan.draft.steps.iter().zip(&plan.actions).enumerate() {
            let written = writer.action(action);
            written.map_err(|Refusal(why)| EngineError::of_node(request.graph, step.node, why))?;
            writer.script.steps.resize(writer.script.lines.len(), at);
        }
        let mut script = writer.script;
        (script.lines, script.steps) = joined(script.lines, &script.steps);
        Ok(script)
    }

    /// Bytes of the card that it needs.
    pub fn near_bytes(&self, layout: &Layout) -> usize {
        self.arena_bytes + self.besides_bytes(layout)
    }

    /// Bytes of the card that it needs besides its arena: a state with copies of weights, and the
    /// pictures of this micro-batch and of the next.
    pub fn besides_bytes(&self, layout: &Layout) -> usize {
        let laid_out = self.weights.iter().filter(|wanted| !launches::is_plain(&wanted.desc));
        let copies: usize = laid_out.map(|wanted| wanted.desc.bytes).sum();
        copies::state_bytes(layout) + copies + 2 * self.sent_bytes
    }
}

struct Writer<'a, 'p> {
    backend: &'a Cuda<'p>,
    batch: usize,
    classes: usize,
    wanted: Vec<bool>,
    script: Script,
}

impl<'a, 'p> Writer<'a, 'p> {
    fn new(request: &Request<'_>, plan: &Plan, backend: &'a Cuda<'p>) -> Self {
        let drawn = |action: &Action<Span>| match action {
            Action::Mask { node, .. } => Some(*node),
            _ => None,
        };
        let masks: Vec<usize> = plan.actions.iter().filter_map(drawn).collect();
        let pictures = request.batch * elements(request.graph.input) * F32_BYTES;
        let keys_at = pictures.next_multiple_of(ALIGN_BYTES);
        let sent_bytes = keys_at + masks.len() * KEY_BYTES;
        let script = Script {
            lines: Vec::new(),
            steps: Vec::new(),
            outputs: Vec::new(),
            weights: plan.draft.weights.clone(),
            masks: Vec::new(),
            seeds: Vec::new(),
            sent_bytes,
            keys_at,
            staging_bytes: sent_bytes.next_multiple_of(ALIGN_BYTES),
            arena_bytes: plan.arena_bytes,
        };
        let wanted = vec![false; plan.draft.weights.len()];
        Self { backend, batch: request.batch, classes: request.graph.classes, wanted, script }
    }

    /// A place in staging memory.
    fn staged(&mut self, bytes: usize) -> usize {
        let at = self.script.staging_bytes;
        self.script.staging_bytes = (at + bytes).next_multiple_of(ALIGN_BYTES);
        at
    }

    fn call(&mut self, call: Call) {
        self.script.lines.push(Line::Call(call));
    }

    /// Brings an output's numbers down.
    fn down(&mut self, from: At, elements: usize, output: Output) {
        self.script.lines.push(Line::Down { from, bytes: elements * F32_BYTES });
        self.script.outputs.push(output);
    }

    fn action(&mut self, action: &Action<Span>) -> Result<(), Refusal> {
        match action {
            Action::Run { kernel, arguments } => self.run(*kernel, arguments)?,
            Action::Mask { value, elements, rate, node } => {
                let (at, keys) = (self.script.masks.len(), self.script.keys_at);
                self.script.masks.push(*node);
                let to = Place::Value(*value);
                self.call(launches::mask(to, keys, at, *rate, *elements)?);
            }
            Action::Average { windows, pass, from, to } => {
                let to = Place::Value(*to);
                self.call(launches::adaptive(windows, *pass, *from, to)?);
            }
            Action::Loss { logits, seed, of } => {
                let elements = self.batch * self.classes;
                self.down(*logits, elements, Output::Logits { of: *of });
                if let Some(to) = *seed {
                    let bytes = elements * F32_BYTES;
                    let at = self.staged(bytes);
                    self.script.seeds.push(Seed { at, of: *of });
                    self.script.lines.push(Line::Up { from: at, to, bytes });
                }
            }
            Action::Emit { value, offset, elements, taps } => {
                let (offset, elements, taps) = (*offset, *elements, taps.clone());
                let output = Output::Gradient { offset, elements, taps };
                self.down(Place::Value(*value), elements, output);
            }
            Action::BeginCopy { way, value, far_offset } => {
                let (way, near, far_offset) = (*way, *value, *far_offset);
                self.script.lines.push(Line::Begin { way, near, far_offset });
            }
            Action::EndCopy { way, value, far_offset } => {
                let (way, near, far_offset) = (*way, *value, *far_offset);
                self.script.lines.push(Line::End { way, near, far_offset });
            }
            Action::Load { .. } | Action::Hold { .. } => {
                return Err(Refusal("a card has its copies of weights apart".into()));
            }
            Action::Statistics { mean, variance, at: into, channels } => {
                for (value, &into) in [*mean, *variance].into_iter().zip(into) {
                    let channels = *channels;
                    let output = Output::Statistics { into, channels };
                    self.down(Place::Value(value), channels, output);
                }
            }
        }
        Ok(())
    }

    fn run(&mut self, kernel: usize, arguments: &[(Role, At)]) -> Result<(), Refusal> {
        for weight in arguments.iter().filter_map(|(_, place)| place.weight()) {
            if !std::mem::replace(&mut self.wanted[weight], true) {
                self.script.lines.push(Line::Weight(weight));
            }
        }
        let at = |role: Role| {
            let own = arguments.iter().find(|(of, _)| *of == role);
            own.map_or(Place::Image, |(_, place)| *place)
        };
        let (operation, product) = self.backend.operation(kernel);
        let missing = operation.roles().into_iter().map(|(role, _)| role).find(|&role| {
            super::backend::describe(operation, role).is_some()
                && !arguments.iter().any(|(of, _)| *of == role)
        });
        if let Some(role) = missing {
            return Err(Refusal(format!("{role:?} is missing")));
        }
        for call in launches::of(operation, product, &at)? {
            self.call(call);
        }
        Ok(())
    }
}

/// The key of the stream that a node's mask is drawn from.
pub fn mask_key(key: [u64; 3], node: usize) -> u64 {
    seed::key(&[purpose::DROPOUT, key[0], key[1], key[2], node as u64])
}
