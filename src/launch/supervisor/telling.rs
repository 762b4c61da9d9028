//! What the supervisor itself has to say: for people, in the event log while no rank writes it, and
//! in the result when no rank could.

use std::path::Path;

use crate::config::ExchangeKind;
use crate::observe::event::{self, Event, Kind};
use crate::observe::ledger::Entry;
use crate::observe::log::{self, JsonLines};
use crate::observe::result::{RunResult, Status};

use crate::launch::nodes::Crew;
use crate::launch::{LaunchError, account, io_error};

use super::{Supervisor, left_out, now_unix};

impl Supervisor<'_> {
    /// Nodes that were lost are part of the run's record. Between attempts the log is ours.
    pub(super) fn tell_losses(&mut self) {
        let mut losses = self.crew.as_mut().map(Crew::take_losses).unwrap_or_default();
        let survived = std::mem::take(&mut self.left_out);
        // A run that is over has had its last word; they were shown when they happened.
        if self.job.run.result().is_none() {
            losses.extend(survived);
        }
        for loss in losses {
            self.record(Kind::Warning { message: left_out(&loss) });
        }
    }

    /// The event log is ours between two attempts.
    pub(super) fn record(&mut self, kind: Kind) {
        let event = self.own_event(kind);
        if let Err(error) = self.append(&event) {
            tracing::warn!("events.jsonl: {error}");
        }
        self.follow();
    }

    pub(super) fn append(&self, event: &Event) -> std::io::Result<()> {
        let storage = std::sync::Arc::new(self.job.run.storage().clone());
        JsonLines::at(storage, "events.jsonl").append(event)
    }

    pub(super) fn own_event(&self, kind: Kind) -> Event {
        let time = now_unix();
        Event {
            v: event::VERSION,
            time,
            seconds: time - self.origin,
            attempt: self.attempt,
            generation: self.last.as_ref().map_or(0, |last| last.generation),
            step: self.last.as_ref().map_or(0, |last| last.step),
            rank: 0,
            kind,
        }
    }

    /// For people only: while ranks live, the event log is theirs.
    pub(super) fn warn(&mut self, message: &str) {
        let event = self.own_event(Kind::Warning { message: message.to_owned() });
        (self.show)(&event);
    }

    /// The last words of an attempt.
    pub(super) fn quote(&mut self, log: &Path) {
        const LINES: usize = 6;
        let lines = account::last_lines(log, LINES);
        if !lines.is_empty() {
            let text = lines.join("\n  ");
            self.warn(&format!("the last lines of {}:\n  {text}", log.display()));
        }
    }

    /// The result when no rank could write one, and the event that ends the log.
    pub(super) fn conclude(
        &mut self,
        status: Status,
        reason: &str,
    ) -> Result<RunResult, LaunchError> {
        let run = &self.job.run;
        // What cannot be read cannot be claimed; the reason is what matters now.
        let events = log::read_events(&run.join("events.jsonl")).unwrap_or_default();
        let ledger: Vec<Entry> = log::read_lines(&run.join("ledger.jsonl")).unwrap_or_default();
        let name = run.path().file_name().map_or_else(String::new, |n| n.to_string_lossy().into());
        let mut result = account::result(&name, self.attempt, status, reason, &events, &ledger);
        let train = &self.job.config.train;
        result.exact |= train.reproducible;
        result.exact &= train.exchange == ExchangeKind::Synchronous;
        run.write_result(&result)?;
        let event = self.own_event(Kind::RunEnd {
            status: serde_json::to_value(status)
                .ok()
                .and_then(|value| value.as_str().map(str::to_owned))
                .unwrap_or_default(),
            reason: reason.to_owned(),
            state_sha256: None,
        });
        self.append(&event).map_err(io_error("ending the event log"))?;
        self.follow();
        Ok(result)
    }
}
