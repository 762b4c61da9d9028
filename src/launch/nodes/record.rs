//! How often a node was lost, and when it may be asked again. Pure: times are arguments.

use std::time::Duration;

/// A node that was lost is not asked again for so long; twice as long after every further try.
const COOL_DOWN: Duration = Duration::from_secs(15);
const COOL_DOWN_DOUBLINGS_MAX: u32 = 5;
/// A node that was lost so often is not used again in this launch.
const LOSSES_MAX: u32 = 3;
/// A node that served for so long before its next loss is as good as any other: in a run of weeks
/// each may be lost now and then.
const FORGIVEN_AFTER: Duration = Duration::from_secs(3600);

/// What launch remembers of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Record {
    losses: u32,
    tries: u32,
}

impl Record {
    /// It was lost after it had served for so long; `None`: it had not come yet.
    pub(super) fn lost(&mut self, served: Option<Duration>) {
        if served.is_some_and(|served| served >= FORGIVEN_AFTER) {
            *self = Self::default();
        }
        self.losses += u32::from(served.is_some());
        self.tries = self.tries.max(1);
    }

    /// It was asked whether it is back.
    pub(super) fn asked(&mut self) {
        self.tries = self.tries.saturating_add(1);
    }

    /// How long it is left alone after a loss, or after it gave no answer; `None`: for good.
    pub(super) fn cool_down(&self) -> Option<Duration> {
        let doublings = self.tries.saturating_sub(1).min(COOL_DOWN_DOUBLINGS_MAX);
        (self.losses < LOSSES_MAX).then(|| COOL_DOWN * 2_u32.pow(doublings))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Option<Duration> = Some(Duration::from_secs(60));

    fn seconds(record: &Record) -> Option<u64> {
        record.cool_down().map(|wait| wait.as_secs())
    }

    #[test]
    fn the_cool_down_doubles_with_every_try_up_to_a_limit() {
        let mut record = Record::default();
        record.lost(MINUTE);
        let mut waits = Vec::new();
        for _ in 0..8 {
            waits.extend(seconds(&record));
            record.asked();
        }
        assert_eq!(waits, [15, 30, 60, 120, 240, 480, 480, 480]);
    }

    #[test]
    fn a_node_that_never_came_is_asked_for_ever() {
        let mut record = Record::default();
        for _ in 0..100 {
            record.lost(None);
            record.asked();
        }
        assert_eq!(seconds(&record), Some(480));
    }

    #[test]
    fn a_node_that_is_lost_three_times_is_left_out_for_good() {
        let mut record = Record::default();
        for loss in 1..=LOSSES_MAX {
            assert!(record.cool_down().is_some(), "before loss {loss}");
            record.lost(MINUTE);
            record.asked();
        }
        assert_eq!(record.cool_down(), None);
    }

    #[test]
    fn an_hour_of_service_makes_up_for_earlier_losses() {
        let mut record = Record::default();
        for _ in 1..LOSSES_MAX {
            record.lost(MINUTE);
            record.asked();
        }
        let mut nearly = record;
        nearly.lost(Some(FORGIVEN_AFTER - Duration::from_secs(1)));
        assert_eq!(nearly.cool_down(), None);
        record.lost(Some(FORGIVEN_AFTER));
        assert_eq!(record, Record { losses: 1, tries: 1 });
        assert_eq!(seconds(&record), Some(15));
    }
}
