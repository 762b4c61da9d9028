//! What a run says of itself is what it did: the rate of its steps, where its weights came from.
//! The program itself, as a world of one.

use std::process::Command;

use kintsugi::observe::event::Kind;
use kintsugi::observe::log::read_events;

use super::numbers::Place;

/// Ends well, and what it said.
#[track_caller]
fn completed(place: &Place, run: &str, overrides: &[&str]) -> String {
    let ended = place.train(run, overrides).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.status.code(), Some(0), "{said}");
    said
}

#[test]
fn the_rate_of_a_step_is_the_one_that_moved_its_weights() {
    let place = Place::new();
    for (run, exchange) in [("plain", "synchronous"), ("free", "asynchronous")] {
        let exchange = format!("train.exchange={exchange}");
        let _ = completed(&place, run, &["schedule.warm_up=1", "optimizer.momentum=0", &exchange]);
        let events = read_events(&place.path(run).join("events.jsonl")).unwrap();
        let rates: Vec<(u64, f64)> = events
            .iter()
            .filter_map(|event| match event.kind {
                Kind::Step { learning_rate, .. } => Some((event.step, learning_rate)),
                _ => None,
            })
            .collect();
        assert!(!rates.is_empty());
        // A straight line to the whole rate in the last of 12 steps.
        for &(step, rate) in rates.iter().filter(|_| run == "plain") {
            assert!((rate - 0.05 * step as f64 / 12.0).abs() < 1e-12, "{rates:?}");
        }
        let most = 0.05 + 1e-12;
        assert!(rates.iter().all(|(_, rate)| *rate > 0.0 && *rate <= most), "{run}: {rates:?}");
    }
}

#[test]
fn first_weights_of_a_file_are_not_called_scratch() {
    let place = Place::new();
    let said = completed(&place, "first", &[]);
    assert!(said.contains("training samples, from scratch"), "{said}");
    let first = place.path("first").display().to_string();
    let init = format!("model.init={first}");
    let said = completed(&place, "second", &[&init]);
    assert!(said.contains(&format!("training samples, from weights {first}")), "{said}");
    let said = completed(&place, "second", &[&init, "train.steps=13"]);
    assert!(said.contains("training samples, from checkpoint"), "{said}");
}

#[test]
fn an_attempt_that_finds_nothing_left_to_do_tells_the_epoch_it_is_in() {
    let place = Place::new();
    let told = |said: &str| {
        let last = said.lines().rfind(|line| line.starts_with("step 12/12"));
        let epoch = last.and_then(|line| line.split("epoch ").nth(1)?.split(' ').next());
        epoch.map(str::to_owned).unwrap_or_else(|| panic!("{said}"))
    };
    let first = told(&completed(&place, "run", &[]));
    assert_ne!(first, "0");
    assert_eq!(told(&completed(&place, "run", &[])), first);
}

#[test]
fn a_run_without_checkpoints_and_a_set_that_is_not_there_are_named_as_they_were_typed() {
    let place = Place::new();
    let never = r#"checkpoint.every="never""#;
    let _ = completed(&place, "never", &[never]);
    let _ = completed(&place, "run", &[]);
    let at = |name: &str| place.path(name).display().to_string();
    let (never, run, file) = (at("never"), at("run"), at("file"));
    for (words, code, expected) in [
        (
            &["checkpoint", "export", &never, &file][..],
            2,
            "is a run without a checkpoint: with checkpoint.every = \"never\"",
        ),
        (&["evaluate", &never], 2, "train anew with another checkpoint.every"),
        (
            &["evaluate", &run, "--data", "nosuch", "-s", "data.format=image_folder"],
            3,
            "--data: nosuch does not exist",
        ),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_kintsugi")).args(words).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(expected) && !said.contains("data.train"), "{said}");
    }
}

#[test]
fn what_the_processor_cannot_compute_is_a_usage_error_before_anything_is_started() {
    let place = Place::new();
    let _ = completed(&place, "run", &[]);
    let (run, new) = (place.path("run"), place.path("new"));
    let config = concat!(env!("CARGO_MANIFEST_DIR"), "/configs/mlp_synthetic.toml");
    let bf16 = ["-s", "device.precision=bf16"];
    let beginnings = [["launch", config], ["train", config]];
    let commands = beginnings.map(|words| (words.to_vec(), true));
    let looking = (vec!["evaluate", run.to_str().unwrap()], false);
    for (words, begins) in commands.into_iter().chain([looking]) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kintsugi"));
        command.args(&words).args(bf16).env("ONEDNN_MAX_CPU_ISA", "AVX2");
        if begins {
            command.arg("--run-dir").arg(&new);
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {said}");
        assert!(said.contains("needs a processor with AVX-512, this one has avx2"), "{said}");
        assert!(!new.join("result.json").exists(), "{words:?}");
        assert!(words[0] != "launch" || !new.exists(), "{said}");
    }
}

const HALVES: [&str; 2] = ["data.mean=[0.5, 0.5, 0.5]", "data.deviation=[0.5, 0.5, 0.5]"];

#[test]
fn other_constants_of_pictures_belong_to_run_checkpoint_and_exports() {
    let place = Place::new();
    let path = |name: &str| place.path(name).display().to_string();
    let _ = completed(&place, "usual", &[]);
    let _ = completed(&place, "halves", &HALVES);
    let config = |run: &str| std::fs::read_to_string(place.path(run).join("config.toml")).unwrap();
    assert!(!config("usual").contains("mean") && !config("usual").contains("deviation"));
    assert!(config("halves").contains("deviation = [\n    0.5,"), "{}", config("halves"));
    let result = |run: &str| {
        let text = std::fs::read(place.path(run).join("result.json")).unwrap();
        serde_json::from_slice::<serde_json::Value>(&text).unwrap()
    };
    assert_ne!(result("usual")["state_sha256"], result("halves")["state_sha256"]);

    let kintsugi = |words: &[&str]| {
        let ended = Command::new(env!("CARGO_BIN_EXE_kintsugi")).args(words).output().unwrap();
        assert!(ended.status.success(), "{words:?}: {ended:?}");
        String::from_utf8(ended.stdout).unwrap()
    };
    let measured = kintsugi(&["evaluate", &path("halves"), "--json"]);
    let measured: serde_json::Value = serde_json::from_str(measured.trim()).unwrap();
    assert_eq!(measured["error"], result("halves")["validation"]["error"], "as the run saw them");

    // A run that goes on without them is another one.
    let ended = place.train("halves", &["train.steps=13"]).output().unwrap();
    assert_eq!(ended.status.code(), Some(2), "{ended:?}");
    let holds = |file: &str, text: &str| {
        let bytes = std::fs::read(place.path(file)).unwrap();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    };
    for (run, form, ending) in [("usual", None, "safetensors"), ("halves", None, "safetensors")]
        .into_iter()
        .chain([("usual", Some("--onnx"), "onnx"), ("halves", Some("--onnx"), "onnx")])
    {
        let file = format!("{run}.{ending}");
        let (from, to) = (path(run), path(&file));
        let words = ["checkpoint", "export", &from, &to].into_iter().chain(form);
        let _ = kintsugi(&words.collect::<Vec<_>>());
        assert_eq!(holds(&file, "[0.5,0.5,0.5]"), run == "halves", "{file}");
        assert_eq!(holds(&file, "[0.485,0.456,0.406]"), run == "usual", "{file}");
    }
    let init = format!("model.init={}", path("halves.safetensors"));
    let said = completed(&place, "from-halves", &[&init]);
    let keys = "it was trained with data.mean=[0.5,0.5,0.5] data.deviation=[0.5,0.5,0.5]";
    assert!(said.contains(keys), "{said}");
    let said = completed(&place, "with-halves", &[HALVES[0], HALVES[1], &init]);
    assert!(!said.contains("it was trained with"), "{said}");
}
