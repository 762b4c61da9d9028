//! Ranks that lost some of their number ask, by the repair's event, whether launch still stands: a
//! world that is being torn down must not go on with fewer ranks. The answer waits until whoever
//! ends the job has had time to reach launch as well.

use std::time::{Duration, Instant};

use crate::observe::event::{Event, Kind};
use crate::run_folder::heard::Heard;

/// How much later than its first rank a job's launch may be told to end: one machine's signals go
/// out within a millisecond, but a busy processor delays who sends them.
const ONE_NODE: Duration = Duration::from_millis(100);
/// Likewise over several nodes, each of which is told for itself.
const SEVERAL_NODES: Duration = Duration::from_secs(1);

/// The newest repair that was heard of and not answered.
#[derive(Debug)]
pub(super) struct Answer {
    patience: Duration,
    asked: Option<(Heard, Instant)>,
}

impl Answer {
    /// Of a launch on several nodes, or on one.
    pub(super) fn of(nodes: usize) -> Self {
        Self { patience: if nodes > 1 { SEVERAL_NODES } else { ONE_NODE }, asked: None }
    }

    /// Takes what the ranks wrote.
    pub(super) fn on(&mut self, event: &Event, now: Instant) {
        if let Kind::FailureDetected { .. } = event.kind {
            let Event { attempt, generation, .. } = *event;
            self.asked = Some((Heard { attempt, generation }, now));
        }
    }

    /// What may be answered now: call it only after a look whether somebody asked for the end.
    pub(super) fn due(&mut self, now: Instant) -> Option<Heard> {
        let patience = self.patience;
        let due = |(_, asked): &mut (Heard, Instant)| now.duration_since(*asked) >= patience;
        self.asked.take_if(due).map(|(heard, _)| heard)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_repair_is_answered_once_after_a_while() {
        let failed = Kind::FailureDetected { phase: "step".into(), error: String::new() };
        let event = |generation, kind| Event {
            v: 1,
            time: 0.0,
            seconds: 0.0,
            attempt: 2,
            generation,
            step: 9,
            rank: 1,
            kind,
        };
        let (mut answer, now) = (Answer::of(1), Instant::now());
        answer.on(&event(3, Kind::Warning { message: String::new() }), now);
        assert_eq!(answer.due(now + ONE_NODE), None);
        answer.on(&event(3, failed.clone()), now);
        answer.on(&event(4, failed), now + ONE_NODE / 2);
        assert_eq!(answer.due(now + ONE_NODE), None, "the newest is too fresh");
        let heard = Heard { attempt: 2, generation: 4 };
        assert_eq!(answer.due(now + 2 * ONE_NODE), Some(heard));
        assert_eq!(answer.due(now + 3 * ONE_NODE), None);
    }
}
