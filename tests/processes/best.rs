//! The weights of the best evaluation, with ranks killed around it: what `--best` finds is what it
//! finds in a run without failures, byte by byte.

use std::path::Path;

use kintsugi::observe::event::{Event, Kind};
use kintsugi::observe::log::read_events;
use kintsugi::observe::result::{Best, RunResult};

use crate::support::{alone, completed, kintsugi, launch, result_of, run};

/// Seconds any of these runs may take.
const LIMIT: u64 = 120;

/// A rate so high that later evaluations are worse than one in the middle, and one checkpoint
/// beside it.
const WILD: [&str; 4] = [
    "evaluation.every=5steps",
    "checkpoint.every=15steps",
    "checkpoint.keep=1",
    "optimizer.learning_rate=0.1",
];

fn trained(name: &str, overrides: &[&str]) -> (std::path::PathBuf, RunResult) {
    completed(name, &[&WILD[..], overrides].concat())
}

/// The weights that `--best` finds, as a file.
fn best_weights(folder: &Path) -> Vec<u8> {
    let file = folder.join("best.safetensors");
    let mut export = kintsugi();
    export.args(["checkpoint", "export", "--best"]).args([folder, &file]);
    let ended = run(&mut export, LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    std::fs::read(file).unwrap()
}

/// Steps behind which an evaluation was better than all before it.
fn improvements(folder: &Path) -> Vec<u64> {
    let events = read_events(&folder.join("events.jsonl")).unwrap();
    let mut best = f64::INFINITY;
    let better = |event: &Event| match event.kind {
        Kind::Evaluation { error, .. } if error < best => {
            best = error;
            Some(event.step)
        }
        _ => None,
    };
    events.iter().filter_map(better).collect()
}

fn checkpoints(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder.join("checkpoints")).unwrap().flatten();
    let mut names: Vec<String> =
        names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn the_best_weights_are_those_of_a_calm_run_whoever_dies_around_them() {
    let _turn = alone();
    let (calm, result) = trained("best-calm", &[]);
    let best: Best = result.best.expect("its best evaluation is kept");
    let better = improvements(&calm);
    let [.., before, last] = better[..] else { panic!("one improvement alone: {better:?}") };
    assert!(best.step == last && last < result.steps, "the best is not the last: {best:?}");
    let weights = best_weights(&calm);
    let kept = [format!("step-{last:08}"), format!("step-{:08}", result.steps)];
    assert_eq!(checkpoints(&calm), [&["best.json".to_owned()][..], &kept].concat());
    // In the evaluation that was best, in the write of its weights, while they are on their way and
    // the ones before them go; and once with nobody left.
    let writer_in = |step, phase| {
        format!(r#"faults.plan=[{{kind="kill", rank=0, step={step}, phase="{phase}"}}]"#)
    };
    let all = r#"recovery.ladder=["restart"]"#;
    for (name, kill, ladder) in [
        ("best-evaluation", writer_in(last, "in_evaluation"), &[][..]),
        ("best-write", writer_in(last, "in_persist"), &[]),
        ("best-next-vote", writer_in(last + 1, "before_vote"), &[]),
        ("best-before", writer_in(before, "in_persist"), &[]),
        ("best-restart", writer_in(last, "in_persist"), &[all, "recovery.resident=off"]),
    ] {
        let overrides = [&[kill.as_str()][..], ladder].concat();
        let (folder, killed) = trained(name, &overrides);
        assert_eq!(killed.recoveries.len() + killed.restarts.len(), 1, "{name}: nobody died");
        assert_eq!(killed.state_sha256, result.state_sha256, "{name}");
        assert_eq!(killed.best, Some(best), "{name}");
        assert!(best_weights(&folder) == weights, "{name}: other weights");
        assert_eq!(checkpoints(&folder), checkpoints(&calm), "{name}");
    }
}

#[test]
fn a_run_out_of_patience_ends_on_all_ranks_behind_the_same_step() {
    let _turn = alone();
    let patient = ["train.patience=2", "train.steps=60"];
    let (calm, result) = trained("patience-calm", &patient);
    let best = result.best.expect("its best evaluation is kept");
    assert_eq!(result.steps, best.step + 10, "two evaluations later");
    let reason = "2 evaluations in a row were no better (train.patience): the best";
    assert!(result.reason.starts_with(reason), "{}", result.reason);
    // Killed in the evaluation that decides, and asked to go on when it is over.
    let step = result.steps;
    let kill =
        format!(r#"faults.plan=[{{kind="kill", rank=1, step={step}, phase="in_evaluation"}}]"#);
    let (_, killed) = trained("patience-killed", &[&patient[..], &[&kill]].concat());
    assert_eq!((killed.steps, killed.state_sha256), (step, result.state_sha256.clone()));
    assert_eq!(killed.recoveries.len(), 1);
    let again = run(&mut launch(&calm, &[&WILD[..], &patient].concat()), LIMIT);
    assert_eq!((again.code, result_of(&calm).steps), (Some(0), step), "{}", again.stderr);
    let overrides = [&WILD[..], &["train.patience=50", "train.steps=60"]].concat();
    let longer = run(&mut launch(&calm, &overrides), LIMIT);
    assert_eq!((longer.code, result_of(&calm).steps), (Some(0), 60), "{}", longer.stderr);
    // Ended before by its steps, between two evaluations, and made longer.
    let short = ["train.patience=2", "train.steps=12"];
    let (extended, _) = trained("patience-extended", &short);
    let longer = run(&mut launch(&extended, &[&WILD[..], &patient].concat()), LIMIT);
    let ended = result_of(&extended);
    assert_eq!(longer.code, Some(0), "{}", longer.stderr);
    assert_eq!((ended.steps, ended.state_sha256), (step, result.state_sha256));
}
