//! The run's record as its supervisor keeps it: it follows what the ranks write, and adds what only
//! the supervisor knows, for people and, while no rank writes it, in the event log.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use kintsugi_ffi::os;

use crate::cluster::guard::ends::{self, End};
use crate::config::{Config, Shown};
use crate::data::sampler::Order;
use crate::launch::ending::quote;
use crate::launch::ending::verdict::History;
use crate::launch::nodes::spreading::Spreading;
use crate::launch::start::job::Job;
use crate::launch::{LaunchError, io_error};
use crate::observe::clock::{Clock, RealClock};
use crate::observe::event::{self, Event, Kind};
use crate::observe::event_writer::EventWriter;
use crate::observe::log::{EVENTS_FILE, EventTail};
use crate::observe::result::RunResult;

use super::notices::Notices;

/// What is known of a run, over all its attempts.
pub(super) struct Record<'a> {
    /// The run.
    pub(super) job: &'a Job,
    show: &'a mut dyn FnMut(&Event),
    tail: EventTail,
    /// It was told that the events cannot be read.
    unread: bool,
    events: EventWriter,
    /// How far the run has come.
    pub(super) history: History,
    /// The same number of nodes, once more of them live.
    pub(super) spreading: Spreading,
    /// The newest event: its time and place are those of our own.
    pub(super) last: Option<Event>,
    /// The attempt in force.
    pub(super) attempt: u32,
    /// The unix time at which the run's seconds were 0.
    pub(super) origin: f64,
    /// The process of this attempt whose end a person has been told of.
    told_end: Option<String>,
    /// The process of this attempt that ended first, but for those that were ended by launch.
    first_end: Option<End>,
    /// What ranks' logs say that a person must act on.
    notices: Notices,
}

impl<'a> Record<'a> {
    /// Reads what earlier launches of this run wrote, without showing it again.
    ///
    /// # Errors
    /// It cannot be read now: nobody knows how long the run has gone on.
    pub(super) fn of(job: &'a Job, show: &'a mut dyn FnMut(&Event)) -> Result<Self, LaunchError> {
        let mut record = Self {
            job,
            show,
            tail: EventTail::new(job.run.join(EVENTS_FILE)),
            unread: false,
            events: EventWriter::new(Arc::new(job.run.storage().clone())),
            history: History::default(),
            spreading: Spreading::new(job.config.recovery.regrow),
            last: None,
            attempt: 0,
            origin: now_unix(),
            told_end: None,
            first_end: None,
            notices: Notices::default(),
        };
        record.read_the_past().map_err(io_error("reading the run's events"))?;
        record.history.launch_begins();
        // Restarts within this launch count as time of the run; the pause before it does not.
        record.origin -= record.last.as_ref().map_or(0.0, |last| last.seconds);
        Ok(record)
    }

    fn read_the_past(&mut self) -> io::Result<()> {
        let Self { tail, history, last, .. } = self;
        tail.read_on(|event| {
            history.on(&event);
            *last = Some(event);
        })
    }

    /// Takes what the ranks wrote since; says whether it shows that the world goes on.
    pub(super) fn follow(&mut self) -> bool {
        let mut alive = false;
        let events = self.tail.try_poll().unwrap_or_else(|error| {
            if !std::mem::replace(&mut self.unread, true) {
                self.warn(&format!("{error}; what ranks write is shown when it can be read"));
            }
            Vec::new()
        });
        for event in events {
            alive |= self.history.on(&event);
            self.spreading.on(&event);
            (self.show)(&event);
            let remark = remark_on_start(&event, &self.job.config);
            self.last = Some(event);
            remark.iter().for_each(|text| self.warn(text));
        }
        alive
    }

    /// Whether ranks of this node have committed since it was last asked, by what lies in memory:
    /// where a disk is full, their events tell nothing.
    pub(super) fn commits_in_memory(&mut self) -> bool {
        // What cannot be read is no sign of life.
        let Ok(Some(newest)) = self.job.slots().newest() else { return false };
        newest.attempt == self.attempt && self.history.on_resident(newest.step)
    }

    /// Whether this step, the ledger's newest, is in a checkpoint that is there, and is the newest
    /// that anybody knows of.
    pub(super) fn has_saved(&self, step: u64) -> bool {
        let folder = self.job.run.join("checkpoints").join(format!("step-{step:08}"));
        self.step() <= step && self.history.has_saved(step) && (step == 0 || folder.is_dir())
    }

    /// The newest step that was seen.
    pub(super) fn step(&self) -> u64 {
        let told = self.last.as_ref().map_or(0, |last| last.step);
        told.max(self.history.resident().unwrap_or(0))
    }

    /// Where the output of the attempt's mpirun and all its ranks goes.
    pub(super) fn launcher_log(&self) -> PathBuf {
        self.job.run.join(&format!("logs/mpirun-{}.log", self.attempt))
    }

    /// An attempt begins, whose ranks write behind what is ours.
    pub(super) fn begin(&mut self, attempt: u32) {
        if let Err(error) = self.events.settle() {
            tracing::warn!("events.jsonl: {error}");
        }
        self.attempt = attempt;
    }

    /// The event log is ours between two attempts.
    pub(super) fn record(&mut self, kind: Kind) {
        let event = self.own_event(kind);
        if let Err(error) = self.events.write(event) {
            tracing::warn!("events.jsonl: {error}");
        }
        self.follow();
    }

    fn own_event(&self, kind: Kind) -> Event {
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

    /// What the attempt's mpirun said.
    pub(super) fn quote_launcher(&mut self) {
        let log = self.launcher_log();
        let lines = quote::of_log(&log);
        if !lines.is_empty() {
            let text = lines.join("\n  ");
            self.warn(&format!("{} says:\n  {text}", log.shown()));
        }
    }

    /// Warnings in ranks' logs that a person must act on, each once.
    pub(super) fn hear_ranks(&mut self) {
        let logs = self.job.run.join("logs");
        for text in self.notices.look(&logs, self.attempt) {
            self.warn(&text);
        }
        let run = self.job.run.path();
        if let Some(text) = self.notices.full_disk(run, os::free_disk_bytes(run).ok()) {
            self.warn(&text);
        }
    }

    /// Why a process ended for which the others wait in vain, told once.
    pub(super) fn tell_end(&mut self) -> Option<String> {
        let logs = self.job.run.join("logs");
        let of_attempt = ends::of_attempt(&logs, self.attempt);
        let first = of_attempt.into_iter().find(|end| end.unmet().is_some())?;
        let told = first.told(&logs);
        if self.told_end.as_ref() != Some(&first.name) {
            self.warn(&format!("the start fails: {told}"));
            self.told_end = Some(first.name);
        }
        Some(told)
    }

    /// The process of this attempt that ended first, for a person, once so many have left word of
    /// their end.
    pub(super) fn first_end_of(&self, ends: usize) -> Option<String> {
        let logs = self.job.run.join("logs");
        let of_attempt = ends::of_attempt(&logs, self.attempt);
        of_attempt.first().filter(|_| of_attempt.len() >= ends).map(|first| first.told(&logs))
    }

    /// To be called before launch itself ends any of the attempt's processes.
    pub(super) fn note_first_end(&mut self) {
        let logs = self.job.run.join("logs");
        self.first_end = ends::of_attempt(&logs, self.attempt).into_iter().next();
    }

    /// A node was lost: no process there could leave word, and the others ended because of it.
    pub(super) fn forget_first_end(&mut self) {
        self.first_end = None;
    }

    /// Which process ended first.
    pub(super) fn say_first_end(&mut self) {
        let logs = self.job.run.join("logs");
        let told = self.told_end.take();
        if let Some(first) = self.first_end.take()
            && told.as_ref() != Some(&first.name)
        {
            self.warn(&format!("the first to end was {}", first.told(&logs)));
        }
    }

    /// That another attempt follows.
    pub(super) fn say_why_again(&mut self, reason: &str) {
        let next = self.attempt + 1;
        self.warn(&format!("{reason}; starting again (attempt {next})"));
    }

    /// The event that ends the log of a run whose result no rank could write.
    pub(super) fn end(&mut self, result: &RunResult) -> Result<(), LaunchError> {
        let status = serde_json::to_value(result.status).ok();
        let status = status.and_then(|value| value.as_str().map(str::to_owned));
        let event = self.own_event(Kind::RunEnd {
            status: status.unwrap_or_default(),
            reason: result.reason.clone(),
            state_sha256: None,
        });
        self.events.write(event).map_err(io_error("ending the event log"))?;
        self.follow();
        Ok(())
    }
}

/// What is to be said of the order of samples once the ranks have told how large their set is: of a
/// run that begins.
fn remark_on_start(event: &Event, config: &Config) -> Option<String> {
    match &event.kind {
        Kind::RunStart { train_samples, .. } if event.step == 0 => {
            Order::of(config, *train_samples).ok()?.remark()
        }
        _ => None,
    }
}

/// Seconds since 1970.
fn now_unix() -> f64 {
    RealClock::default().unix_seconds()
}
