//! What follows from how an attempt ended, and from how far it had come.

use super::*;
use crate::observe::account::from_nothing;
use crate::observe::event::{Lost, samples};

fn result(status: Status) -> Option<RunResult> {
    Some(from_nothing("r", 1, status, "because"))
}

fn exited() -> Ending {
    Ending::Exited("exit code 0".into())
}

#[test]
fn what_the_ranks_wrote_counts_whatever_mpirun_says() {
    for status in [Status::Completed, Status::Interrupted, Status::DataError, Status::NoProgress] {
        for ending in [exited(), Ending::Hung("late".into()), Ending::Stopped] {
            let next = next(&ending, result(status), 9, &[Rung::Restart]);
            assert!(matches!(next, Next::Accept(r) if r.status == status));
        }
    }
}

#[test]
fn an_exit_code_of_0_without_a_result_is_not_success() {
    assert!(matches!(next(&exited(), None, 0, &[Rung::Restart]), Next::Restart(_)));
    assert!(matches!(
        next(&exited(), result(Status::JobLost), 1, &[Rung::Restart]),
        Next::Restart(_)
    ));
    let end = next(&exited(), None, 0, &[]);
    assert!(matches!(end, Next::Conclude(Status::JobLost, _)));
}

#[test]
fn a_crash_loop_ends() {
    let mut history = History::default();
    for attempt in 1..=STALLED_ATTEMPTS_MAX {
        history.attempt_begins(0);
        let stalled = history.attempt_ends(&exited(), 0);
        let next = next(&exited(), None, stalled, &[Rung::Restart]);
        let ends = matches!(next, Next::Conclude(Status::NoProgress, _));
        assert_eq!(ends, attempt == STALLED_ATTEMPTS_MAX, "attempt {attempt}");
    }
}

#[test]
fn a_lost_node_is_named_and_not_held_against_the_run() {
    let lost = Ending::NodeLost("node n3 was lost".into());
    let mut history = History::default();
    for _ in 0..2 * STALLED_ATTEMPTS_MAX {
        history.attempt_begins(0);
        let stalled = history.attempt_ends(&lost, 0);
        let next = next(&lost, result(Status::JobLost), stalled, &[Rung::Restart]);
        assert_eq!(next, Next::Restart("node n3 was lost".into()));
    }
    let done = next(&lost, result(Status::Completed), 0, &[Rung::Restart]);
    assert!(matches!(done, Next::Accept(_)));
}

#[test]
fn asked_to_stop_is_never_a_restart() {
    for result in [None, result(Status::JobLost)] {
        for ending in [Ending::Stopped, Ending::Forestalled] {
            let next = next(&ending, result.clone(), 0, &[Rung::Restart]);
            assert!(matches!(next, Next::Conclude(Status::Interrupted, _)));
        }
    }
}

#[test]
fn what_is_on_disk_is_known_by_the_newest_checkpoint() {
    let mut history = History::default();
    assert!(history.has_saved(0) && !history.has_saved(1));
    let of = |step: u64| Kind::Checkpoint {
        name: format!("step-{step:08}"),
        bytes: 1,
        stall_seconds: 0.0,
        snapshot_seconds: 0.0,
        write_seconds: 0.0,
        verify_seconds: 0.0,
    };
    for of in [of(20), of(40)] {
        history.on(&Event { kind: of, ..step(41) });
    }
    history.attempt_begins(41);
    assert!(history.has_saved(40) && !history.has_saved(41));
}

fn step(step: u64) -> Event {
    samples::event(step, 0.0, samples::step(1, 0.0))
}

#[test]
fn steps_committed_before_do_not_count_as_progress_again() {
    let mut history = History::default();
    for (last, expected) in [(5, 0), (5, 1), (4, 2), (6, 0), (6, 1)] {
        history.attempt_begins(0);
        assert!(!history.committing());
        for number in 3..=last {
            assert!(history.on(&step(number)));
        }
        assert!(history.committing());
        assert_eq!(history.attempt_ends(&exited(), 0), expected, "until step {last}");
    }
}

#[test]
fn steps_that_no_event_told_are_progress_where_the_ledger_has_them() {
    let mut history = History::default();
    let mut before = 0;
    for (last, expected) in [(1, 0), (4, 0), (7, 0), (7, 1), (3, 2), (8, 0)] {
        history.attempt_begins(before);
        assert_eq!(history.attempt_ends(&exited(), last), expected, "until step {last}");
        before = last;
    }
    // What an earlier launch has committed is nothing that this one did.
    let mut history = History::default();
    history.attempt_begins(7);
    assert_eq!(history.attempt_ends(&exited(), 7), 1);
}

#[test]
fn a_start_that_fails_is_a_stalled_attempt_whose_reason_names_the_cause() {
    let unstarted = Ending::Unstarted("rank 1 was out of memory".into());
    let mut history = History::default();
    history.attempt_begins(0);
    assert!(!history.met());
    let stalled = history.attempt_ends(&unstarted, 0);
    assert_eq!(stalled, 1);
    let next = next(&unstarted, None, STALLED_ATTEMPTS_MAX, &[Rung::Restart]);
    let Next::Conclude(Status::NoProgress, reason) = next else { panic!("{next:?}") };
    assert!(reason.ends_with("could not start: rank 1 was out of memory"), "{reason}");
    history.on(&step(1));
    assert!(history.met(), "from here on deaths are the ranks' to repair");
    history.attempt_begins(0);
    assert!(!history.met());
}

#[test]
fn deaths_for_want_of_memory_end_a_run_unless_they_are_rare() {
    let dies = |seconds, cause: &str| {
        let (member, rank, host) = (1, 1, "h".into());
        let lost = vec![Lost { member, rank, host, cause: cause.into() }];
        let kind = Kind::Restarted { from: "resident".into(), lost_steps: 0, lost, weights: None };
        Event { kind, seconds, ..step(4) }
    };
    let starves = |apart: f64, cause: &str| {
        let mut history = History::default();
        for death in 0..=STARVED_DEATHS_MAX {
            assert_eq!(history.starves(), None, "{death} deaths");
            history.on(&dies(apart * death as f64, cause));
            history.on(&step(5 + death as u64));
        }
        history.starves()
    };
    let why = starves(30.0, "probably out of memory: the OOM killer").unwrap();
    assert!(why.contains("7 times within 180 s") && why.contains("data.cache"), "{why}");
    assert_eq!(starves(3600.0, "out of memory: the OOM killer"), None);
    assert_eq!(starves(30.0, "signal 9 (SIGKILL)"), None);
    let ending = Ending::Starved(why.clone());
    assert_eq!(ending.killed_for(), Some(&why[..]));
    let next = next(&ending, None, 0, &[Rung::Restart]);
    assert_eq!(next, Next::Conclude(Status::NoProgress, why));
}

#[test]
fn the_first_step_has_a_limit_of_its_own() {
    let config = Config::default();
    let between = Duration::from_secs(90);
    assert_eq!(hung(&config, Awaited::FirstStep, between), None);
    assert!(hung(&config, Awaited::NextStep, between).unwrap().contains("recovery.time_limit"));
    assert!(
        hung(&config, Awaited::FirstStep, between * 2).unwrap().contains("recovery.start_limit")
    );
}

#[test]
fn a_world_that_waits_for_its_data_is_left_alone_until_its_patience_is_over() {
    let config = Config::default();
    let mut history = History::default();
    history.attempt_begins(0);
    history.on(&step(4));
    assert_eq!(history.awaited(), Awaited::NextStep);
    let waiting = Kind::Waiting { reason: "gone".into(), patience_seconds: 600.0 };
    assert!(history.on(&Event { kind: waiting.clone(), ..step(4) }), "a sign of life");
    assert_eq!(history.awaited(), Awaited::Data);
    let (waits, too_long) = (Duration::from_secs(640), Duration::from_secs(661));
    assert_eq!(hung(&config, history.awaited(), waits), None);
    assert!(hung(&config, history.awaited(), too_long).unwrap().contains("data.patience"));
    history.on(&step(5));
    assert_eq!(history.awaited(), Awaited::NextStep, "it goes on");
    assert!(history.on(&Event { kind: waiting, ..step(5) }), "the step was under way");
    assert_eq!(history.awaited(), Awaited::Data, "the newest word counts");
}

#[test]
fn ranks_that_lost_their_data_are_not_started_again() {
    let mut lost = result(Status::JobLost).unwrap();
    lost.conclusive = true;
    assert!(matches!(next(&exited(), Some(lost), 0, &[Rung::Restart]), Next::Accept(_)));
}

#[test]
fn what_memory_holds_at_the_start_is_no_commit_and_another_step_after_it_is() {
    let mut history = History::default();
    history.attempt_begins(7);
    assert!(!history.on_resident(7) && !history.on_resident(7));
    assert!(!history.met() && !history.committing());
    assert_eq!(history.awaited(), Awaited::FirstStep);
    assert!(history.on_resident(8) && history.met());
    assert_eq!((history.awaited(), history.resident()), (Awaited::NextStep, Some(8)));
    assert!(!history.on_resident(8), "no further one");
    assert_eq!(history.attempt_ends(&exited(), 0), 0, "it came forward");
    history.attempt_begins(8);
    assert!(!history.on_resident(8) && history.resident() == Some(8));
}
