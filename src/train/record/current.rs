//! Whether a process belongs to its run's newest attempt. One that does not, or does not know,
//! publishes nothing.

use std::io;
use std::sync::Arc;

use crate::observe::notice::act_on;

/// The run's newest attempt, where one is recorded; an error where nobody knows now.
pub type NewestAttempt = Arc<dyn Fn() -> io::Result<Option<u32>> + Send + Sync>;

/// How often it is asked for before a run ends without an answer; each time takes 0.1 s.
const ASKED_AT_THE_END_MAX: u32 = 40;

/// A process's attempt, and what to compare it with.
#[derive(Clone)]
pub struct Current {
    newest: NewestAttempt,
    attempt: u32,
}

impl Current {
    /// Of a process of this attempt.
    pub fn new(newest: &NewestAttempt, attempt: u32) -> Self {
        Self { newest: Arc::clone(newest), attempt }
    }

    /// Whether none later has begun.
    pub fn is_newest(&self) -> bool {
        self.is(&(self.newest)())
    }

    /// The same for a process that will not come to ask again.
    pub fn is_newest_at_the_end(&self) -> bool {
        let mut newest = (self.newest)();
        for _ in 1..ASKED_AT_THE_END_MAX {
            if newest.is_ok() {
                break;
            }
            newest = (self.newest)();
        }
        self.is(&newest)
    }

    fn is(&self, newest: &io::Result<Option<u32>>) -> bool {
        match newest {
            Ok(newest) => newest.is_none_or(|newest| newest <= self.attempt),
            Err(error) => {
                act_on(&format!("nothing is published now: a later attempt may run: {error}"));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Of attempt 2, whose question is answered from the fourth time on.
    fn of_silent(newest: u32) -> Current {
        let asked = AtomicU32::new(0);
        let answer = move || match asked.fetch_add(1, Ordering::Relaxed) {
            ..3 => Err(io::Error::from_raw_os_error(5)),
            _ => Ok(Some(newest)),
        };
        let newest: NewestAttempt = Arc::new(answer);
        Current::new(&newest, 2)
    }

    #[test]
    fn who_does_not_know_publishes_nothing_and_asks_again_at_the_end() {
        assert!(!of_silent(2).is_newest());
        assert!(of_silent(2).is_newest_at_the_end());
        assert!(!of_silent(3).is_newest_at_the_end());
        let unrecorded: NewestAttempt = Arc::new(|| Ok(None));
        assert!(Current::new(&unrecorded, 2).is_newest());
    }
}
