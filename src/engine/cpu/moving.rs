//! The far tier of an executor: what its programs have under way to there and back.

use std::collections::BTreeMap;
use std::io;
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
    /// Bytes per second out and in while both go on, once that was measured.
    rates: Option<[f64; 2]>,
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
        self.hold(Far::new(&limits.far, far_bytes), limits)
    }

    /// The same for a program that can do with the room that there is, and keeps it where a disk is
    /// full by now: whether there is as much as it wants.
    pub fn extend(&mut self, limits: &Limits, far_bytes: usize) -> Result<bool, EngineError> {
        if limits.far != Place::Ram && self.far_bytes < far_bytes {
            let Ok(far) = Far::new(&limits.far, far_bytes) else { return Ok(false) };
            self.hold(Ok(far), limits)?;
        }
        self.reserve(limits, far_bytes).map(|()| true)
    }

    fn hold(&mut self, far: io::Result<Far>, limits: &Limits) -> Result<(), EngineError> {
        let far = far.map_err(|error| of_tier(&error))?;
        self.far_bytes = far.bytes();
        self.copies = Some(Copies::new(far, limits.link).map_err(|error| of_tier(&error))?);
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

    /// Bytes per second out and in while both go on, measured once, between the far tier and this
    /// memory; `None`: nothing has to leave.
    pub fn rates(&mut self, near: &Arc<Arena>) -> Option<[f64; 2]> {
        let copies = self.copies.as_ref()?;
        Some(*self.rates.get_or_insert_with(|| copies.rates(near)))
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
fn of_tier(error: &io::Error) -> EngineError {
    EngineError::Lost(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::config::Rate;

    #[test]
    fn who_can_do_with_less_keeps_what_there_is_where_there_is_no_more() {
        let folder = tempfile::tempdir().expect("a folder");
        let there = Limits { far: Place::File(folder.path().to_owned()), ..Limits::none() };
        // As a disk that was full by now: it takes no other file.
        let gone = Limits { far: Place::File(PathBuf::from("/nowhere")), ..Limits::none() };
        let mut moving = Moving::default();
        moving.reserve(&there, 4096).expect("room");
        assert_eq!(moving.extend(&gone, 8192), Ok(false));
        assert_eq!((moving.far_bytes, moving.copies.is_some()), (4096, true));
        assert_eq!(moving.extend(&there, 8192), Ok(true));
        assert_eq!(moving.far_bytes, 8192);
    }

    #[test]
    fn what_is_too_little_to_be_measured_has_a_rate_all_the_same() {
        let near = Arc::new(Arena::zeroed(4096));
        let limits = Limits { link: [None, Some(Rate(1000))], ..Limits::none() };
        let mut moving = Moving::default();
        assert_eq!(moving.rates(&near), None);
        moving.reserve(&limits, 4096).expect("room");
        assert_eq!(moving.rates(&near), Some([1e9, 1000.0]));
    }

    #[test]
    fn a_worker_measures_once() {
        let near = Arc::new(Arena::zeroed(1 << 20));
        let mut moving = Moving::default();
        moving.reserve(&Limits::none(), 1 << 20).expect("room");
        let first = moving.rates(&near);
        moving.reserve(&Limits::none(), 2 << 20).expect("room");
        assert_eq!(moving.rates(&near), first);
    }
}
