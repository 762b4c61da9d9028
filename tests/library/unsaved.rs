//! A run whose last checkpoint cannot be written is not complete: its state stays, and the same
//! command completes it, with the bits of a run that met no trouble.

use std::path::Path;
use std::process::{Command, Output};

use kintsugi::observe::event::{Event, Kind};
use kintsugi::observe::log::read_events;
use kintsugi::observe::result::{RunResult, Status};

use crate::program::stderr;

/// A world of one with so few steps that only its end writes a checkpoint.
fn train(run_dir: &Path, more: &[&str]) -> Output {
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/mlp_synthetic.toml");
    let mut command = Command::new(env!("CARGO_BIN_EXE_kintsugi"));
    command.arg("train").arg(config).arg("--run-dir").arg(run_dir);
    for key in ["train.steps=4", "evaluation.every=never"].iter().chain(more) {
        command.args(["-s", key]);
    }
    command.output().unwrap()
}

fn result(run_dir: &Path) -> RunResult {
    serde_json::from_slice(&std::fs::read(run_dir.join("result.json")).unwrap()).unwrap()
}

#[test]
fn a_run_without_its_last_checkpoint_is_interrupted_and_the_same_command_completes_it() {
    let folder = tempfile::tempdir().unwrap();
    let (calm, run) = (folder.path().join("calm"), folder.path().join("run"));
    assert_eq!(train(&calm, &[]).status.code(), Some(0));
    std::fs::create_dir(&run).unwrap();
    // A scratch disk that is not mounted: nothing can be written there, whoever this is.
    let scratch = folder.path().join("scratch");
    std::os::unix::fs::symlink(&scratch, run.join("checkpoints")).unwrap();
    for _ in 0..2 {
        let output = train(&run, &[]);
        assert_eq!(output.status.code(), Some(85), "{}", stderr(&output));
        let found = result(&run);
        assert_eq!((found.status, found.steps), (Status::Interrupted, 4));
        assert!(found.reason.contains("their weights are not on disk"), "{}", found.reason);
        assert_eq!(found.state_sha256, result(&calm).state_sha256);
    }
    std::fs::create_dir(&scratch).unwrap();
    let output = train(&run, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let found = result(&run);
    assert_eq!((found.status, found.lost_steps, found.exact), (Status::Completed, 0, true));
    assert!(found.restarts.iter().all(|again| again.from == "resident"), "{:?}", found.restarts);
    assert_eq!(found.state_sha256, result(&calm).state_sha256);
    assert!(run.join("checkpoints/step-00000004/MANIFEST.json").is_file());
}

#[test]
fn a_run_whose_time_is_over_makes_no_further_step_for_its_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    std::fs::create_dir(&run).unwrap();
    let scratch = folder.path().join("scratch");
    std::os::unix::fs::symlink(&scratch, run.join("checkpoints")).unwrap();
    let keys = ["train.steps=1000000000", "train.max_seconds=0.2", "checkpoint.every=1h"];
    let first = train(&run, &keys);
    assert_eq!(first.status.code(), Some(85), "{}", stderr(&first));
    let before = result(&run);
    std::fs::create_dir(&scratch).unwrap();
    let second = train(&run, &keys);
    assert_eq!(second.status.code(), Some(0), "{}", stderr(&second));
    let after = result(&run);
    assert_eq!((after.steps, after.state_sha256), (before.steps, before.state_sha256));
    assert_eq!(after.reason, "train.max_seconds is reached");
}

#[test]
fn a_run_whose_ledger_stays_unwritten_says_so_at_its_end() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    std::fs::create_dir(&run).unwrap();
    std::os::unix::fs::symlink(folder.path().join("none/ledger"), run.join("ledger.jsonl"))
        .unwrap();
    let output = train(&run, &[]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let said = stderr(&output);
    let last = said.lines().last().unwrap();
    assert!(last.contains("ledger.jsonl is not whole"), "{said}");
}

#[test]
fn a_run_that_wants_no_checkpoints_completes_without() {
    let folder = tempfile::tempdir().unwrap();
    let output = train(folder.path(), &["checkpoint.every=never"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    assert_eq!(result(folder.path()).status, Status::Completed);
    assert!(!folder.path().join("checkpoints").exists());
}

/// Steps take less time than writing: the writer has no room for most of those that are due.
#[test]
fn a_writer_that_does_not_keep_up_is_told_once_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let output = train(folder.path(), &["train.steps=600", "checkpoint.every=1steps"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let told = stderr(&output).matches("waits: those before it are being written").count();
    let events = read_events(&folder.path().join("events.jsonl")).unwrap();
    let written = |event: &&Event| matches!(event.kind, Kind::Checkpoint { .. });
    let written = events.iter().filter(written).count();
    assert!(told <= written, "{told} times of {written} checkpoints");
    assert_eq!(stderr(&output).lines().filter(|line| line.contains("WARN")).count(), told);
}
