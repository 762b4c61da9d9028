//! The order of a worker's work on its card: computing, and copies both ways beside it.

use std::sync::Arc;

use kintsugi_ffi::cuda::{Context, Event, Stream, Timing};

use crate::engine::error::EngineError;

/// Computing, and copies both ways beside it.
pub struct Streams {
    /// What is computed.
    pub compute: Stream,
    /// What goes to the card.
    pub up: Stream,
    /// What comes from it.
    pub down: Stream,
    /// What went up is there, and what is to go down.
    sent: Event,
    made: Event,
}

impl Streams {
    /// None has anything to do.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Arc<Context>) -> Result<Self, EngineError> {
        let stream = || Stream::new(context);
        let event = || Event::new(context, Timing::Off);
        let (compute, up, down) = (stream()?, stream()?, stream()?);
        Ok(Self { compute, up, down, sent: event()?, made: event()? })
    }

    /// What is computed from here on begins when all is there that has been sent.
    ///
    /// # Errors
    /// The driver's.
    pub fn await_sent(&self) -> Result<(), EngineError> {
        self.up.record(&self.sent)?;
        Ok(self.compute.wait(&self.sent)?)
    }

    /// What goes down from here on does so when all is computed that computing has been told.
    ///
    /// # Errors
    /// The driver's.
    pub fn await_made(&self) -> Result<(), EngineError> {
        self.compute.record(&self.made)?;
        Ok(self.down.wait(&self.made)?)
    }

    /// Waits for all of it.
    ///
    /// # Errors
    /// The driver's.
    pub fn synchronize(&self) -> Result<(), EngineError> {
        let all = [&self.up, &self.compute, &self.down];
        all.into_iter().try_for_each(|stream| Ok(stream.synchronize()?))
    }
}
