//! What a rank asks of all others with its vote: bits that it clears.

use std::sync::atomic::Ordering;

use crate::config::Every;

use crate::train::repair::mending::Recruits;
use crate::train::repair::resize::Asks;
use crate::train::trainer::Trainer;

/// Bit 0 of the vote; the others carry requests, inverted, since agree is an AND.
pub(super) const COMMIT: u32 = 1;
pub(super) const NO_STOP: u32 = 1 << 1;
pub(super) const TIME_LEFT: u32 = 1 << 2;
pub(super) const NO_EVALUATION: u32 = 1 << 3;
pub(super) const NOT_BROKEN: u32 = 1 << 4;
pub(super) const NO_RESIZE: u32 = 1 << 5;
pub(super) const NO_RENEWAL: u32 = 1 << 6;
pub(super) const NO_RECRUITS: u32 = 1 << 7;
/// Cleared where the sums are known to be grouped otherwise than in a run without failures: a
/// newcomer was not there when the world shrank.
pub(super) const EXACT: u32 = 1 << 8;
pub(super) const ALL: u32 = (1 << 9) - 1;

impl Trainer {
    /// What this rank asks of all: cleared bits.
    pub(super) fn requests(&self) -> u32 {
        let mut flags = ALL;
        let seconds = self.journal.seconds();
        if self.stop.load(Ordering::Relaxed) {
            flags &= !NO_STOP;
        }
        if self.plan.max_seconds.is_some_and(|limit| seconds >= limit) {
            flags &= !TIME_LEFT;
        }
        if self.plan.renews && self.is_writer() && self.spares_are_used_up() {
            flags &= !NO_RENEWAL;
        }
        if self.recruits == Recruits::Known {
            flags &= !NO_RECRUITS;
        }
        if !self.replica.position.exact {
            flags &= !EXACT;
        }
        if self.is_writer() {
            match self.resizer.asks(&self.world, self.clock.now()) {
                Asks::Size if self.plan.regrow.is_some() => flags &= !NO_RESIZE,
                Asks::Renewal => flags &= !NO_RENEWAL,
                Asks::Size | Asks::Nothing => {}
            }
        }
        if let Every::Time(interval) = self.plan.evaluation
            && self.is_writer()
            && self.plan.validation_samples > 0
        {
            let last = self.replica.position.evaluated_ms as f64 / 1e3;
            let interval = interval.as_secs_f64();
            if (seconds / interval).floor() > (last / interval).floor() {
                flags &= !NO_EVALUATION;
            }
        }
        flags
    }
}
