//! Events on their way into the log: one that cannot be written now comes before the next one.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use super::event::{Event, Kind};
use super::log::EventLog;
use super::storage::Storage;

/// Events that wait for a disk that takes them, at most; of more the oldest are given up, and the
/// log says how many.
const WAITING_MAX: usize = 1 << 12;

/// Writes a run's events in their order.
pub struct EventWriter {
    log: EventLog,
    waiting: VecDeque<Event>,
    given_up: u64,
}

impl EventWriter {
    /// Into the log of the run whose folder is the storage's root.
    pub fn new(storage: Arc<dyn Storage>) -> Self {
        Self { log: EventLog::new(storage), waiting: VecDeque::new(), given_up: 0 }
    }

    /// Writes an event behind those that wait.
    ///
    /// # Errors
    /// It waits with them.
    pub fn write(&mut self, event: Event) -> io::Result<()> {
        if self.waiting.len() == WAITING_MAX {
            self.waiting.pop_front();
            self.given_up += 1;
        }
        self.waiting.push_back(event);
        self.settle()
    }

    /// Whether all are written.
    pub fn is_settled(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Writes those that wait.
    ///
    /// # Errors
    /// Of the first that still waits.
    pub fn settle(&mut self) -> io::Result<()> {
        while let Some(next) = self.waiting.front() {
            if self.given_up > 0 {
                let message = format!("{} events before this could not be written", self.given_up);
                self.log.append(&Event { kind: Kind::Warning { message }, ..next.clone() })?;
                self.given_up = 0;
            }
            self.log.append(next)?;
            self.waiting.pop_front();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::observe::event::samples;
    use crate::observe::log::{EVENTS_FILE, parse_lines};
    use crate::observe::storage::{Fault, MemoryStorage, Operation};

    fn event(step: u64) -> Event {
        samples::event(step, 0.0, Kind::Epoch { epoch: 0 })
    }

    /// What the log has after steps 1 to `last`, of which this operation failed for all between
    /// the first and the last.
    fn written_through(operation: Operation, last: u64) -> Vec<Event> {
        let ill = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&ill);
        let storage = Arc::new(MemoryStorage::with_faults(move |found, _| {
            (found == operation && asked.load(Ordering::SeqCst)).then_some(Fault::Tears(9))
        }));
        let mut writer = EventWriter::new(storage.clone());
        for step in 1..=last {
            ill.store(step > 1 && step < last, Ordering::SeqCst);
            let written = writer.write(event(step));
            assert_eq!(written.is_ok(), writer.is_settled());
        }
        let body = storage.read(Path::new(EVENTS_FILE)).unwrap();
        parse_lines(Path::new(EVENTS_FILE), &body).unwrap()
    }

    #[test]
    fn an_event_that_cannot_be_written_comes_before_the_next_one() {
        let events: Vec<Event> = (1..=5).map(event).collect();
        assert_eq!(written_through(Operation::AppendLine, 5), events);
    }

    #[test]
    fn an_event_is_written_although_the_end_of_the_log_cannot_be_read() {
        let events: Vec<Event> = (1..=5).map(event).collect();
        assert_eq!(written_through(Operation::Read, 5), events);
    }

    #[test]
    fn of_more_events_than_may_wait_the_log_says_how_many_are_gone() {
        let last = WAITING_MAX as u64 + 4;
        let written = written_through(Operation::AppendLine, last);
        let Kind::Warning { message } = &written[1].kind else { panic!("{:?}", written[1]) };
        assert!(message.starts_with("3 events"), "{message}");
        let steps: Vec<u64> = written[2..].iter().map(|event| event.step).collect();
        assert_eq!(steps, (5..=last).collect::<Vec<_>>());
    }
}
