//! Mixed pictures and smoothed labels over real processes: what is drawn for a micro-batch belongs
//! to it, whoever computes it, and however many ranks there are.

use kintsugi::observe::result::RunResult;

use crate::support::{alone, completed};

const SOFT: [&str; 5] = [
    "data.mixup_alpha=0.4",
    "data.cutmix_alpha=1.0",
    "train.label_smoothing=0.1",
    "train.steps=24",
    "evaluation.every=8steps",
];

fn trained(name: &str, ranks: &str, overrides: &[&str]) -> RunResult {
    let (_, result) = completed(name, &[&SOFT[..], &[ranks], overrides].concat());
    assert_eq!(result.lost_steps, 0, "{name}");
    result
}

#[test]
fn mixed_and_smoothed_runs_end_with_the_same_bits_with_kills_and_on_two_ranks() {
    let _turn = alone();
    let calm = trained("soft-calm", "run.ranks=4", &[]);
    let kills = r#"faults.plan=[{kind="kill", rank=1, step=9, phase="in_backward"},
                                {kind="kill", rank=3, step=15, phase="in_all_reduce"}]"#;
    let killed = trained("soft-killed", "run.ranks=4", &[kills]);
    assert_eq!(killed.state_sha256, calm.state_sha256);
    let two = trained("soft-two", "run.ranks=2", &[]);
    assert_eq!(two.state_sha256, calm.state_sha256);
    let error = |result: &RunResult| result.validation.map(|measured| measured.error);
    assert_eq!(error(&two), error(&calm), "the validation set is as it was");
    let hard = trained("soft-not", "run.ranks=4", &["train.label_smoothing=0"]);
    assert_ne!(hard.state_sha256, calm.state_sha256, "smoothing moves the weights");
}
