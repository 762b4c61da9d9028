//! Who asks a launch for its end: a signal or, in a job of SLURM, the end of its script.

use std::time::{Duration, Instant};

use kintsugi_ffi::os;
use kintsugi_ffi::proc::command_line;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use super::{LaunchError, io_error};

/// One act of somebody's may come by two signals of different kinds: a key reaches a job's script,
/// which passes it on in its own way, and the launch itself.
const ONE_ACT: Duration = Duration::from_secs(1);

/// Requests for the end, from before the run is this launch's.
#[derive(Debug)]
pub struct Stops {
    signals: Signals,
    script: Script,
    /// The first request: when, and by which signal (`None`: the script's end).
    first: Option<(Instant, Option<i32>)>,
}

impl Stops {
    /// From now on these signals end this process no more.
    ///
    /// # Errors
    /// The kernel's.
    pub fn listen() -> Result<Self, LaunchError> {
        // Of a terminal that closes nobody dies here, and nobody asks for the end.
        let signals = Signals::new([SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGHUP]);
        let signals = signals.map_err(io_error("catching signals"))?;
        Ok(Self { signals, script: Script::of_job(), first: None })
    }

    /// Whether somebody has asked since the last look. The script's end asks only where nobody has
    /// before: who ended it may have asked this launch, too.
    pub fn look(&mut self) -> bool {
        let heard: Vec<i32> = self.signals.pending().collect();
        let asks = heard.into_iter().filter(|signal| *signal != SIGHUP);
        let counted = asks.filter(|signal| self.counts(*signal)).count();
        if self.first.is_none() && self.script.has_ended() {
            self.first = Some((Instant::now(), None));
            return true;
        }
        counted > 0
    }

    /// Whether somebody has asked by now.
    pub fn has_asked(&mut self) -> bool {
        self.look();
        self.first.is_some()
    }

    fn counts(&mut self, signal: i32) -> bool {
        match self.first {
            Some((at, kind)) => kind == Some(signal) || at.elapsed() > ONE_ACT,
            None => {
                self.first = Some((Instant::now(), Some(signal)));
                true
            }
        }
    }

    /// Whether it was the end of the job's script that asked first.
    pub fn orphaned(&self) -> bool {
        matches!(self.first, Some((_, None)))
    }
}

/// A SLURM job's script, where it started this process: the job is over with it, and SLURM may
/// leave running what the script had started. Whoever else started it may end as it likes.
#[derive(Debug)]
pub struct Script(Option<u32>);

/// What slurmd calls its copy of it.
const SCRIPT: &str = "slurm_script";

impl Script {
    /// Nobody outside a job. The kernel's signal at a parent's death would come with the end of its
    /// *thread*.
    pub fn of_job() -> Self {
        let in_job = std::env::var_os("SLURM_JOB_ID").is_some();
        Self(Some(os::parent_pid()).filter(|parent| in_job && is_script(*parent)))
    }

    /// Whether it has ended since the last look.
    pub fn has_ended(&mut self) -> bool {
        self.0.take_if(|parent| os::parent_pid() != *parent).is_some()
    }
}

/// Its shell has its path as an argument.
fn is_script(pid: u32) -> bool {
    let name = |argument: &[u8]| argument.rsplit(|byte| *byte == b'/').next().map(<[u8]>::to_vec);
    command_line(pid).iter().any(|argument| name(argument) == Some(SCRIPT.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stops() -> Stops {
        Stops { signals: Signals::new([SIGUSR1]).unwrap(), script: Script(None), first: None }
    }

    #[test]
    fn the_scripts_end_is_told_once_and_by_nobody_elses() {
        let mut living = Script(Some(os::parent_pid()));
        assert!(!living.has_ended());
        let mut gone = Script(Some(std::process::id()));
        assert!(gone.has_ended() && !gone.has_ended());
        assert!(!Script(None).has_ended(), "nobody is looked at");
        assert!(!is_script(std::process::id()));
    }

    #[test]
    fn a_terminal_that_closes_asks_for_nothing() {
        let mut stops = Stops { script: Script(None), ..Stops::listen().unwrap() };
        signal_hook::low_level::raise(SIGHUP).unwrap();
        assert!(!stops.look() && !stops.has_asked());
    }

    #[test]
    fn one_act_is_one_request_and_the_same_signal_again_is_another() {
        let mut key = stops();
        assert!(key.counts(SIGINT) && !key.counts(SIGUSR1), "a key, passed on");
        assert!(key.counts(SIGINT), "the key again");
        key.first = Some((Instant::now() - 2 * ONE_ACT, Some(SIGINT)));
        assert!(key.counts(SIGTERM), "somebody else");
    }

    #[test]
    fn the_scripts_end_asks_only_where_nobody_has() {
        let gone = || Script(Some(std::process::id()));
        let mut orphan = Stops { script: gone(), ..stops() };
        assert!(orphan.look() && orphan.orphaned() && orphan.has_asked() && !orphan.look());
        let mut asked = Stops { script: gone(), ..stops() };
        assert!(asked.counts(SIGTERM) && !asked.look() && !asked.orphaned());
    }
}
