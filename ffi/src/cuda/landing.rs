//! Where something from the device arrives that the host then reads where it lies. While a copy is
//! under way nobody has it.

use std::sync::Arc;

use super::context::Context;
use super::event::{Event, Timing};
use super::memory::Staging;
use super::result::{Error, refused};

/// Pinned memory of the host for one thing at a time.
pub struct Landing {
    staging: Staging,
    /// Of the last copy to here.
    arrived: Event,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The device has nothing to do with it.
    Here,
    /// The device may be writing, until the event has happened.
    Flying,
    /// A copy failed to begin: nobody knows whether the device writes.
    Lost,
}

impl Landing {
    /// So many bytes, zeros at first.
    ///
    /// # Errors
    /// No memory, or the driver's: a limit of locked memory.
    pub fn new(context: &Arc<Context>, bytes: usize) -> Result<Self, Error> {
        let (staging, arrived) = (Staging::new(context, bytes)?, Event::new(context, Timing::Off)?);
        Ok(Self { staging, arrived, state: State::Here })
    }

    /// How many.
    pub fn bytes(&self) -> usize {
        self.staging.bytes()
    }

    /// Waits for the copy to here: what lies here from its start on.
    ///
    /// # Errors
    /// The driver's, those of earlier work among them; `Refused` after such a one.
    pub fn wait(&mut self) -> Result<&[u8], Error> {
        match self.state {
            State::Here => {}
            State::Flying => {
                self.arrived.synchronize()?;
                self.state = State::Here;
            }
            State::Lost => return refused("Landing::wait", "no copy to here has begun"),
        }
        let bytes = self.staging.bytes();
        let start = self.staging.part("Landing::wait", 0..bytes)?;
        // SAFETY: so many bytes that are mapped while this lives. The device has written the last
        // time: another copy to here needs `&mut self`.
        Ok(unsafe { std::slice::from_raw_parts(start.as_ptr(), bytes) })
    }

    /// A copy to here begins by `put`, which records the event behind it.
    pub(super) fn begin(
        &mut self,
        call: &'static str,
        put: impl FnOnce(&mut Staging, &Event) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if self.state != State::Here {
            return refused(call, "something is on its way to the same place");
        }
        self.state = State::Lost;
        put(&mut self.staging, &self.arrived)?;
        self.state = State::Flying;
        Ok(())
    }
}
