//! The ULFM shim under real mpirun, in C alone: ranks are killed inside an agreement, and the
//! survivors' answers must be equal every time; their memory does not grow with further rounds.
//! And what is preloaded into mpirun, with mpirun's own event library.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kintsugi::launch::attempt::preload::{self, PRELOAD_VARIABLE};
use kintsugi_ffi::{os, process};

use crate::support::{alone, kintsugi, start};

/// Ranks of one mpirun; all but two are killed one after another.
const RANKS: u64 = 12;
const KILLS_PER_RUN: u64 = RANKS - 2;
const REPEATS_DEFAULT: u64 = 50;
/// A run takes seconds; the self test ends itself a little earlier.
const RUN_LIMIT: Duration = Duration::from_secs(40);
/// What it takes if one of its processes hung until then.
const HUNG: Duration = Duration::from_secs(25);
/// In about one of 300 deaths inside it (twelve processes on two busy cores) Open MPI's agreement
/// forgets a survivor. That is no different answer, and not what is claimed here.
const HUNG_MAX: u32 = 2;

/// Of the heap, by a round among survivors; what grows is not of this agreement but beside it.
const KEPT_BYTES_MAX: i64 = 16;

fn compile_selftest(folder: &Path) -> PathBuf {
    let entries = Path::new(env!("CARGO_MANIFEST_DIR")).join("ulfm-shim").read_dir().unwrap();
    let files = entries.map(|entry| entry.unwrap().path());
    let sources = files.filter(|file| file.extension().is_some_and(|extension| extension == "c"));
    let program = folder.join("selftest");
    let output = Command::new(kintsugi_ffi::mpi::mpicc())
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-rdynamic", "-pthread", "-o"])
        .arg(&program)
        .args(sources)
        .output()
        .expect("the compiler wrapper this was built with");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

fn mpirun() -> PathBuf {
    kintsugi::lab::probe_mpi::find_mpirun().expect("mpirun beside the compiler wrapper")
}

/// One mpirun, bounded; its standard output.
fn run(folder: &Path, program: &Path, kills: u64, seed: u64) -> String {
    let log = folder.join("output");
    let file = std::fs::File::create(&log).expect("a file in our folder");
    let mut command = Command::new(mpirun());
    command
        .args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none"])
        .args(["--with-ft", "ulfm", "--mca", "btl", "self,sm,tcp", "--mca", "coll", "^han"])
        .args(["--prtemca", "state_base_recoverable", "1", "--mca", "async_mpi_finalize", "1"])
        .args(["-n", &RANKS.to_string()])
        .arg(program)
        .args([kills.to_string(), seed.to_string()])
        .env("TMPDIR", folder)
        .env("OMPI_MCA_btl_sm_backing_directory", folder)
        .stdin(Stdio::null())
        .stdout(file.try_clone().expect("a descriptor"))
        .stderr(file);
    process::supervise(&mut command, os::Signal::Kill);
    let mut child = command.spawn().expect("mpirun starts");
    let deadline = Instant::now() + RUN_LIMIT;
    while child.try_wait().expect("our child").is_none() {
        if Instant::now() > deadline {
            let _ = os::kill(child.id(), os::Signal::Terminate);
            std::thread::sleep(Duration::from_secs(1));
            let _ = os::kill_group(child.id(), os::Signal::Kill);
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    child.wait().expect("our child");
    std::fs::read_to_string(&log).expect("our file")
}

#[test]
fn survivors_of_a_death_inside_agree_always_have_equal_answers() {
    let _turn = alone();
    let repeats = std::env::var("KINTSUGI_SELFTEST_REPEATS").map_or(REPEATS_DEFAULT, |text| {
        text.parse().expect("KINTSUGI_SELFTEST_REPEATS is a number")
    });
    let first_seed = std::env::var("KINTSUGI_SELFTEST_SEED")
        .map_or(1, |text| text.parse::<u64>().expect("KINTSUGI_SELFTEST_SEED is a number"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compile_selftest(folder.path());
    let (mut left, mut seed, mut hung) = (repeats, first_seed, 0);
    while left > 0 {
        let kills = left.min(KILLS_PER_RUN);
        let begun = Instant::now();
        let output = run(folder.path(), &program, kills, seed);
        if begun.elapsed() > HUNG && !output.contains("UNEQUAL") && hung < HUNG_MAX {
            (hung, seed) = (hung + 1, seed + 1);
            continue;
        }
        let equal = output.lines().filter(|line| line.starts_with("equal ")).count() as u64;
        assert_eq!(
            equal, kills,
            "replay with KINTSUGI_SELFTEST_SEED={seed} KINTSUGI_SELFTEST_REPEATS={kills}\n{output}"
        );
        let kept = output.lines().find_map(|line| line.strip_prefix("kept ")?.parse::<i64>().ok());
        assert!(
            kept.is_some_and(|bytes| bytes < KEPT_BYTES_MAX),
            "{kept:?} bytes a round\n{output}"
        );
        left -= kills;
        seed += 1;
    }
}

#[test]
fn the_self_test_refuses_what_it_cannot_do() {
    let _turn = alone();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let program = compile_selftest(folder.path());
    let output = run(folder.path(), &program, RANKS - 1, 1);
    assert!(output.contains("REPETITIONS must be between 1 and RANKS - 2"), "{output}");
}

/// Where mpirun's own libevent lies, by its dynamic linker; `None` where it is linked into another
/// library.
fn launchers_libevent() -> Option<PathBuf> {
    let launcher = mpirun().with_file_name("prterun");
    let output = Command::new("ldd").arg(launcher).output().expect("ldd");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let words = text.split_whitespace();
    words
        .map(PathBuf::from)
        .find(|word| word.is_absolute() && word.display().to_string().contains("/libevent_core"))
}

/// What `launcher/selftest.c` says, under this name and with this preloaded.
fn closed_descriptors(folder: &Path, libevent: &Path, name: &str, preloaded: &str) -> String {
    let program = folder.join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("ulfm-shim/launcher/selftest.c");
    let mut compiler = Command::new(kintsugi_ffi::mpi::mpicc());
    compiler.args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source);
    compiler.arg(libevent).arg(format!("-Wl,-rpath,{}", libevent.parent().unwrap().display()));
    let compiled = compiler.output().expect("the compiler wrapper this was built with");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(program).env(PRELOAD_VARIABLE, preloaded).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_descriptor_that_mpirun_closes_leaves_its_event_loop() {
    let _turn = alone();
    let Some(libevent) = launchers_libevent() else {
        eprintln!("skipped: prterun has no libevent_core of its own to test with");
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let says =
        |name, preloaded: &str| closed_descriptors(folder.path(), &libevent, name, preloaded);
    let library = preload::lay_down(folder.path(), None).unwrap().expect("not noexec");
    let library = library.to_str().expect("our own folder");

    let cured = says("prte-selftest", library);
    let expected = "first: heard\nsame number: heard\nafter a child closed it: heard\n\
                    preloaded for children: nothing\n";
    assert_eq!(cured, expected);
    let defect = says("prte-selftest", "");
    assert!(defect.contains("same number: forgotten"), "cured by somebody else: {defect}");

    // Beside what the user preloads, and in any program but mpirun's.
    let beside = says("prte-selftest", &format!("libm.so.6:{library}"));
    assert!(beside.contains("same number: heard"), "{beside}");
    assert!(beside.contains("preloaded for children: libm.so.6\n"), "{beside}");
    let elsewhere = says("rank", library);
    assert!(elsewhere.contains("same number: forgotten"), "{elsewhere}");
    assert!(elsewhere.contains("preloaded for children: nothing\n"), "{elsewhere}");
}

#[test]
fn the_probes_mpirun_is_loaded_with_the_cure() {
    let _turn = alone();
    let mut command = kintsugi();
    let mut probe = start(command.args(["probe", "mpi", "-n", "2", "--sequence", "2"]), RUN_LIMIT);
    let children = format!("/proc/{0}/task/{0}/children", probe.pid());
    let is_cured = |pid: &str| {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        maps.contains("libclosed_descriptors.so")
    };
    let mut cured = false;
    while !cured && !probe.has_ended() {
        let pids = std::fs::read_to_string(&children).unwrap_or_default();
        cured = pids.split_whitespace().any(is_cured);
        std::thread::sleep(Duration::from_millis(5));
    }
    let ended = probe.wait();
    assert!(cured, "{}", ended.stderr);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}
