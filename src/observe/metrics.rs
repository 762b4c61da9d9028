//! `RUN/metrics.csv`: a run's curves for pandas, spreadsheets and trackers, a row for each step
//! that was told or evaluated, made anew from `events.jsonl` and put in the place of the older
//! file. So steps that a rollback took away are gone, and none is there twice, whatever ended
//! before. Written by whoever shows the run's progress; what cannot be written is one warning,
//! and is tried again.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::config::Shown;

use super::event::{Event, Kind};
use super::log::{EVENTS_FILE, EventTail};
use super::storage::{FileSystem, Storage};

/// Below the run directory.
pub const METRICS_FILE: &str = "metrics.csv";
/// Its first line.
const HEAD: &str = "step,epoch,seconds,train_loss,train_error,learning_rate,validation_loss,\
                    validation_error,validation_error_average";
/// Between two files that nothing in particular asks for.
const PAUSE: Duration = Duration::from_secs(10);
/// Of the time, writing takes no more than one part of so many.
const PARTS: u32 = 100;

/// What is known of a step. What nobody told is an empty cell.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Row {
    epoch: Option<u64>,
    seconds: f64,
    /// Loss, error, learning rate.
    train: Option<[f64; 3]>,
    /// Loss, error.
    validation: Option<[f64; 2]>,
    average_error: Option<f64>,
}

/// The rows that events make.
#[derive(Debug, Default)]
struct Rows(BTreeMap<u64, Row>);

impl Rows {
    fn on(&mut self, event: &Event) {
        let row = |rows: &mut Self| {
            let mut row = rows.0.get(&event.step).copied().unwrap_or_default();
            row.seconds = event.seconds;
            row
        };
        let row = match event.kind {
            Kind::Step { epoch, loss, error, learning_rate, .. } => {
                // Where a repair went back there is no other word of it.
                self.drop_above(event.step);
                // Told before, it was done again: its evaluation is one of weights that are gone.
                if self.0.get(&event.step).is_some_and(|row| row.train.is_some()) {
                    self.0.remove(&event.step);
                }
                let train = Some([loss, error, learning_rate]);
                Row { epoch: Some(epoch), train, ..row(self) }
            }
            Kind::Evaluation { error, average_error, loss, .. } => {
                self.drop_above(event.step);
                Row { validation: Some([loss, error]), average_error, ..row(self) }
            }
            // What was told of steps that are no longer committed.
            Kind::RunStart { .. } | Kind::Restarted { .. } | Kind::FailureDetected { .. } => {
                self.drop_above(event.step);
                return;
            }
            _ => return,
        };
        self.0.insert(event.step, row);
    }

    fn drop_above(&mut self, last: u64) {
        self.0.retain(|step, _| *step <= last);
    }

    fn csv(&self) -> Vec<u8> {
        let mut text = format!("{HEAD}\n").into_bytes();
        let cell = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
        for (step, row) in &self.0 {
            let epoch = row.epoch.map(|epoch| epoch.to_string()).unwrap_or_default();
            let train = |at: usize| cell(row.train.map(|train| train[at]));
            let validation = |at: usize| cell(row.validation.map(|validation| validation[at]));
            let (seconds, average) = (row.seconds, cell(row.average_error));
            let line = [train(0), train(1), train(2), validation(0), validation(1), average];
            let line = line.join(",");
            writeln!(text, "{step},{epoch},{seconds:.3},{line}").expect("memory takes it");
        }
        text
    }
}

/// Keeps one run's file.
#[derive(Debug)]
pub struct Metrics {
    /// Fails where the folder has moved, or is gone.
    storage: io::Result<FileSystem>,
    file: PathBuf,
    tail: EventTail,
    rows: Rows,
    /// Not before.
    next: Instant,
    /// That it cannot be written; it is tried again.
    warned: bool,
}

impl Metrics {
    /// For the run in this folder.
    pub fn new(run_dir: &Path) -> Self {
        Self {
            storage: FileSystem::holding(run_dir),
            file: run_dir.join(METRICS_FILE),
            tail: EventTail::new(run_dir.join(EVENTS_FILE)),
            rows: Rows::default(),
            next: Instant::now(),
            warned: false,
        }
    }

    /// After an event was written to the log.
    pub fn on(&mut self, event: &Event) {
        let now = Instant::now();
        let is_due = match event.kind {
            Kind::RunEnd { .. } => return self.finish(),
            Kind::RunStart { .. } => true,
            // Only where writing takes long.
            Kind::Evaluation { .. } => now + PAUSE >= self.next,
            Kind::Step { .. } => now >= self.next,
            _ => false,
        };
        if is_due {
            self.write();
        }
    }

    /// The last time: what fails now is told, whatever was told before.
    pub fn finish(&mut self) {
        self.warned = false;
        self.write();
    }

    /// Writes all that the log holds.
    fn write(&mut self) {
        let begun = Instant::now();
        let (tail, rows) = (&mut self.tail, &mut self.rows);
        // A file that holds more than could be read stays.
        let read = tail.read_on(|event| rows.on(&event));
        let written = read.and_then(|()| match &self.storage {
            Ok(storage) => storage.replace(Path::new(METRICS_FILE), &rows.csv()),
            Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
        });
        if let Err(error) = written
            && !std::mem::replace(&mut self.warned, true)
        {
            tracing::warn!("{}: {error}; the run goes on", self.file.shown());
        }
        self.next = Instant::now() + (begun.elapsed() * PARTS).max(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::observe::event::VERSION;
    use crate::observe::log::EventLog;

    fn event(step: u64, kind: Kind) -> Event {
        let (seconds, rank) = (step as f64 / 4.0, 0);
        Event { v: VERSION, time: 1.7e9, seconds, attempt: 1, generation: 0, step, rank, kind }
    }

    fn told(step: u64, loss: f64) -> Event {
        let (epoch, error, samples) = (step / 10, 0.5, 8);
        let (learning_rate, seconds) = (0.1, 0.2);
        event(step, Kind::Step { epoch, loss, error, samples, learning_rate, seconds })
    }

    fn evaluated(step: u64, average_error: Option<f64>) -> Event {
        let (error, loss, samples, seconds) = (0.25, 1.5, 10, 0.1);
        event(step, Kind::Evaluation { error, average_error, loss, samples, seconds })
    }

    fn restarted(step: u64) -> Event {
        let (from, lost, weights) = ("checkpoint".into(), Vec::new(), None);
        event(step, Kind::Restarted { from, lost_steps: 3, lost, weights })
    }

    fn written(folder: &Path) -> Vec<String> {
        let text = std::fs::read_to_string(folder.join(METRICS_FILE)).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    #[test]
    fn a_row_is_a_step_and_what_a_rollback_took_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = EventLog::new(Arc::new(FileSystem::new(folder.path())));
        let mut metrics = Metrics::new(folder.path());
        let all = [
            told(2, 2.0),
            told(4, f64::NAN),
            evaluated(4, Some(0.2)),
            told(6, 9.0),
            restarted(4),
            told(6, 1.0),
            evaluated(8, None),
        ];
        for event in &all {
            log.append(event).unwrap();
            metrics.on(event);
        }
        metrics.write();
        let rows = [
            HEAD,
            "2,0,0.500,2,0.5,0.1,,,",
            "4,0,1.000,NaN,0.5,0.1,1.5,0.25,0.2",
            "6,0,1.500,1,0.5,0.1,,,",
            "8,,2.000,,,,1.5,0.25,",
        ];
        assert_eq!(written(folder.path()), rows);
        let columns = HEAD.split(',').count();
        assert!(rows.iter().all(|row| row.split(',').count() == columns));
        // Another process goes on: it makes the same of the same events.
        Metrics::new(folder.path()).write();
        assert_eq!(written(folder.path()), rows);
    }

    #[test]
    fn a_repair_that_goes_back_takes_its_rows_without_a_word_of_a_restart() {
        let mut rows = Rows::default();
        let warning = Kind::Warning { message: "rolled back".into() };
        let all = [
            told(2, 2.0),
            told(4, 4.0),
            evaluated(4, None),
            told(6, 6.0),
            event(2, warning),
            told(4, 5.0),
        ];
        all.iter().for_each(|event| rows.on(event));
        assert_eq!(rows.0.keys().copied().collect::<Vec<_>>(), [2, 4]);
        assert_eq!((rows.0[&4].train.unwrap()[0], rows.0[&4].validation), (5.0, None));
        // Nor where an evaluation is what is told first.
        [told(6, 6.0), evaluated(4, None)].iter().for_each(|event| rows.on(event));
        assert_eq!(rows.0.keys().copied().collect::<Vec<_>>(), [2, 4]);
        assert!(rows.0[&4].train.is_some() && rows.0[&4].validation.is_some());
        // A failure is met at the step that the survivors hold.
        let (phase, error) = ("comparison".into(), "the states differ".into());
        rows.on(&event(2, Kind::FailureDetected { phase, error }));
        assert_eq!(rows.0.keys().copied().collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn what_could_not_be_written_is_written_when_it_can() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = EventLog::new(Arc::new(FileSystem::new(folder.path())));
        let mut metrics = Metrics::new(folder.path());
        // A folder has its name.
        std::fs::create_dir(folder.path().join(METRICS_FILE)).unwrap();
        log.append(&told(2, 2.0)).unwrap();
        metrics.write();
        assert!(metrics.warned);
        std::fs::remove_dir(folder.path().join(METRICS_FILE)).unwrap();
        metrics.write();
        assert_eq!(written(folder.path()).len(), 2);
    }

    #[test]
    fn a_file_is_not_replaced_by_less_where_the_log_cannot_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let events = folder.path().join(EVENTS_FILE);
        let mut log = EventLog::new(Arc::new(FileSystem::new(folder.path())));
        log.append(&told(2, 2.0)).unwrap();
        Metrics::new(folder.path()).finish();
        std::fs::remove_file(&events).unwrap();
        std::fs::create_dir(&events).unwrap();
        let mut successor = Metrics::new(folder.path());
        successor.finish();
        assert!(successor.warned);
        assert_eq!(written(folder.path()).len(), 2);
    }

    proptest! {
        /// Of any run that is rolled back now and then, each step that stands is there once.
        #[test]
        fn the_rows_are_the_steps_that_stand(
            parts in prop::collection::vec((1u64..20, 0u64..20, any::<bool>()), 1..8),
        ) {
            let (mut rows, mut step, mut stand) = (Rows::default(), 0, Vec::new());
            for (forward, back, is_restart) in parts {
                for _ in 0..forward {
                    step += 1;
                    stand.push(step);
                    rows.on(&told(step, 1.0));
                }
                step -= back.min(step);
                stand.retain(|known| *known <= step);
                if is_restart {
                    rows.on(&restarted(step));
                }
            }
            // What nobody told of is known from the next step.
            rows.on(&told(step + 1, 1.0));
            stand.push(step + 1);
            prop_assert_eq!(rows.0.keys().copied().collect::<Vec<_>>(), stand);
        }
    }
}
