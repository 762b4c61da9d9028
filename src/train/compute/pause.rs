//! Workers that wait while the world is repaired. A repair is a chain of short messages between
//! processes; where those share cores with their own computing threads, each of them waits its
//! turn behind a time slice of those. What the workers have left is computed afterwards, beside
//! the newcomer's first gradients, for which everybody waits anyway: they are released once it has
//! begun.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest pause: a repair that takes longer has other troubles.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Whether workers are to wait.
#[derive(Debug, Default)]
pub struct Pause {
    held: AtomicBool,
    gate: Mutex<()>,
    changed: Condvar,
    waited_micros: AtomicU64,
}

impl Pause {
    /// Workers stop at the next gradient that is ready.
    pub fn hold(&self) {
        self.held.store(true, Ordering::Relaxed);
    }

    /// They go on.
    pub fn release(&self) {
        if self.held.swap(false, Ordering::Relaxed) {
            // Whoever has just seen it held waits by now.
            drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
            self.changed.notify_all();
        }
    }

    /// A worker's call between two pieces of work.
    #[inline]
    pub(in crate::train) fn pass(&self) {
        if self.held.load(Ordering::Relaxed) {
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        let begun = Instant::now();
        let gate = self.gate.lock().unwrap_or_else(PoisonError::into_inner);
        let held = |(): &mut ()| self.held.load(Ordering::Relaxed);
        drop(self.changed.wait_timeout_while(gate, PAUSE_MAX, held));
        let micros = begun.elapsed().as_micros() as u64;
        self.waited_micros.fetch_add(micros, Ordering::Relaxed);
    }

    /// What all workers have waited so far.
    pub(in crate::train) fn waited_micros(&self) -> u64 {
        self.waited_micros.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn workers_wait_until_they_are_released_and_not_a_moment_before() {
        let pause = Arc::new(Pause::default());
        pause.pass();
        assert_eq!(pause.waited_micros(), 0, "nothing held it");
        pause.hold();
        let worker = std::thread::spawn({
            let pause = Arc::clone(&pause);
            move || pause.pass()
        });
        std::thread::sleep(Duration::from_millis(20));
        assert!(!worker.is_finished());
        pause.release();
        worker.join().unwrap();
        assert!(pause.waited_micros() > 0);
    }

    #[test]
    fn nobody_waits_for_ever() {
        let pause = Pause::default();
        pause.hold();
        pause.pass();
        assert!(pause.waited_micros() >= PAUSE_MAX.as_micros() as u64);
    }
}
