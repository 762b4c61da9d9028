//! Who asks a launch for its end.

use signal_hook::consts::{SIGINT, SIGQUIT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::{LaunchError, io_error};

/// Requests for the end, from before the run is this launch's.
#[derive(Debug)]
pub struct Stops {
    signals: Signals,
}

impl Stops {
    /// From now on these signals end this process no more.
    ///
    /// # Errors
    /// The kernel's.
    pub fn listen() -> Result<Self, LaunchError> {
        let signals = Signals::new([SIGINT, SIGQUIT, SIGTERM, SIGUSR1]);
        Ok(Self { signals: signals.map_err(io_error("catching signals"))? })
    }

    /// Whether somebody has asked since the last look.
    pub fn look(&mut self) -> bool {
        self.signals.pending().next().is_some()
    }
}
