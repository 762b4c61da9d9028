//! Batch norms in whole runs: what is evaluated is what was trained.

use std::path::Path;

use kintsugi::observe::event::Kind;
use kintsugi::observe::log::read_events;
use kintsugi::train::checkpoint::{Snapshot, weights};

use super::numbers::Place;

/// A norm over planes, and one that sees a value of each channel in each sample.
const MODEL: &str = r#"
[[layer]]
name = "conv1"
kind = "conv"
channels = 6
kernel = 3
stride = 2
[[layer]]
name = "bn1"
kind = "batch_norm"
[[layer]]
kind = "relu"
[[layer]]
kind = "global_avg_pool"
[[layer]]
name = "bn2"
kind = "batch_norm"
[[layer]]
name = "fc"
kind = "linear"
features = "classes"
"#;

/// Runs it; what was said.
fn trained(place: &Place, run: &str, keys: &[&str]) -> (Option<i32>, String) {
    std::fs::write(place.path("net.toml"), MODEL).unwrap();
    let model = format!("model.name={}", place.path("net.toml").display());
    let own = [&*model, "model.width=1", "data.augment=false", "run.ranks=1"];
    let keys = [&own, keys].concat();
    let ended = place.train(run, &keys).output().unwrap();
    (ended.status.code(), String::from_utf8_lossy(&ended.stderr).into_owned())
}

fn newest(place: &Place, run: &str) -> Snapshot {
    weights::load(Path::new(&place.path(run)), None).unwrap().snapshot
}

/// Running mean and variance of a norm.
fn statistics(snapshot: &Snapshot, norm: &str) -> Vec<f32> {
    let own =
        snapshot.layout.tensors.iter().filter(|t| t.name.starts_with(&format!("{norm}.running")));
    own.flat_map(|t| snapshot.statistics[t.range()].to_vec()).collect()
}

#[test]
fn frozen_norms_train_on_what_is_evaluated() {
    let place = Place::new();
    let validation = format!("data.validation={}", place.path("set/train").display());
    let keys = [
        r#"model.freeze=["conv1", "bn1", "bn2"]"#,
        "train.global_batch=48",
        "train.owners=3",
        "train.steps=12",
        "evaluation.every=4steps",
        &validation,
    ];
    let (code, said) = trained(&place, "run", &keys);
    assert_eq!(code, Some(0), "{said}");
    let frozen =
        "6 of 8 tensors (192 of 220 parameters) are not trained; 2 norms keep their running";
    assert_eq!(said.matches(frozen).count(), 1, "{said}");
    // The whole set is a step: the next one's loss is that of the weights that were evaluated.
    let events = read_events(&place.path("run/events.jsonl")).unwrap();
    let (mut evaluated, mut compared) = (None, 0);
    for event in &events {
        match &event.kind {
            Kind::Evaluation { loss, .. } => evaluated = Some(*loss),
            Kind::Step { loss, .. } => {
                if let Some(evaluated) = evaluated.take() {
                    assert!((loss - evaluated).abs() < 1e-5, "{loss} {evaluated}");
                    compared += 1;
                }
            }
            _ => {}
        }
    }
    assert_eq!(compared, 2);
    let initial = [[0.0; 6], [1.0; 6]].concat();
    for norm in ["bn1", "bn2"] {
        assert_eq!(statistics(&newest(&place, "run"), norm), initial);
    }
}

#[test]
fn one_value_a_channel_is_refused_and_a_short_last_step_leaves_statistics_alone() {
    let place = Place::new();
    let (code, said) = trained(&place, "alone", &["train.global_batch=4", "train.owners=4"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("layer `bn2`") && said.contains("train.global_batch = 8 or"), "{said}");

    // Of 48 pictures the second step has one.
    let after = |run: &str, steps: &str| {
        let keys = ["train.global_batch=47", "train.owners=1", steps, "evaluation.every=never"];
        let (code, said) = trained(&place, run, &keys);
        assert_eq!(code, Some(0), "{said}");
        newest(&place, run)
    };
    let (whole, short) = (after("whole", "train.steps=1"), after("short", "train.steps=2"));
    assert_eq!(statistics(&short, "bn2"), statistics(&whole, "bn2"));
    // A norm over a plane has more values, and learns.
    assert_ne!(statistics(&short, "bn1"), statistics(&whole, "bn1"));
    assert_ne!(short.parameters, whole.parameters);
}

#[test]
fn running_variances_are_those_of_all_samples_whatever_the_owners() {
    let place = Place::new();
    let after = |run: &str, owners: &str| {
        let keys = ["train.global_batch=48", "train.steps=1", "evaluation.every=never", owners];
        let (code, said) = trained(&place, run, &keys);
        assert_eq!(code, Some(0), "{said}");
        statistics(&newest(&place, run), "bn1")
    };
    // One owner gives what torch gives.
    let (one, many) = (after("one", "train.owners=1"), after("many", "train.owners=24"));
    for (one, many) in one.iter().zip(&many) {
        assert!((one - many).abs() <= 2e-6 * one.abs().max(1.0), "{one} {many}");
    }
    let pieces = ["train.accumulate=12", "train.owners=2"];
    let keys = ["train.global_batch=48", "train.steps=1", "evaluation.every=never"];
    let (code, said) = trained(&place, "pieces", &[&keys[..], &pieces].concat());
    assert_eq!(code, Some(0), "{said}");
    for (one, pieced) in one.iter().zip(&statistics(&newest(&place, "pieces"), "bn1")) {
        assert!((one - pieced).abs() <= 2e-6 * one.abs().max(1.0), "{one} {pieced}");
    }
}

/// Weights that move fast, judged with their own statistics and not with the newest.
#[test]
fn averaged_weights_come_with_averaged_statistics() {
    let place = Place::new();
    let keys = [
        "train.global_batch=48",
        "train.owners=1",
        "train.steps=6",
        "optimizer.ema_decay=0.75",
        "evaluation.every=never",
    ];
    let (code, said) = trained(&place, "run", &keys);
    assert_eq!(code, Some(0), "{said}");
    let averaged = weights::looked_at(
        newest(&place, "run"),
        kintsugi::train::compute::committed::Which::Averaged,
    );
    let averaged = averaged.unwrap();
    // Step by step, from runs that end there.
    let mut wanted: Vec<f64> = [[0.0; 6], [1.0; 6]].concat();
    for steps in 1..=6 {
        let (run, limit) = (format!("run{steps}"), format!("train.steps={steps}"));
        let keys = [&keys[..2], &[&*limit, "evaluation.every=never"]].concat();
        assert_eq!(trained(&place, &run, &keys).0, Some(0));
        let running = statistics(&newest(&place, &run), "bn2");
        for (average, running) in wanted.iter_mut().zip(running) {
            *average += 0.25 * (f64::from(running) - *average);
        }
    }
    for (given, wanted) in statistics(&averaged, "bn2").iter().zip(wanted) {
        assert!((f64::from(*given) - wanted).abs() < 1e-5, "{given} {wanted}");
    }
}
