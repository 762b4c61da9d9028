//! Optimizers over real processes: what a rule keeps beside the weights is repaired, checkpointed
//! and hashed as weights are. Each claim compares whole runs by their `state_sha256`.

use std::path::{Path, PathBuf};

use kintsugi::observe::event::{Event, Kind};
use kintsugi::observe::log::read_events;
use kintsugi::observe::result::RunResult;

use crate::support::{alone, completed};

/// AdamW, clipped, in one cycle, averaged, in pieces.
const ADAMW: [&str; 7] = [
    "optimizer.name=adamw",
    "optimizer.ema_decay=0.9",
    "train.accumulate=2",
    "optimizer.learning_rate=0.01",
    "optimizer.clip_norm=0.5",
    "schedule.kind=one_cycle",
    "schedule.warm_up=0.3",
];

fn trained(name: &str, overrides: &[&str]) -> (PathBuf, RunResult) {
    let (folder, result) = completed(name, &[&ADAMW[..], overrides].concat());
    assert!(result.exact, "{name}: these sums are exact whatever happened");
    (folder, result)
}

fn holds(folder: &Path, part: &str) -> bool {
    let checkpoints = std::fs::read_dir(folder.join("checkpoints")).unwrap().flatten();
    let files = checkpoints.map(|entry| entry.path().join("optimizer.safetensors"));
    let mut headers = files.filter_map(|file| std::fs::read(file).ok());
    headers.any(|bytes| bytes.windows(part.len()).any(|window| window == part.as_bytes()))
}

/// Errors of the averaged weights.
fn averages_of(folder: &Path) -> Vec<f64> {
    let events = read_events(&folder.join("events.jsonl")).unwrap();
    let average = |event: &Event| match event.kind {
        Kind::Evaluation { average_error, .. } => average_error,
        _ => None,
    };
    events.iter().filter_map(average).collect()
}

#[test]
fn adamw_with_kills_ends_with_the_bits_of_a_calm_run() {
    let _turn = alone();
    let (folder, calm) = trained("adamw-calm", &[]);
    assert!(holds(&folder, "exp_avg_sq."), "its means are checkpointed by torch's names");
    assert!(holds(&folder, "ema."), "so is the average of the weights");
    let averages = averages_of(&folder);
    assert_eq!(averages.len(), 3, "it is evaluated whenever the weights are");
    let kills = r#"faults.plan=[{kind="kill", rank=1, step=20, phase="in_update"},
                                {kind="kill", rank=2, step=30, phase="in_all_reduce"}]"#;
    let (folder, killed) = trained("adamw-killed", &[kills]);
    assert_eq!(averages_of(&folder), averages);
    assert_eq!((killed.state_sha256.clone(), killed.lost_steps), (calm.state_sha256.clone(), 0));
    // Without memory that outlives its process all ranks go back to the checkpoint of step 40.
    let kill = r#"faults.plan=[{kind="kill", rank=1, step=50}]"#;
    let from_disk = [kill, "recovery.resident=off", r#"recovery.ladder=["restart"]"#];
    let (_, restarted) = trained("adamw-restarted", &from_disk);
    assert_eq!(restarted.attempt, 2, "the world was started again");
    assert_eq!(restarted.state_sha256, calm.state_sha256);
    // The norm that clips is of the sum over all ranks, however many they are.
    let kill = r#"faults.plan=[{kind="kill", rank=2, step=15, phase="in_all_reduce"}]"#;
    let shrunk = [kill, r#"recovery.ladder=["shrink"]"#, "recovery.regrow=never"];
    let (_, three) = trained("adamw-shrunk", &shrunk);
    assert_eq!(three.state_sha256, calm.state_sha256);
}

#[test]
fn lars_with_a_frozen_layer_and_a_kill_ends_with_the_bits_of_a_calm_run() {
    let _turn = alone();
    let freeze = r#"model.freeze=["fc2."]"#;
    let lars = ["optimizer.name=lars", "optimizer.momentum=0.8", freeze];
    let (_, calm) = trained("lars-calm", &lars);
    let kill = r#"faults.plan=[{kind="kill", rank=1, step=20, phase="in_update"}]"#;
    let (_, killed) = trained("lars-killed", &[&lars[..], &[kill]].concat());
    assert_eq!(killed.state_sha256, calm.state_sha256);
}
