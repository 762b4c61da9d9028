//! Experiments: what is refused before the first run, what is kept, what is made again.

use std::path::{Path, PathBuf};

use crate::fixture::{Answer, Story, write_run};
use crate::program::{kintsugi, printed};
use kintsugi::lab::experiment::file::{Changes, Experiment};
use kintsugi::lab::experiment::jobs::{Requests, Share};
use kintsugi::lab::experiment::results::Index;
use kintsugi::lab::experiment::runner::{Made, Runner};
/// Stands in for `kintsugi launch`: copies a prepared run, and counts how often it was asked.
fn stand_in(folder: &Path, prepared: &Path) -> PathBuf {
    let script = folder.join("stand-in");
    let text = format!(
        "#!/bin/sh\nfor last do\n\
         case $previous in --run-dir) dir=$last;; esac\nprevious=$last\ndone\n\
         echo \"$*\" >> {folder}/asked\n\
         rm -rf \"$dir\"; cp -r {prepared}/$(basename \"$dir\") \"$dir\"\n",
        folder = folder.display(),
        prepared = prepared.display()
    );
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    script
}

const EXPERIMENT: &str = r#"
title = "stand-in"
config = "base.toml"
ranks = 4
seconds = 12.0
seeds = [1]
schedule = { checkpoints = 12, evaluations = 12, failures = [{ at = 0.225, rank = 2 }] }
[[arm]]
name = "calm"
failures = []
[[arm]]
name = "checkpoint/restart"
set.recovery.ladder = ["restart"]
"#;

#[test]
fn a_complete_run_is_kept_and_a_changed_one_is_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let (prepared, out) = (folder.path().join("prepared"), folder.path().join("out"));
    std::fs::create_dir_all(&out).unwrap();
    for (arm, answer) in [("calm", Answer::Calm), ("checkpoint/restart", Answer::Restart)] {
        let (seconds, evaluations, step_seconds) = (12.0, 12, 0.11);
        write_run(&prepared, Story { arm, answer, seed: 1, seconds, evaluations, step_seconds });
    }
    let file = folder.path().join("experiment.toml");
    std::fs::write(&file, EXPERIMENT).unwrap();
    std::fs::write(folder.path().join("base.toml"), "").unwrap();
    let program = stand_in(folder.path(), &prepared);
    let make_on = |processors: Option<usize>, changes: &Changes| -> Vec<Made> {
        let (experiment, text) = Experiment::load(&file).unwrap();
        let experiment = experiment.with(changes).unwrap();
        let (config, seconds) = (experiment.config.clone(), experiment.seconds);
        let (program, out) = (program.clone(), out.clone());
        let runner = Runner { program, out: out.clone(), seconds, config, processors };
        let plan = experiment.plan(changes);
        let mut index = Index::new(&experiment, &text, &plan, "kintsugi experiment".into());
        let requests = Requests::listen().unwrap();
        let made = plan.iter().map(|run| {
            let made = runner.make(run, &Share::Whole, &requests).unwrap();
            index.add(run, None);
            made
        });
        let made = made.collect();
        index.write(&out).unwrap();
        made
    };
    let make = |changes: &Changes| make_on(None, changes);
    let asked = || std::fs::read_to_string(folder.path().join("asked")).unwrap().lines().count();
    let plain = Changes::default();
    assert_eq!(make(&plain), [Made::Completed, Made::Completed]);
    assert_eq!(make(&plain), [Made::Kept, Made::Kept]);
    assert_eq!(asked(), 2);
    // Not complete any more: made again, from the beginning.
    std::fs::remove_file(out.join("calm-1/result.json")).unwrap();
    assert_eq!(make(&plain), [Made::Completed, Made::Kept]);
    let lines = std::fs::read_to_string(folder.path().join("asked")).unwrap();
    assert!(lines.lines().nth(2).unwrap().contains("--fresh"));
    let changed = Changes { set: vec!["model.name=mlp".into()], ..Changes::default() };
    assert_eq!(make(&changed), [Made::Completed, Made::Completed]);
    // What had all processors is not what has one.
    assert_eq!(make_on(Some(1), &changed), [Made::Completed, Made::Completed]);
    assert_eq!(make_on(Some(1), &changed), [Made::Kept, Made::Kept]);
    let json: serde_json::Value =
        serde_json::from_slice(&std::fs::read(out.join("results.json")).unwrap()).unwrap();
    assert_eq!(json["summaries"][1]["arm"], "checkpoint/restart");
    assert_eq!(json["summaries"][1]["lost_steps"], json["summaries"][1]["lost_steps_ledger"]);
    // The folder can be drawn again.
    let again = kintsugi(&[
        "report",
        out.to_str().unwrap(),
        "--out",
        file.with_extension("html").to_str().unwrap(),
    ]);
    assert_eq!(again.status.code(), Some(0), "{}", printed(&again));
}

#[test]
fn an_experiment_that_makes_no_sense_starts_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("experiment.toml");
    std::fs::write(&file, EXPERIMENT.replace("rank = 2", "rank = 7")).unwrap();
    std::fs::write(folder.path().join("base.toml"), "").unwrap();
    let out = folder.path().join("out");
    let arguments = ["experiment", file.to_str().unwrap(), "--out", out.to_str().unwrap()];
    let output = kintsugi(&arguments);
    assert_eq!(output.status.code(), Some(2));
    assert!(printed(&output).contains("failures.rank = 7"), "{}", printed(&output));
    assert!(!out.exists());
    // A key that no configuration has, and a folder that is not there, are refused as by `launch`.
    let changed = |from: &str, to: &str| {
        std::fs::write(&file, EXPERIMENT.replace(from, to)).unwrap();
        ["", "--check"].map(|check| {
            let check = Some(check).filter(|check| !check.is_empty());
            let output = kintsugi(&arguments.into_iter().chain(check).collect::<Vec<_>>());
            assert!(!out.exists(), "{}", printed(&output));
            (output.status.code(), printed(&output))
        })
    };
    for (code, told) in changed("recovery.ladder", "recovery.lader") {
        assert!(code == Some(2) && told.contains("arm checkpoint/restart: "), "{told}");
        assert!(told.contains("recovery.lader"), "{told}");
    }
    let sets = "set.data = { train = \"/nowhere/a\", validation = \"/nowhere/b\" }";
    for (code, told) in changed("failures = []", sets) {
        assert!(code == Some(3) && told.contains("arm calm: data.train = /nowhere/a"), "{told}");
    }
}
