//! Memory of both sides: as large as the largest script needs, within a budget as large as the one
//! at hand does.

use std::sync::Arc;

use kintsugi_ffi::cuda::{Buffer, Context, Crew, Staging};

use super::call::At;
use super::copies::Copies;
use super::landings::Landings;
use super::pictures::Ahead;
use super::script::Script;
use crate::config::MemoryMode;
use crate::engine::error::EngineError;
use crate::engine::memory::limits::Limits;
use crate::engine::plan::tensor::Place;
use crate::model::Layout;
use crate::observe::spans::amount;

/// Memory that a card has for one allocation at least, whatever is asked.
const BYTES_MIN: usize = 256;

/// All of it.
pub struct Memory {
    /// Weights.
    pub copies: Copies,
    /// Values of scripts.
    pub arena: Buffer,
    /// What went to the card with the micro-batch.
    pub sent: Buffer,
    /// What goes there for the next one.
    pub ahead: Ahead,
    /// Where outputs arrive.
    pub landings: Landings,
    /// What is sent, before it is.
    pub staging: Staging,
}

impl Memory {
    /// Nothing but room for the state.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(
        context: &Arc<Context>,
        layout: &Layout,
        crew: &Arc<Crew>,
    ) -> Result<Self, EngineError> {
        Ok(Self {
            copies: Copies::new(context, layout)?,
            arena: Buffer::new(context, BYTES_MIN)?,
            sent: Buffer::new(context, BYTES_MIN)?,
            ahead: Ahead::new(context, crew, BYTES_MIN)?,
            landings: Landings::default(),
            staging: Staging::new(context, BYTES_MIN)?,
        })
    }

    /// Makes room for a script. Nothing in it is needed between micro-batches.
    ///
    /// # Errors
    /// The driver's.
    pub fn fit(
        &mut self,
        context: &Arc<Context>,
        script: &Script,
        limits: &Limits,
    ) -> Result<(), EngineError> {
        let [arena, sent] = [self.arena.bytes(), self.sent.bytes()];
        let most = arena.max(script.arena_bytes) + 2 * sent.max(script.sent_bytes);
        let budget = limits.budget_bytes.unwrap_or(usize::MAX);
        let shrinks = most + self.copies.bytes() > budget
            && (arena > script.arena_bytes || sent > script.sent_bytes);
        if shrinks {
            // Of another script.
            self.ahead.release(BYTES_MIN)?;
            self.sent = Buffer::new(context, BYTES_MIN)?;
        }
        if shrinks || arena < script.arena_bytes {
            // The old one goes first: there may be no room for both.
            self.arena = Buffer::new(context, BYTES_MIN)?;
            self.arena = match limits.mode {
                MemoryMode::Unified => managed(context, script.arena_bytes)?,
                _ => Buffer::new(context, script.arena_bytes.max(BYTES_MIN))?,
            };
        }
        if self.sent.bytes() < script.sent_bytes {
            self.sent = Buffer::new(context, BYTES_MIN)?;
            self.sent = Buffer::new(context, script.sent_bytes)?;
        }
        if self.staging.bytes() < script.staging_bytes {
            self.staging = Staging::new(context, script.staging_bytes)?;
        }
        Ok(())
    }

    /// Where something lies of a script that has these copies of weights.
    pub fn place(&self, copies: &[usize], at: At) -> (&Buffer, usize) {
        match at {
            Place::Weight(weight) => self.copies.of(copies[weight]),
            other => place_of(&self.arena, &self.sent, other),
        }
    }
}

/// Where something lies that is no weight: weights never come down.
pub fn place_of<'a>(arena: &'a Buffer, sent: &'a Buffer, at: At) -> (&'a Buffer, usize) {
    match at {
        Place::Value(span) => (arena, span.offset),
        Place::Image | Place::Weight(_) => (sent, 0),
    }
}

/// Managed memory, which the driver moves: never more of it than the card has free, whose driver
/// would take others' along when it moves something away.
fn managed(context: &Arc<Context>, bytes: usize) -> Result<Buffer, EngineError> {
    let (free, all) = context.memory_bytes()?;
    if bytes > free {
        let [bytes, free, all] = [bytes, free, all].map(|bytes| amount(bytes as u64));
        return Err(EngineError::Refused(format!(
            "memory.mode: \"unified\" takes managed memory within the card's room alone: {bytes} \
             are needed, and {free} of {all} are free; lower the batch, or set memory.mode = \
             \"planned\" with device.memory_budget"
        )));
    }
    Ok(Buffer::managed(context, bytes.max(BYTES_MIN))?)
}
