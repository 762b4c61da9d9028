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

/// One of its pictures, in the first class.
fn a_picture(place: &Place) -> PathBuf {
    let first = |folder: PathBuf| {
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).min().unwrap()
    };
    first(first(place.path("set/validation")))
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

/// Every way to name a checkpoint of a run, and one that was taken out of it.
#[test]
fn one_checkpoint_is_judged_in_its_run_and_out_of_it() {
    let place = Place::new();
    // Two runs, one after the other: a writer that is still busy passes a checkpoint over, the last
    // one of a run it never does.
    for steps in ["train.steps=8", "train.steps=12"] {
        let keys = [steps, "schedule.kind=constant", "evaluation.every=never"];
        let trained = place.train("run", &keys).output().unwrap();
        assert!(trained.status.success(), "{trained:?}");
    }
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let judged = |path: &Path| {
        let output = kintsugi(&["evaluate", "--json"], &[path.to_path_buf()]);
        assert!(output.status.success(), "{}: {output:?}", path.display());
        let measured = &lines(&output)[0];
        (measured["step"].clone(), measured["loss"].clone())
    };
    let (run, name) = (place.path("run"), "step-00000012");
    let newest = judged(&run);
    assert_eq!(newest.0, 12);
    let (checkpoints, one) = (run.join("checkpoints"), run.join("checkpoints").join(name));
    let by_link = place.path("link");
    std::os::unix::fs::symlink(&run, &by_link).unwrap();
    for path in [&checkpoints, &one, &one.join("."), &by_link.join("checkpoints").join(name)] {
        assert_eq!(judged(path), newest, "{}", path.display());
    }
    assert_eq!(judged(&checkpoints.join("step-00000008")).0, 8);
    let picture = a_picture(&place);
    let answers = [&run, &one].map(|path| {
        let output = kintsugi(&["predict", "--json"], &[path.clone(), picture.clone()]);
        assert!(output.status.success(), "{output:?}");
        output.stdout
    });
    assert_eq!(answers[0], answers[1]);
    // With the run's own words on its pictures.
    let onnx = kintsugi(&["checkpoint", "export", "--onnx"], &[one.clone(), place.path("m.onnx")]);
    assert!(said(&onnx).contains("with mean"), "{onnx:?}");

    // Checkpoints that lie elsewhere, behind a link in the run.
    let elsewhere = place.path("elsewhere");
    std::fs::rename(&checkpoints, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &checkpoints).unwrap();
    for path in [&run, &checkpoints, &one] {
        assert_eq!(judged(path), newest, "{}", path.display());
    }
    // Named without its run it says what it needs.
    let alone = elsewhere.join(name);
    let refused = kintsugi(&["evaluate"], std::slice::from_ref(&alone));
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    let file = elsewhere.join("config.toml");
    let asks = format!("copy that run's config.toml to {}", file.display());
    assert!(said(&refused).contains(&asks), "{refused:?}");
    std::fs::copy(run.join("config.toml"), &file).unwrap();
    assert_eq!(judged(&alone), newest);
    let quiet = kintsugi(&["evaluate"], std::slice::from_ref(&alone));
    assert_eq!(said(&quiet), "");
    let other = std::fs::read_to_string(&file).unwrap().replace("seed = 1", "seed = 2");
    std::fs::write(&file, other).unwrap();
    let warned = kintsugi(&["evaluate"], &[alone]);
    assert!(said(&warned).contains("is another configuration than that of"), "{warned:?}");
    let named = kintsugi(&["evaluate", "-s", "model.name=resnet18"], &[run]);
    assert_eq!(named.status.code(), Some(2), "{named:?}");
    assert!(said(&named).contains("the model is that of the checkpoint, mlp"), "{named:?}");
}

/// Whoever looks with an older checkpoint than the run's newest is told so, and why.
#[test]
fn a_damaged_checkpoint_is_passed_over_with_a_word() {
    let place = Place::new();
    for steps in ["train.steps=8", "train.steps=12"] {
        let keys = [steps, "schedule.kind=constant", "evaluation.every=never"];
        let trained = place.train("run", &keys).output().unwrap();
        assert!(trained.status.success(), "{trained:?}");
    }
    let (run, file) = (place.path("run"), place.path("w.safetensors"));
    let model = run.join("checkpoints/step-00000012/model.safetensors");
    let mut bytes = std::fs::read(&model).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(model, bytes).unwrap();
    let told = |output: &Output| {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        let damage = "checkpoint step-00000012 is damaged: model.safetensors";
        assert!(said.contains(damage) && said.contains("; step-00000008 is taken"), "{said}");
    };
    told(&kintsugi(&["evaluate"], std::slice::from_ref(&run)));
    told(&kintsugi(&["predict"], &[run.clone(), a_picture(&place)]));
    told(&kintsugi(&["checkpoint", "export"], &[run.clone(), file.clone()]));
    told(&kintsugi(&["checkpoint", "export"], &[run.clone(), place.path("w.onnx")]));
    let init = format!("model.init={}", run.display());
    told(&place.train("later", &["train.steps=2", &init]).output().unwrap());
    // Of one that is named, or whole, nothing is to be said.
    let one = run.join("checkpoints/step-00000008");
    let quiet = kintsugi(&["evaluate"], &[one]);
    assert_eq!(String::from_utf8_lossy(&quiet.stderr), "");
}

/// Weights that came as a file have no run; they can be asked all the same.
#[test]
fn an_imported_checkpoint_answers_as_the_one_it_was_exported_from() {
    let place = Place::new();
    // Its width is in no file of weights, and its constants are not the usual ones.
    let constants = ["data.mean=[0.5,0.25,0.5]", "data.deviation=[0.5,0.5,0.125]"];
    let keys = [&["train.steps=8"], &constants[..]].concat();
    let trained = place.train("run", &keys).output().unwrap();
    assert!(trained.status.success(), "{trained:?}");
    let at = |name: &str| place.path(name).display().to_string();
    let (run, file, new) = (at("run"), at("w.safetensors"), at("new"));
    for words in [["export", &run, &file], ["import", &file, &new]] {
        let output = kintsugi(&[&["checkpoint"], &words[..]].concat(), &[]);
        assert!(output.status.success(), "{output:?}");
    }
    let set = at("set");
    let judged = |of: &str| {
        let output = kintsugi(&["evaluate", of, "--json", "--data", &set], &[]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{of}");
        lines(&output)[0]["loss"].clone()
    };
    assert_eq!(judged(&new), judged(&run));
    let picture = a_picture(&place);
    let answers = [&run, &new].map(|of| {
        let output = kintsugi(&["predict", "--json", of], std::slice::from_ref(&picture));
        assert!(output.status.success(), "{output:?}");
        output.stdout
    });
    assert_eq!(answers[0], answers[1]);
    let unsaid = kintsugi(&["evaluate", &new], &[]);
    assert_eq!(unsaid.status.code(), Some(2), "{unsaid:?}");
    let said = String::from_utf8_lossy(&unsaid.stderr).into_owned();
    assert!(said.contains("does not say which set it is of"), "{said}");
    let (set3, other) = (at("set3"), ["data", "synth", "--train", "6", "--validation", "3"]);
    let made =
        kintsugi(&[&other[..], &["--classes", "3", "--image-size", "16", &set3]].concat(), &[]);
    assert!(made.status.success(), "{made:?}");
    let others = kintsugi(&["evaluate", &run, "--data", &set3], &[]);
    assert_eq!(others.status.code(), Some(2), "{others:?}");
    let said = String::from_utf8_lossy(&others.stderr).into_owned();
    assert!(said.contains("3 classes for the checkpoint's 4; it lacks star"), "{said}");
    // It is no run: nobody goes on with it, and nobody moves it aside.
    for more in [&[][..], &["--fresh"]] {
        let launched =
            kintsugi(&[&["launch", &at("run/config.toml"), "--run-dir", &new], more].concat(), &[]);
        assert_eq!(launched.status.code(), Some(2), "{launched:?}");
        let said = String::from_utf8_lossy(&launched.stderr).into_owned();
        assert!(said.contains("is not a run"), "{said}");
        assert_eq!(judged(&new), judged(&run));
    }
    // A configuration that is there already stays.
    std::fs::remove_dir_all(place.path("new/checkpoints")).unwrap();
    std::fs::write(place.path("new/config.toml"), "# mine\n").unwrap();
    assert!(kintsugi(&["checkpoint", "import", &file, &new], &[]).status.success());
    assert_eq!(std::fs::read(place.path("new/config.toml")).unwrap(), b"# mine\n");
}

#[test]
fn what_is_asked_of_a_checkpoint_and_would_change_nothing_is_refused() {
    let place = Place::new();
    let trained = place.train("run", &["train.steps=4"]).output().unwrap();
    assert!(trained.status.success(), "{trained:?}");
    let judged = |set: &str| {
        let output = kintsugi(&["evaluate", "--json", "-s", set], &[place.path("run")]);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (set, why) in [
        ("data.image_size=64", "looks at pictures of 16 pixels"),
        ("train.label_smoothing=0.2", "is of training alone"),
        ("optimizer.ema_decay=0.9", "is of training alone"),
        ("device.memory_budget=1KB", "is of a run's ranks"),
    ] {
        let (code, said) = judged(set);
        assert!(code == Some(2) && said.contains(why), "{set}: {said}");
    }
    assert_eq!(judged("data.image_size=16").0, Some(0));
}

/// Teams of one thread where primitives were made for more would leave most of a layer undone.
#[test]
fn an_environment_without_parallel_regions_changes_no_answer() {
    let place = Place::new();
    let trained = place.train("run", &["train.steps=4"]).output().unwrap();
    assert!(trained.status.success(), "{trained:?}");
    let judged = |levels: Option<&str>| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_kintsugi"));
        program.args(["evaluate", "--json", "--threads", "4"]).arg(place.path("run"));
        levels.map(|levels| program.env("OMP_MAX_ACTIVE_LEVELS", levels));
        let output = program.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        lines(&output)[0]["loss"].clone()
    };
    assert_eq!(judged(Some("0")), judged(None));
}

#[test]
fn whatever_becomes_of_a_runs_file_pictures_are_looked_at_as_in_training() {
    let place = Place::new();
    let trained = place.train("run", &["train.steps=8"]).output().unwrap();
    assert!(trained.status.success(), "{trained:?}");
    let run = place.path("run");
    let judged = |more: &[&str]| {
        let words = [&["evaluate", "--json"], more].concat();
        let output = kintsugi(&words, std::slice::from_ref(&run));
        assert!(output.status.success(), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (lines(&output)[0]["loss"].clone(), said)
    };
    let (newest, quiet) = judged(&[]);
    assert_eq!(quiet, "");
    let own = std::fs::read_to_string(run.join("config.toml")).unwrap();
    let edited = own.replace("[data]\n", "[data]\nmean = [0.1, 0.2, 0.3]\n");
    assert_ne!(edited, own);
    std::fs::write(run.join("config.toml"), edited).unwrap();
    let (loss, warned) = judged(&[]);
    assert_eq!(loss, newest);
    for words in ["is another configuration", "normalised as the checkpoint was trained"] {
        assert!(warned.contains(words), "{warned}");
    }
    assert_ne!(judged(&["-s", "data.mean=[0.1, 0.2, 0.3]"]).0, newest);
}

/// A pipe would hold up who opens it, a device would be read for ever; a folder is its pictures.
#[test]
fn only_files_are_opened_as_pictures() {
    let place = Place::new();
    let trained = place.train("run", &["train.steps=2"]).output().unwrap();
    assert!(trained.status.success(), "{trained:?}");
    let (pipe, folder) = (place.path("pipe.jpg"), place.path("set"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let picture = a_picture(&place);
    let mut files = vec![place.path("run"), pipe, PathBuf::from("/dev/zero"), folder];
    files.extend([PathBuf::from("/dev/stdin"), picture]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_kintsugi"));
    command.arg("predict").args(&files).stdin(std::process::Stdio::piped());
    let answered = command.output().unwrap();
    let said = String::from_utf8_lossy(&answered.stderr).into_owned();
    assert_eq!(answered.status.code(), Some(3), "{said}");
    for expected in [
        "pipe.jpg: it is a pipe; only files are read",
        "/dev/zero: it is a device; only files are read",
        "/dev/stdin: it is a pipe; only files are read",
        "3 of 68 pictures have no answer",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    assert_eq!(
        answered.stdout.iter().filter(|byte| **byte == b'\n').count(),
        65,
        "64 of the folder"
    );
}
