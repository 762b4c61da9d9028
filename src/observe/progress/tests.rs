//! What progress says, and how often.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use super::{BarState, LINE_SECONDS, Progress, Smoothed, announcement};
use crate::observe::data_use::{DataUse, Waits};
use crate::observe::event::{Event, Kind, Lost, RecoveryRecord, Staged, samples};

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn event(seconds: f64, step: u64, kind: Kind) -> Event {
    Event { time: 1.7e9 + seconds, ..samples::event(step, seconds, kind) }
}

fn start(steps_total: Option<u64>) -> Event {
    let kind = Kind::RunStart {
        run_id: "quick-1".into(),
        ranks: 4,
        owners: 12,
        parameters: 1000,
        train_samples: 6000,
        validation_samples: 1000,
        steps_total,
        epoch: 0,
        from: "scratch".into(),
        weights: None,
    };
    event(0.0, 0, kind)
}

fn step(seconds: f64, step: u64, loss: f64, samples: u64) -> Event {
    let kind = Kind::Step { epoch: 0, loss, error: 0.5, samples, learning_rate: 0.1, seconds: 0.1 };
    event(seconds, step, kind)
}

fn restarted(from: &str, weights: Option<&str>, lost: Vec<Lost>) -> Kind {
    let (from, weights) = (from.into(), weights.map(str::to_string));
    Kind::Restarted { from, lost_steps: 17, lost, weights }
}

fn lines(events: &[Event]) -> Vec<String> {
    let sink = Sink::default();
    let mut progress = Progress::to(Box::new(sink.clone()));
    for event in events {
        progress.on(event);
    }
    progress.finish();
    let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
    text.lines().map(str::to_string).collect()
}

#[test]
fn step_lines_come_at_most_every_two_seconds() {
    let events: Vec<Event> = (1..=1000).map(|k| step(k as f64 * 0.01, k, 1.0, 96)).collect();
    let printed = lines(&events).len();
    assert_eq!(printed, (10.0 / LINE_SECONDS) as usize);
}

#[test]
fn a_recovery_says_who_where_why_and_how_long() {
    let record = RecoveryRecord {
        generation: 1,
        step: 41,
        lost: vec![Lost { member: 2, rank: 2, host: "node7".into(), cause: "SIGKILL".into() }],
        rung: "respawn".into(),
        lost_steps: 0,
        ranks: 4,
        seconds: [("spawn".to_string(), 0.09), ("merge".to_string(), 0.03)].into(),
    };
    let printed = lines(&[event(9.0, 40, Kind::Recovered(record))]);
    assert_eq!(printed.len(), 1);
    for part in ["respawn", "120 ms", "rank 2", "member 2", "node7", "SIGKILL", "spawn 90.0 ms"] {
        assert!(printed[0].contains(part), "`{part}` is not in: {}", printed[0]);
    }
}

#[test]
fn a_restart_and_an_evaluation_have_a_line_each() {
    let lost = vec![Lost { member: 6, rank: 2, host: "node7".into(), cause: "SIGSEGV".into() }];
    let printed = lines(&[
        event(
            3.0,
            30,
            Kind::Evaluation {
                error: 0.25,
                average_error: None,
                loss: 1.0,
                samples: 9,
                seconds: 0.1,
            },
        ),
        event(9.0, 20, restarted("checkpoint", None, lost)),
        event(9.5, 0, restarted("scratch", Some("a\u{1b}.pth"), Vec::new())),
    ]);
    assert!(printed[0].contains("25.00%"), "{printed:?}");
    assert!(printed[1].contains("17 steps lost") && printed[1].contains("checkpoint"));
    assert!(printed[1].contains("rank 2 (member 6) on node7: SIGSEGV"), "{}", printed[1]);
    assert!(printed[2].contains("goes on from weights a\\u{1b}.pth at step 0"), "{printed:?}");
}

#[test]
fn speed_and_time_left_come_from_samples_and_steps() {
    let mut state = BarState::default();
    state.on(&start(Some(200)));
    for k in 1..=50 {
        state.on(&step(k as f64 * 0.1, k, 1.0, 96));
    }
    let (images, steps) = state.speed().unwrap();
    assert!((images - 960.0).abs() < 1e-6 && (steps - 10.0).abs() < 1e-9);
    assert!((state.remaining(None).unwrap() - 15.0).abs() < 1e-9);
    assert!((state.remaining(Some(8.0)).unwrap() - 3.0).abs() < 1e-9);
    assert!((state.fraction_done(Some(8.0)).unwrap() - 5.0 / 8.0).abs() < 1e-9);
}

#[test]
fn the_smoothed_loss_weighs_samples_not_steps() {
    let mut smoothed = Smoothed::default();
    smoothed.add(1.0, 96);
    smoothed.add(9.0, 1);
    let mean = smoothed.mean().unwrap();
    assert!((1.0..1.1).contains(&mean), "{mean}");
    smoothed.add(f64::NAN, 96);
    assert!(smoothed.mean().unwrap().is_nan(), "older values say nothing of this one");
    for _ in 0..200 {
        smoothed.add(3.0, 96);
    }
    assert!((smoothed.mean().unwrap() - 3.0).abs() < 0.01);
}

#[test]
fn what_is_no_number_is_said_and_never_smoothed_away() {
    let mut state = BarState::default();
    state.on(&step(0.1, 1, 2.0, 96));
    state.on(&step(0.2, 2, f64::NAN, 96));
    assert!(state.line(None).contains("loss NaN"), "{}", state.line(None));
    let nothing = Kind::Evaluation {
        error: f64::NAN,
        average_error: None,
        loss: f64::NAN,
        samples: 4,
        seconds: 0.1,
    };
    let line = announcement(&event(1.0, 2, nothing)).unwrap();
    assert!(line.contains("error NaN%, loss NaN"), "{line}");
}

#[test]
fn a_wait_for_the_data_is_said_once_until_the_run_goes_on() {
    let sink = Sink::default();
    let mut progress = Progress::to(Box::new(sink.clone()));
    let waiting = |seconds| {
        event(seconds, 1, Kind::Waiting { reason: "gone".into(), patience_seconds: 60.0 })
    };
    for (seconds, kind) in [(1.0, waiting(1.0)), (1.1, waiting(1.1)), (1.2, step(1.2, 2, 1.0, 9))] {
        progress.on(&Event { seconds, ..kind });
    }
    progress.on(&waiting(2.0));
    let text = String::from_utf8(sink.0.lock().unwrap().clone()).unwrap();
    assert_eq!(text.matches("waiting up to 1m00s (data.patience)").count(), 2, "{text}");
}

fn staging(seconds: f64, rank: u32, ranks: u32, files: u64) -> Event {
    let (files_total, bytes_total, bytes_per_second) = (10, 10_000_000, 1e6);
    let bytes = files * 1_000_000;
    let staged = Staged { ranks, files, files_total, bytes, bytes_total, bytes_per_second };
    let kind = Kind::Staging(staged);
    Event { rank, ..event(seconds, 1, kind) }
}

#[test]
fn staging_has_a_line_now_and_then_and_always_its_last_one() {
    let events = [
        staging(5.0, 0, 0, 2),
        staging(5.1, 1, 0, 3),
        staging(8.0, 0, 0, 4),
        staging(8.1, 0, 2, 10),
    ];
    let printed = lines(&events);
    let expected = [
        "staged 2 of 10 files of 1 rank (2.0 MB of 10.0 MB, 1.0 MB/s, 8s left)",
        "staged 7 of 20 files of 2 ranks (7.0 MB of 20.0 MB, 2.0 MB/s, 7s left)",
        "staged 10 of 10 files of 2 ranks (10.0 MB of 10.0 MB, 1.0 MB/s)",
    ];
    assert_eq!(printed, expected);
}

#[test]
fn a_step_line_says_what_was_waited_for_where_that_was_much() {
    let data = |waits| event(0.0, 1, Kind::Data { used: DataUse::default(), waits });
    let mut state = BarState::default();
    state.on(&data(Waits { data: 0.009, decode: 0.004, ..Waits::default() }));
    state.on(&step(0.1, 1, 1.0, 96));
    assert!(!state.line(None).contains("waits"), "{}", state.line(None));
    state.on(&data(Waits { staging: 0.06, peers: 0.05, ..Waits::default() }));
    state.on(&step(0.2, 2, 1.0, 96));
    let line = state.line(None);
    assert!(line.contains("waits for staging 30%, peers 25%"), "{line}");
}

#[test]
fn a_rate_has_three_digits_whatever_its_size() {
    let shown = [0.05, 0.001, 1.0 / 3.0, 12.0, 0.0, 9.49e-6].map(super::rate_of);
    assert_eq!(shown, ["0.05", "0.001", "0.333", "12", "0", "9.49e-6"]);
}
