//! From events to recoveries: who repaired it, how long each phase took, and how long the work
//! that was lost took to do again. Pure.

use super::series::for_each_restart;
use crate::observe::event::{Event, Kind, Lost, PhaseSeconds, RESTART};

/// One recovery, live or by starting again.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Episode {
    /// Seconds of the run at which it was over: every rank computes again.
    pub back_at: f64,
    /// The step that was in work when something failed: the one after the last committed.
    pub step: u64,
    /// Who died, as far as anybody knows.
    pub lost: Vec<Lost>,
    /// spare, respawn, shrink or restart.
    pub rung: String,
    /// From the failure until every rank computes again.
    pub phases: Vec<PhaseSeconds>,
    /// Then, until the step is reached again that had been committed before the failure.
    pub redo_seconds: f64,
    /// Committed steps that were thrown away.
    pub lost_steps: u64,
}

impl Episode {
    /// Seconds from the failure until every rank computes again.
    pub fn seconds(&self) -> f64 {
        self.phases.iter().map(|phase| phase.1).sum()
    }

    /// The committed step from which the work went on.
    pub fn went_on_from(&self) -> u64 {
        self.step.saturating_sub(1 + self.lost_steps)
    }
}

/// All recoveries of a run, in order.
pub fn episodes(events: &[Event]) -> Vec<Episode> {
    let mut all: Vec<Episode> = (0..events.len()).filter_map(|at| live(&events[at..])).collect();
    for_each_restart(events, |before, _, after| all.push(restart(before, after)));
    all.sort_by(|a, b| a.back_at.total_cmp(&b.back_at));
    all
}

/// Of a repair within an attempt, which the first of these events tells.
fn live(events: &[Event]) -> Option<Episode> {
    let (event, after) = events.split_first()?;
    let Kind::Recovered(record) = &event.kind else { return None };
    let given_up = record.step.saturating_sub(1) + record.lost_steps;
    let redone = || {
        let is_step = |event: &&Event| matches!(event.kind, Kind::Step { .. });
        let reached = after.iter().find(|event| is_step(event) && event.step >= given_up);
        reached.or(after.last()).map_or(0.0, |end| (end.seconds - event.seconds).max(0.0))
    };
    (record.rung != RESTART).then(|| Episode {
        back_at: event.seconds,
        step: given_up + 1,
        lost: record.lost.clone(),
        rung: record.rung.clone(),
        phases: record.in_order(),
        redo_seconds: if record.lost_steps == 0 { 0.0 } else { redone() },
        lost_steps: record.lost_steps,
    })
}

/// When the ranks of an attempt whose state is there since `loaded` had begun to compute.
fn begun<'a>(mut attempt: impl Iterator<Item = &'a Event>, loaded: f64) -> Option<f64> {
    attempt.find_map(|event| match &event.kind {
        Kind::Phase { name, seconds } if name == "begun" => Some(loaded + seconds),
        Kind::Step { seconds, .. } => Some(event.seconds - seconds),
        _ => None,
    })
}

/// The time stamps of a restart give its phases: detect (failure to notice), start (until the new
/// attempt's first word), load (until its state is back), first_step (until it computes).
fn restart(before: &[Event], after: &[Event]) -> Episode {
    let step_before = before.iter().map(|event| event.step).max().unwrap_or(0);
    let last = before.last().map_or(0.0, |event| event.seconds);
    let at = |events: &[Event], wanted: fn(&Kind) -> bool| {
        events.iter().rev().find(|event| wanted(&event.kind)).map(|event| event.seconds)
    };
    let injected = at(before, |kind| matches!(kind, Kind::FaultInjected { .. }));
    let noticed = at(before, |kind| matches!(kind, Kind::FailureDetected { .. }));
    // A fault long before the end was repaired; this failure is then another one.
    let last_step = at(before, |kind| matches!(kind, Kind::Step { .. })).unwrap_or(0.0);
    let recent = |time: &f64| *time >= last_step - 1.0;
    let failed = injected.filter(recent).or(noticed.filter(recent)).unwrap_or(last);
    let noticed = noticed.filter(recent).unwrap_or(failed).max(failed);

    let this_attempt = after.first().map_or(0, |event| event.attempt);
    let attempt = || after.iter().take_while(|event| event.attempt == this_attempt);
    let started = after.first().map_or(noticed, |event| event.seconds).max(noticed);
    let loaded = attempt()
        .filter(|event| matches!(event.kind, Kind::RunStart { .. } | Kind::Restarted { .. }))
        .map(|event| event.seconds)
        .fold(started, f64::max);
    let back_at = begun(attempt(), loaded).unwrap_or(loaded).max(loaded);
    let restarted = attempt().find_map(|event| match &event.kind {
        Kind::Restarted { lost_steps, lost, .. } => Some((event.step, *lost_steps, lost.clone())),
        _ => None,
    });
    let reached = after
        .iter()
        .find(|event| matches!(event.kind, Kind::Step { .. }) && event.step >= step_before);
    let end = after.last().map_or(back_at, |event| event.seconds);
    let redone_at = reached.map_or(end, |event| event.seconds);
    let first_committed =
        attempt().find(|event| matches!(event.kind, Kind::Step { .. })).map(|event| event.step);
    let resumed_at = first_committed.map_or(step_before, |step| step.saturating_sub(1));
    let unsaid = || (resumed_at, step_before.saturating_sub(resumed_at), Vec::new());
    let (from, lost_steps, lost) = restarted.unwrap_or_else(unsaid);
    let recorded = attempt().find_map(|event| match &event.kind {
        Kind::Recovered(record) if record.rung == RESTART => Some(record.in_order()),
        _ => None,
    });
    let stamps = [
        ("detect", noticed - failed),
        ("start", started - noticed),
        ("load", loaded - started),
        ("first_step", back_at - loaded),
    ];
    let measured = stamps.iter().filter(|stamp| stamp.1 > 0.0);
    let stamped = || measured.map(|(name, seconds)| ((*name).to_string(), *seconds)).collect();
    Episode {
        back_at,
        step: from + lost_steps + 1,
        lost,
        rung: RESTART.to_string(),
        phases: recorded.unwrap_or_else(stamped),
        redo_seconds: if lost_steps == 0 { 0.0 } else { (redone_at - back_at).max(0.0) },
        lost_steps,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::event::{ROLLBACK, RecoveryRecord, samples};

    fn event(seconds: f64, step: u64, kind: Kind) -> Event {
        Event { generation: 1, ..samples::event(step, seconds, kind) }
    }

    fn step(seconds: f64, step: u64) -> Event {
        event(seconds, step, samples::step(8, 0.1))
    }

    #[test]
    fn steps_that_a_live_repair_gave_up_are_done_again_until_the_last_of_them() {
        let redo = |lost_steps| {
            let (generation, step_again, ranks) = (1, 21, 2);
            let record = RecoveryRecord {
                generation,
                step: step_again,
                lost: Vec::new(),
                rung: ROLLBACK.into(),
                lost_steps,
                ranks,
                seconds: [].into(),
            };
            let told = event(4.0, 21, Kind::Recovered(record));
            let all = [step(3.0, 26), told, step(5.0, 25), step(6.5, 27), step(9.0, 40)];
            episodes(&all)[0].redo_seconds
        };
        assert_eq!([redo(0), redo(6), redo(30)], [0.0, 2.5, 5.0]);
    }

    /// The second attempt goes back: its first words tell of an older step than the failure's.
    #[test]
    fn a_restart_tells_the_step_that_failed_and_from_where_it_went_on() {
        let of = |lost_steps, lost: Vec<Lost>, stopped: bool| {
            let (status, reason, state_sha256) =
                (if stopped { "interrupted" } else { "job_lost" }.to_string(), String::new(), None);
            let end = event(4.0, 39, Kind::RunEnd { status, reason, state_sha256 });
            let (from, weights) = ("checkpoint".into(), None);
            let restarted = Kind::Restarted { from, lost_steps, lost, weights };
            let again = event(5.0, 39 - lost_steps, restarted);
            let second = [again, step(6.0, 38), step(7.0, 41)];
            let second = second.map(|event| Event { attempt: 2, ..event });
            let told = episodes(&[&[step(3.0, 39), end][..], &second].concat());
            told.iter().map(|e| (e.step, e.went_on_from(), e.lost.len())).collect::<Vec<_>>()
        };
        let (host, cause) = ("n1".to_string(), "signal 9 (SIGKILL)".to_string());
        let lost = || vec![Lost { member: 1, rank: 1, host: host.clone(), cause: cause.clone() }];
        assert_eq!(of(3, lost(), false), [(40, 36, 1)]);
        assert_eq!(of(0, Vec::new(), true), [], "to go on after a stop is no recovery");
        assert_eq!(of(0, lost(), true), [(40, 39, 1)], "but to go on without one who died is");
    }
}
