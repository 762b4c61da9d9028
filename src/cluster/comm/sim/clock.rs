//! The simulation's clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::observe::clock::Clock;

/// Simulated time: advances with every decision of the board and with every sleep.
#[derive(Debug, Clone, Default)]
pub struct SimClock {
    nanos: Arc<AtomicU64>,
}

/// Seconds since 1970 at which every simulation starts.
const SIMULATED_START_UNIX: f64 = 1.7e9;

impl SimClock {
    /// Over the nanoseconds of a board.
    pub(super) fn over(nanos: Arc<AtomicU64>) -> Self {
        Self { nanos }
    }
}

impl Clock for SimClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }

    fn unix_seconds(&self) -> f64 {
        SIMULATED_START_UNIX + self.now().as_secs_f64()
    }

    fn sleep(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }
}
