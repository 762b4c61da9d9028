//! What a person sees of a folder of pictures, and that a run finds it again from anywhere.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::support::{beside_its_like, kintsugi, run};

const CONFIG: &str = r#"
[run]
name = "folders"
[model]
name = "mine.toml"
[data]
train = "set/train"
validation = "set/validation"
image_size = 8
[train]
steps = 2
global_batch = 6
[evaluation]
every = "never"
[recovery]
resident = "off"
"#;

const MODEL: &str = r#"
name = "mine"
[[layer]]
kind = "flatten"
[[layer]]
kind = "linear"
features = "classes"
"#;

#[test]
fn a_run_says_once_what_it_does_not_read_and_finds_its_files_from_anywhere() {
    let _turn = beside_its_like();
    let root = tempfile::tempdir().expect("a temporary folder");
    let (project, other) = (root.path().join("project"), root.path().join("other"));
    fs::create_dir_all(&other).and_then(|()| fs::create_dir(&project)).expect("created");
    fs::write(project.join("run.toml"), CONFIG).expect("written");
    fs::write(project.join("mine.toml"), MODEL).expect("written");
    let here = |words: &[&str]| run(kintsugi().args(words).current_dir(&project), 60);
    let sizes = ["--classes", "3", "--train", "12", "--validation", "6", "--image-size", "8"];
    let made = here(&[&["data", "synth", "set"], &sizes[..]].concat());
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let train = project.join("set/train");
    let class = fs::read_dir(&train).expect("there").flatten().next().expect("a class").path();
    fs::write(class.join("late.heic"), "x").expect("written");
    symlink("..", class.join("loop\u{1b}[2J")).expect("linked");

    let words = ["launch", "run.toml", "--run-dir", "run"];
    let first = here(&words);
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    let said = |text: &str, what: &str| text.matches(what).count();
    assert_eq!(said(&first.stderr, "1 files are not read: 1 .heic"), 1, "{}", first.stderr);
    assert_eq!(said(&first.stderr, "links lead to folders that are read"), 1, "{}", first.stderr);
    assert!(first.stderr.contains("12 training samples"), "{}", first.stderr);
    assert!(!first.stderr.contains('\u{1b}'), "{:?}", first.stderr);
    let longer = here(&[&words[..], &["-s", "train.steps=3"]].concat());
    assert_eq!(longer.code, Some(0), "{}", longer.stderr);
    assert_eq!(said(&longer.stderr, "not read"), 0, "once is enough: {}", longer.stderr);

    let single = here(&["train", "run.toml", "--run-dir", "alone"]);
    assert_eq!(single.code, Some(0), "{}", single.stderr);
    for folder in ["run", "alone"] {
        let config = fs::read_to_string(project.join(folder).join("config.toml")).expect("there");
        let whole = train.canonicalize().expect("there");
        assert!(config.contains(&format!("train = {:?}", whole.to_string_lossy())), "{config}");
    }
    // From its own configuration a run goes on, wherever that is read.
    let again = ["launch", "../project/run/config.toml", "--run-dir", "../project/run"];
    let again = [&again[..], &["-s", "train.steps=4"]].concat();
    let again = run(kintsugi().args(again).current_dir(&other), 60);
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    assert!(again.stderr.contains("step 4/4"), "{}", again.stderr);
    let checkpoint = project.join("run");
    let measured = run(kintsugi().arg("evaluate").arg(checkpoint).current_dir(&other), 60);
    assert_eq!(measured.code, Some(0), "{}", measured.stderr);
    assert!(measured.stdout.contains("over 6 samples"), "{}", measured.stdout);
}

/// Gives all folders of a set the time of an hour ago: what has just changed is not trusted.
fn settle(folder: &Path) {
    let before = SystemTime::now() - Duration::from_secs(3600);
    for entry in fs::read_dir(folder).expect("there").flatten().filter(|e| e.path().is_dir()) {
        settle(&entry.path());
    }
    fs::File::open(folder).and_then(|folder| folder.set_modified(before)).expect("ours");
}

#[test]
fn ranks_list_a_folder_once_later_starts_not_at_all_and_one_folder_gives_both_splits() {
    let _turn = beside_its_like();
    let root = tempfile::tempdir().expect("a temporary folder");
    fs::write(root.path().join("run.toml"), CONFIG).expect("written");
    fs::write(root.path().join("mine.toml"), MODEL).expect("written");
    let here = |words: &[&str]| run(kintsugi().args(words).current_dir(root.path()), 60);
    let sizes = ["--classes", "3", "--train", "90", "--validation", "6", "--image-size", "8"];
    let made = here(&[&["data", "synth", "set"], &sizes[..]].concat());
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let train = root.path().join("set/train");
    settle(&train);
    let launch = |steps: &str| {
        let steps = format!("train.steps={steps}");
        let share = ["-s", "data.validation=20%", "-s", "evaluation.every=2steps"];
        let words = ["launch", "-n", "3", "run.toml", "--run-dir", "run", "-s", &steps];
        here(&[&words[..], &share].concat())
    };
    let first = launch("2");
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    assert!(first.stdout.contains("validation error"), "{}", first.stdout);
    assert!(!first.stderr.contains("90 training samples"), "{}", first.stderr);
    let index = || {
        let entries = fs::read_dir(root.path().join("run/cache")).expect("there").flatten();
        let is_index = |entry: &fs::DirEntry| {
            let ending = entry.path().extension().map(OsStr::to_owned);
            assert!(ending.as_deref() != Some("part".as_ref()), "no part of one");
            ending.as_deref() == Some("index".as_ref())
        };
        let mut entries = entries.filter(is_index);
        let index = entries.next().expect("an index");
        assert!(entries.next().is_none(), "one for all ranks");
        let facts = index.metadata().expect("there");
        (index.file_name(), facts.modified().expect("a time"))
    };
    let saved = index();
    let longer = launch("4");
    assert_eq!(longer.code, Some(0), "{}", longer.stderr);
    assert_eq!(index(), saved, "it was read, not made again");
    // The run goes on with its own pictures: one that came is seen, and said.
    let class = fs::read_dir(&train).expect("there").flatten().next().expect("a class").path();
    let picture = fs::read_dir(&class).expect("there").flatten().next().expect("one").path();
    fs::copy(&picture, class.join("another.jpg")).expect("copied");
    let changed = launch("6");
    assert_eq!(changed.code, Some(0), "{}", changed.stderr);
    assert!(changed.stderr.contains("data.train: 1 pictures have come"), "{}", changed.stderr);
    // One that has gone makes another set.
    fs::rename(&picture, class.join("renamed.jpg")).expect("renamed");
    let changed = launch("8");
    assert_eq!(changed.code, Some(3), "{}", changed.stderr);
    let name = picture.file_name().expect("a name").to_string_lossy().into_owned();
    assert!(changed.stdout.contains(&format!("{name} is gone")), "{}", changed.stdout);
}
