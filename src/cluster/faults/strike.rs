//! Makes faults real in a real process.

use std::hint::spin_loop;
use std::time::Duration;

use kintsugi_ffi::{allocator, os};

use crate::config::{FaultKind, Point};

use super::Strike;

/// How often a process sends itself SIGSEGV before it gives up and aborts.
const SEGV_TRIES: u32 = 100;
const SEGV_EVERY: Duration = Duration::from_millis(10);

/// Strikes this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealStrike;

impl Strike for RealStrike {
    fn strike(&self, kind: FaultKind, point: Point) {
        match kind {
            FaultKind::Kill => os::kill_self_now(),
            FaultKind::Stop => signal_self(os::Signal::Stop),
            FaultKind::Exit => os::exit_now(0),
            FaultKind::Panic => panic!("planned fault: a panic {point:?}"),
            FaultKind::Segv => {
                // Rust's own handler takes the first one, sees no stack overflow, and restores
                // the default for the second. Another thread may get it, in its own time.
                for _ in 0..SEGV_TRIES {
                    signal_self(os::Signal::Segv);
                    std::thread::sleep(SEGV_EVERY);
                }
                std::process::abort()
            }
            // What a process does whose allocator says no. The node's memory is left alone: other
            // people's processes live in it.
            FaultKind::Oom => allocator::fail(1 << 40),
            // A deadlock has no end: somebody else has to kill this process.
            FaultKind::Deadlock => loop {
                std::thread::sleep(Duration::from_secs(3600));
            },
            FaultKind::Loop => loop {
                spin_loop();
            },
            FaultKind::DeviceError => {
                tracing::error!("planned fault: the device failed {point:?}; this rank leaves");
                os::kill_self_now()
            }
            // The injector holds a slow rank up from now on; the others are the caller's.
            FaultKind::Slow | FaultKind::Nan | FaultKind::BitFlip => {}
        }
    }
}

fn signal_self(signal: os::Signal) {
    if let Err(error) = os::kill(std::process::id(), signal) {
        tracing::error!("planned fault: {signal:?} could not be sent: {error}");
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command, Stdio};
    use std::time::Instant;

    use super::*;

    const KIND: &str = "KINTSUGI_TEST_STRIKE";
    const WAIT_MAX: Duration = Duration::from_secs(20);

    /// This test again, in a process of its own, which strikes itself.
    fn struck(kind: &str) -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "cluster::faults::strike::tests::victim", "--nocapture"])
            .env(KIND, kind)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Does nothing unless it is the victim's process.
    #[test]
    fn victim() {
        let Ok(kind) = std::env::var(KIND) else { return };
        let kind: FaultKind = serde_json::from_str(&format!("{kind:?}")).unwrap();
        RealStrike.strike(kind, Point::InForward);
        let returns = [FaultKind::Nan, FaultKind::BitFlip, FaultKind::Slow];
        assert!(returns.contains(&kind), "{kind:?} returned");
    }

    fn ended(mut child: Child) -> std::process::ExitStatus {
        let begun = Instant::now();
        while begun.elapsed() < WAIT_MAX {
            if let Some(status) = child.try_wait().unwrap() {
                return status;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        child.kill().unwrap();
        panic!("the victim lives after {WAIT_MAX:?}: {:?}", child.wait().unwrap());
    }

    /// `State:` of /proc/PID/status, waited for until `state` is seen.
    fn becomes(child: &Child, state: &str) -> bool {
        let path = format!("/proc/{}/status", child.id());
        let begun = Instant::now();
        while begun.elapsed() < WAIT_MAX {
            if std::fs::read_to_string(&path).unwrap().contains(state) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }

    #[test]
    fn deaths_are_what_they_are_called() {
        for (kind, signal) in [("kill", 9), ("segv", 11), ("oom", 6), ("device_error", 9)] {
            assert_eq!(ended(struck(kind)).signal(), Some(signal), "{kind}");
        }
        assert_eq!(ended(struck("exit")).code(), Some(0));
        assert_eq!(ended(struck("panic")).code(), Some(101));
    }

    #[test]
    fn a_stopped_process_exists_and_does_nothing() {
        let mut child = struck("stop");
        let stopped = becomes(&child, "T (stopped)");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(stopped);
    }

    #[test]
    fn what_the_caller_performs_returns() {
        for kind in ["nan", "bit_flip", "slow"] {
            assert_eq!(ended(struck(kind)).code(), Some(0), "{kind}");
        }
    }

    #[test]
    fn a_deadlocked_process_lives_on_and_so_does_one_that_loops() {
        lives_on("deadlock", "S (sleeping)");
        lives_on("loop", "R (running)");
    }

    fn lives_on(kind: &str, state: &str) {
        let mut child = struck(kind);
        let sleeps = becomes(&child, state);
        std::thread::sleep(Duration::from_millis(200));
        let ended = child.try_wait().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(sleeps && ended.is_none(), "{kind}");
    }
}
