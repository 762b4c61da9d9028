//! Time as an argument: real, or simulated.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A monotonic clock and the wall's.
pub trait Clock: Send + Sync {
    /// Monotonic, from an arbitrary zero.
    fn now(&self) -> Duration;
    /// Seconds since 1970, for people and for run_seconds across restarts.
    fn unix_seconds(&self) -> f64;
    /// Waits (simulated clocks only advance).
    fn sleep(&self, time: Duration);
}

/// The machine's clocks.
#[derive(Debug)]
pub struct RealClock {
    zero: Instant,
}

impl Default for RealClock {
    fn default() -> Self {
        Self { zero: Instant::now() }
    }
}

impl Clock for RealClock {
    fn now(&self) -> Duration {
        self.zero.elapsed()
    }
    fn unix_seconds(&self) -> f64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64())
    }
    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}
