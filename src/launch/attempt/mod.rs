//! One start of mpirun: its process group, its private folders, its log, and its end.

use std::fs::File;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use kintsugi_ffi::os::{self, Signal};
use kintsugi_ffi::process;

use crate::config::Shown;
use crate::observe::clock::{CLOCK_VARIABLE, clock_to_share};
use crate::observe::refusal;
use crate::run_folder::launcher;

use super::traces::folders::NEEDED;
use super::traces::janitor::Janitor;
use super::{LaunchError, io_error};

pub mod mpirun;
pub mod preload;
pub mod runtime;

use mpirun::Plan;

/// How long mpirun may take to end after SIGTERM (measured: half a second).
const TERMINATE_MAX: Duration = Duration::from_secs(3);
/// How often a wait looks again.
const POLL: Duration = Duration::from_millis(20);

/// A running mpirun. Dropping it without [`Attempt::close`] leaves the cleaning to its janitor.
#[derive(Debug)]
pub struct Attempt {
    mpirun: Child,
    janitor: Janitor,
    ended: Option<ExitStatus>,
}

impl Attempt {
    /// Starts it. The calling thread must live as long as the attempt: mpirun is asked to end
    /// (SIGTERM, so that it ends its ranks in order) when that thread ends. All of it is in
    /// `folder`: where launch was started may go, and without its folder mpirun starts nobody.
    pub fn start(
        plan: &Plan,
        janitor: &Path,
        folder: &Path,
        log: &Path,
    ) -> Result<Self, LaunchError> {
        let mut janitor =
            Janitor::spawn(janitor, &plan.job).map_err(io_error("starting the janitor"))?;
        plan.folders.make().map_err(no_room)?;
        let output = File::create(log).map_err(io_error(format!("creating {}", log.shown())))?;
        let errors = output.try_clone().map_err(io_error("sharing the log"))?;
        let line = mpirun::command_line(plan);
        let environment = mpirun::environment(plan);
        let mut command = Command::new(&line[0]);
        launcher::suit(&mut command);
        command.args(&line[1..]).envs(environment.set);
        command.env(CLOCK_VARIABLE, clock_to_share());
        for name in environment.unset {
            command.env_remove(name);
        }
        preload::cure(&mut command, &plan.folders.temporary)
            .map_err(io_error(format!("writing into {}", plan.folders.temporary.shown())))?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors).current_dir(folder);
        process::supervise(&mut command, Signal::Terminate);
        let child = command.spawn().map_err(io_error(format!("starting {}", line[0])))?;
        janitor.record_mpirun(child.id()).map_err(io_error("telling the janitor"))?;
        Ok(Self { mpirun: child, janitor, ended: None })
    }

    /// mpirun's process, the leader of its group.
    pub fn pid(&self) -> u32 {
        self.mpirun.id()
    }

    /// How mpirun ended, once it has. For people: it is not how the run ended.
    pub fn poll(&mut self) -> Result<Option<String>, LaunchError> {
        if self.ended.is_none() {
            self.ended = self.mpirun.try_wait().map_err(io_error("waiting for mpirun"))?;
        }
        Ok(self.ended.map(describe))
    }

    /// Sends mpirun a signal; SIGUSR1 reaches every rank at once, those that have only begun too.
    pub fn signal(&self, signal: Signal) {
        if self.ended.is_none() {
            // Not yet reaped, so the number is still its own; it may be a zombie.
            let _ = os::kill(self.mpirun.id(), signal);
        }
    }

    /// Ends mpirun, its ranks and all that they started; removes what they left. `hurry` is asked
    /// while waiting whether to kill at once.
    pub fn close(mut self, hurry: &mut dyn FnMut() -> bool) -> Result<(), LaunchError> {
        self.signal(Signal::Terminate);
        let end = Instant::now() + TERMINATE_MAX;
        while self.poll()?.is_none() && Instant::now() < end && !hurry() {
            std::thread::sleep(POLL);
        }
        if self.ended.is_none() {
            let _ = os::kill_group(self.mpirun.id(), Signal::Kill);
            self.mpirun.wait().map_err(io_error("waiting for mpirun"))?;
        }
        self.janitor.finish().map_err(io_error("ending the ranks"))
    }
}

/// The folders' places have no key: what cannot be written there is changed outside.
fn no_room(error: io::Error) -> LaunchError {
    let what = "making room for an attempt";
    if refusal::remedy(&error).is_none() {
        return io_error(what)(error);
    }
    LaunchError::Refused { reason: format!("{what}: {error} ({NEEDED})") }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "unknown".into(),
    }
}

/// Cores that this process may use.
pub fn cores() -> u32 {
    let cores: io::Result<_> = std::thread::available_parallelism();
    cores.map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_folders_cannot_be_made_it_is_said_what_a_machine_must_have() {
        let told = |number| no_room(io::Error::from_raw_os_error(number));
        // ENOENT, EACCES, EROFS.
        for permanent in [2, 13, 30] {
            let (code, text) = (told(permanent).exit_code(), told(permanent).to_string());
            assert!(code == 2 && text.contains("--tmpfs /tmp, --shm-size)"), "{text}");
            assert!(!text.contains("another place") && !text.contains("name a place"), "{text}");
        }
        // ENOSPC.
        assert_eq!(told(28).exit_code(), 75);
    }
}
