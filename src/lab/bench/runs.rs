//! The runs of a bench: in a folder that goes afterwards. A bench that is asked to end ends its run
//! first, one that is killed takes it along.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kintsugi_ffi::os::{self, Signal};
use kintsugi_ffi::{private, process};
use signal_hook::consts::signal::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::cluster::resident::folder::inventory;
use crate::config::{Recovery, Shown};
use crate::observe::console::say;
use crate::observe::event::Event;
use crate::observe::log::{EVENTS_FILE, read_events};

use super::Report;

/// How often it is looked whether somebody asks it to end.
const POLL: Duration = Duration::from_millis(20);
/// Exit code of a bench that is asked twice (as a shell gives it after SIGINT).
const ASKED_TWICE: i32 = 130;
const STOPPED: &str = "stopped before it was over";

/// Where and how a bench runs what it measures.
#[derive(Debug)]
pub struct Runs {
    folder: PathBuf,
    asked_to_end: Arc<AtomicBool>,
}

/// A report that `measure` makes of runs.
///
/// # Errors
/// What kept it from running, for a person.
pub fn of_runs(measure: impl FnOnce(&Runs) -> Result<Report, String>) -> Result<Report, String> {
    let folder = std::env::temp_dir().join(format!("kintsugi-bench-{}", private::word()));
    // Everybody makes names there: one that exists is never taken.
    private::make_folder(&folder)
        .map_err(|error| format!("cannot make {}: {error}", folder.shown()))?;
    let asked_to_end = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let asked = || Arc::clone(&asked_to_end);
        flag::register_conditional_shutdown(signal, ASKED_TWICE, asked())
            .and_then(|_| flag::register(signal, asked()))
            .map_err(|error| format!("cannot listen to signals: {error}"))?;
    }
    let runs = Runs { folder, asked_to_end };
    let result = measure(&runs);
    forget(&runs.folder);
    if let Err(error) = std::fs::remove_dir_all(&runs.folder)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        say!("warning: {} stays behind: {error}", runs.folder.shown());
    }
    if runs.asked_to_end() { Err(STOPPED.into()) } else { result }
}

/// What a run that did not end well left in memory: nobody goes on with a bench's.
fn forget(folder: &Path) {
    let Ok(folder) = folder.canonicalize() else { return };
    let resident_dir = Recovery::default().resident_dir;
    for found in inventory(&resident_dir).unwrap_or_default() {
        if Path::new(&found.run_dir).starts_with(&folder) && !found.held {
            let _ = std::fs::remove_file(found.path);
        }
    }
}

impl Runs {
    /// The directory of a run of this name.
    pub(super) fn directory(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Whether there is to be no further run.
    pub(super) fn asked_to_end(&self) -> bool {
        self.asked_to_end.load(Ordering::Relaxed)
    }

    /// Starts a run, which ends with this process. Its stdout is dropped.
    pub(super) fn start(&self, command: &mut Command) -> Result<Child, String> {
        if self.asked_to_end() {
            return Err(STOPPED.into());
        }
        process::supervise(command, Signal::Terminate);
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.spawn().map_err(|error| {
            format!("cannot start {}: {error}", command.get_program().to_string_lossy())
        })
    }

    /// A whole run, with what it wrote to stderr.
    pub(super) fn run(&self, command: &mut Command) -> Result<Output, String> {
        let child = self.start(command.stderr(Stdio::piped()))?;
        let (pid, is_over) = (child.id(), AtomicBool::new(false));
        let output = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    if self.asked_to_end() {
                        let _ = os::kill(pid, Signal::Terminate);
                        return;
                    }
                    std::thread::sleep(POLL);
                }
            });
            let output = child.wait_with_output();
            is_over.store(true, Ordering::Relaxed);
            output
        });
        let output = output.map_err(|error| format!("waiting for a run: {error}"))?;
        if self.asked_to_end() { Err(STOPPED.into()) } else { Ok(output) }
    }

    /// The events of a whole run under `launch`, which must complete.
    pub(super) fn launched(
        &self,
        config: &Path,
        ranks: u32,
        run_dir: &Path,
        keys: &[String],
    ) -> Result<Vec<Event>, String> {
        let mut command = launch(config, ranks, run_dir)?;
        let output = self.run(command.args(keys.iter().flat_map(|key| ["-s", key])))?;
        match (output.status.success(), read_events(&run_dir.join(EVENTS_FILE))) {
            (true, Ok(events)) => Ok(events),
            _ => Err(format!("the run failed: {}", String::from_utf8_lossy(&output.stderr))),
        }
    }
}

/// `kintsugi launch`, without keys but that no rank is bound: worlds that take turns would not find
/// the same processors free.
pub(super) fn launch(config: &Path, ranks: u32, run_dir: &Path) -> Result<Command, String> {
    let program = std::env::current_exe().map_err(|error| format!("no own program: {error}"))?;
    let mut command = Command::new(program);
    command.args(["launch", "-n", &ranks.to_string()]).arg(config).arg("--run-dir").arg(run_dir);
    command.args(["-s", "run.bind=none"]);
    Ok(command)
}
