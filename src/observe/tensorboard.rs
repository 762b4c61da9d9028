//! `RUN/tensorboard/events.out.tfevents.*`: the scalars of a run for TensorBoard, made from its
//! events. Written by whoever shows the run's progress (`launch`, or rank 0 where there is no
//! `launch`), so that it costs training nothing; what cannot be written is one warning. Every start
//! begins a new file, whose first record tells TensorBoard to forget the steps that a rollback took
//! away. `record` is the format.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use kintsugi_ffi::os;

use crate::config::Shown;

use super::data_use::DataUse;
use super::event::{Event, Kind};
use super::log::{EVENTS_FILE, EventTail};

pub mod record;

use record::{Scalar, file_version, scalars, session_start};

/// Below the run directory.
pub const FOLDER: &str = "tensorboard";

/// Writes one run's scalars.
#[derive(Debug)]
pub struct Tensorboard {
    run_dir: PathBuf,
    file: Option<File>,
    /// Nothing more is tried.
    failed: bool,
    /// From the events so far; `None` until they were read.
    known: Option<Known>,
}

/// What scalars are made from besides the event itself.
#[derive(Debug, Default, Clone, Copy)]
struct Known {
    /// Both as `result.json` counts them.
    recoveries: u64,
    restarts: u64,
    ranks: u32,
    /// Of the newest report of steps: how many a report is about.
    step: u64,
}

impl Tensorboard {
    /// For the run in this folder. With the first event it reads those that the log holds by then,
    /// so that the counts of a run that goes on go on.
    pub fn new(run_dir: &Path) -> Self {
        Self { run_dir: run_dir.to_owned(), file: None, failed: false, known: None }
    }

    /// Reads the log now: for one who gets events that stand in it already.
    pub fn after_the_past(mut self) -> Self {
        match Known::of_the_past(&self.run_dir) {
            Ok(known) => self.known = Some(known),
            Err(error) => self.give_up(&error),
        }
        self
    }

    /// Takes one event, in the order written.
    pub fn on(&mut self, event: &Event) {
        if self.failed {
            return;
        }
        if self.known.is_none() {
            match Known::of_the_past(&self.run_dir) {
                Ok(known) => self.known = Some(known),
                Err(error) => return self.give_up(&error),
            }
        }
        let scalars = self.known.as_mut().map(|known| known.scalars(event)).unwrap_or_default();
        if scalars.is_empty() {
            return;
        }
        if let Err(error) = self.write(event, &scalars) {
            self.give_up(&error);
        }
    }

    fn give_up(&mut self, error: &io::Error) {
        self.failed = true;
        let folder = self.run_dir.join(FOLDER);
        let folder = folder.shown();
        tracing::warn!("{folder}: {error}; the run goes on without TensorBoard's files");
    }

    fn write(&mut self, event: &Event, values: &[Scalar]) -> io::Result<()> {
        let mut bytes = Vec::new();
        let step = i64::try_from(event.step).unwrap_or(i64::MAX);
        let first = self.file.is_none();
        if first {
            self.file = Some(create(&self.run_dir.join(FOLDER))?);
            bytes.extend(record::frame(&file_version(event.time)));
        }
        // What was told of steps that are no longer committed is to be forgotten.
        let begins = matches!(
            event.kind,
            Kind::Restarted { .. } | Kind::RunStart { .. } | Kind::FailureDetected { .. }
        );
        if first || begins {
            let from = if begins { step.saturating_add(1) } else { step };
            bytes.extend(record::frame(&session_start(event.time, from)));
        }
        bytes.extend(record::frame(&scalars(event.time, step, values)));
        let file = self.file.as_mut().expect("it was opened above");
        // One write: whoever reads meanwhile sees whole records.
        file.write_all(&bytes)
    }
}

/// A file of its own for every start: TensorBoard reads them in the order of their names.
fn create(folder: &Path) -> io::Result<File> {
    // Only in a run directory that is there.
    match fs::create_dir(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (seconds, micros) = (now.as_secs(), now.subsec_micros());
    let (host, pid) = (os::hostname(), std::process::id());
    let name = format!("events.out.tfevents.{seconds:010}.{micros:06}.{host}.{pid}");
    File::options().write(true).create_new(true).open(folder.join(name))
}

impl Known {
    fn of_the_past(run_dir: &Path) -> io::Result<Self> {
        let mut known = Self::default();
        EventTail::new(run_dir.join(EVENTS_FILE)).read_on(|event| {
            known.scalars(&event);
        })?;
        Ok(known)
    }

    /// Shares of misses, where there is a cache.
    fn data(&self, used: &DataUse) -> Vec<Scalar> {
        let Some(bound) = used.bound else { return Vec::new() };
        let all = (used.hits + used.misses).max(1) as f64;
        vec![
            Scalar::new("data/cache_misses", used.misses as f64 / all),
            Scalar::new("data/cache_misses_bound", bound),
        ]
    }

    /// The scalars that an event is worth.
    fn scalars(&mut self, event: &Event) -> Vec<Scalar> {
        match &event.kind {
            Kind::RunStart { ranks, .. } => {
                (self.ranks, self.step) = (*ranks, event.step);
                self.world()
            }
            Kind::Step { loss, error, samples, learning_rate, seconds, .. } => {
                let steps = event.step.saturating_sub(self.step).max(1);
                self.step = event.step;
                vec![
                    Scalar::new("train/loss", *loss),
                    Scalar::new("train/error", *error),
                    Scalar::new("train/learning_rate", *learning_rate),
                    Scalar::new("time/step_seconds", seconds / steps as f64),
                    Scalar::new("time/images_per_second", *samples as f64 / seconds.max(1e-9)),
                ]
            }
            Kind::Data { used, .. } => self.data(used),
            Kind::Evaluation { error, average_error, loss, .. } => {
                let average = average_error.map(|e| Scalar::new("validation/average_error", e));
                [Scalar::new("validation/error", *error), Scalar::new("validation/loss", *loss)]
                    .into_iter()
                    .chain(average)
                    .collect()
            }
            Kind::Recovered(record) => {
                self.recoveries += 1;
                self.ranks = record.ranks;
                let seconds = Scalar::new("recovery/seconds", record.seconds.values().sum());
                self.world().into_iter().chain([seconds]).collect()
            }
            Kind::Resized(record) => {
                self.ranks = record.to;
                self.world()
            }
            Kind::Restarted { .. } => {
                self.step = event.step;
                self.restarts += 1;
                self.world()
            }
            // The living go back.
            Kind::FailureDetected { .. } if event.step < self.step => {
                self.step = event.step;
                self.world()
            }
            _ => Vec::new(),
        }
    }

    fn world(&self) -> Vec<Scalar> {
        vec![
            Scalar::new("world/ranks", f64::from(self.ranks)),
            Scalar::new("world/recoveries", self.recoveries as f64),
            Scalar::new("world/restarts", self.restarts as f64),
        ]
    }
}
