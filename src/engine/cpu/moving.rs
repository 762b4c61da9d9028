//! The far tier of an executor: what its programs have under way to there and back.

use std::collections::BTreeMap;
use std::sync::Arc;

use kintsugi_ffi::arena::{Arena, Span};

use crate::engine::error::EngineError;
use crate::engine::memory::copies::{Copies, Ticket};
use crate::engine::memory::far::{Far, Place};
use crate::engine::memory::limits::Limits;
use crate::engine::plan::steps::Way;

/// None until a program wants one.
#[derive(Default)]
pub struct Moving {
    copies: Option<Copies>,
    far_bytes: usize,
    under_way: BTreeMap<(usize, Way), Ticket>,
}

impl Moving {
    /// Room in the far tier for a program.
    pub fn reserve(&mut self, limits: &Limits, far_bytes: usize) -> Result<(), EngineError> {
        if self.far_bytes >= far_bytes {
            return Ok(());
        }
        // The old one goes first: nothing in it is needed between micro-batches.
        self.copies = None;
        let far = Far::new(&limits.far, far_bytes).map_err(|error| of_tier(&error))?;
        self.copies = Some(Copies::new(far, limits.link).map_err(|error| of_tier(&error))?);
        self.far_bytes = far_bytes;
        Ok(())
    }

    /// Whether so many bytes would have room in the far tier.
    pub fn check(limits: &Limits, far_bytes: usize) -> Result<(), EngineError> {
        let tried = match limits.far {
            Place::Ram => return Ok(()),
            Place::File(_) => Far::new(&limits.far, far_bytes),
        };
        tried.map(drop).map_err(|error| EngineError::Refused(error.to_string()))
    }

    /// Bytes per second out and in while both go on.
    pub fn rates(&mut self) -> Result<Option<[f64; 2]>, EngineError> {
        self.copies
            .as_mut()
            .map(|copies| copies.measure().map_err(|error| of_tier(&error)))
            .transpose()
    }

    /// Begins a copy.
    pub fn begin(&mut self, way: Way, near: &Arc<Arena>, span: Span, far_offset: usize) {
        let copies = self.copies.as_mut().expect("room was reserved");
        let ticket = copies.begin(way, near, span, far_offset);
        self.under_way.insert((far_offset, way), ticket);
    }

    /// Waits for it.
    pub fn end(&mut self, way: Way, far_offset: usize) -> Result<(), EngineError> {
        let ticket = self.under_way.remove(&(far_offset, way)).expect("what ends has begun");
        self.copies
            .as_mut()
            .expect("room was reserved")
            .finish(ticket)
            .map_err(|error| of_tier(&error))
    }

    /// Nothing is under way afterwards.
    pub fn give_up(&mut self) {
        self.under_way.clear();
        self.copies.iter_mut().for_each(Copies::drain);
    }
}

/// A process that has lost its far tier computes nothing any more. Another one may have a better
/// disk.
fn of_tier(error: &std::io::Error) -> EngineError {
    EngineError::Lost(error.to_string())
}
