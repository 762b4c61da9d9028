//! Where a micro-batch's time goes on a card: events between its lines.

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
    marks: Vec<Event>,
}

impl Clock {
    /// One that has not begun.
    pub fn new(context: &Arc<Context>) -> Self {
        Self { context: Arc::clone(context), marks: Vec::new() }
    }

    /// What the stream was told since the last mark is a line; before the first mark is none.
    ///
    /// # Errors
    /// The driver's.
    pub fn mark(&mut self, stream: &Stream) -> Result<(), EngineError> {
        let event = Event::new(&self.context, Timing::On)?;
        stream.record(&event)?;
        self.marks.push(event);
        Ok(())
    }

    /// Milliseconds of each line, once all of it has happened.
    ///
    /// # Errors
    /// The driver's.
    pub fn milliseconds(&self) -> Result<Vec<f64>, EngineError> {
        let spans = self.marks.windows(2);
        spans.map(|pair| Ok(f64::from(pair[1].milliseconds_since(&pair[0])?))).collect()
    }

    /// What lines of each kind took.
    ///
    /// # Errors
    /// The driver's.
    pub fn by_kind(&self, kinds: &[Arc<str>]) -> Result<BTreeMap<String, Took>, EngineError> {
        let mut all: BTreeMap<String, Took> = BTreeMap::new();
        for (kind, milliseconds) in kinds.iter().zip(self.milliseconds()?) {
            let took = all.entry(kind.to_string()).or_default();
            took.calls += 1;
            took.milliseconds += milliseconds;
        }
        Ok(all)
    }
}
