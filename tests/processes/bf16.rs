//! bf16 over real processes: weights stay f32, so that a state is repaired as any other is.

use crate::support::{alone, assert_audited, launch, result_of, run, run_dir};

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
