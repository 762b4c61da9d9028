//! `benches/cuda/prove`, which is to run on a machine with a card: here on one that is none, so
//! that it does not fail there for its own mistakes.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::cuda::fake;
use crate::support::{alone, processes_of, project, run, run_dir};

/// Seconds that it may take.
const LIMIT: u64 = 180;

/// It tries its stages on small cases, with our program and the fake driver, without PyTorch.
fn prove(stages: &str, out: &Path) -> Command {
    let mut prove = Command::new(project("benches/cuda/prove"));
    prove.args(["--tiny", "--python", "", "--only", stages, "--out"]).arg(out);
    prove.env("KINTSUGI_BINARY", env!("CARGO_BIN_EXE_kintsugi"));
    prove.env("LD_LIBRARY_PATH", fake::folder()).env("KINTSUGI_CUDA", fake::folder());
    prove
}

fn record(out: &Path, stage: &str) -> Value {
    let text = std::fs::read(out.join(stage).with_extension("json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

#[test]
fn all_that_is_to_be_proven_on_a_card_holds_on_one_that_is_none() {
    let _turn = alone();
    let out = run_dir("prove");
    let work = tempfile::tempdir().unwrap();
    let ended = run(prove("losses,bits,memory,step", &out).env("TMPDIR", work.path()), LIMIT);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    for (stage, cases) in [("losses", 6), ("bits", 4), ("memory", 5), ("step", 2)] {
        let record = record(&out, stage);
        assert_eq!(record["holds"], true, "{record}");
        assert_eq!(record["cases"].as_array().unwrap().len(), cases, "{record}");
        assert!(ended.stdout.contains(&format!("\n{stage}: holds, ")), "{}", ended.stdout);
    }
    assert!(ended.stdout.contains("two killed: "), "{}", ended.stdout);
    assert_eq!(std::fs::read_dir(work.path()).unwrap().count(), 0, "something is left");
}

#[test]
fn a_stage_without_a_card_fails_and_stops_no_other() {
    let _turn = alone();
    let out = run_dir("prove-without");
    let mut prove = prove("device,kernels,bits", &out);
    let ended = run(prove.env("KINTSUGI_FAKE_CUDA", "cuInit=100"), LIMIT);
    assert_eq!(ended.code, Some(1), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("FAILED: GPU: "), "{}", ended.stdout);
    assert!(ended.stdout.contains("\nkernels: skipped, "), "{}", ended.stdout);
    assert!(ended.stdout.contains("CUDA_ERROR_NO_DEVICE"), "{}", ended.stdout);
    assert_eq!(record(&out, "bits")["holds"], false);
}

#[test]
fn a_stage_that_takes_too_long_is_ended_with_all_that_it_started() {
    let _turn = alone();
    let out = run_dir("prove-late");
    let work = tempfile::tempdir().unwrap();
    // The longest stage, ended in its first runs.
    let mut prove = prove("memory", &out);
    prove.args(["--seconds-max", "4"]).env("TMPDIR", work.path());
    let ended = run(&mut prove, LIMIT);
    assert_eq!(ended.code, Some(1), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("NOT DONE: it took longer than "), "{}", ended.stdout);
    assert_eq!(processes_of(work.path()), vec![], "processes are left");
    assert_eq!(std::fs::read_dir(work.path()).unwrap().count(), 0, "something is left");
}
