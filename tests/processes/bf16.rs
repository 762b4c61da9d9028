//! bf16 over real processes: weights stay f32, so that a state is repaired as any other is.

use kintsugi::config::{Device, Precision};
use kintsugi::engine;
use kintsugi::model::catalogue;

use crate::support::{alone, completed, project};

/// Convolutions, batch norms, sums; few enough steps for a second or two.
const SMALL: [&str; 6] = [
    "model.name=resnet20",
    "model.width=1",
    "train.steps=12",
    "train.global_batch=24",
    "train.owners=8",
    "device.precision=bf16",
];

/// Whether this processor computes in bf16; where it does not, the refusal is said.
fn is_computed() -> bool {
    let graph = catalogue::build("mlp", [1, 2, 2], 2, 0.1).expect("in the catalogue");
    let device = Device { precision: Precision::Bf16, ..Device::default() };
    let opened = engine::open(&device, &graph, 1).map(drop);
    opened.inspect_err(|refusal| eprintln!("left out: {refusal}")).is_ok()
}

fn ended(name: &str, more: &[&str]) -> (String, usize) {
    let (_, result) = completed(name, &[&SMALL[..], more].concat());
    assert!(result.exact, "{name}");
    (result.state_sha256.expect("a run that completed has a digest"), result.recoveries.len())
}

#[test]
fn bf16_with_kills_ends_with_the_bits_of_a_calm_run() {
    let _turn = alone();
    if !is_computed() {
        return;
    }
    let (calm, _) = ended("bf16-calm", &[]);
    let kills = r#"faults.plan=[{kind="kill", rank=1, step=4, phase="in_update"},
                                {kind="kill", rank=2, step=8, phase="in_all_reduce"}]"#;
    let (killed, recoveries) = ended("bf16-killed", &[kills]);
    assert_eq!((killed, recoveries), (calm.clone(), 2));
    let (f32, _) = ended("bf16-not", &["device.precision=f32"]);
    assert_ne!(f32, calm, "bf16 was computed");
}

/// Memory holds other things after an evaluation, in another rank, after a kill: of taps that only
/// padding meets a kernel of oneDNN makes gradients of it.
#[test]
fn taps_that_see_only_padding_learn_nothing_whatever_memory_holds() {
    let _turn = alone();
    let precision = if is_computed() { "bf16" } else { "f32" };
    let hash = |ranks: &str, every: &str, more: &[&str]| {
        let name = format!("narrow-{ranks}-{every}");
        let ranks = format!("run.ranks={ranks}");
        let model =
            format!("model.name={}", project("tests/processes/models/narrow.toml").display());
        let precision = format!("device.precision={precision}");
        let evaluation = format!("evaluation.every={every}");
        let own = ["data.image_size=8", "train.steps=8", "train.global_batch=24", "train.owners=2"];
        let keys = [&own[..], &[&*ranks, &model, &precision, &evaluation], more].concat();
        completed(&name, &keys).1.state_sha256.expect("a run that completed has a digest")
    };
    let kill = r#"faults.plan=[{kind="kill", rank=1, step=4, phase="in_backward"}]"#;
    let first = hash("1", "never", &[]);
    for every in ["1steps", "2steps", "3steps", "5steps", "never"] {
        assert_eq!(hash("1", every, &[]), first, "{every}");
        assert_eq!(hash("2", every, &[kill]), first, "{every}, two ranks");
    }
}

/// Of the validation set: a tenth is right by chance.
const LEARNT_MAX: f64 = 0.6;

#[test]
fn the_asynchronous_exchange_in_bf16_survives_a_kill_and_learns() {
    let _turn = alone();
    if !is_computed() {
        return;
    }
    let keys = [
        "run.ranks=2",
        r#"faults.plan=[{kind="kill", rank=1, step=5, phase="in_all_reduce"}]"#,
        "device.precision=bf16",
        "train.exchange=asynchronous",
        "train.epochs=6",
        "train.steps=100000",
        "optimizer.momentum=0.5",
    ];
    let (_, result) = completed("bf16-asynchronous", &keys);
    assert_eq!(result.recoveries.len(), 1, "{:?}", result.recoveries);
    let error = result.validation.expect("the end is evaluated").error;
    assert!(error < LEARNT_MAX, "an error of {error} is chance, or nearly");
}
