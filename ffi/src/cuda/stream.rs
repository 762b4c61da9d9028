//! Streams, the order of work on a device (CUDA driver API: Stream Management, Memory Management).

use std::ops::Range;
use std::ptr::null_mut;
use std::sync::Arc;

use super::context::Context;
use super::event::Event;
use super::landing::Landing;
use super::memory::{Buffer, Staging};
use super::result::{Error, refused};
use super::sys::driver as sys;

/// Work in order. One thread at a time has it.
pub struct Stream {
    context: Arc<Context>,
    raw: *mut sys::stream,
}

// SAFETY: the driver's calls may come from any thread.
unsafe impl Send for Stream {}

impl Stream {
    /// One that waits for no other.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Arc<Context>) -> Result<Self, Error> {
        let (sys, mut raw) = (context.enter()?, null_mut());
        // SAFETY: `raw` receives a handle, destroyed once.
        let status = unsafe { (sys.cuStreamCreate)(&mut raw, sys::STREAM_NON_BLOCKING) };
        context.check("cuStreamCreate", status)?;
        Ok(Self { context: Arc::clone(context), raw })
    }

    /// Copies bytes to the device, from `at` on in `to`, and waits until they are there and all
    /// that the stream had to do before is done.
    ///
    /// # Errors
    /// The driver's; `Refused` where they do not fit.
    pub fn write(&self, to: &Buffer, at: usize, from: &[u8]) -> Result<(), Error> {
        let (bytes, to) = (from.len(), to.part("cuMemcpyHtoDAsync", at, from.len())?);
        let sys = self.context.enter()?;
        // SAFETY: both ends have so many bytes, and the wait below ends with the copy: after an
        // error of the device nothing is copied any more.
        let status =
            unsafe { (sys.cuMemcpyHtoDAsync_v2)(to, from.as_ptr().cast(), bytes, self.raw) };
        self.context.check("cuMemcpyHtoDAsync", status)?;
        self.synchronize()
    }

    /// Copies bytes from the device, from `at` on in `from`, and waits likewise.
    ///
    /// # Errors
    /// As of `write`.
    pub fn read(&self, from: &Buffer, at: usize, to: &mut [u8]) -> Result<(), Error> {
        let (bytes, from) = (to.len(), from.part("cuMemcpyDtoHAsync", at, to.len())?);
        let sys = self.context.enter()?;
        // SAFETY: as in `write`, and `to` is borrowed uniquely.
        let status =
            unsafe { (sys.cuMemcpyDtoHAsync_v2)(to.as_mut_ptr().cast(), from, bytes, self.raw) };
        self.context.check("cuMemcpyDtoHAsync", status)?;
        self.synchronize()
    }

    /// Copies a part of the staging memory to the device, from `at` on in `to`, in the stream's
    /// order; nobody waits.
    ///
    /// # Errors
    /// The driver's; `Refused` where a part does not lie within.
    pub fn upload(
        &self,
        to: &Buffer,
        at: usize,
        from: &Staging,
        part: Range<usize>,
    ) -> Result<(), Error> {
        let (bytes, from) = (part.len(), self.staged("cuMemcpyHtoDAsync", from, part)?);
        let to = to.part("cuMemcpyHtoDAsync", at, bytes)?;
        let sys = self.context.enter()?;
        // SAFETY: both parts have so many bytes; staging memory of this context is mapped until
        // the context ends.
        let status = unsafe { (sys.cuMemcpyHtoDAsync_v2)(to, from.cast(), bytes, self.raw) };
        self.context.check("cuMemcpyHtoDAsync", status)
    }

    /// Copies from the device, from `at` on in `from`, into a part of the staging memory, in the
    /// stream's order; nobody waits.
    ///
    /// # Errors
    /// As of `upload`.
    pub fn download(
        &self,
        from: &Buffer,
        at: usize,
        to: &mut Staging,
        part: Range<usize>,
    ) -> Result<(), Error> {
        let (bytes, to) = (part.len(), self.staged("cuMemcpyDtoHAsync", to, part)?);
        let from = from.part("cuMemcpyDtoHAsync", at, bytes)?;
        let sys = self.context.enter()?;
        // SAFETY: as in `upload`; the host has no references into staging memory.
        let status = unsafe { (sys.cuMemcpyDtoHAsync_v2)(to.cast(), from, bytes, self.raw) };
        self.context.check("cuMemcpyDtoHAsync", status)
    }

    /// Copies so many bytes from the device, from `at` on in `from`, to where they are waited for.
    ///
    /// # Errors
    /// The driver's; `Refused` where they do not lie within or do not fit, or something is on its
    /// way there.
    pub fn land(
        &self,
        from: &Buffer,
        at: usize,
        bytes: usize,
        to: &mut Landing,
    ) -> Result<(), Error> {
        to.begin("cuMemcpyDtoHAsync", |staging, arrived| {
            self.download(from, at, staging, 0..bytes)?;
            self.record(arrived)
        })
    }

    fn staged(
        &self,
        call: &'static str,
        staging: &Staging,
        part: Range<usize>,
    ) -> Result<*mut u8, Error> {
        if !Arc::ptr_eq(staging.context(), &self.context) {
            return refused(call, "staging memory of another context");
        }
        staging.part(call, part).map(std::ptr::NonNull::as_ptr)
    }

    /// Sets bytes of the device's memory to zero, in the stream's order.
    ///
    /// # Errors
    /// The driver's; `Refused` where the part does not lie within.
    pub fn clear(&self, buffer: &Buffer, part: Range<usize>) -> Result<(), Error> {
        self.fill(buffer, part, 0)
    }

    /// Sets bytes of the device's memory to `value`, in the stream's order.
    ///
    /// # Errors
    /// As of `clear`.
    pub fn fill(&self, buffer: &Buffer, part: Range<usize>, value: u8) -> Result<(), Error> {
        let (bytes, start) = (part.len(), buffer.part("cuMemsetD8Async", part.start, part.len())?);
        let sys = self.context.enter()?;
        // SAFETY: takes plain values.
        let status = unsafe { (sys.cuMemsetD8Async)(start, value, bytes, self.raw) };
        self.context.check("cuMemsetD8Async", status)
    }

    /// Waits for all that the stream has to do.
    ///
    /// # Errors
    /// The driver's, those of earlier work among them.
    pub fn synchronize(&self) -> Result<(), Error> {
        let sys = self.context.enter()?;
        // SAFETY: a live stream.
        self.context.check("cuStreamSynchronize", unsafe { (sys.cuStreamSynchronize)(self.raw) })
    }

    /// The event happens when all is done that the stream has to do by now.
    ///
    /// # Errors
    /// The driver's; `Refused`: of another context.
    pub fn record(&self, event: &Event) -> Result<(), Error> {
        self.share("cuEventRecord", event)?;
        let sys = self.context.enter()?;
        // SAFETY: both are live.
        let status = unsafe { (sys.cuEventRecord)(event.raw, self.raw) };
        self.context.check("cuEventRecord", status)
    }

    /// What comes after in this stream begins when the event has happened.
    ///
    /// # Errors
    /// The driver's.
    pub fn wait(&self, event: &Event) -> Result<(), Error> {
        self.share("cuStreamWaitEvent", event)?;
        let sys = self.context.enter()?;
        // SAFETY: both are live.
        let status = unsafe { (sys.cuStreamWaitEvent)(self.raw, event.raw, 0) };
        self.context.check("cuStreamWaitEvent", status)
    }

    /// Each keeps its own context alive: both must be of one.
    fn share(&self, call: &'static str, event: &Event) -> Result<(), Error> {
        match Arc::ptr_eq(&event.context, &self.context) {
            true => Ok(()),
            false => refused(call, "an event of another context"),
        }
    }

    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn raw(&self) -> *mut sys::stream {
        self.raw
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let Ok(sys) = self.context.enter() else { return };
        // SAFETY: owned, destroyed once; the driver ends it when its work is done.
        unsafe { (sys.cuStreamDestroy_v2)(self.raw) };
    }
}
