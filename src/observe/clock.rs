//! Time as an argument: real, or simulated.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kintsugi_ffi::os;

/// A monotonic clock and the wall's.
pub trait Clock: Send + Sync {
    /// Monotonic, from an arbitrary zero.
    fn now(&self) -> Duration;
    /// Seconds since 1970, for people and for run_seconds across restarts.
    fn unix_seconds(&self) -> f64;
    /// Waits (simulated clocks only advance).
    fn sleep(&self, time: Duration);
}

/// Tells the processes of a run when their machine was started, by the wall clock of `launch`. A
/// wall clock that is set while the run goes on then moves no time of it.
pub const CLOCK_VARIABLE: &str = "KINTSUGI_CLOCK";

/// The machine's clocks. The wall's is read once; from then on the time since the machine's start
/// is added, which nobody can set.
#[derive(Debug)]
pub struct RealClock {
    zero: Instant,
}

impl Default for RealClock {
    fn default() -> Self {
        machine_started();
        Self { zero: Instant::now() }
    }
}

impl Clock for RealClock {
    fn now(&self) -> Duration {
        self.zero.elapsed()
    }
    fn unix_seconds(&self) -> f64 {
        machine_started() + os::since_boot().as_secs_f64()
    }
    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// What `CLOCK_VARIABLE` is to hold for processes of this machine.
pub fn clock_to_share() -> String {
    format!("{} {:.6}", machine(), machine_started())
}

/// Seconds since 1970 at which this machine was started.
fn machine_started() -> f64 {
    static STARTED: OnceLock<f64> = OnceLock::new();
    *STARTED.get_or_init(|| {
        let told = std::env::var(CLOCK_VARIABLE).ok();
        told.and_then(|told| read_told(&told, &machine())).unwrap_or_else(|| {
            let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            wall.as_secs_f64() - os::since_boot().as_secs_f64()
        })
    })
}

/// Counts only where the time since the start is the same: not on another machine, not after
/// another start of it, not in another time namespace.
fn read_told(told: &str, machine: &str) -> Option<f64> {
    let (whose, started) = told.rsplit_once(' ')?;
    let started: f64 = started.parse().ok()?;
    (whose == machine && started.is_finite()).then_some(started)
}

fn machine() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let time = std::fs::read_link("/proc/self/ns/time").unwrap_or_default();
    format!("{} {}", boot.trim(), time.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_machine_says_does_not_count() {
        assert_eq!(read_told("boot time 12.5", "boot time"), Some(12.5));
        assert_eq!(read_told("boot time 12.5", "other time"), None);
        assert_eq!(read_told("boot time inf", "boot time"), None);
        assert_eq!(read_told("nonsense", "boot time"), None);
        assert!(read_told(&clock_to_share(), &machine()).is_some());
    }

    #[test]
    fn the_wall_clock_is_near_the_machines() {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        assert!((RealClock::default().unix_seconds() - wall).abs() < 1.0);
    }
}
