//! Managed memory: what the driver is told of it (CUDA driver API: Unified Addressing).

use super::memory::Buffer;
use super::result::Error;
use super::stream::Stream;
use super::sys::driver as sys;

/// A processor, and its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The buffer's own.
    Device,
    /// The host.
    Host,
}

/// What the driver may reckon with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// It is seldom written.
    ReadMostly,
    /// It should lie there.
    PreferredLocation(Side),
    /// It is mapped there, wherever it lies.
    AccessedBy(Side),
}

impl Side {
    fn location(self, of: &Buffer) -> sys::location {
        match self {
            Self::Device => {
                sys::location { kind: sys::LOCATION_DEVICE, id: of.context().device().raw() }
            }
            Self::Host => sys::location { kind: sys::LOCATION_HOST, id: 0 },
        }
    }
}

impl Buffer {
    /// Tells the driver of a whole managed buffer.
    ///
    /// # Errors
    /// The driver's: memory that is not managed.
    pub fn advise(&self, advice: Advice) -> Result<(), Error> {
        let (number, side) = match advice {
            Advice::ReadMostly => (sys::ADVISE_READ_MOSTLY, Side::Device),
            Advice::PreferredLocation(side) => (sys::ADVISE_PREFERRED_LOCATION, side),
            Advice::AccessedBy(side) => (sys::ADVISE_ACCESSED_BY, side),
        };
        let start = self.part("cuMemAdvise", 0, self.bytes())?;
        let sys = self.context().enter()?;
        // SAFETY: a live range; nothing is written.
        let status =
            unsafe { (sys.cuMemAdvise_v2)(start, self.bytes(), number, side.location(self)) };
        self.context().check("cuMemAdvise", status)
    }
}

impl Stream {
    /// Has a whole managed buffer brought to a side, in the stream's order; nobody waits.
    ///
    /// # Errors
    /// As of `advise`.
    pub fn prefetch(&self, buffer: &Buffer, to: Side) -> Result<(), Error> {
        let (bytes, start) =
            (buffer.bytes(), buffer.part("cuMemPrefetchAsync", 0, buffer.bytes())?);
        let sys = self.context().enter()?;
        // SAFETY: a live range and a live stream.
        let status = unsafe {
            (sys.cuMemPrefetchAsync_v2)(start, bytes, to.location(buffer), 0, self.raw())
        };
        self.context().check("cuMemPrefetchAsync", status)
    }
}
