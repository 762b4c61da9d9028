//! Who asks a launch for its end: a signal or, in a job of SLURM, the end of what started it.

use kintsugi_ffi::os;
use signal_hook::consts::{SIGINT, SIGQUIT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::{LaunchError, io_error};

/// Requests for the end, from before the run is this launch's.
#[derive(Debug)]
pub struct Stops {
    signals: Signals,
    starter: Starter,
    orphaned: bool,
}

impl Stops {
    /// From now on these signals end this process no more.
    ///
    /// # Errors
    /// The kernel's.
    pub fn listen() -> Result<Self, LaunchError> {
        let signals = Signals::new([SIGINT, SIGQUIT, SIGTERM, SIGUSR1]);
        let signals = signals.map_err(io_error("catching signals"))?;
        Ok(Self { signals, starter: Starter::in_job(), orphaned: false })
    }

    /// Whether somebody has asked since the last look.
    pub fn look(&mut self) -> bool {
        let ended = self.starter.has_ended();
        self.orphaned |= ended;
        self.signals.pending().next().is_some() || ended
    }

    /// Whether what started this launch has ended.
    pub fn orphaned(&self) -> bool {
        self.orphaned
    }
}

/// What started this process in a job of SLURM. When it was the job's script, the job is over with
/// it, and SLURM may leave running what the script had started.
#[derive(Debug)]
pub struct Starter(Option<u32>);

impl Starter {
    /// Nobody outside a job, and where it has ended by now: it left this process alone on purpose.
    /// The kernel's signal at a parent's death would come with the end of its *thread*.
    pub fn in_job() -> Self {
        let in_job = std::env::var_os("SLURM_JOB_ID").is_some();
        Self(Some(os::parent_pid()).filter(|parent| in_job && *parent > 1))
    }

    /// Whether it has ended since the last look.
    pub fn has_ended(&mut self) -> bool {
        self.0.take_if(|parent| os::parent_pid() != *parent).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_the_starter_is_told_once() {
        let mut living = Starter(Some(os::parent_pid()));
        assert!(!living.has_ended());
        let mut gone = Starter(Some(std::process::id()));
        assert!(gone.has_ended() && !gone.has_ended());
        assert!(!Starter(None).has_ended(), "nobody is looked at");
    }
}
