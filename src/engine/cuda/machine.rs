//! What computes on a card: memory of both sides, streams, the far tier. It runs one script at a
//! time.

use std::collections::BTreeMap;
use std::sync::Arc;

use kintsugi_ffi::cuda::{Crew, Landing, Stream, Turn};

use super::bound::Bound;
use super::call::{Call, Line};
use super::card::Card;
use super::clock::{Clock, Took};
use super::convolutions::Plans;
use super::copies::Sent;
use super::launches;
use super::memory::{Memory, place_of};
use super::moving::Moving;
use super::pictures::{self, Taken};
use super::script::{Output, Script, mask_key};
use super::streams::Streams;
use crate::config::Precision;
use crate::engine::compute::Passing;
use crate::engine::error::EngineError;
use crate::engine::micro_batch::Batch;
use crate::engine::plan::operation::{Direction, Refusal};
use crate::engine::plan::steps::{Way, WeightUse};
use crate::engine::plan::tensor::Place;
use crate::engine::seat::Seat;
use crate::engine::source::WeightSource;
use crate::engine::subject::Subject;
use crate::engine::targets::Outcome;

/// What memory is filled with that nobody may read: no number in f32 and bf16.
const SOIL: u8 = u8::MAX;

/// A script with what it holds on the card.
pub struct Held {
    /// Samples.
    pub batch: usize,
    /// Whether a backward pass follows.
    pub direction: Direction,
    /// What it was written from.
    pub script: Script,
    /// With kernels.
    pub lines: Vec<Line<Bound>>,
    /// Of each line, what it is.
    pub kinds: Vec<Arc<str>>,
    /// By weight: its copy.
    pub copies: Vec<usize>,
    /// By weight: how it is laid out. The picture stands for the tensor as the state has it.
    pub layouts: Vec<Vec<Bound>>,
    /// Which of its plan's steps have run before when they run.
    pub again: Vec<bool>,
}

/// Lines with their kernels, and of each what it is.
pub type Lines = (Vec<Line<Bound>>, Vec<Arc<str>>);

/// Of one worker.
pub struct Machine {
    /// What it computes.
    pub subject: Subject,
    /// Its own.
    pub card: Arc<Card>,
    /// Of products.
    pub plans: Plans,
    /// The order of work.
    pub streams: Streams,
    /// The near tier.
    pub memory: Memory,
    /// The far one.
    pub moving: Moving,
    /// Of the host, that copies what is sent and what comes.
    pub crew: Arc<Crew>,
    /// What calls of each kind took, where somebody wants to know.
    pub took: Option<BTreeMap<String, Took>>,
    /// Pictures that are to be sent while the next micro-batch is computed.
    pub foreseen: Option<Arc<Vec<f32>>>,
}

impl Machine {
    /// For the calling thread, on its card. Where several share one, each has its own memory there.
    pub fn new(subject: Subject, precision: Precision, seat: Seat) -> Result<Self, EngineError> {
        let card = Card::of(seat.worker, precision.element())?;
        let (crew, context) = (Arc::new(Crew::new(seat.threads)?), &card.context);
        let memory = Memory::new(context, &subject.layout, &crew)?;
        Ok(Self {
            subject,
            streams: Streams::new(context)?,
            memory,
            moving: Moving::new(context)?,
            plans: Plans::new(&card, precision)?,
            card,
            crew,
            took: None,
            foreseen: None,
        })
    }

    /// Finds kernels and copies of weights for a script.
    pub fn bind(
        &mut self,
        mut script: Script,
        batch: usize,
        direction: Direction,
    ) -> Result<Held, EngineError> {
        let (mut copies, mut layouts) = (Vec::new(), Vec::new());
        for (number, wanted) in script.weights.iter().enumerate() {
            let layout = self.layout_of(wanted, number)?;
            copies.push(self.memory.copies.acquire(wanted, layout.is_empty())?);
            layouts.push(layout);
        }
        let (lines, kinds) = self.bound(&mut script)?;
        let again = Vec::new();
        Ok(Held { batch, direction, script, lines, kinds, copies, layouts, again })
    }

    /// Its lines with kernels, and what each is.
    pub fn bound(&self, script: &mut Script) -> Result<Lines, EngineError> {
        let lines = std::mem::take(&mut script.lines);
        let kinds = lines.iter().map(|line| self.kind(line)).collect();
        let bind = |line: Line| line.map(|call| Bound::new(&self.card, call));
        Ok((lines.into_iter().map(bind).collect::<Result<Vec<_>, _>>()?, kinds))
    }

    fn kind(&self, line: &Line) -> Arc<str> {
        match line {
            Line::Weight(_) => "weights".into(),
            Line::Call(Call::Product { plan, .. }) => self.plans.name(*plan).into(),
            Line::Call(call) => call.kind().into(),
            Line::Up { .. } | Line::Down { .. } => "copies".into(),
            Line::Begin { .. } | Line::End { .. } => "far tier".into(),
        }
    }

    /// How a weight gets where kernels read it; nothing, where they read it as the state has it.
    fn layout_of(&self, wanted: &WeightUse, number: usize) -> Result<Vec<Bound>, EngineError> {
        if launches::is_plain(&wanted.desc) {
            return Ok(Vec::new());
        }
        let to = Place::Weight(number);
        let calls = launches::laid_out(Place::Image, &wanted.desc, to);
        let calls = calls.map_err(|Refusal(reason)| EngineError::Device(reason))?;
        calls.into_iter().map(|call| Bound::new(&self.card, call)).collect()
    }

    /// Sends weight `number` of a script, unless it is there.
    pub fn refresh(
        &mut self,
        held: &Held,
        number: usize,
        weights: &dyn WeightSource,
    ) -> Result<(), EngineError> {
        let (memory, streams) = (&mut self.memory, &self.streams);
        let copy = held.copies[number];
        let sent = memory.copies.refresh(copy, weights, &self.crew, &streams.up)?;
        if sent != Sent::Before {
            streams.await_sent()?;
        }
        if sent != Sent::ToLayOut {
            return Ok(());
        }
        let (copies, sent) = (&memory.copies, &memory.sent);
        for call in &held.layouts[number] {
            call.perform(&streams.compute, &self.plans, sent, |at| match at {
                Place::Image => copies.of_state(copy),
                _ => copies.of(copy),
            })?;
        }
        Ok(())
    }

    /// Computes a micro-batch. `clock`: is told when each line has been done.
    pub fn compute(
        &mut self,
        held: &Held,
        batch: Batch<'_>,
        clock: Option<&mut Clock>,
    ) -> Result<Outcome, EngineError> {
        let context = &self.card.context;
        self.memory.fit(context, &held.script, &self.subject.limits)?;
        let mut own = self.took.as_ref().map(|_| Clock::new(context));
        let outcome = self.pass(held, batch, own.as_mut().or(clock));
        if outcome.is_err() {
            // Nobody knows what was sent, and nothing is under way when it is sent again.
            let _ = self.streams.synchronize();
            self.memory.copies.renew();
        }
        if let (Some(own), Ok(_)) = (own, &outcome) {
            self.took = Some(own.by_kind(&held.kinds)?);
        }
        outcome
    }

    /// Tells the card all of it, and takes what comes of it as it comes.
    fn pass(
        &mut self,
        held: &Held,
        mut batch: Batch<'_>,
        mut clock: Option<&mut Clock>,
    ) -> Result<Outcome, EngineError> {
        let (crew, classes) = (Arc::clone(&self.crew), self.subject.graph.classes);
        batch.put(held, &mut self.memory, &self.streams.up, classes, &crew)?;
        self.streams.await_sent()?;
        let foreseen = self.foreseen.take();
        if self.subject.soiled {
            let arena = &self.memory.arena;
            self.streams.compute.fill(arena, 0..arena.bytes(), SOIL)?;
        }
        let mut landed = Vec::new();
        let mut step = usize::MAX;
        clock.iter_mut().try_for_each(|clock| clock.mark(&self.streams.compute))?;
        for (line, &of) in held.lines.iter().zip(&held.script.steps) {
            if std::mem::replace(&mut step, of) != of && held.again[of] {
                (self.subject.watch)(Passing::Recompute);
            }
            self.tell(held, line, batch.weights, &mut landed)?;
            clock.iter_mut().try_for_each(|clock| clock.mark(&self.streams.compute))?;
        }
        if let Some(images) = foreseen {
            self.memory.ahead.send(images, self.memory.sent.bytes())?;
        }
        let outcome = batch.take(&held.script.outputs, &mut landed, held.batch * classes)?;
        self.streams.synchronize()?;
        self.memory.landings.give_back(landed);
        Ok(outcome)
    }

    /// Tells the card one line.
    fn tell(
        &mut self,
        held: &Held,
        line: &Line<Bound>,
        weights: &dyn WeightSource,
        landed: &mut Vec<Landing>,
    ) -> Result<(), EngineError> {
        let (memory, streams, plans) = (&mut self.memory, &self.streams, &self.plans);
        let stream = &streams.compute;
        match line {
            Line::Weight(number) => {
                self.refresh(held, *number, weights)?;
            }
            Line::Call(call) => {
                let place = |at| memory.place(&held.copies, at);
                call.perform(stream, plans, &memory.sent, place)?;
            }
            Line::Up { from, to, bytes } => {
                let part = *from..from + bytes;
                stream.upload(&memory.arena, to.offset, &memory.staging, part)?;
            }
            Line::Down { from, bytes } => {
                streams.await_made()?;
                let mut landing = memory.landings.take(&self.card.context, *bytes)?;
                let (from, at) = place_of(&memory.arena, &memory.sent, *from);
                streams.down.land(from, at, *bytes, &mut landing)?;
                landed.push(landing);
            }
            Line::Begin { way, near, far_offset } => {
                self.moving.begin(*way, stream, &memory.arena, *near, *far_offset)?;
                (self.subject.watch)(match way {
                    Way::Out => Passing::SwapOut,
                    Way::In => Passing::SwapIn,
                });
            }
            Line::End { way, near, far_offset } => {
                self.moving.end(*way, stream, *far_offset)?;
                if *way == Way::Out && self.subject.soiled {
                    // Whoever reads it there now shall see it.
                    let gone = near.offset..near.offset + near.bytes;
                    stream.fill(&memory.arena, gone, SOIL)?;
                }
            }
        }
        Ok(())
    }
}

impl Batch<'_> {
    /// Writes what is sent.
    fn put(
        &self,
        held: &Held,
        memory: &mut Memory,
        up: &Stream,
        classes: usize,
        crew: &Crew,
    ) -> Result<(), EngineError> {
        let (script, staging) = (&held.script, &mut memory.staging);
        let key = |&node: &usize| mask_key(self.dropout_key, node);
        let keys: Vec<u64> = script.masks.iter().map(key).collect();
        if memory.ahead.take(self.images, &mut memory.sent)? == Taken::Nothing {
            pictures::send(self.images, &memory.sent, staging, up, crew, Turn::First)?;
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
