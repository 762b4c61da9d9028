//! What `model show` says of the memory of a step, against what a training process holds more of
//! when its micro-batch is larger. What does not grow with the batch (MPI, state, the data) is in
//! both.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

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
prefetch = 0
[train]
steps = 2
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
    let parts = model["step"].as_object().unwrap().values();
    parts.map(|bytes| bytes.as_f64().unwrap()).sum()
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
    let precisions = ["f32", "bf16"].into_iter().take(1 + usize::from(bf16::is_computed()));
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
