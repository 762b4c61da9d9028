//! The supervisor's clock: it stands still while the supervisor does. What nobody looked at proves
//! nothing: ranks that were stopped with it, as SLURM suspends a job, have missed no deadline.

use std::time::{Duration, Instant};

use crate::cluster::guard::judge::JUMP;

/// Time in which the supervisor looked.
#[derive(Debug)]
pub(super) struct Awake {
    looked: Instant,
    paused: Duration,
}

impl Awake {
    /// From now on.
    pub(super) fn at(now: Instant) -> Self {
        Self { looked: now, paused: Duration::ZERO }
    }

    /// What this clock shows at the time `now`; to be asked at each turn of a wait. Of a turn that
    /// was held up a part counts: where each one is, deadlines come later, but come.
    pub(super) fn look(&mut self, now: Instant) -> Instant {
        self.paused += now.saturating_duration_since(self.looked).saturating_sub(JUMP);
        self.looked = now;
        now.checked_sub(self.paused).unwrap_or(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_of_the_supervisor_brings_no_deadline_nearer() {
        let begun = Instant::now();
        let at = |seconds: f64| begun + Duration::from_secs_f64(seconds);
        let mut awake = Awake::at(begun);
        let mut shown = |seconds: f64| awake.look(at(seconds)).duration_since(begun).as_secs_f64();
        let turns = [(0.02, 0.02), (0.4, 0.4), (100.4, 0.9), (100.42, 0.92), (7200.42, 1.42)];
        for (now, then) in turns {
            assert!((shown(now) - then).abs() < 1e-6, "{now}");
        }
    }

    #[test]
    fn where_every_turn_is_slow_deadlines_come_all_the_same() {
        let begun = Instant::now();
        let mut awake = Awake::at(begun);
        let turns = (1..=100).map(|turn| awake.look(begun + Duration::from_secs(turn)));
        assert_eq!(turns.last().unwrap().duration_since(begun), 100 * JUMP);
    }
}
