//! A bench from outside: asked to end, it ends its run and leaves nothing.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::support::{Running, alone, kintsugi, processes_of, project, start, wait_for_step};
use kintsugi_ffi::os::{self, Signal};

#[test]
fn a_bench_that_is_asked_to_end_takes_its_run_along_and_removes_its_folder() {
    let _alone = alone();
    let place = tempfile::tempdir().unwrap();
    for signal in [Signal::Interrupt, Signal::Terminate] {
        let mut bench = kintsugi();
        bench.env("TMPDIR", place.path()).args(["bench", "calm", "--ranks", "2", "--config"]);
        bench.arg(project("configs/mlp_synthetic.toml"));
        let mut bench = start(&mut bench, Duration::from_secs(60));
        let folder = folder_of(&mut bench, place.path());
        // One of the two is frozen then.
        wait_for_step(&folder.join("plain-1"), 100, &mut bench);
        os::kill(bench.pid(), signal).unwrap();
        let ended = bench.wait();
        assert_eq!(ended.code, Some(1), "{}", ended.stderr);
        assert!(ended.stderr.contains("stopped before it was over"), "{}", ended.stderr);
        assert!(!folder.exists(), "{} is left", folder.display());
        assert_eq!(processes_of(&folder), [], "{signal:?}");
    }
}

/// The folder of its runs, under a name that nobody can foresee.
fn folder_of(bench: &mut Running, place: &Path) -> PathBuf {
    const WAIT_MAX: Duration = Duration::from_secs(30);
    let is_bench = |path: &PathBuf| path.to_string_lossy().contains("/kintsugi-bench-");
    let limit = Instant::now() + WAIT_MAX;
    loop {
        let mut paths = std::fs::read_dir(place).unwrap().flatten().map(|entry| entry.path());
        if let Some(folder) = paths.find(is_bench) {
            return folder;
        }
        assert!(!bench.has_ended(), "the bench ended before it had a folder");
        assert!(Instant::now() < limit, "no folder within {WAIT_MAX:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn worlds_that_take_turns_are_compared_and_none_is_taken_for_dead() {
    let _alone = alone();
    let place = tempfile::tempdir().unwrap();
    let mut bench = kintsugi();
    bench.env("TMPDIR", place.path()).args(["bench", "calm", "--ranks", "2", "--turns", "2"]);
    bench.args(["--starts", "2", "--json", "--config"]).arg(project("configs/mlp_synthetic.toml"));
    let ended = start(&mut bench, Duration::from_secs(120)).wait();
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let report: serde_json::Value =
        serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap();
    let case = |name: &str| {
        let cases = report["cases"].as_array().unwrap();
        cases.iter().find(|case| case["case"] == name).unwrap().clone()
    };
    for arm in ["fault_tolerant", "plain"] {
        assert_eq!(case(arm)["n"], 2, "a sample a start");
        assert!(case(arm)["min"].as_f64().unwrap() > 0.0, "{report}");
    }
    let ratio =
        |end: &str| report["ratios"][format!("fault_tolerant/plain{end}")].as_f64().unwrap();
    assert!(ratio(" low") <= ratio("") && ratio("") <= ratio(" high"), "{report}");
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0, "a folder is left");
}
