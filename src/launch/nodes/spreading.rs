//! Ranks that losses have brought together on few nodes belong on all of them again once those are
//! back: whether and when to ask for that (`recovery.regrow` says when, as for ranks that a shrink
//! lost), and what follows where it comes to nothing. Pure: times are arguments.

use std::time::{Duration, Instant};

use crate::config::Every;
use crate::observe::event::{Event, Kind};

/// How often launch looks: the world's table lies on a shared disk.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);

/// How far it has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trial {
    /// Nobody has asked.
    Watching,
    /// The ranks were asked to end; they were on so many nodes.
    Asked { before: usize },
    /// The attempt that is to be on more nodes than so many.
    Trying { before: usize },
    /// It came to nothing: this launch does not ask again.
    GivenUp,
}

/// Nodes stand idle.
#[derive(Debug, Clone, Copy)]
struct Idle {
    since: Instant,
    since_step: u64,
    epoch_ended: bool,
}

/// What launch saw at a moment.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// Nodes that the ranks are on.
    pub used: usize,
    /// Nodes that they would be on after another start, where that spreads them.
    pub possible: Option<usize>,
    /// The newest committed step.
    pub step: u64,
    /// When.
    pub at: Instant,
}

/// Remembers it for one launch.
#[derive(Debug)]
pub struct Spreading {
    regrow: Every,
    trial: Trial,
    idle: Option<Idle>,
}

impl Spreading {
    /// `regrow`: when to ask.
    pub fn new(regrow: Every) -> Self {
        let trial = if regrow == Every::Never { Trial::GivenUp } else { Trial::Watching };
        Self { regrow, trial, idle: None }
    }

    /// Whether there is anything to look at.
    pub fn watches(&self) -> bool {
        matches!(self.trial, Trial::Watching | Trial::Trying { .. })
    }

    /// Whether the attempt that runs was begun for it.
    pub fn is_tried(&self) -> bool {
        matches!(self.trial, Trial::Trying { .. })
    }

    /// Takes one event of the run.
    pub fn on(&mut self, event: &Event) {
        if let (Some(idle), Kind::Epoch { .. }) = (&mut self.idle, &event.kind) {
            idle.epoch_ended = true;
        }
    }

    /// Whether the ranks are to be asked to end now. For attempts that commit steps.
    pub fn look(&mut self, now: Look) -> bool {
        if let Trial::Trying { .. } = self.trial {
            // What another start did not spread (hosts that share a name, say) the next will not.
            let spread = now.possible.is_none();
            self.trial = if spread { Trial::Watching } else { Trial::GivenUp };
        }
        if self.trial != Trial::Watching || now.possible.is_none() {
            self.idle = None;
            return false;
        }
        let fresh = Idle { since: now.at, since_step: now.step, epoch_ended: false };
        let idle = *self.idle.get_or_insert(fresh);
        let due = match self.regrow {
            Every::Epoch | Every::Auto => idle.epoch_ended,
            Every::Steps(steps) => now.step.saturating_sub(idle.since_step) >= steps,
            Every::Time(every) => now.at.saturating_duration_since(idle.since) >= every,
            Every::Never => false,
        };
        if due {
            (self.trial, self.idle) = (Trial::Asked { before: now.used }, None);
        }
        due
    }

    /// The ranks could not be asked.
    pub fn give_up(&mut self) {
        self.trial = Trial::GivenUp;
    }

    /// The next start of mpirun.
    pub fn attempt_begins(&mut self) {
        self.idle = None;
        if let Trial::Asked { before } = self.trial {
            self.trial = Trial::Trying { before };
        }
    }

    /// An attempt that committed steps is over.
    pub fn attempt_held(&mut self) {
        if let Trial::Trying { .. } = self.trial {
            self.trial = Trial::Watching;
        }
    }

    /// An attempt that committed nothing is over. Where it was begun to spread the ranks, the next
    /// one stays with so many nodes: they did it before.
    pub fn attempt_failed(&mut self) -> Option<usize> {
        let Trial::Trying { before } = self.trial else { return None };
        self.trial = Trial::GivenUp;
        Some(before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::event::samples;

    const SECOND: Duration = Duration::from_secs(1);

    /// A launch whose four ranks are on three nodes.
    struct Bench {
        spreading: Spreading,
        zero: Instant,
    }

    impl Bench {
        fn new(regrow: Every) -> Self {
            Self { spreading: Spreading::new(regrow), zero: Instant::now() }
        }

        fn asks(&mut self, seconds: u32, step: u64, possible: Option<usize>) -> bool {
            let at = self.zero + SECOND * seconds;
            self.spreading.look(Look { used: 3, possible, step, at })
        }

        fn epoch_ends(&mut self) {
            self.spreading.on(&samples::event(1, 0.0, Kind::Epoch { epoch: 1 }));
        }
    }

    #[test]
    fn it_asks_when_regrow_says_so_counted_from_when_nodes_stand_idle() {
        let mut epoch = Bench::new(Every::Epoch);
        epoch.epoch_ends();
        assert!(!epoch.asks(1, 10, Some(4)), "that epoch ended before a node was back");
        assert!(!epoch.asks(2, 11, Some(4)));
        epoch.epoch_ends();
        assert!(epoch.asks(3, 12, Some(4)));

        let mut time = Bench::new(Every::Time(5 * SECOND));
        assert!(!time.asks(10, 10, Some(4)) && !time.asks(14, 20, Some(4)));
        assert!(!time.asks(15, 21, None) && !time.asks(16, 22, Some(4)), "it was gone meanwhile");
        assert!(time.asks(21, 23, Some(4)));

        let mut steps = Bench::new(Every::Steps(8));
        assert!(!steps.asks(1, 100, Some(4)) && !steps.asks(2, 107, Some(4)));
        assert!(steps.asks(3, 108, Some(4)));

        let mut never = Bench::new(Every::Never);
        never.epoch_ends();
        assert!(!never.asks(1, 1, Some(4)) && !never.spreading.watches());
    }

    /// Asked, and the next attempt begun.
    fn tried() -> Bench {
        let mut bench = Bench::new(Every::Steps(1));
        assert!(!bench.asks(1, 1, Some(4)) && bench.asks(2, 2, Some(4)));
        assert!(!bench.asks(3, 3, Some(4)), "asked once");
        bench.spreading.attempt_held();
        bench.spreading.attempt_begins();
        assert!(bench.spreading.is_tried());
        bench
    }

    #[test]
    fn what_was_spread_once_may_be_spread_again_later() {
        let mut bench = tried();
        assert!(!bench.asks(5, 5, None), "four nodes now");
        assert!(!bench.asks(9, 9, Some(4)) && bench.asks(10, 10, Some(4)), "lost and back again");
    }

    #[test]
    fn an_attempt_without_a_step_is_followed_by_one_on_the_nodes_of_before() {
        let mut bench = tried();
        assert_eq!(bench.spreading.attempt_failed(), Some(3));
        bench.spreading.attempt_begins();
        assert!(!bench.asks(9, 9, Some(4)) && !bench.asks(99, 99, Some(4)), "not tried for ever");
        assert_eq!(bench.spreading.attempt_failed(), None);
    }

    #[test]
    fn a_start_that_did_not_spread_them_is_not_repeated() {
        let mut bench = tried();
        assert!(!bench.asks(5, 5, Some(4)) && !bench.asks(99, 99, Some(4)));
        assert!(!bench.spreading.watches());
    }

    #[test]
    fn an_attempt_that_ends_before_it_was_looked_at_leaves_the_watch_on() {
        let mut bench = tried();
        bench.spreading.attempt_held();
        bench.spreading.attempt_begins();
        assert!(bench.spreading.watches() && !bench.spreading.is_tried());
    }
}
