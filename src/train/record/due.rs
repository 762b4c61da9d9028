//! When the next checkpoint is due: a boundary of `checkpoint.every` lies between the last one and
//! now, whoever wrote that one, and however often the run was started again since.

use crate::config::Every;
use crate::data::sampler::Order;
use crate::observe::storage::Storage;
use crate::train::checkpoint::store;

/// Where the run stood when it began its last checkpoint.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::train) struct Last {
    /// Of the run, since its first start.
    pub seconds: f64,
    pub step: u64,
    pub cursor: u64,
}

/// What another writer left.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::train) struct Newest {
    pub step: u64,
    /// Of the run, when it was begun; none where the file cannot be read.
    pub seconds: Option<f64>,
}

/// The newest published checkpoint, verified or not.
pub(in crate::train) fn newest(storage: &dyn Storage) -> Option<Newest> {
    let (step, folder) = store::published(storage).ok()?.into_iter().next()?;
    let state = store::read_state(storage, &folder).ok();
    Some(Newest { step, seconds: state.map(|state| state.run_seconds) })
}

/// What a writer that begins at `step` counts from. Steps that only memory holds are at risk since
/// the checkpoint before them, and the time in which nothing ran counts too: else a run that is
/// started again more often than it writes checkpoints would never write one.
pub(in crate::train) fn inherited(
    newest: Option<Newest>,
    step: u64,
    seconds: f64,
    order: &Order,
) -> Option<Last> {
    match newest {
        None if step == 0 => None,
        None => Some(Last { seconds: 0.0, step: 0, cursor: 0 }),
        Some(newest) => {
            let begun = newest.seconds.unwrap_or(0.0);
            // Clocks of nodes differ.
            let seconds = if step > newest.step { begun.min(seconds) } else { seconds };
            Some(Last { seconds, step: newest.step, cursor: order.cursor(newest.step) })
        }
    }
}

/// Whether a boundary lies behind `last`. `samples`: of an epoch. `auto`: its interval, seconds.
pub(in crate::train) fn is_due(
    every: Every,
    last: Last,
    now: Last,
    samples: u64,
    auto: impl Fn() -> f64,
) -> bool {
    let behind = match every {
        Every::Never => false,
        Every::Epoch => now.cursor / samples > last.cursor / samples,
        Every::Steps(steps) => now.step / steps > last.step / steps,
        Every::Time(interval) => {
            let interval = interval.as_secs_f64();
            (now.seconds / interval).floor() > (last.seconds / interval).floor()
        }
        Every::Auto => now.seconds - last.seconds >= auto(),
    };
    behind && now.step > last.step
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const SAMPLES: u64 = 1000;

    fn order() -> Order {
        Order::new(SAMPLES, 4, 1, 100).unwrap()
    }

    fn at(seconds: f64, step: u64) -> Last {
        Last { seconds, step, cursor: order().cursor(step) }
    }

    fn due(every: Every, last: Last, now: Last) -> bool {
        is_due(every, last, now, SAMPLES, || 30.0)
    }

    #[test]
    fn steps_that_only_memory_holds_are_at_risk_since_the_checkpoint_before_them() {
        // Written at 40 s, boundary at 60 s, killed before it and started again behind it.
        let newest = Newest { step: 20, seconds: Some(40.0) };
        let last = inherited(Some(newest), 29, 65.0, &order()).unwrap();
        assert_eq!(last, at(40.0, 20));
        let minute = Every::Time(Duration::from_secs(60));
        assert!(due(minute, last, at(65.1, 30)));
        assert!(!due(minute, at(65.1, 30), at(119.0, 80)));
        assert!(!due(Every::Auto, last, at(69.0, 30)) && due(Every::Auto, last, at(70.0, 31)));
    }

    #[test]
    fn a_run_that_goes_on_from_its_checkpoint_writes_it_not_again_at_once() {
        let newest = Newest { step: 20, seconds: Some(40.0) };
        let last = inherited(Some(newest), 20, 65.0, &order()).unwrap();
        assert_eq!(last, at(65.0, 20));
        let every = [Every::Time(Duration::from_secs(60)), Every::Auto, Every::Steps(20)];
        assert!(every.into_iter().all(|every| !due(every, last, at(66.0, 21))));
    }

    #[test]
    fn a_run_that_was_killed_before_its_first_checkpoint_owes_it() {
        let last = inherited(None, 7, 65.0, &order()).unwrap();
        let every = [Every::Time(Duration::from_secs(60)), Every::Auto, Every::Steps(5)];
        assert!(every.into_iter().all(|every| due(every, last, at(66.0, 8))));
        assert_eq!(inherited(None, 0, 65.0, &order()), None);
    }

    #[test]
    fn a_checkpoint_that_cannot_be_read_or_is_of_the_future_is_no_reason_to_wait() {
        let unread = Newest { step: 20, seconds: None };
        assert_eq!(inherited(Some(unread), 29, 65.0, &order()), Some(at(0.0, 20)));
        let ahead = Newest { step: 20, seconds: Some(900.0) };
        assert_eq!(inherited(Some(ahead), 29, 65.0, &order()), Some(at(65.0, 20)));
    }

    #[test]
    fn boundaries_of_steps_and_epochs_count_whoever_wrote_the_last() {
        assert!(due(Every::Steps(10), at(1.0, 9), at(2.0, 10)));
        assert!(!due(Every::Steps(10), at(1.0, 10), at(9.0, 19)));
        assert!(due(Every::Epoch, at(1.0, 9), at(2.0, 10)));
        assert!(!due(Every::Epoch, at(1.0, 10), at(9.0, 19)));
        assert!(!due(Every::Never, at(1.0, 1), at(1e9, 1_000_000)));
    }
}
