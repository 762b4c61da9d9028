//! bf16 over real processes: weights stay f32, so that a state is repaired as any other is.

use crate::support::{alone, assert_audited, kintsugi, launch, project, result_of, run, run_dir};

/// Seconds any of these runs may take.
const LIMIT: u64 = 120;

/// Convolutions, batch norms, sums; few enough steps for a second or two.
const SMALL: [&str; 6] = [
    "model.name=resnet20",
    "model.width=1",
    "train.steps=12",
    "train.global_batch=24",
    "train.owners=8",
    "device.precision=bf16",
];

fn ended(name: &str, more: &[&str]) -> (String, usize) {
    let folder = run_dir(name);
    let ended = run(&mut launch(&folder, &[&SMALL[..], more].concat()), LIMIT);
    assert_eq!(ended.code, Some(0), "{name}: {}", ended.stderr);
    assert_audited(&folder);
    let result = result_of(&folder);
    assert!(result.exact, "{name}");
    (result.state_sha256.expect("a run that completed has a digest"), result.recoveries.len())
}

#[test]
fn bf16_with_kills_ends_with_the_bits_of_a_calm_run() {
    let _turn = alone();
    let (calm, _) = ended("bf16-calm", &[]);
    let kills = r#"faults.plan=[{kind="kill", rank=1, step=4, phase="in_update"},
                                {kind="kill", rank=2, step=8, phase="in_all_reduce"}]"#;
    let (killed, recoveries) = ended("bf16-killed", &[kills]);
    assert_eq!((killed, recoveries), (calm.clone(), 2));
    let (f32, _) = ended("bf16-not", &["device.precision=f32"]);
    assert_ne!(f32, calm, "bf16 was computed");
}

/// Of the validation set: a tenth is right by chance.
const LEARNT_MAX: f64 = 0.6;

#[test]
fn the_asynchronous_exchange_in_bf16_survives_a_kill_and_learns() {
    let _turn = alone();
    let folder = run_dir("bf16-asynchronous");
    let mut command = kintsugi();
    command.arg("launch").args(["-n", "2"]).arg(project("configs/mlp_synthetic.toml"));
    command.arg("--run-dir").arg(&folder);
    for value in [
        r#"faults.plan=[{kind="kill", rank=1, step=5, phase="in_all_reduce"}]"#,
        "device.precision=bf16",
        "train.exchange=asynchronous",
        "train.epochs=6",
        "train.steps=100000",
        "optimizer.momentum=0.5",
    ] {
        command.args(["-s", value]);
    }
    let ended = run(&mut command, LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let result = result_of(&folder);
    assert_eq!(result.recoveries.len(), 1, "{:?}", result.recoveries);
    assert_audited(&folder);
    let error = result.validation.expect("the end is evaluated").error;
    assert!(error < LEARNT_MAX, "an error of {error} is chance, or nearly");
}
