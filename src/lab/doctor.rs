//! `kintsugi doctor`: what this machine has, and whether recovery works on it. The inventory only
//! looks; the live check kills a rank and its replacement under the real launcher.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kintsugi_ffi::cgroup::{self, Cgroup};
use kintsugi_ffi::cuda::{self, Device, Driver, Found, Missing, Places};
use kintsugi_ffi::{mpi, os, process};
use serde::Serialize;

use crate::config::{Config, Shown};
use crate::engine;
use crate::launch::attempt::runtime::{RUNTIME_VARIABLE, Runtime};
use crate::launch::machine::ceilings::{self, Ceilings};
use crate::launch::machine::logout::{AtLogout, at_logout, places};
use crate::launch::machine::network::{complaints, isolation};
use crate::launch::nodes::allocation::stray;
use crate::launch::start::opening;
use crate::observe::spans::amount;

use super::probe_mpi::{self, Outcome, Scenario};
use super::resident;

/// Longest live check.
const LIVE_CHECK_MAX: Duration = Duration::from_secs(30);
/// Longest run of a tool that is asked about the machine.
const TOOL_MAX: Duration = Duration::from_secs(5);
/// Longest start of the driver: seconds where many cards were asleep.
const DRIVER_MAX: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(10);

/// How a finding is to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// As it should be.
    Ok,
    /// Not there, and not needed.
    Absent,
    /// Works, but something will not.
    Warning,
    /// Recovery does not work like this.
    Broken,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// What.
    pub name: &'static str,
    /// What was found.
    pub value: String,
    /// How to read it.
    pub state: Grade,
    /// What to do; empty when nothing.
    pub advice: String,
}

/// Without advice.
pub(super) fn finding(name: &'static str, state: Grade, value: impl Into<String>) -> Finding {
    Finding { name, value: value.into(), state, advice: String::new() }
}

impl Finding {
    /// With what to do.
    pub(super) fn advise(self, advice: impl Into<String>) -> Self {
        Self { advice: advice.into(), ..self }
    }
}

/// Everything `doctor` knows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Diagnosis {
    /// The inventory.
    pub findings: Vec<Finding>,
    /// The live check, unless it could not be started.
    pub live_check: Option<Outcome>,
    /// Whether a killed rank was replaced, twice.
    pub recovery_works: bool,
    /// The rungs that can be relied on here.
    pub ladder: Vec<&'static str>,
}

/// Looks, then kills. `resident_dir`: where resident state of runs may lie; `config`: of the run
/// that is to fit.
pub fn diagnose(resident_dir: &Path, config: &Config) -> Diagnosis {
    let mut findings = vec![machine(), mpi_library(), launcher(), node_launcher()];
    findings.push(compute());
    findings.extend(gpu());
    findings.extend([slurm(), network()]);
    findings.extend([room(config, cgroup::read()), logout(at_logout())]);
    let places = places(resident_dir);
    findings.extend(places.iter().flat_map(|place| resident_state(place)));
    let checked = probe_mpi::launch(&Scenario::live_check(LIVE_CHECK_MAX));
    let (live_check, failure) = match checked {
        Ok(outcome) => (Some(outcome), String::new()),
        Err(error) => (None, error),
    };
    findings.push(workarounds(live_check.as_ref()));
    findings.push(recovery(live_check.as_ref(), failure));
    let recovery_works = live_check.as_ref().is_some_and(|outcome| outcome.ok);
    let ladder = if recovery_works {
        vec!["spare", "respawn", "shrink", "restart"]
    } else {
        vec!["restart"]
    };
    Diagnosis { findings, live_check, recovery_works, ladder }
}

fn machine() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let memory = match (cgroup::available_memory_bytes(), cgroup::total_memory_bytes()) {
        (Some(available), Some(total)) => {
            format!("{} of {} memory available", amount(available), amount(total))
        }
        _ => "memory unknown".into(),
    };
    finding("machine", Grade::Ok, format!("{}, {cores} threads, {memory}", os::hostname()))
}

/// What ulimit, control groups and file systems leave, against what the run needs.
fn room(config: &Config, cgroup: Cgroup) -> Finding {
    const NAME: &str = "room";
    let folder = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("."));
    let have = Ceilings::granted(cgroup).with_free(&folder, 0);
    let known = |bytes: Option<u64>| bytes.map_or("unknown".into(), amount);
    let (shared, disk) = (known(have.shared_bytes), known(have.disk_bytes));
    let free = format!("{shared} free in /dev/shm, {disk} in {}", folder.shown());
    let (ranks, workers) = (u64::from(config.run.ranks), u64::from(config.train.workers));
    let Some(need) = opening::needs_of(config, ranks) else {
        return finding(NAME, Grade::Warning, format!("{free}; the model is unknown"));
    };
    let short = ceilings::complaints(have, &need, (ranks, workers));
    let grade = if short.is_empty() { Grade::Ok } else { Grade::Warning };
    let name = config.model.name.shown();
    finding(NAME, grade, format!("{free}; a run of {name} needs {}", need.line()))
        .advise(short.join("; "))
}

fn mpi_library() -> Finding {
    let version = mpi::library_version();
    let value = format!("{version}, built with {}", mpi::mpicc());
    finding("MPI library", if version.is_empty() { Grade::Broken } else { Grade::Ok }, value)
}

/// The launcher, and whether it is of the library's version: a mixture fails in odd ways.
fn launcher() -> Finding {
    const NAME: &str = "launcher";
    let path = match probe_mpi::find_mpirun() {
        Ok(path) => path,
        Err(error) => return finding(NAME, Grade::Broken, error.to_string()),
    };
    let answer = ask(Command::new(&path).arg("--version")).unwrap_or_default();
    let line = answer.lines().next().unwrap_or("does not say its version").trim().to_owned();
    let value = format!("{} ({line})", path.shown());
    let library = mpi::library_version();
    let number = library.rsplit('v').next().unwrap_or_default();
    if !number.is_empty() && line.ends_with(number) {
        return finding(NAME, Grade::Ok, value);
    }
    finding(NAME, Grade::Warning, value).advise(format!(
        "the program is linked with {library}: use the mpirun beside {}",
        mpi::mpicc()
    ))
}

/// What is used over several nodes, and what that survives.
fn node_launcher() -> Finding {
    const NAME: &str = "over nodes";
    let survives_ranks = "the launcher above: ranks' deaths are survived, a node's ends it and it \
                          is started again";
    let variable = std::env::var_os(RUNTIME_VARIABLE).map(PathBuf::from);
    let mpirun = probe_mpi::find_mpirun().unwrap_or_default();
    match Runtime::find("auto", variable, &mpirun, Path::new("kintsugi")) {
        Ok(None) => finding(NAME, Grade::Ok, survives_ranks),
        Ok(Some(runtime)) => {
            let path = runtime.prefix.join("bin/prterun");
            let answer = ask(Command::new(&path).arg("--version")).unwrap_or_default();
            let line = answer.lines().next().unwrap_or("does not say its version").trim();
            let text = format!("{} ({line}): a node's death is survived too", path.shown());
            finding(NAME, Grade::Ok, text)
        }
        Err(error) => finding(NAME, Grade::Warning, error.to_string()),
    }
}

fn compute() -> Finding {
    const NAME: &str = "compute";
    match engine::arithmetic(&crate::config::Device::default(), 1) {
        Ok(kind) => finding(NAME, Grade::Ok, kind),
        Err(error) => finding(NAME, Grade::Broken, error.to_string()),
    }
}

/// The devices, and what a run on them would load. The driver is asked itself: only it knows
/// whether they can be used.
fn gpu() -> Vec<Finding> {
    const NAME: &str = "GPU";
    let (send, answer) = std::sync::mpsc::channel();
    let asked = std::thread::Builder::new().spawn(move || {
        let driver = Driver::open(None).and_then(|driver| {
            let devices = driver.devices()?;
            Ok((driver, devices))
        });
        // Nobody listens any more where it took too long.
        let _ = send.send(driver);
    });
    if let Err(error) = asked {
        return vec![finding(NAME, Grade::Warning, format!("nobody could be asked: {error}"))];
    }
    match answer.recv_timeout(DRIVER_MAX) {
        Ok(Ok((driver, devices))) => {
            let listed: Result<Vec<String>, cuda::Error> = devices.iter().map(described).collect();
            let (version, place) = (driver.version(), driver.place().shown().to_string());
            let runs = format!("CUDA {}.{} ({place})", version / 1000, version % 1000 / 10);
            let devices = match listed {
                Ok(listed) => finding(NAME, Grade::Ok, format!("{}; {runs}", listed.join("; "))),
                Err(error) => finding(NAME, Grade::Warning, format!("{error}; {runs}")),
            };
            vec![devices, cuda_libraries(&Found::look(&Places::usual(None)))]
        }
        Ok(Err(missing)) => vec![no_gpu(&missing, &listed_devices())],
        Err(_) => {
            let value = format!("the driver does not answer within {} s", DRIVER_MAX.as_secs());
            vec![finding(NAME, Grade::Warning, value).advise("`nvidia-smi` may say more")]
        }
    }
}

fn described(device: &Device) -> Result<String, cuda::Error> {
    let memory = amount(device.memory_bytes()? as u64);
    Ok(format!("{}, {}, {memory}", device.name()?, device.architecture()?))
}

/// The usual case is a machine without a card, of which there is nothing more to say.
fn no_gpu(missing: &Missing, listed: &str) -> Finding {
    const NAME: &str = "GPU";
    match missing {
        Missing::Nowhere { .. } if listed.is_empty() => finding(NAME, Grade::Absent, "none"),
        Missing::Nowhere { .. } => finding(NAME, Grade::Warning, listed)
            .advise("nvidia-smi sees devices but libcuda.so.1 is missing: install the driver"),
        Missing::Call(error) if error.is_no_device() && listed.is_empty() => {
            finding(NAME, Grade::Absent, "none (the driver is there)")
        }
        other => finding(NAME, Grade::Warning, other.to_string()),
    }
}

fn listed_devices() -> String {
    let listed = ask(Command::new("nvidia-smi").arg("-L")).unwrap_or_default();
    let devices: Vec<&str> = listed.lines().filter(|line| line.starts_with("GPU ")).collect();
    devices.join("; ")
}

/// NVRTC and cuDNN, each with its place or why it is not there.
fn cuda_libraries(found: &Found) -> Finding {
    let nvrtc = found.nvrtc.as_ref().map(|(origin, nvrtc)| {
        let (major, minor) = nvrtc.version();
        format!("NVRTC {major}.{minor} ({origin}, {})", nvrtc.place().shown())
    });
    let cudnn = found.cudnn.as_ref().map(|(origin, cudnn)| {
        let (version, place) = (cudnn.version(), cudnn.place().shown().to_string());
        let (major, minor, patch) = (version / 10_000, version / 100 % 100, version % 100);
        format!("cuDNN {major}.{minor}.{patch} ({origin}, {place})")
    });
    // What is there and cannot be used is worse than nothing.
    let nowhere = |missing: &Missing| matches!(missing, Missing::Nowhere { .. });
    let unusable = [nvrtc.as_ref().err(), cudnn.as_ref().err()].into_iter().flatten();
    let state = match unusable.copied().all(nowhere) {
        true => Grade::Absent,
        false => Grade::Warning,
    };
    let parts = [nvrtc, cudnn].map(|part| part.unwrap_or_else(|missing| missing.to_string()));
    let whole = finding("CUDA libraries", Grade::Ok, parts.join("; "));
    match found.is_whole() {
        true => whole,
        false => Finding { state, ..whole }
            .advise("`cluster-scripts/setup.sh --cuda` fetches them, 0.9 GB"),
    }
}

fn slurm() -> Finding {
    const NAME: &str = "SLURM";
    let path = std::env::var_os("PATH").unwrap_or_default();
    let sbatch = std::env::split_paths(&path).map(|folder| folder.join("sbatch"));
    let sbatch = sbatch.into_iter().find(|file| file.is_file());
    let job = std::env::var("SLURM_JOB_ID").ok();
    if let Some(stray) = stray() {
        return finding(NAME, Grade::Warning, stray.told());
    }
    match (sbatch, job) {
        (_, Some(job)) => {
            let nodes = std::env::var("SLURM_JOB_NODELIST").unwrap_or_default();
            finding(NAME, Grade::Ok, format!("inside allocation {job} ({nodes})"))
        }
        (Some(sbatch), None) => {
            finding(NAME, Grade::Ok, format!("{}, not inside an allocation", sbatch.shown()))
        }
        (None, None) => finding(NAME, Grade::Absent, "no sbatch in PATH"),
    }
}

/// Whether what outlives the ranks outlives the user's sessions too.
fn logout(at_logout: AtLogout) -> Finding {
    const NAME: &str = "at logout";
    match at_logout {
        AtLogout::Kept => finding(NAME, Grade::Ok, "shared memory stays"),
        AtLogout::Emptied => {
            finding(NAME, Grade::Warning, "systemd empties /dev/shm when your last session ends")
                .advise(
                    "`loginctl enable-linger` keeps it; without, launch puts resident state that \
                     nobody placed into /tmp unless that is a network's, and a run that is left to \
                     itself cannot start ranks in its attempt any more: they start again together",
                )
        }
    }
}

/// What runs left in memory: theirs while they are unfinished.
fn resident_state(folder: &Path) -> Vec<Finding> {
    const NAME: &str = "resident state";
    let runs = match resident::listing(folder) {
        Ok(runs) => runs,
        Err(error) => return vec![finding(NAME, Grade::Warning, error.to_string())],
    };
    if runs.is_empty() {
        return vec![finding(NAME, Grade::Absent, format!("none in {}", folder.shown()))];
    }
    let describe = |run: &resident::Slots| {
        let step = run.step.map_or("no step".into(), |step| format!("step {step}"));
        let size = amount(run.bytes);
        let whose = if run.run_dir.is_empty() { "an unknown run" } else { &run.run_dir };
        let value = format!("{} files, {size}, {step} of {whose}", run.files);
        match run.used {
            resident::Use::Held => finding(NAME, Grade::Ok, format!("{value}, which runs")),
            resident::Use::Waiting => finding(NAME, Grade::Warning, format!("{value}, unfinished"))
                .advise("start its launch again to go on from it, or `kintsugi doctor --clear`"),
            resident::Use::Stale => finding(NAME, Grade::Warning, format!("{value}, stale"))
                .advise("remove it with `kintsugi doctor --clear`"),
        }
    };
    runs.iter().map(describe).collect()
}

/// Whether ranks of several nodes would find each other, and replacements their ranks.
fn network() -> Finding {
    const NAME: &str = "network";
    if let Some(why) = isolation() {
        return finding(NAME, Grade::Broken, why);
    }
    let complaints = complaints();
    if !complaints.is_empty() {
        return finding(NAME, Grade::Warning, complaints.join("; "))
            .advise("unset the variable, or name an interface of every node");
    }
    let host = os::hostname();
    match ask(Command::new("getent").args(["hosts", &host])) {
        Some(address) => finding(NAME, Grade::Ok, address.trim().to_owned()),
        None => finding(NAME, Grade::Warning, format!("the host name {host:?} has no address"))
            .advise("several nodes need one: mend /etc/hosts or the name service"),
    }
}

/// As the ranks of the live check found them, which had MPI running.
fn workarounds(checked: Option<&Outcome>) -> Finding {
    const NAME: &str = "work-arounds";
    let seen = checked.and_then(|outcome| outcome.workarounds.as_deref());
    match seen {
        Some("Active") => finding(NAME, Grade::Ok, "active (libmpi calls them)"),
        Some("NotNeeded") => finding(NAME, Grade::Warning, "off: made for Open MPI 5.0.11 only")
            .advise("a replacement that dies while it joins may hang or crash the others here"),
        Some("Unreached") => finding(NAME, Grade::Broken, "libmpi does not call them").advise(
            "link the program with -rdynamic: build with cargo from the root of the repository",
        ),
        Some(_) => finding(NAME, Grade::Warning, "off: this build of Open MPI 5.0.11 differs")
            .advise("run cluster-scripts/setup.sh without MPICC to use the build they know"),
        None => finding(NAME, Grade::Warning, "unknown: no rank of the live check finished"),
    }
}

fn recovery(checked: Option<&Outcome>, failure: String) -> Finding {
    const NAME: &str = "recovery";
    const ADVICE: &str = "training works, but a death ends the attempt and `launch` starts again \
                          from resident state or a checkpoint; see `kintsugi probe mpi` for more";
    const UNSTARTED: &str = "training does not work: mpirun could not start its ranks; what it \
                             says above, and the findings before, name the cause";
    match checked {
        Some(outcome) if outcome.ok => {
            let seconds: Vec<String> = outcome
                .repairs
                .iter()
                .map(|repair| format!("{:.0} ms", repair.total * 1e3))
                .collect();
            let value = format!(
                "a killed rank and its killed replacement were replaced in {}",
                seconds.join(" and ")
            );
            finding(NAME, Grade::Ok, value)
        }
        Some(outcome) => {
            let advice = if outcome.began() { ADVICE } else { UNSTARTED };
            finding(NAME, Grade::Broken, outcome.problems.join("; ")).advise(advice)
        }
        None => finding(NAME, Grade::Broken, failure).advise(UNSTARTED),
    }
}

/// Standard output of a tool, or `None` when it is not there, fails, or takes too long.
fn ask(command: &mut Command) -> Option<String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    process::supervise(command, os::Signal::Kill);
    let mut child = command.spawn().ok()?;
    let stdout = child.stdout.take();
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        stdout.map(|mut stream| stream.read_to_string(&mut text));
        text
    });
    let deadline = Instant::now() + TOOL_MAX;
    let status = loop {
        match child.try_wait().ok()? {
            Some(status) => break status,
            None if Instant::now() < deadline => std::thread::sleep(LOOK),
            None => {
                let _ = os::kill_group(child.id(), os::Signal::Kill);
                child.wait().ok()?;
                return None;
            }
        }
    };
    let text = reader.join().ok()?;
    status.success().then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_or_failing_or_endless_tool_is_no_answer() {
        assert_eq!(ask(&mut Command::new("kintsugi-no-such-tool")), None);
        assert_eq!(ask(&mut Command::new("false")), None);
        assert_eq!(ask(Command::new("echo").arg("yes")).as_deref(), Some("yes\n"));
    }

    #[test]
    fn too_little_room_is_a_warning_that_says_what_to_do() {
        let mut config = Config::default();
        assert_eq!(room(&config, Cgroup::default()).state, Grade::Ok);
        let scarce = room(&config, Cgroup { processes_free: Some(3), ..Cgroup::default() });
        assert_eq!(scarce.state, Grade::Warning);
        assert!(scarce.advice.contains("pids.max"), "{}", scarce.advice);
        config.model.name = "nobody's".into();
        assert!(room(&config, Cgroup::default()).value.contains("the model is unknown"));
    }

    #[test]
    fn recovery_that_was_not_seen_to_work_does_not_work() {
        let nothing = recovery(None, "no mpirun".into());
        assert_eq!(nothing.state, Grade::Broken);
        assert!(nothing.advice.contains("training does not work"), "{}", nothing.advice);
        assert_eq!(workarounds(None).state, Grade::Warning);
    }

    #[test]
    fn a_machine_without_a_card_is_told_so_in_one_quiet_line() {
        let nowhere = Missing::Nowhere { file: "libcuda.so.1".into() };
        assert_eq!(no_gpu(&nowhere, ""), finding("GPU", Grade::Absent, "none"));
        let seen = no_gpu(&nowhere, "GPU 0: a card");
        assert_eq!((seen.state, seen.value.as_str()), (Grade::Warning, "GPU 0: a card"));
        let symbol = "cuFuncGetParamInfo";
        let old = no_gpu(&Missing::Symbol { file: "libcuda.so.1".into(), symbol }, "");
        assert_eq!(old.state, Grade::Warning);
        assert!(old.value.contains(symbol), "{}", old.value);
    }

    #[test]
    fn shared_memory_that_goes_with_the_last_session_is_a_warning() {
        assert_eq!(logout(AtLogout::Kept).state, Grade::Ok);
        let emptied = logout(AtLogout::Emptied);
        assert_eq!(emptied.state, Grade::Warning);
        assert!(emptied.advice.contains("loginctl enable-linger"));
    }
}
