//! Weights on a card: each tensor as the state has it, sent when computing first reaches it, and
//! laid out once for each way in which kernels want it.

use std::sync::Arc;

use kintsugi_ffi::cuda::{Buffer, Context, Crew, Staging, Stream, Turn};

use crate::engine::error::EngineError;
use crate::engine::plan::steps::WeightUse;
use crate::engine::source::WeightSource;
use crate::model::{Layout, TensorSpec};

const F32_BYTES: usize = 4;
/// As wide as a kernel reads at once, and as cuDNN wants a tensor; of a card's lines of memory.
const ALIGN_BYTES: usize = 256;

fn tensor_bytes(tensor: &TensorSpec) -> usize {
    (tensor.elements() * F32_BYTES).next_multiple_of(ALIGN_BYTES)
}

/// Bytes of a state on a card.
pub fn state_bytes(layout: &Layout) -> usize {
    layout.tensors.iter().map(tensor_bytes).sum::<usize>().max(ALIGN_BYTES)
}

/// A tensor in one order.
struct Held {
    wanted: WeightUse,
    /// `None`: it lies as in the state.
    buffer: Option<Buffer>,
    users: usize,
    current: bool,
}

/// What became of a copy that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sent {
    /// It was there.
    Before,
    /// Its tensor is on its way.
    Now,
    /// Likewise, and it is to be laid out anew.
    ToLayOut,
}

/// All of them.
pub struct Copies {
    context: Arc<Context>,
    tensors: Vec<TensorSpec>,
    /// Where each lies, in bytes, in `staging` and in `state`.
    places: Vec<usize>,
    staging: Staging,
    state: Buffer,
    /// Which of `state` are those of the state at hand.
    sent: Vec<bool>,
    held: Vec<Option<Held>>,
}

impl Copies {
    /// Room for a state, nothing of which is there yet.
    pub fn new(context: &Arc<Context>, layout: &Layout) -> Result<Self, EngineError> {
        let mut end = 0;
        let place = |tensor: &TensorSpec| {
            let place = end;
            end += tensor_bytes(tensor);
            place
        };
        let places = layout.tensors.iter().map(place).collect();
        let bytes = state_bytes(layout);
        Ok(Self {
            context: Arc::clone(context),
            tensors: layout.tensors.clone(),
            places,
            staging: Staging::new(context, bytes)?,
            state: Buffer::new(context, bytes)?,
            sent: vec![false; layout.tensors.len()],
            held: Vec::new(),
        })
    }

    /// Bytes of the card: of the state, and of all that is laid out otherwise.
    pub fn bytes(&self) -> usize {
        let laid_out = self.held.iter().flatten().filter_map(|held| held.buffer.as_ref());
        self.state.bytes() + laid_out.map(Buffer::bytes).sum::<usize>()
    }

    /// The state has changed: nothing is current.
    pub fn renew(&mut self) {
        self.sent.fill(false);
        self.held.iter_mut().flatten().for_each(|held| held.current = false);
    }

    /// The copy that a script wants; to be released.
    pub fn acquire(&mut self, wanted: &WeightUse, is_plain: bool) -> Result<usize, EngineError> {
        let same = |held: &Held| held.wanted == *wanted;
        let find = |slot: &Option<Held>| slot.as_ref().is_some_and(same);
        if let Some(at) = self.held.iter().position(find) {
            self.held[at].iter_mut().for_each(|held| held.users += 1);
            return Ok(at);
        }
        let buffer = match is_plain {
            true => None,
            false => Some(Buffer::new(&self.context, wanted.desc.bytes)?),
        };
        let (wanted, users, current) = (wanted.clone(), 1, false);
        let free = self.held.iter().position(Option::is_none);
        let at = free.unwrap_or_else(|| {
            self.held.push(None);
            self.held.len() - 1
        });
        self.held[at] = Some(Held { wanted, buffer, users, current });
        Ok(at)
    }

    /// A script that read copy `at` is gone. The copy goes with the last.
    pub fn release(&mut self, at: usize) {
        let Some(held) = self.held[at].as_mut() else { return };
        held.users -= 1;
        if held.users == 0 {
            self.held[at] = None;
        }
    }

    /// Sends a copy's tensor, unless it is there.
    pub fn refresh(
        &mut self,
        at: usize,
        source: &dyn WeightSource,
        crew: &Crew,
        stream: &Stream,
    ) -> Result<Sent, EngineError> {
        let Some(held) = self.held[at].as_mut() else { return Ok(Sent::Before) };
        if held.current {
            return Ok(Sent::Before);
        }
        let (tensor, is_laid_out) = (held.wanted.tensor, held.buffer.is_some());
        if !self.sent[tensor] {
            let (place, staging) = (self.places[tensor], &mut self.staging);
            let bytes = self.tensors[tensor].elements() * F32_BYTES;
            let mut put = Ok(());
            source.read(&self.tensors[tensor], &mut |numbers| {
                put = staging.put_by(crew, Turn::First, place, bytemuck::cast_slice(numbers));
            })?;
            put?;
            stream.upload(&self.state, place, &self.staging, place..place + bytes)?;
            self.sent[tensor] = true;
        }
        held.current = true;
        Ok(if is_laid_out { Sent::ToLayOut } else { Sent::Now })
    }

    /// Where a copy's tensor lies as the state has it.
    pub fn of_state(&self, at: usize) -> (&Buffer, usize) {
        let tensor = self.held[at].as_ref().map_or(0, |held| held.wanted.tensor);
        (&self.state, self.places[tensor])
    }

    /// Where a copy lies.
    pub fn of(&self, at: usize) -> (&Buffer, usize) {
        match self.held[at].as_ref().and_then(|held| held.buffer.as_ref()) {
            Some(buffer) => (buffer, 0),
            None => self.of_state(at),
        }
    }
}
