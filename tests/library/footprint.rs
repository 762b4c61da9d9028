//! What a run is said to need (`needs`), against what it takes: the memory of a larger micro-batch,
//! the files of slots and checkpoints. What does not grow with the batch (MPI, state, the data) is
//! in both.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use kintsugi::config::{DeviceKind, parse};
use kintsugi::model::catalogue;
use kintsugi::needs::{Limit, Load, Needs, needs};

use crate::bf16;

const BATCHES: [u32; 2] = [16, 96];
const MODEL: &str = "resnet18";
const IMAGE_SIZE: &str = "64";
/// How much of the forecast may be wrong.
const TOLERANCE: f64 = 0.1;
const CONFIGURATION: &str = r#"
[data]
format = "synthetic"
synthetic_samples = 192
[train]
steps = 8
[recovery]
resident = "off"
[checkpoint]
every = "never"
[observe]
tensorboard = false
"#;

fn kintsugi() -> Command {
    Command::new(env!("CARGO_BIN_EXE_kintsugi"))
}

/// All bytes that `model show` counts.
fn forecast(precision: &str, batch: u32) -> f64 {
    let mut show = kintsugi();
    show.args(["model", "show", MODEL, "--image-size", IMAGE_SIZE, "--classes", "10", "--json"]);
    show.args(["--precision", precision, "--batch", &batch.to_string()]);
    let output = show.output().unwrap();
    let model: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let of_rank = |part: &&serde_json::Value| {
        part["limits"].as_array().unwrap().iter().any(|limit| limit == "process")
    };
    let parts = model["needs"].as_array().unwrap().iter().filter(of_rank);
    parts.map(|part| part["bytes"].as_f64().unwrap() * part["number"].as_f64().unwrap()).sum()
}

/// The most memory that the process had, in bytes, as far as it lets look; 0 once it has ended.
fn peak(process: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    1024.0 * kib.unwrap_or(0.0)
}

/// Peak memory of a whole run.
fn measured(place: &Path, precision: &str, batch: u32) -> f64 {
    let configuration = place.join("run.toml");
    std::fs::write(&configuration, CONFIGURATION).unwrap();
    let mut train = kintsugi();
    train
        .arg("train")
        .arg(configuration)
        .arg("--run-dir")
        .arg(place.join(format!("{precision}-{batch}")));
    for set in [
        format!("model.name={MODEL}"),
        format!("data.image_size={IMAGE_SIZE}"),
        format!("train.global_batch={batch}"),
        format!("device.precision={precision}"),
    ] {
        train.args(["-s", &set]);
    }
    let mut child = train.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut most = 0.0f64;
    let ended = loop {
        most = most.max(peak(child.id()));
        match child.try_wait().unwrap() {
            Some(ended) => break ended,
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    assert!(ended.success(), "{ended}");
    most
}

#[test]
fn a_larger_micro_batch_takes_what_model_show_says() {
    let place = tempfile::tempdir().unwrap();
    let [few, many] = BATCHES;
    let precisions =
        ["f32", "bf16"].into_iter().take(1 + usize::from(bf16::is_computed(DeviceKind::Cpu)));
    for precision in precisions {
        let forecast = |batch| forecast(precision, batch);
        let measured = |batch| measured(place.path(), precision, batch);
        let wanted = forecast(many) - forecast(few);
        let given = measured(many) - measured(few);
        println!("{precision}: {given} bytes more, forecast {wanted}");
        let apart = (given - wanted).abs();
        assert!(apart <= TOLERANCE * wanted, "{precision}: {given}, forecast {wanted}");
    }
}

/// Ends with a checkpoint.
const SHORT: &str = r#"
run.ranks = 1
model = { name = "cnn11", width = 0.25 }
data = { format = "synthetic", synthetic_samples = 48, image_size = 32 }
train = { steps = 3, global_batch = 16 }
evaluation.every = "never"
checkpoint.every = "3steps"
observe.tensorboard = false
"#;
/// Goes on, and leaves its slots behind.
const KILLED: [&str; 2] = ["train.steps=9", "faults.plan=[{ kind = \"kill\", step = 5 }]"];

/// What the killed run is said to need, and the sizes of its files by their names.
fn killed(place: &Path, rule: &[&str]) -> (Needs, BTreeMap<String, Vec<u64>>) {
    let (file, run, slots) = (place.join("run.toml"), place.join("run"), place.join("slots"));
    std::fs::create_dir(&slots).unwrap();
    std::fs::write(&file, SHORT).unwrap();
    let mut keys = vec![format!("recovery.resident_dir={}", slots.display())];
    keys.extend(rule.iter().map(ToString::to_string));
    for (more, code) in [(&[][..], Some(0)), (&KILLED, None)] {
        let mut train = kintsugi();
        train.arg("train").arg(&file).arg("--run-dir").arg(&run);
        for key in keys.iter().map(String::as_str).chain(more.iter().copied()) {
            train.args(["-s", key]);
        }
        let ended = train.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap();
        assert_eq!(ended.code(), code, "{more:?}");
    }
    let config = parse::load(&file, &keys).unwrap();
    let graph = catalogue::build("cnn11", [3, 32, 32], 10, 0.25).unwrap();
    let load = Load { ranks: 1, samples: 48, planned: None };
    let need = needs(&config, &graph, load);
    let mut sizes = BTreeMap::<String, Vec<u64>>::new();
    for entry in walk(&slots).into_iter().chain(walk(&run.join("checkpoints"))) {
        let path = entry.path();
        let name = match path.extension().is_some_and(|end| end == "slots") {
            true => "both slots of the state".into(),
            false => entry.file_name().into_string().unwrap(),
        };
        sizes.entry(name).or_default().push(entry.metadata().unwrap().len());
    }
    (need, sizes)
}

fn walk(folder: &Path) -> Vec<std::fs::DirEntry> {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let below = |entry: std::fs::DirEntry| match entry.path().is_dir() {
        true => walk(&entry.path()),
        false => vec![entry],
    };
    entries.flat_map(below).collect()
}

#[test]
fn files_are_as_large_as_the_optimizer_makes_them() {
    let adamw =
        ["optimizer.name=adamw", "optimizer.learning_rate=0.001", "optimizer.ema_decay=0.9"];
    let mut largest = Vec::new();
    for rule in [&[][..], &adamw] {
        let place = tempfile::tempdir().unwrap();
        let (need, sizes) = killed(place.path(), rule);
        let said = |name: &str| need.parts.iter().find(|part| part.name == name).unwrap().bytes;
        let slots = "both slots of the state";
        assert_eq!(sizes[slots], [said(slots)], "{rule:?}");
        for name in ["model.safetensors", "optimizer.safetensors"] {
            assert!(!sizes[name].is_empty(), "{rule:?}: no {name}");
            for &bytes in &sizes[name] {
                // Names and shapes are estimated.
                assert!(
                    (bytes..bytes + bytes / 50).contains(&said(name)),
                    "{name}: {bytes} {need:?}"
                );
            }
        }
        let files: u64 = sizes.values().flatten().sum();
        assert!(files < need.bytes(Limit::Disk) + said(slots), "{files} {need:?}");
        largest.push((said("model.safetensors") + said("optimizer.safetensors"), said(slots)));
    }
    // Weights and momentum; weights, two moments and the average.
    let [(sgd, sgd_slots), (adamw, adamw_slots)] = largest[..] else { panic!("two rules") };
    let about_twice = |more: u64, less: u64| (more as f64 / less as f64 - 2.0).abs() < 0.2;
    assert!(about_twice(adamw, sgd) && about_twice(adamw_slots, sgd_slots), "{largest:?}");
}
