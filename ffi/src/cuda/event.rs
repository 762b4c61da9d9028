//! Events, the points in a stream's work that others wait for (CUDA driver API: Event Management).

use std::ptr::null_mut;
use std::sync::Arc;

use super::context::Context;
use super::result::Error;
use super::sys::driver as sys;

/// Whether an event knows when it happened, which costs a little.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timing {
    /// Only that it happened.
    Off,
    /// When, too.
    On,
}

/// A point in a stream's work.
pub struct Event {
    pub(super) context: Arc<Context>,
    pub(super) raw: *mut sys::event,
}

// SAFETY: the driver's calls may come from any thread.
unsafe impl Send for Event {}
// SAFETY: as above; it locks what they change.
unsafe impl Sync for Event {}

impl Event {
    /// One that was not recorded yet, which counts as happened.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Arc<Context>, timing: Timing) -> Result<Self, Error> {
        let flags = match timing {
            // Who waits sleeps: decoders and MPI have the processor.
            Timing::Off => sys::EVENT_DISABLE_TIMING | sys::EVENT_BLOCKING_SYNC,
            Timing::On => sys::EVENT_DEFAULT,
        };
        let (sys, mut raw) = (context.enter()?, null_mut());
        // SAFETY: `raw` receives a handle, destroyed once.
        context.check("cuEventCreate", unsafe { (sys.cuEventCreate)(&mut raw, flags) })?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// Waits for it.
    ///
    /// # Errors
    /// The driver's, those of earlier work among them.
    pub fn synchronize(&self) -> Result<(), Error> {
        let sys = self.context.enter()?;
        // SAFETY: a live event.
        self.context.check("cuEventSynchronize", unsafe { (sys.cuEventSynchronize)(self.raw) })
    }

    /// Milliseconds from another event to this one; both have happened, with `Timing::On`.
    ///
    /// # Errors
    /// The driver's.
    pub fn milliseconds_since(&self, start: &Self) -> Result<f32, Error> {
        let (sys, mut time) = (self.context.enter()?, 0.0);
        // SAFETY: two live events; writes a float.
        let status = unsafe { (sys.cuEventElapsedTime)(&mut time, start.raw, self.raw) };
        self.context.check("cuEventElapsedTime", status).map(|()| time)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let Ok(sys) = self.context.enter() else { return };
        // SAFETY: owned, destroyed once.
        unsafe { (sys.cuEventDestroy_v2)(self.raw) };
    }
}
