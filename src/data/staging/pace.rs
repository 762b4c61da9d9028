//! How fast files are copied beside training: at a set rate, or as fast as leaves room to those
//! whom a run waits for.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::config::Pace as Wanted;

/// How long a copy steps aside at most for each file, in turns of so long.
const ASIDE_TURN: Duration = Duration::from_millis(5);
const ASIDE_TURNS_MAX: u32 = 40;

/// How many are at work that copying gives way to: reads that training waits for, and checkpoints.
#[derive(Debug, Default)]
pub struct Urgent(AtomicUsize);

/// Ends one urgent piece of work.
pub struct Done<'a>(&'a Urgent);

impl Urgent {
    /// Begins one.
    pub fn begin(&self) -> Done<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Done(self)
    }

    /// Whether there is any.
    pub fn is_at_work(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }
}

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The pace of all copy workers of a rank.
#[derive(Debug)]
pub struct Pace {
    wanted: Wanted,
    /// When the bytes copied so far are due, at a set rate.
    due: Mutex<Option<Instant>>,
    urgent: Arc<Urgent>,
}

impl Pace {
    /// `urgent`: whom "auto" gives way to.
    pub fn new(wanted: Wanted, urgent: Arc<Urgent>) -> Self {
        Self { wanted, due: Mutex::new(None), urgent }
    }

    /// Returns when the next file may be copied.
    pub fn await_turn(&self) {
        match self.wanted {
            Wanted::Auto => {
                for _ in 0..ASIDE_TURNS_MAX {
                    if !self.urgent.is_at_work() {
                        return;
                    }
                    std::thread::sleep(ASIDE_TURN);
                }
            }
            Wanted::Rate(_) => {
                let due = *self.due.lock().unwrap_or_else(PoisonError::into_inner);
                let left = due.map(|due| due.saturating_duration_since(Instant::now()));
                std::thread::sleep(left.unwrap_or_default());
            }
        }
    }

    /// So many bytes have been copied.
    pub fn copied(&self, bytes: u64) {
        if let Wanted::Rate(rate) = self.wanted {
            let time = Duration::from_secs_f64(bytes as f64 / rate.0 as f64);
            let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            *due = Some(due.map_or(now, |due| due.max(now)) + time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Rate;

    #[test]
    fn a_set_rate_is_kept_and_urgent_work_is_counted() {
        let urgent = Arc::new(Urgent::default());
        let pace = Pace::new(Wanted::Rate(Rate(1_000_000)), Arc::clone(&urgent));
        let begun = Instant::now();
        for _ in 0..5 {
            pace.await_turn();
            pace.copied(10_000);
        }
        assert!(begun.elapsed() >= Duration::from_millis(40), "{:?}", begun.elapsed());
        let one = urgent.begin();
        drop(urgent.begin());
        assert!(urgent.is_at_work());
        drop(one);
        assert!(!urgent.is_at_work());
        Pace::new(Wanted::Auto, urgent).await_turn();
    }
}
