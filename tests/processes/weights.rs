//! Weights that travel: what `torch.save` wrote starts a run, an interrupted run takes no others
//! instead, and what a run ends with is torchvision's model again. The tests against torchvision
//! are skipped where no python with it is named.

use std::path::{Path, PathBuf};
use std::process::Command;

use kintsugi::data::painting::photograph;
use kintsugi::observe::event::Kind;
use kintsugi::observe::log::read_events;
use kintsugi::observe::result::RunResult;

use crate::support::{
    alone, assert_nothing_runs, completed, kintsugi, launch, project, run, run_dir,
};

const LIMIT: u64 = 120;
const CLASSES: [&str; 3] = ["cups", "jars", "plates"];
const PICTURES: u64 = 16;
/// Pixels of a picture's side: what the model sees, so that nothing is resized.
const SIDE: u32 = 32;
/// How far probabilities may be apart.
const APART_MAX: f64 = 1e-4;

fn export(run_folder: &Path, file: &Path) {
    let ended = run(kintsugi().args(["checkpoint", "export"]).args([run_folder, file]), LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
}

#[test]
fn a_run_takes_no_other_weights_than_it_began_with() {
    let _turn = alone();
    let first = run_dir("weights-first");
    let few = ["train.steps=3", "evaluation.every=never"];
    assert_eq!(run(&mut launch(&first, &few), LIMIT).code, Some(0));
    let file = first.join("weights.safetensors");
    export(&first, &file);
    let init = format!("model.init={}", file.display());
    let begin = |name: &str| {
        let folder = run_dir(name);
        let ended = run(&mut launch(&folder, &[&few[..], &[&init]].concat()), LIMIT);
        (folder, ended)
    };
    let (folder, ended) = begin("weights-taken");
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    let config = std::fs::read_to_string(folder.join("config.toml")).unwrap();
    assert!(config.contains("init_hash = \""), "{config}");
    // Nothing is left of it but its configuration: it would begin again, and not with these.
    for gone in ["checkpoints", "result.json", "events.jsonl", "ledger.jsonl"] {
        let path = folder.join(gone);
        let _ = std::fs::remove_file(&path).or_else(|_| std::fs::remove_dir_all(&path));
    }
    let mut bytes = std::fs::read(&file).unwrap();
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&0.25f32.to_le_bytes());
    std::fs::write(&file, &bytes).unwrap();
    let ended = run(&mut launch(&folder, &[&few[..], &[&init]].concat()), LIMIT);
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("these are not the weights of this run"), "{}", ended.stderr);
    assert_nothing_runs(&folder);
    let (other, ended) = begin("weights-other");
    assert_eq!(ended.code, Some(0), "another run takes them: {}", ended.stderr);
    assert_nothing_runs(&other);
    std::fs::write(&file, b"\x80\x02cos\nsystem\n.").unwrap();
    let (_, ended) = begin("weights-harm");
    assert_eq!(ended.code, Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("it is a bare pickle"), "{}", ended.stderr);
}

fn python() -> Option<PathBuf> {
    let python = std::env::var_os("KINTSUGI_TORCHVISION_PYTHON").map(PathBuf::from);
    if python.is_none() {
        println!("skipped: fine-tuning beside torchvision (set KINTSUGI_TORCHVISION_PYTHON)");
    }
    python
}

/// What tests/processes/weights.py prints.
fn torchvision(python: &Path, words: &[&str], paths: &[&Path]) -> String {
    let mut command = Command::new(python);
    command.arg(project("tests/processes/weights.py")).args(words).args(paths);
    let ended = run(&mut command, LIMIT);
    assert_eq!(ended.code, Some(0), "{}", ended.stderr);
    ended.stdout
}

/// A folder of pictures for each class; all of its pictures.
fn pictures(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for number in 0..PICTURES * CLASSES.len() as u64 {
        let class = folder.join(CLASSES[number as usize % CLASSES.len()]);
        std::fs::create_dir_all(&class).unwrap();
        let mut body = format!("P6 {SIDE} {SIDE} 255\n").into_bytes();
        body.extend(photograph::draw(number, SIDE, SIDE).pixels);
        files.push(class.join(format!("{number:03}.ppm")));
        std::fs::write(files.last().unwrap(), body).unwrap();
    }
    files
}

fn tuned(name: &str, (set, weights): (&Path, &Path), more: &[&str]) -> (PathBuf, RunResult) {
    let (set, weights) = (set.display(), weights.display());
    let overrides = [
        "run.ranks=2".to_string(),
        "model.name=resnet18".into(),
        format!("model.init={weights}"),
        r#"model.freeze=["conv1.", "bn1.", "layer1."]"#.into(),
        "model.width=1".into(),
        "optimizer.body_factor=0.1".into(),
        "data.format=image_folder".into(),
        format!("data.train={set}"),
        format!("data.validation={set}"),
        format!("data.image_size={SIDE}"),
        "train.steps=8".into(),
        "train.global_batch=24".into(),
        "train.owners=4".into(),
        "evaluation.every=never".into(),
        "checkpoint.every=4steps".into(),
    ];
    let overrides: Vec<&str> = overrides.iter().map(String::as_str).collect();
    completed(name, &[&overrides, more].concat())
}

/// Probabilities by class of every picture, in the order of the pictures.
fn probabilities(lines: &str) -> Vec<Vec<f64>> {
    let of_line = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let mut row = vec![f64::NAN; CLASSES.len()];
        for guess in line["top"].as_array().unwrap() {
            let class = guess["class"].as_u64().unwrap() as usize;
            row[class] = guess["probability"].as_f64().unwrap();
        }
        row
    };
    lines.lines().map(of_line).collect()
}

#[test]
fn torchvisions_weights_are_tuned_through_kills_and_are_torchvisions_again() {
    let Some(python) = python() else { return };
    let _turn = alone();
    let place = run_dir("weights-tuned");
    let (set, start, end) = (place.join("set"), place.join("w.pth"), place.join("w.safetensors"));
    let files = pictures(&set);
    torchvision(&python, &["make", "1000"], &[&start]);
    let (calm_folder, calm) = tuned("weights-calm", (&set, &start), &[]);
    let kills = r#"faults.plan=[{kind="kill", rank=1, step=3, phase="in_update"},
                                {kind="kill", rank=0, step=6, phase="in_all_reduce"}]"#;
    let (folder, killed) = tuned("weights-killed", (&set, &start), &[kills]);
    assert_eq!(killed.state_sha256, calm.state_sha256);
    for folder in [&calm_folder, &folder] {
        let events = read_events(&folder.join("events.jsonl")).unwrap();
        let said = events.iter().any(|event| match &event.kind {
            Kind::Warning { message } => message.contains(
                "it is for 1000 classes, this model for 3: fc.weight, fc.bias begin anew",
            ),
            _ => false,
        });
        assert!(said, "the new last layer is named");
    }
    export(&folder, &end);
    let mut predict = kintsugi();
    predict.args(["predict", "--json", "--top", "3"]).arg(&folder).args(&files);
    let ours = run(&mut predict, LIMIT);
    assert_eq!(ours.code, Some(0), "{}", ours.stderr);
    let paths: Vec<&Path> = [&end].into_iter().chain(&files).map(PathBuf::as_path).collect();
    let frozen = torchvision(&python, &["compare", "3"], &[&start, &end]);
    assert_eq!(frozen.trim(), "the same: conv1 bn1 layer1; others: layer2 layer3 layer4 fc");
    let theirs = torchvision(&python, &["predict", "3"], &paths);
    let (ours, theirs) = (probabilities(&ours.stdout), probabilities(&theirs));
    assert_eq!((ours.len(), theirs.len()), (files.len(), files.len()));
    let best = |row: &[f64]| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]));
    for ((a, b), file) in ours.iter().zip(&theirs).zip(&files) {
        assert_eq!(best(a), best(b), "{}: {a:?} {b:?}", file.display());
        let apart = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(apart <= APART_MAX, "{}: {a:?} {b:?}", file.display());
    }
}
