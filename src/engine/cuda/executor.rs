//! Runs a graph on a card: owns its memory and scripts, one per batch size and direction.

use std::collections::BTreeMap;
use std::sync::Arc;

use kintsugi_ffi::cuda::{Buffer, Crew, Landing, Staging, Stream, Turn};

use super::bound::Bound;
use super::call::{At, Call, Line};
use super::card::Card;
use super::clock::{Clock, Took};
use super::convolutions::{Plans, Precision};
use super::copies::{Copies, Sent};
use super::landings::Landings;
use super::launches;
use super::pictures::{self, Ahead, Taken};
use super::script::{Output, Script, mask_key};
use super::streams::Streams;
use crate::engine::compute::Compute;
use crate::engine::error::EngineError;
use crate::engine::micro_batch::{self, Batch, inference};
use crate::engine::plan::builder::Request;
use crate::engine::plan::operation::{Direction, Refusal};
use crate::engine::plan::steps::WeightUse;
use crate::engine::plan::tensor::{ElementType, Place};
use crate::engine::source::WeightSource;
use crate::engine::targets::{Outcome, Targets};
use crate::model::{Graph, Layout, layout};

/// Scripts kept at once: a full and a ragged micro-batch, in training and evaluation, twice over.
const SCRIPTS_MAX: usize = 8;
/// Memory that a card has for one allocation at least, whatever is asked.
const BYTES_MIN: usize = 256;

/// A script with what it holds on the card.
struct Held {
    batch: usize,
    direction: Direction,
    script: Script,
    lines: Vec<Line<Bound>>,
    /// Of each line, what it is.
    kinds: Vec<Arc<str>>,
    /// By weight: its copy.
    copies: Vec<usize>,
    /// By weight: how it is laid out. The picture stands for the tensor as the state has it.
    layouts: Vec<Vec<Bound>>,
    used: u64,
}

/// Computes micro-batches of one model on one worker thread, on the process's card. Threads share
/// the card; each has its own memory there.
///
/// On cards of one kind the same inputs give the same bits.
pub struct Executor {
    graph: Graph,
    layout: Layout,
    element: ElementType,
    frozen: Vec<bool>,
    card: Arc<Card>,
    plans: Plans,
    streams: Streams,
    memory: Memory,
    held: Vec<Held>,
    /// Of the host, that copies what is sent and what comes.
    crew: Arc<Crew>,
    age: u64,
    clock: Option<Clock>,
    soiled: bool,
    /// Pictures that are to be sent while the next micro-batch is computed.
    foreseen: Option<Arc<Vec<f32>>>,
}

/// Memory on both sides, as large as the largest script needs.
struct Memory {
    copies: Copies,
    arena: Buffer,
    sent: Buffer,
    ahead: Ahead,
    landings: Landings,
    staging: Staging,
}

impl Memory {
    fn new(card: &Card, layout: &Layout, crew: &Arc<Crew>) -> Result<Self, EngineError> {
        let context = &card.context;
        Ok(Self {
            copies: Copies::new(context, layout)?,
            arena: Buffer::new(context, BYTES_MIN)?,
            sent: Buffer::new(context, BYTES_MIN)?,
            ahead: Ahead::new(context, crew, BYTES_MIN)?,
            landings: Landings::default(),
            staging: Staging::new(context, BYTES_MIN)?,
        })
    }

    /// Grows to what a script needs. Nothing in it is needed between micro-batches.
    fn grow(&mut self, card: &Card, script: &Script) -> Result<(), EngineError> {
        let context = &card.context;
        for (buffer, bytes) in
            [(&mut self.arena, script.arena_bytes), (&mut self.sent, script.sent_bytes)]
        {
            if buffer.bytes() < bytes {
                // The old one goes first: there may be no room for both.
                *buffer = Buffer::new(context, BYTES_MIN)?;
                *buffer = Buffer::new(context, bytes)?;
            }
        }
        if self.staging.bytes() < script.staging_bytes {
            self.staging = Staging::new(context, script.staging_bytes)?;
        }
        Ok(())
    }
}

impl Executor {
    /// An executor for the calling thread. `layout` must be the graph's own; no gradients are
    /// computed of the tensors that are `frozen`.
    pub fn new(
        graph: &Graph,
        layout: &Layout,
        (precision, threads): (Precision, usize),
        frozen: &[bool],
    ) -> Result<Self, EngineError> {
        if layout::of(graph) != *layout {
            return Err(EngineError::Layout("use model::layout::of on the same graph".into()));
        }
        let element = precision.element();
        let card = Card::own(element)?;
        let crew = Arc::new(Crew::new(threads)?);
        Ok(Self {
            graph: graph.clone(),
            layout: layout.clone(),
            element,
            frozen: frozen.to_vec(),
            streams: Streams::new(&card.context)?,
            memory: Memory::new(&card, layout, &crew)?,
            plans: Plans::new(&card, precision)?,
            card,
            held: Vec::new(),
            crew,
            age: 0,
            clock: None,
            soiled: false,
            foreseen: None,
        })
    }

    /// The same, whose memory of activations is no number before every micro-batch.
    pub fn soiled(self) -> Self {
        Self { soiled: true, ..self }
    }

    /// The script for this batch size, written if there is none; the longest unused one goes.
    fn script(&mut self, batch: usize, direction: Direction) -> Result<usize, EngineError> {
        self.age += 1;
        let wanted = |held: &Held| held.batch == batch && held.direction == direction;
        if let Some(at) = self.held.iter().position(wanted) {
            self.held[at].used = self.age;
            return Ok(at);
        }
        if self.held.len() >= SCRIPTS_MAX {
            let oldest = (0..self.held.len()).min_by_key(|&at| self.held[at].used);
            let gone = self.held.swap_remove(oldest.unwrap_or(0));
            gone.copies.into_iter().for_each(|at| self.memory.copies.release(at));
        }
        let (graph, layout, element) = (&self.graph, &self.layout, self.element);
        let frozen = &self.frozen;
        let request = Request { graph, layout, batch, direction, element, frozen };
        let script = Script::new(request, Some(&mut self.plans))?;
        let held = self.bind(script, (batch, direction))?;
        self.held.push(held);
        Ok(self.held.len() - 1)
    }

    /// Finds kernels and memory for a script.
    fn bind(
        &mut self,
        mut script: Script,
        (batch, direction): (usize, Direction),
    ) -> Result<Held, EngineError> {
        self.memory.grow(&self.card, &script)?;
        let (mut copies, mut layouts) = (Vec::new(), Vec::new());
        for (number, wanted) in script.weights.iter().enumerate() {
            let layout = self.layout_of(wanted, number)?;
            copies.push(self.memory.copies.acquire(wanted, layout.is_empty())?);
            layouts.push(layout);
        }
        let lines = std::mem::take(&mut script.lines);
        let kinds = lines.iter().map(|line| self.kind(line)).collect();
        let bind = |line: Line| line.map(|call| Bound::new(&self.card, call));
        let lines = lines.into_iter().map(bind).collect::<Result<Vec<_>, _>>()?;
        let used = self.age;
        Ok(Held { batch, direction, script, lines, kinds, copies, layouts, used })
    }

    fn kind(&self, line: &Line) -> Arc<str> {
        match line {
            Line::Weight(_) => "weights".into(),
            Line::Call(Call::Product { plan, .. }) => self.plans.name(*plan).into(),
            Line::Call(call) => call.kind().into(),
            Line::Up { .. } | Line::Down { .. } => "copies".into(),
        }
    }

    /// What each kind of call takes in the next micro-batch: `read` it afterwards.
    pub fn timed(&mut self) {
        self.clock = Some(Clock::new(&self.card.context));
    }

    /// What they took.
    ///
    /// # Errors
    /// The driver's.
    pub fn took(&mut self) -> Result<BTreeMap<String, Took>, EngineError> {
        self.clock.take().map_or_else(|| Ok(BTreeMap::new()), Clock::read)
    }

    /// How a weight gets where kernels read it; nothing, where they read it as the state has it.
    fn layout_of(&self, wanted: &WeightUse, number: usize) -> Result<Vec<Bound>, EngineError> {
        if launches::is_plain(&wanted.desc) {
            return Ok(Vec::new());
        }
        let to = (&*wanted.desc, Place::Weight(number));
        let calls = launches::laid_out(Place::Image, to);
        let calls = calls.map_err(|Refusal(reason)| EngineError::Device(reason))?;
        calls.into_iter().map(|call| Bound::new(&self.card, call)).collect()
    }

    /// Sends weight `number` of a script, unless it is there.
    fn refresh(
        memory: &mut Memory,
        (streams, plans): (&Streams, &Plans),
        (held, number): (&Held, usize),
        (weights, crew): (&dyn WeightSource, &Crew),
    ) -> Result<(), EngineError> {
        let copy = held.copies[number];
        let sent = memory.copies.refresh(copy, (weights, crew), &streams.up)?;
        if sent != Sent::Before {
            streams.await_sent()?;
        }
        if sent != Sent::ToLayOut {
            return Ok(());
        }
        let (copies, sent) = (&memory.copies, &memory.sent);
        for call in &held.layouts[number] {
            call.perform((&streams.compute, plans), sent, |at| match at {
                Place::Image => copies.of_state(copy),
                _ => copies.of(copy),
            })?;
        }
        Ok(())
    }

    /// Tells the card all of it, and takes what comes of it as it comes.
    fn run(&mut self, held: usize, mut batch: Batch<'_>) -> Result<Outcome, EngineError> {
        let (held, memory) = (&self.held[held], &mut self.memory);
        let (streams, plans) = (&self.streams, &self.plans);
        let (stream, crew, classes) = (&streams.compute, &*self.crew, self.graph.classes);
        batch.put(held, (memory, &streams.up), (classes, crew))?;
        streams.await_sent()?;
        let foreseen = self.foreseen.take();
        if self.soiled {
            stream.fill(&memory.arena, 0..memory.arena.bytes(), u8::MAX)?;
        }
        let (context, mut landed) = (&self.card.context, Vec::new());
        let mut clock = self.clock.as_mut();
        for (line, kind) in held.lines.iter().zip(&held.kinds) {
            match line {
                Line::Weight(number) => {
                    Self::refresh(
                        memory,
                        (streams, plans),
                        (held, *number),
                        (batch.weights, crew),
                    )?;
                }
                Line::Call(call) => {
                    let place = |at| place(memory, held, at);
                    call.perform((stream, plans), &memory.sent, place)?;
                }
                Line::Up { from, to, bytes } => {
                    let part = *from..from + bytes;
                    stream.upload(&memory.arena, to.offset, &memory.staging, part)?;
                }
                Line::Down { from, bytes } => {
                    streams.await_made()?;
                    let mut landing = memory.landings.take(context, *bytes)?;
                    let (from, at) = place_of(&memory.arena, &memory.sent, *from);
                    streams.down.land(from, at, *bytes, &mut landing)?;
                    landed.push(landing);
                }
            }
            if let Some(clock) = &mut clock {
                clock.mark(stream, kind)?;
            }
        }
        if let Some(images) = foreseen {
            memory.ahead.send(images, memory.sent.bytes())?;
        }
        let outcome = batch.take(&held.script.outputs, &mut landed, held.batch * classes)?;
        streams.synchronize()?;
        memory.landings.give_back(landed);
        Ok(outcome)
    }
}

/// Where something lies.
fn place<'a>(memory: &'a Memory, held: &Held, at: At) -> (&'a Buffer, usize) {
    match at {
        Place::Weight(weight) => memory.copies.of(held.copies[weight]),
        other => place_of(&memory.arena, &memory.sent, other),
    }
}

/// Where something lies that is no weight: weights never come down.
fn place_of<'a>(arena: &'a Buffer, sent: &'a Buffer, at: At) -> (&'a Buffer, usize) {
    match at {
        Place::Value(span) => (arena, span.offset),
        Place::Image | Place::Weight(_) => (sent, 0),
    }
}

impl Batch<'_> {
    /// Writes what is sent.
    fn put(
        &self,
        held: &Held,
        (memory, up): (&mut Memory, &Stream),
        (classes, crew): (usize, &Crew),
    ) -> Result<(), EngineError> {
        let (script, staging) = (&held.script, &mut memory.staging);
        let key = |&node: &usize| mask_key(self.dropout_key, node);
        let keys: Vec<u64> = script.masks.iter().map(key).collect();
        if memory.ahead.take(self.images, &mut memory.sent)? == Taken::Nothing {
            pictures::send((&memory.sent, staging), self.images, (up, crew, Turn::First))?;
        }
        if !keys.is_empty() {
            let (at, keys) = (script.keys_at, bytemuck::cast_slice(&keys));
            staging.put(at, keys)?;
            up.upload(&memory.sent, at, staging, at..at + keys.len())?;
        }
        let mut numbers = vec![0.0; held.batch * classes];
        for seed in &script.seeds {
            self.targets.write_seed(&mut numbers, classes, seed.of.weight());
            staging.put(seed.at, bytemuck::cast_slice(&numbers))?;
        }
        Ok(())
    }

    /// Waits for each output and hands it on, from where it lies.
    fn take(
        &mut self,
        outputs: &[Output],
        landed: &mut [Landing],
        logits: usize,
    ) -> Result<Outcome, EngineError> {
        for (output, landing) in outputs.iter().zip(landed) {
            let numbers: &[f32] = bytemuck::cast_slice(landing.wait()?);
            match output {
                Output::Logits { of } => {
                    let classes = logits / self.targets.labels.len();
                    self.answered(&numbers[..logits], classes, *of);
                }
                Output::Gradient { offset, elements, taps: None } => {
                    (self.ready)(*offset, &numbers[..*elements]);
                }
                Output::Gradient { offset, elements, taps: Some(taps) } => {
                    let mut gradients = numbers[..*elements].to_vec();
                    taps.silence(&mut gradients);
                    (self.ready)(*offset, &gradients);
                }
                Output::Statistics { into, channels } => {
                    let into = &mut self.statistics[*into..*into + *channels];
                    into.copy_from_slice(&numbers[..*channels]);
                }
            }
        }
        Ok(self.outcome)
    }
}

impl Compute for Executor {
    fn prepare(&mut self, samples: usize) -> Result<(), EngineError> {
        self.script(samples, Direction::Training).map(drop)
    }

    fn renew(&mut self) {
        self.memory.copies.renew();
    }

    fn load(&mut self, samples: usize, weights: &dyn WeightSource) -> Result<(), EngineError> {
        if samples == 0 {
            return Ok(());
        }
        let held = self.script(samples, Direction::Training)?;
        for number in 0..self.held[held].copies.len() {
            let wanted = (&self.held[held], number);
            let with = (&self.streams, &self.plans);
            Self::refresh(&mut self.memory, with, wanted, (weights, &self.crew))?;
        }
        // What is in staging memory may be exchanged from here on.
        self.streams.synchronize()
    }

    fn foresee(&mut self, images: &Arc<Vec<f32>>) {
        self.foreseen = Some(Arc::clone(images));
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
        let held = self.script(targets.labels.len(), Direction::Training)?;
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
        let held = self.script(labels.len(), Direction::Inference)?;
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
        let held = self.script(samples, Direction::Inference)?;
        self.run(held, inference((images, labels), weights, &mut |_, _| {}, Some(into))).map(drop)
    }
}
