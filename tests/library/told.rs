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
    for (run, form, ending) in [("usual", None, "pt"), ("halves", None, "pt")]
        .into_iter()
        .chain([("usual", Some("--onnx"), "onnx"), ("halves", Some("--onnx"), "onnx")])
    {
        let file = format!("{run}.{ending}");
        let (from, to) = (path(run), path(&file));
        let words = ["checkpoint", "export", &from, &to].into_iter().chain(form);
        let _ = kintsugi(&words.collect::<Vec<_>>());
        assert_eq!(holds(&file, "[0.5,0.5,0.5]"), run == "halves", "{file}");
        assert_eq!(holds(&file, "[0.485,0.456,0.406]"), file == "usual.onnx", "{file}");
    }
    let init = format!("model.init={}", path("halves.pt"));
    let said = completed(&place, "from-halves", &[&init]);
    let keys = "it was trained with data.mean=[0.5,0.5,0.5] data.deviation=[0.5,0.5,0.5]";
    assert!(said.contains(keys), "{said}");
    let said = completed(&place, "with-halves", &[HALVES[0], HALVES[1], &init]);
    assert!(!said.contains("it was trained with"), "{said}");
}
