//! Work that is recorded once and launched again and again as a whole (CUDA driver API: Graph
//! Management, Stream Management). Addresses are part of what is recorded.

use std::ptr::null_mut;
use std::sync::Arc;

use super::context::Context;
use super::result::{Error, refused};
use super::stream::Stream;
use super::sys::driver as sys;

/// A recording, ready to be launched.
pub struct Graph {
    context: Arc<Context>,
    raw: *mut sys::graph_exec,
}

// SAFETY: the driver's calls may come from any thread; launches need a stream, which one has.
unsafe impl Send for Graph {}

impl Graph {
    /// Records what `work` puts into the stream instead of doing it, and into others that wait for
    /// its events and that it waits for in the end. Nothing that waits, allocates or frees may be
    /// among it.
    ///
    /// # Errors
    /// The work's, and the driver's.
    pub fn capture<E: From<Error>>(
        stream: &Stream,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<Self, E> {
        let context = stream.context();
        let sys = context.enter()?;
        // Other threads may allocate meanwhile.
        // SAFETY: a live stream.
        let begun =
            unsafe { (sys.cuStreamBeginCapture_v2)(stream.raw(), sys::CAPTURE_THREAD_LOCAL) };
        context.check("cuStreamBeginCapture", begun)?;
        let capture = Capture { stream };
        let worked = work();
        let recorded = capture.end();
        worked?;
        let recorded = recorded?;
        let mut raw = null_mut();
        // SAFETY: a live graph; `raw` receives a handle, destroyed once.
        let made = unsafe { (sys.cuGraphInstantiateWithFlags)(&mut raw, recorded.raw, 0) };
        context.check("cuGraphInstantiate", made)?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// Puts the whole into a stream.
    ///
    /// # Errors
    /// The driver's; `Refused` in a stream of another context.
    pub fn launch(&self, stream: &Stream) -> Result<(), Error> {
        if !Arc::ptr_eq(stream.context(), &self.context) {
            return refused("cuGraphLaunch", "a stream of another context");
        }
        let sys = self.context.enter()?;
        // SAFETY: both are live. Functions, staging memory and events that were recorded live as
        // long as the context, of which all of them are; kernels are trusted (`Argument`).
        let status = unsafe { (sys.cuGraphLaunch)(self.raw, stream.raw()) };
        self.context.check("cuGraphLaunch", status)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        let Ok(sys) = self.context.enter() else { return };
        // SAFETY: owned, destroyed once; the driver ends it when its launches are done.
        unsafe { (sys.cuGraphExecDestroy)(self.raw) };
    }
}

/// A stream that records. Whatever becomes of the work, it does not stay so.
struct Capture<'a> {
    stream: &'a Stream,
}

impl<'a> Capture<'a> {
    fn end(self) -> Result<Recorded<'a>, Error> {
        let (recorded, status) = std::mem::ManuallyDrop::new(self).stop()?;
        recorded.context.check("cuStreamEndCapture", status)?;
        Ok(recorded)
    }

    fn stop(&self) -> Result<(Recorded<'a>, i32), Error> {
        let (context, mut raw) = (self.stream.context(), null_mut());
        // The work may have entered another device's context.
        let sys = context.enter()?;
        // SAFETY: a live stream; receives a handle, or null where it fails.
        let status = unsafe { (sys.cuStreamEndCapture)(self.stream.raw(), &mut raw) };
        Ok((Recorded { context, raw }, status))
    }
}

impl Drop for Capture<'_> {
    /// The work panicked: nothing is made of what it recorded.
    fn drop(&mut self) {
        drop(self.stop());
    }
}

/// A recording that cannot be launched yet.
struct Recorded<'a> {
    context: &'a Context,
    raw: *mut sys::graph,
}

impl Drop for Recorded<'_> {
    fn drop(&mut self) {
        if self.raw.is_null() {
            return;
        }
        // SAFETY: owned, destroyed once; what was made from it is a copy.
        unsafe { (self.context.sys().cuGraphDestroy)(self.raw) };
    }
}
