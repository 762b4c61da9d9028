//! A checkpoint at work: what `evaluate` counts and what `predict` says are one model's answers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kintsugi::observe::event::Kind;
use kintsugi::observe::log::read_events;

use super::numbers::Place;

fn kintsugi(words: &[&str], files: &[PathBuf]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kintsugi"));
    command.args(words).args(files).output().unwrap()
}

fn lines(output: &Output) -> Vec<serde_json::Value> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn class_of(file: &Path) -> String {
    file.parent().unwrap().file_name().unwrap().to_string_lossy().into_owned()
}

#[test]
fn predictions_are_what_an_evaluation_counts() {
    let place = Place::new();
    let trained = place.train("run", &["train.steps=40"]).output().unwrap();
    assert!(trained.status.success(), "{trained:?}");
    let (run, page) = (place.path("run"), place.path("page.html"));
    let (run, page) = (run.to_str().unwrap(), page.to_str().unwrap());
    let none = kintsugi(&["evaluate", run, "--average"], &[]);
    assert_eq!(none.status.code(), Some(2), "{none:?}");
    assert!(String::from_utf8_lossy(&none.stderr).contains("optimizer.ema_decay"), "{none:?}");
    let measured = kintsugi(&["evaluate", run, "--json", "--report", page], &[]);
    assert!(measured.status.success(), "{measured:?}");
    let measured = &lines(&measured)[0];
    let text = std::fs::read_to_string(page).unwrap();
    assert!(text.contains("What each class is taken for") && text.ends_with("</html>\n"));

    let mut files: Vec<PathBuf> = std::fs::read_dir(place.path("set/validation"))
        .unwrap()
        .flat_map(|class| std::fs::read_dir(class.unwrap().path()).unwrap())
        .map(|file| file.unwrap().path())
        .collect();
    files.sort();
    let spoiled = place.path("spoiled.jpg");
    std::fs::write(&spoiled, "<html>not found</html>").unwrap();
    files.insert(3, spoiled);
    let answered = kintsugi(&["predict", run, "--json", "--top", "4"], &files);
    assert_eq!(answered.status.code(), Some(3), "one has no answer: {answered:?}");
    let said = String::from_utf8_lossy(&answered.stderr).into_owned();
    assert!(said.contains("spoiled.jpg: not a JPEG") && said.contains("1 of 17"), "{said}");

    let (mut right, mut samples) = (BTreeMap::new(), BTreeMap::new());
    for line in lines(&answered) {
        let class = class_of(Path::new(line["file"].as_str().unwrap()));
        let top = line["top"].as_array().unwrap();
        let probabilities = top.iter().map(|guess| guess["probability"].as_f64().unwrap());
        assert!((probabilities.sum::<f64>() - 1.0).abs() < 1e-4, "all four classes: {line}");
        *samples.entry(class.clone()).or_insert(0u64) += 1;
        *right.entry(class.clone()).or_insert(0u64) += u64::from(top[0]["name"] == class);
    }
    assert_eq!(measured["samples"], 16);
    for class in measured["classes"].as_array().unwrap() {
        let name = class["name"].as_str().unwrap();
        assert_eq!(class["samples"], samples[name], "{name}");
        let share = right[name] as f64 / samples[name] as f64;
        assert_eq!(class["top1"].as_f64(), Some(share), "{name}");
    }
}

/// The last evaluation of a run, and what `evaluate` says of the checkpoint that it left.
#[test]
fn a_checkpoints_average_is_as_good_as_the_run_said() {
    let place = Place::new();
    let keys = ["train.steps=12", "optimizer.ema_decay=0.8", "evaluation.every=12steps"];
    let trained = place.train("run", &keys).output().unwrap();
    assert!(trained.status.success(), "{trained:?}");
    let events = read_events(&place.path("run/events.jsonl")).unwrap();
    let last = events.iter().rev().find_map(|event| match &event.kind {
        Kind::Evaluation { average_error, .. } => *average_error,
        _ => None,
    });
    let run = place.path("run");
    let run = run.to_str().unwrap();
    let measured = kintsugi(&["evaluate", run, "--json", "--average"], &[]);
    assert!(measured.status.success(), "{measured:?}");
    assert_eq!(lines(&measured)[0]["error"].as_f64(), last);
}
