//! What stands of what a run told: a rollback throws steps away, and with them what was told of
//! them, evaluations too.

use super::event::{Event, Kind};

/// Steps, evaluations and bad images that stand, in the order in which they were told: of what was
/// done again the newest.
pub fn standing(events: &[Event]) -> Vec<&Event> {
    let mut kept: Vec<&Event> = Vec::new();
    for event in events {
        // What is newer than this has not happened, as far as is known by now.
        let (last, stays) = match event.kind {
            Kind::Step { .. } => (event.step.saturating_sub(1), true),
            Kind::Evaluation { .. } | Kind::BadImages { .. } => (event.step, true),
            Kind::RunStart { .. } | Kind::Restarted { .. } | Kind::FailureDetected { .. } => {
                (event.step, false)
            }
            _ => continue,
        };
        while kept.last().is_some_and(|kept| kept.step > last) {
            kept.pop();
        }
        let is_again = |kept: &&Event| {
            kept.step == event.step
                && matches!(kept.kind, Kind::Evaluation { .. } | Kind::BadImages { .. })
        };
        if matches!(event.kind, Kind::Evaluation { .. }) {
            while kept.last().is_some_and(is_again) {
                kept.pop();
            }
        }
        kept.extend(Some(event).filter(|_| stays));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::event::samples;

    #[test]
    fn what_a_rollback_threw_away_stands_no_more() {
        let event = |step, kind| samples::event(step, 0.0, kind);
        let step = |step| event(step, samples::step(1, 0.0));
        let evaluation = |step, error| {
            let (average_error, loss, samples, seconds) = (None, 0.0, 1, 0.0);
            event(step, Kind::Evaluation { error, average_error, loss, samples, seconds })
        };
        let restarted = |step| {
            let (from, lost_steps, lost, weights) = ("scratch".into(), 0, Vec::new(), None);
            event(step, Kind::Restarted { from, lost_steps, lost, weights })
        };
        let told = [step(3), step(5), evaluation(5, 0.5), evaluation(5, 0.5), restarted(4)];
        let steps = |events: &[Event]| standing(events).iter().map(|e| e.step).collect::<Vec<_>>();
        assert_eq!(steps(&told[..4]), [3, 5, 5]);
        let bad = || {
            let (set, skipped, of) = ("validation".into(), 1, 4);
            event(5, Kind::BadImages { set, skipped, of })
        };
        let twice = [step(5), evaluation(5, 0.5), bad(), evaluation(5, 0.5), bad()];
        assert_eq!(standing(&twice).len(), 3, "the newest evaluation, with what it skipped");
        assert_eq!(steps(&told), [3]);
        // Gone back to without a word: told again.
        let again = [&told[..4], &[step(5), evaluation(5, 0.4)]].concat();
        assert_eq!(steps(&again), [3, 5, 5]);
        assert_eq!(steps(&[&told[..], &[restarted(0)]].concat()), [0; 0]);
        let failed = |step| {
            let (phase, error) = ("comparison".into(), "the states differ".into());
            event(step, Kind::FailureDetected { phase, error })
        };
        assert_eq!(steps(&[&told[..4], &[failed(5)]].concat()), [3, 5, 5], "nothing was lost");
        assert_eq!(steps(&[&told[..4], &[failed(4)]].concat()), [3]);
    }
}
