//! Runs the real program for the tests that cross processes: every start has a time limit, and
//! whatever is left of its process tree is killed by pid when the limit strikes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use kintsugi::observe::log::read_events;
use kintsugi::observe::result::{RunResult, Status};
use kintsugi::run_folder;
use kintsugi_ffi::os::{Signal, kill};

/// Longest wait of a test for a step of a run.
const STEP_WAIT_MAX: Duration = Duration::from_secs(120);

/// What a run printed and how it ended.
pub struct Ended {
    /// Exit code; `None` when a signal or the limit ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// Whose turn it is on the few cores of this machine.
static TURN: RwLock<()> = RwLock::new(());

/// The ranks of one run share few cores: a test that starts any holds this while they live.
pub fn alone() -> RwLockWriteGuard<'static, ()> {
    TURN.write().unwrap_or_else(PoisonError::into_inner)
}

/// For a test whose ranks hardly compute: it runs beside others of its kind, never beside one that
/// is `alone`.
pub fn beside_its_like() -> RwLockReadGuard<'static, ()> {
    TURN.read().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until the run in this folder has committed `step` steps.
pub fn wait_for_step(folder: &Path, step: u64, running: &mut Running) {
    let limit = Instant::now() + STEP_WAIT_MAX;
    let committed = || {
        let events = read_events(&folder.join("events.jsonl")).unwrap_or_default();
        events.iter().any(|event| event.step >= step)
    };
    while !committed() {
        assert!(!running.has_ended(), "the run ended before step {step}");
        assert!(Instant::now() < limit, "no step {step} within {STEP_WAIT_MAX:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The program.
pub fn kintsugi() -> Command {
    Command::new(env!("CARGO_BIN_EXE_kintsugi"))
}

/// A file of the project.
pub fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A process under a time limit.
pub struct Running {
    child: std::process::Child,
    begun: Instant,
    limit: Duration,
    folder: tempfile::TempDir,
}

/// A slow machine is no hang: what hangs does so for longer, too.
const LIMIT_MIN: Duration = Duration::from_secs(400);

/// Starts a command; `limit` is its time limit.
pub fn start(command: &mut Command, limit: Duration) -> Running {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = |name: &str| std::fs::File::create(folder.path().join(name)).expect("a file");
    command.stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr"));
    let child = command.spawn().expect("the program starts");
    Running { child, begun: Instant::now(), limit: limit.max(LIMIT_MIN), folder }
}

impl Running {
    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("a child can be asked").is_some()
    }

    /// Kills it and all that it started.
    fn end_tree(&mut self) {
        for pid in tree_of(self.child.id()) {
            let _ = kill(pid, Signal::Kill);
        }
        let _ = self.child.wait();
    }

    /// Waits for its end; past the limit its whole tree is killed and the test fails.
    pub fn wait(mut self) -> Ended {
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child can be asked") {
                break status;
            }
            if self.begun.elapsed() > self.limit {
                self.end_tree();
                let read = |name| std::fs::read_to_string(self.folder.path().join(name));
                let words = read("stderr").unwrap_or_default();
                panic!("still running after {:?}; its stderr:\n{words}", self.limit);
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let read = |name| std::fs::read_to_string(self.folder.path().join(name));
        let (stdout, stderr) =
            (read("stdout").unwrap_or_default(), read("stderr").unwrap_or_default());
        Ended { code: status.code(), stdout, stderr }
    }
}

/// A test that fails leaves nothing behind that keeps the machine from the next one.
impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            self.end_tree();
        }
    }
}

/// Runs a command to its end.
pub fn run(command: &mut Command, limit_seconds: u64) -> Ended {
    start(command, Duration::from_secs(limit_seconds)).wait()
}

/// A process and all below it.
fn tree_of(root: u32) -> Vec<u32> {
    let mut tree = vec![root];
    let mut seen = BTreeSet::from([root]);
    let mut at = 0;
    while at < tree.len() {
        for (pid, parent) in processes() {
            if parent == tree[at] && seen.insert(pid) {
                tree.push(pid);
            }
        }
        at += 1;
    }
    tree
}

/// (pid, parent) of every process.
fn processes() -> Vec<(u32, u32)> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, rest) = stat.rsplit_once(") ")?;
        Some((pid, rest.split_whitespace().nth(1)?.parse().ok()?))
    })
    .collect()
}

/// Processes whose command line names this run directory.
pub fn processes_of(run_dir: &Path) -> Vec<(u32, String)> {
    let name = run_dir.display().to_string();
    processes()
        .into_iter()
        .filter(|(pid, _)| *pid != std::process::id())
        .filter_map(|(pid, _)| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            line.contains(&name).then_some((pid, line))
        })
        .collect()
}

/// Names in /dev/shm that are a run's: slots and its attempts' folders, in which Open MPI's files
/// lie.
pub fn shared_memory_of(folder: &Path) -> Vec<String> {
    let prefix = format!("kintsugi-{}-", run_folder::id(folder));
    let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&prefix)).collect()
}

/// `RUN/result.json`.
pub fn result_of(run_dir: &Path) -> RunResult {
    let path = run_dir.join("result.json");
    let text = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&text).expect("result.json is a result")
}

/// A run directory of a test, below cargo's own temporary folder.
pub fn run_dir(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    path
}

/// `kintsugi launch` of the fast configuration.
pub fn launch(run_dir: &Path, overrides: &[&str]) -> Command {
    launch_by(kintsugi(), run_dir, overrides)
}

/// The same by another copy of the program.
pub fn launch_by(mut command: Command, run_dir: &Path, overrides: &[&str]) -> Command {
    command.arg("launch").arg(project("configs/mlp_synthetic.toml"));
    command.arg("--run-dir").arg(run_dir);
    // Of two the last one counts.
    for value in ["run.ranks=4"].iter().chain(overrides) {
        command.args(["-s", value]);
    }
    command
}

/// A whole run of the fast configuration, which must complete.
pub fn completed(name: &str, overrides: &[&str]) -> (PathBuf, RunResult) {
    let folder = run_dir(name);
    let ended = start(&mut launch(&folder, overrides), LIMIT_MIN).wait();
    let result = has_completed(&ended, &folder);
    (folder, result)
}

/// What a run that has completed ended with: it is audited clean, and nothing of it is left.
pub fn has_completed(ended: &Ended, folder: &Path) -> RunResult {
    assert_eq!(ended.code, Some(0), "{}: {}", folder.display(), ended.stderr);
    let result = result_of(folder);
    assert_eq!(result.status, Status::Completed, "{}", folder.display());
    assert_audited(folder);
    assert_nothing_runs(folder);
    result
}

/// The key that plans these faults.
pub fn plan(faults: &[&str]) -> String {
    format!("faults.plan=[{}]", faults.join(", "))
}

/// SIGKILL of mpirun and every rank at one instant; the supervisor is `spared`, or dies too.
pub fn kill_all(folder: &Path, spared: Option<u32>) {
    let mut victims: Vec<u32> = processes_of(folder).into_iter().map(|(pid, _)| pid).collect();
    victims.retain(|pid| Some(*pid) != spared);
    // Stopped first: while this test waits for a core, nobody sees another one dead. Parents die
    // last: the kernel lets the stopped children of a dead one go on.
    victims.sort_unstable_by_key(|pid| std::cmp::Reverse(*pid));
    for signal in [Signal::Stop, Signal::Kill] {
        for &pid in &victims {
            // It may be gone by now: the others' deaths end it.
            let _ = kill(pid, signal);
        }
    }
}

/// `kintsugi audit` passes.
pub fn assert_audited(run_dir: &Path) {
    let audit = run(kintsugi().arg("audit").arg(run_dir), 60);
    assert_eq!(
        audit.code,
        Some(0),
        "audit of {}: {}{}",
        run_dir.display(),
        audit.stdout,
        audit.stderr
    );
}

/// Nothing of a run is left running.
pub fn assert_nothing_runs(run_dir: &Path) {
    // The launcher's children need a moment to be reaped.
    let limit = Instant::now() + Duration::from_secs(20);
    while !processes_of(run_dir).is_empty() && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(processes_of(run_dir), vec![], "processes are left");
}

/// What makes a helper in C a library that can be preloaded.
pub const PRELOADED: [&str; 2] = ["-shared", "-fPIC"];

/// A helper in C below `tests/processes`, built by the compiler that built the program.
///
/// # Errors
/// There is no compiler.
pub fn compiled(source: &str, flags: &[&str], place: &Path) -> Result<PathBuf, String> {
    let source = project(&format!("tests/processes/{source}"));
    let made = place.join(source.file_stem().expect("a file"));
    let built = Command::new("cc")
        .args(flags)
        .arg("-O1")
        .arg("-o")
        .arg(&made)
        .arg(source)
        .arg("-ldl")
        .output();
    match built {
        Ok(output) if output.status.success() => Ok(made),
        Ok(output) => panic!("cc: {}", String::from_utf8_lossy(&output.stderr)),
        Err(error) => Err(format!("no C compiler named cc: {error}")),
    }
}
