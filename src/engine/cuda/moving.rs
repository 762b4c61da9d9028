//! The far tier of a card: pinned memory of the host, and the copies there and back, in streams of
//! their own. Computing waits for a copy on the card; the host waits for none.

use std::collections::BTreeMap;
use std::sync::Arc;

use kintsugi_ffi::arena::Span;
use kintsugi_ffi::cuda::{Buffer, Context, Event, Staging, Stream, Timing};

use crate::engine::error::EngineError;
use crate::engine::plan::steps::Way;

/// Copies of each direction by which both are measured, and of how many bytes one is at most.
const MEASURED: usize = 8;
const MEASURED_BYTES_MAX: usize = 32 << 20;

/// None of it until a script wants some.
pub struct Moving {
    context: Arc<Context>,
    /// Out first.
    streams: [Stream; 2],
    far: Option<Staging>,
    /// What was computed when a copy was begun.
    computed: Event,
    /// When a copy of a way and place has ended.
    ended: BTreeMap<(usize, Way), Event>,
}

impl Moving {
    /// Nothing is under way.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Arc<Context>) -> Result<Self, EngineError> {
        let streams = [Stream::new(context)?, Stream::new(context)?];
        let computed = Event::new(context, Timing::Off)?;
        let (context, ended) = (Arc::clone(context), BTreeMap::new());
        Ok(Self { context, streams, far: None, computed, ended })
    }

    fn bytes(&self) -> usize {
        self.far.as_ref().map_or(0, Staging::bytes)
    }

    /// Room in the far tier for a script. Nothing in it is needed between micro-batches.
    ///
    /// # Errors
    /// The host has none, or its driver's: a limit of locked memory.
    pub fn reserve(&mut self, far_bytes: usize) -> Result<(), EngineError> {
        if self.bytes() < far_bytes {
            // The old one goes first: there may be no room for both.
            self.far = None;
            self.far = Some(Staging::new(&self.context, far_bytes)?);
        }
        Ok(())
    }

    /// Begins a copy, once all is computed that `compute` has been told.
    ///
    /// # Errors
    /// The driver's.
    pub fn begin(
        &mut self,
        way: Way,
        compute: &Stream,
        arena: &Buffer,
        near: Span,
        far_offset: usize,
    ) -> Result<(), EngineError> {
        let stream = &self.streams[way as usize];
        compute.record(&self.computed)?;
        stream.wait(&self.computed)?;
        let none = || EngineError::Device("there is no far tier: it could not grow".into());
        let far = self.far.as_mut().ok_or_else(none)?;
        copy(way, stream, far, arena, near, far_offset)?;
        let ended = match self.ended.entry((far_offset, way)) {
            std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::btree_map::Entry::Vacant(new) => {
                new.insert(Event::new(&self.context, Timing::Off)?)
            }
        };
        Ok(stream.record(ended)?)
    }

    /// What `compute` is told from here on comes after it.
    ///
    /// # Errors
    /// The driver's.
    pub fn end(&self, way: Way, compute: &Stream, far_offset: usize) -> Result<(), EngineError> {
        let ended = self.ended.get(&(far_offset, way)).expect("what ends has begun");
        Ok(compute.wait(ended)?)
    }

    /// Bytes per second out and in while both go on, by copies between what is there already;
    /// `None`: nothing leaves. Nothing else is under way.
    ///
    /// # Errors
    /// The driver's.
    pub fn rates(&mut self, arena: &Buffer) -> Result<Option<[f64; 2]>, EngineError> {
        let half = arena.bytes().min(self.bytes()) / 2;
        let bytes = half.min(MEASURED_BYTES_MAX);
        let Some(far) = self.far.as_mut().filter(|_| bytes > 0) else { return Ok(None) };
        let ways = [Way::Out, Way::In];
        let mark = |stream: &Stream| {
            let event = Event::new(&self.context, Timing::On)?;
            stream.record(&event)?;
            Ok::<_, EngineError>(event)
        };
        let begun = [mark(&self.streams[0])?, mark(&self.streams[1])?];
        for _ in 0..MEASURED {
            for (way, stream) in ways.into_iter().zip(&self.streams) {
                let offset = way as usize * half;
                copy(way, stream, far, arena, Span { offset, bytes }, offset)?;
            }
        }
        let ended = [mark(&self.streams[0])?, mark(&self.streams[1])?];
        let mut rates = [0.0; 2];
        for (way, rate) in rates.iter_mut().enumerate() {
            ended[way].synchronize()?;
            let seconds = f64::from(ended[way].milliseconds_since(&begun[way])?) / 1e3;
            // Whoever divides by it divides by no zero, however coarse the clock is.
            *rate = (MEASURED * bytes) as f64 / seconds.max(1e-9);
        }
        Ok(Some(rates))
    }
}

/// Puts a copy into a stream.
fn copy(
    way: Way,
    stream: &Stream,
    far: &mut Staging,
    arena: &Buffer,
    near: Span,
    far_offset: usize,
) -> Result<(), EngineError> {
    let part = far_offset..far_offset + near.bytes;
    match way {
        Way::Out => stream.download(arena, near.offset, far, part)?,
        Way::In => stream.upload(arena, near.offset, far, part)?,
    }
    Ok(())
}
