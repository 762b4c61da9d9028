//! Makes faults real in a real process.

use std::alloc::Layout;
use std::time::Duration;

use kintsugi_ffi::os;

use crate::config::{FaultKind, Phase};

use super::Strike;

/// How long a rank that is struck `slow` pauses.
const SLOW: Duration = Duration::from_secs(2);

/// Strikes this process.
#[derive(Debug, Clone, Copy, Default)]
pub struct RealStrike;

impl Strike for RealStrike {
    fn strike(&self, kind: FaultKind, phase: Phase) {
        match kind {
            FaultKind::Kill => os::kill_self_now(),
            FaultKind::Stop => signal_self(os::Signal::Stop),
            FaultKind::Exit => os::exit_now(0),
            FaultKind::Panic => panic!("planned fault: a panic {phase:?}"),
            FaultKind::Segv => {
                // Rust's own handler takes the first one, sees no stack overflow, and restores
                // the default for the second.
                signal_self(os::Signal::Segv);
                signal_self(os::Signal::Segv);
                std::process::abort()
            }
            // What a process does whose allocator says no. The node's memory is left alone: other
            // people's processes live in it.
            FaultKind::Oom => std::alloc::handle_alloc_error(Layout::new::<[u8; 1 << 40]>()),
            // A deadlock has no end: somebody else has to kill this process.
            FaultKind::Deadlock => loop {
                std::thread::sleep(Duration::from_secs(3600));
            },
            FaultKind::Slow => std::thread::sleep(SLOW),
            FaultKind::DeviceError | FaultKind::Nan | FaultKind::BitFlip => {}
        }
    }
}

fn signal_self(signal: os::Signal) {
    if let Err(error) = os::kill(std::process::id(), signal) {
        tracing::error!("planned fault: {signal:?} could not be sent: {error}");
    }
}
