//! Where a micro-batch's time goes on a card: events between its calls, summed up by what was
//! called.

use std::collections::BTreeMap;
use std::sync::Arc;

use kintsugi_ffi::cuda::{Context, Event, Stream, Timing};

use crate::engine::error::EngineError;

/// What one kind of call took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Took {
    /// How often it was called.
    pub calls: usize,
    /// All of them together.
    pub milliseconds: f64,
}

/// Events of one micro-batch.
pub struct Clock {
    context: Arc<Context>,
    marks: Vec<(Arc<str>, Event)>,
}

impl Clock {
    /// One that has not begun.
    pub fn new(context: &Arc<Context>) -> Self {
        Self { context: Arc::clone(context), marks: Vec::new() }
    }

    /// What was put into the stream since the last mark is of this kind.
    ///
    /// # Errors
    /// The driver's.
    pub fn mark(&mut self, stream: &Stream, kind: &Arc<str>) -> Result<(), EngineError> {
        let event = Event::new(&self.context, Timing::On)?;
        stream.record(&event)?;
        self.marks.push((Arc::clone(kind), event));
        Ok(())
    }

    /// By kind, once all of it has happened. What comes before the first mark is not counted.
    ///
    /// # Errors
    /// The driver's.
    pub fn read(self) -> Result<BTreeMap<String, Took>, EngineError> {
        let mut kinds: BTreeMap<String, Took> = BTreeMap::new();
        for pair in self.marks.windows(2) {
            let [(_, before), (kind, event)] = pair else { continue };
            let took = kinds.entry(kind.to_string()).or_default();
            took.calls += 1;
            took.milliseconds += f64::from(event.milliseconds_since(before)?);
        }
        Ok(kinds)
    }
}
