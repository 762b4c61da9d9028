//! `launch --check` beside the start that it stands for: the same exit code and the same words, and
//! nothing is left. And from a folder of pictures to a run: `init`, and the recipes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use kintsugi::config::{identity, parse};
use kintsugi::model::catalogue;
use kintsugi::observe::result::RunResult;
use kintsugi_ffi::process;

use crate::tree::tree;

mod labels;

/// Twenty pictures in two classes, of which so many are none.
fn pictures(folder: &Path, bad: u32) {
    for index in 0..20_u32 {
        let class = folder.join(if index % 2 == 0 { "even" } else { "odd" });
        std::fs::create_dir_all(&class).unwrap();
        let name = class.join(format!("{index}.png"));
        match index < bad {
            true => std::fs::write(name, "no picture").unwrap(),
            // Twenty pictures of which none is nearly another.
            false => image::RgbImage::from_fn(12, 12, |x, y| {
                let level = (index + 1) * (7 * x + 13 * y) + 31 * index * x;
                image::Rgb([level as u8, (level >> 3) as u8, 90])
            })
            .save(name)
            .unwrap(),
        }
    }
}

const CONFIG: &str = r#"
model = { name = "mlp", width = 0.1 }
data = { format = "image_folder", image_size = 8, augment = false }
train = { epochs = 2, global_batch = 10, owners = 2 }
evaluation = { every = "never" }
recovery = { resident = "off" }
"#;

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        pictures(&place.at("set"), 0);
        std::fs::write(place.at("run.toml"), CONFIG).unwrap();
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `kintsugi launch`, or what stands for it.
    fn launch(&self, before: &[&str], keys: &[&str]) -> Output {
        let set = format!("data.train={}", self.at("set").display());
        let words = [before, &[env!("CARGO_BIN_EXE_kintsugi"), "launch", "-n", "1"]].concat();
        let mut program = Command::new(words[0]);
        program.args(&words[1..]).arg(self.at("run.toml")).args(["-s", &set]);
        for key in keys {
            let option = if key.starts_with("--") { vec![*key] } else { vec!["-s", *key] };
            program.args(option);
        }
        program.arg("--run-dir").arg(self.at("above/run")).output().unwrap()
    }
}

fn said(output: &Output) -> String {
    [&output.stderr, &output.stdout].map(|text| String::from_utf8_lossy(text).into_owned()).concat()
}

/// The look and the start end alike, and the look leaves nothing.
#[track_caller]
fn alike(bad: u32, keys: &[&str], (code, words): (i32, &str)) {
    let place = Place::new();
    pictures(&place.at("set"), bad);
    let before = tree(place.0.path());
    let look = place.launch(&[], &[keys, &["--check"]].concat());
    assert_eq!(look.status.code(), Some(code), "{keys:?}: {}", said(&look));
    assert!(said(&look).contains(words), "{keys:?}: {}", said(&look));
    assert!(tree(place.0.path()) == before, "{keys:?}: the look left something");
    let start = place.launch(&[], keys);
    assert_eq!(start.status.code(), Some(code), "{keys:?}: {}", said(&start));
    assert!(said(&start).contains(words), "{keys:?}: {}", said(&start));
}

#[test]
fn a_look_at_a_start_that_would_be_refused_ends_as_the_start_does() {
    alike(0, &["data.train=nowhere"], (3, "there is no such folder"));
    alike(0, &["model.name=nope", "model.width=1.0"], (2, "there is no model `nope`"));
    alike(0, &["model.freeze=[\"nothing\"]"], (2, "nothing"));
    alike(0, &["train.owners=21"], (3, "the training set has 20 samples"));
    let init = format!("model.init={}/Cargo.toml", env!("CARGO_MANIFEST_DIR"));
    alike(0, &[&init], (2, "model.init"));
    alike(0, &["model.init=nowhere.pth"], (2, "nowhere.pth"));
    alike(0, &["device.precision=tf32"], (2, "tf32"));
}

#[test]
fn a_batch_that_is_larger_than_the_set_is_told_once() {
    let place = Place::new();
    let words = "train.global_batch = 1000, and the training set has 20 samples: every step is a \
                 whole epoch of 20";
    for keys in [&["train.global_batch=1000", "--check"][..], &["train.global_batch=1000"]] {
        let output = place.launch(&[], keys);
        assert_eq!(output.status.code(), Some(0), "{keys:?}: {}", said(&output));
        assert_eq!(said(&output).matches(words).count(), 1, "{keys:?}: {}", said(&output));
    }
    let whole = Place::new().launch(&[], &["train.global_batch=20", "--check"]);
    assert!(!said(&whole).contains("whole epoch"), "{}", said(&whole));
}

#[test]
fn what_a_rank_alone_is_advised_to_do_it_can_do() {
    let place = Place::new();
    let set = format!("data.train={}", place.at("set").display());
    let train = |more: &[&str]| {
        let words = ["train", "run.toml", "--run-dir", "solo", "-s", &set];
        kintsugi(place.0.path(), &[&words[..], more].concat())
    };
    assert_eq!(train(&[]).status.code(), Some(0));
    let refused = train(&["-s", "optimizer.learning_rate=0.3"]);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    // `train` itself has no --fresh.
    let advice = "put them back, or start anew: in another --run-dir, or by `launch --fresh`";
    assert!(said(&refused).contains(advice), "{}", said(&refused));
}

#[test]
fn nothing_to_measure_errors_on_is_found_before_there_is_a_run() {
    let place = Place::new();
    let before = tree(place.0.path());
    let every = "evaluation.every=epoch";
    for keys in [&[every, "--check"][..], &[every]] {
        let refused = place.launch(&[], keys);
        assert_eq!(refused.status.code(), Some(2), "{keys:?}: {}", said(&refused));
        assert!(said(&refused).contains("(\"10%\")"), "{keys:?}: {}", said(&refused));
        assert!(tree(place.0.path()) == before, "{keys:?}: something was left");
    }
    let set = format!("data.train={}", place.at("set").display());
    let alone = ["train", "run.toml", "--run-dir", "run", "-s", every, "-s", &set];
    let refused = kintsugi(place.0.path(), &alone);
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(tree(place.0.path()) == before, "a rank left something");
    let measured = place.launch(&[], &[every, "data.validation=20%"]);
    assert_eq!(measured.status.code(), Some(0), "{}", said(&measured));
}

#[test]
fn a_rank_that_does_not_fit_into_memory_is_found_before_it_starts() {
    // Its weights alone are more than any machine has.
    let large = ["model.width=64.0", "data.image_size=512"];
    alike(0, &large, (2, "of memory at the least, and this machine"));
}

#[test]
fn more_unreadable_pictures_than_are_allowed_are_found() {
    alike(5, &[], (3, "more than data.bad_images_max = 0.01 allows"));
    alike(5, &["data.bad_image=fatal"], (3, ".png"));
    // As many as are allowed are told.
    let place = Place::new();
    pictures(&place.at("set"), 5);
    let look = place.launch(&[], &["data.bad_images_max=0.5", "--check"]);
    assert_eq!(look.status.code(), Some(0), "{}", said(&look));
    assert!(said(&look).contains("20 of 20 looked at, 5 cannot be decoded"), "{}", said(&look));
}

/// What refuses the first run is told once, and not learned six times. What a refusal puts back is
/// no run of the experiment that was refused.
#[test]
fn an_experiment_whose_first_run_is_refused_starts_no_other() {
    let place = Place::new();
    let file = place.at("rates.toml");
    let text = format!(
        "title = \"t\"\nconfig = \"run.toml\"\nranks = 1\nseeds = [1, 2]\n\
         sweep.optimizer.learning_rate = [0.1, 0.05]\nset.data.train = \"{}\"\n",
        place.at("set").display()
    );
    std::fs::write(&file, text).unwrap();
    let experiment = |more: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_kintsugi"));
        program.arg("experiment").arg(&file).arg("--out").arg(place.at("out")).args(more);
        program.output().unwrap()
    };
    let refused = |more: &[&str]| {
        pictures(&place.at("set"), 5);
        let output = experiment(more);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(3), "{said}");
        let reason = "  learning_rate 0.1, seed 1: refused before its first step (exit code 3): ";
        let lines: Vec<&str> = said.lines().filter(|line| line.starts_with(reason)).collect();
        assert!(lines.len() == 1 && lines[0].contains("data.bad_images_max"), "{said}");
        assert!(said.contains("[1/4]") && !said.contains("[2/4]"), "{said}");
        assert!(said.contains("what refused learning_rate 0.1, seed 1 may refuse them"), "{said}");
    };
    refused(&[]);
    pictures(&place.at("set"), 0);
    let output = experiment(&[]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&experiment(&[])).contains("all are complete already"));
    refused(&["-s", "train.epochs=1"]);
    // The complete run that was put back is not one of the changed experiment.
    refused(&["-s", "train.epochs=1"]);
}

#[test]
fn too_few_processors_are_told_as_the_start_tells_them() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    let first = allowed.trim().split([',', '-']).next().unwrap();
    let (place, one) = (Place::new(), ["taskset", "-c", first]);
    let words = "train.workers = 2 with train.threads = 1, and a rank has 1 processors";
    for keys in [&["train.workers=2", "--check"][..], &["train.workers=2"]] {
        let output = place.launch(&one, keys);
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert!(said(&output).contains(words), "{keys:?}: {}", said(&output));
    }
    let crowd = Place::new().launch(&one, &["train.threads=3", "--check"]);
    assert!(said(&crowd).contains("take turns"), "{}", said(&crowd));
}

/// Mounted while it lives.
struct SmallDisk(PathBuf);

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).output();
    }
}

#[test]
fn a_disk_without_room_for_checkpoints_is_told_as_the_start_tells_it() {
    let place = Place::new();
    let disk = place.at("above");
    std::fs::create_dir(&disk).unwrap();
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"]).arg(&disk);
    if process::user_id() != 0 || !mount.output().is_ok_and(|end| end.status.success()) {
        let line = b"skipped: a small disk (needs root that may mount)\n";
        std::io::stdout().write_all(line).unwrap();
        return;
    }
    let _disk = SmallDisk(disk);
    let words = "of disk is free, and this run needs about";
    let look = place.launch(&[], &["--check"]);
    assert_eq!(look.status.code(), Some(0), "a warning: {}", said(&look));
    assert!(said(&look).contains(words), "{}", said(&look));
    // Its steps are committed, and its last checkpoint is not written.
    let start = place.launch(&[], &[]);
    assert!(said(&start).contains(words), "{}", said(&start));
}

#[test]
fn a_look_says_where_a_run_stands_and_what_differs() {
    let place = Place::new();
    let said_of = |keys: &[&str]| {
        let output = place.launch(&[], keys);
        (output.status.code(), said(&output))
    };
    let (code, text) = said_of(&["--check"]);
    assert!(code == Some(0) && text.contains("run: begins"), "{text}");
    assert_eq!(said_of(&[]).0, Some(0));
    let (code, text) = said_of(&["--check"]);
    assert!(code == Some(0) && text.contains("is complete"), "{text}");
    let (code, text) = said_of(&["--check", "train.epochs=3"]);
    assert!(code == Some(0) && text.contains("goes on from step 4"), "{text}");
    let (code, text) = said_of(&["--check", "run.seed=9"]);
    assert!(code == Some(2) && text.contains("run.seed: 1 -> 9"), "{text}");
    // Another set than it began with: its ranks would find that.
    std::fs::remove_file(place.at("set/even/0.png")).unwrap();
    let (code, text) = said_of(&["--check", "train.epochs=3"]);
    assert!(code == Some(3) && text.contains("not the training set that the run began"), "{text}");
}

fn kintsugi(folder: &Path, words: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_kintsugi"));
    program.current_dir(folder).args(words).output().unwrap()
}

#[test]
fn a_folder_becomes_a_file_that_runs_as_it_is() {
    let place = Place::new();
    let home = place.at("home");
    std::fs::create_dir(&home).unwrap();
    let init = kintsugi(&home, &["init", "../set", "-n", "2"]);
    assert_eq!(init.status.code(), Some(0), "{}", said(&init));
    for part in ["20 pictures of 2 classes (10 each)", "next: kintsugi launch set.toml"] {
        assert!(said(&init).contains(part), "`{part}`: {}", said(&init));
    }
    let file = home.join("set.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.starts_with("# Written by `kintsugi init`: 20 pictures"), "{text}");
    let config = parse::load(&file, &[]).unwrap();
    assert_eq!((config.run.ranks, config.run.name.as_str()), (2, "set"));
    let again = kintsugi(&home, &["init", "../set"]);
    assert_eq!(again.status.code(), Some(2), "{}", said(&again));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text, "it is not written over");
    let launch = kintsugi(&home, &["launch", "set.toml", "-n", "1", "-s", "train.epochs=2"]);
    assert_eq!(launch.status.code(), Some(0), "{}", said(&launch));
    assert!(!said(&launch).contains("has no effect"), "no try of warm-up alone: {}", said(&launch));
    assert_eq!(kintsugi(&home, &["init", "../set", "--force"]).status.code(), Some(0));
}

#[test]
fn a_longer_run_is_the_same_run_or_is_told_why_not() {
    let place = Place::new();
    let set = format!("data.train={}", place.at("set").display());
    let launch = |more: &[&str]| {
        let words = [&["launch", "run.toml", "-n", "1", "-s", &set][..], more].concat();
        let output = kintsugi(place.0.path(), &words);
        (output.status.code(), said(&output))
    };
    let runs = || std::fs::read_dir(place.at("runs")).unwrap().count();
    // A constant rate: 2 epochs of 2 steps, then one more.
    assert_eq!(launch(&[]).0, Some(0));
    let (code, text) = launch(&["-s", "train.epochs=3"]);
    assert!(code == Some(0) && text.contains("completed at step 6"), "{text}");
    assert!(text.contains("goes on from") && !text.contains("from scratch"), "{text}");
    let (code, text) = launch(&[]);
    assert!(code == Some(0) && text.contains("this run is complete"), "{text}");
    assert_eq!(runs(), 1);
    // An earlier release named the folder after the length, too.
    let keys = [set.clone(), "run.ranks=1".to_owned()];
    let config = parse::load(&place.at("run.toml"), &keys).unwrap();
    let now = place.0.path().join(identity::run_directory(&config));
    let earlier = place.0.path().join(identity::earlier_run_directory(&config));
    std::fs::rename(&now, &earlier).unwrap();
    let (code, text) = launch(&[]);
    assert!(code == Some(0) && text.contains("this run is complete"), "{text}");
    std::fs::rename(&earlier, &now).unwrap();
    // A rate that follows the length.
    let cosine = ["-s", "schedule.kind=cosine", "-s", "schedule.warm_up=1epochs"];
    assert_eq!(launch(&cosine).0, Some(0));
    assert_eq!(runs(), 2);
    let longer = [&cosine[..], &["-s", "train.epochs=3"]].concat();
    let (code, text) = launch(&[&longer[..], &["--check"]].concat());
    assert!(code == Some(0) && text.contains("train.epochs: 2 -> 3"), "{text}");
    let told = text.split("--extend ").nth(1).unwrap_or_else(|| panic!("{text}"));
    let short = told.split_whitespace().next().unwrap();
    let (code, text) = launch(&[&longer[..], &["--run-dir", short]].concat());
    assert!(code == Some(2) && text.contains("follows its length"), "{text}");
    let (code, text) = launch(&[&longer[..], &["--extend", short]].concat());
    assert!(code == Some(0) && text.contains("from weights"), "{text}");
    assert!(!text.contains("from scratch"), "{text}");
    assert_eq!(runs(), 3);
    let events = std::fs::read_dir(place.at("runs")).unwrap().flatten();
    let events =
        events.map(|run| std::fs::read_to_string(run.path().join("events.jsonl")).unwrap());
    let from = |word: &str| format!("\"from\":\"{word}\"");
    let extended: Vec<String> = events.filter(|text| text.contains(&from("weights"))).collect();
    assert_eq!(extended.len(), 1);
    assert!(!extended[0].contains(&from("scratch")), "{}", extended[0]);
}

#[test]
fn a_warm_up_in_epochs_has_the_bits_of_the_share_that_it_is() {
    let place = Place::new();
    let trained = |name: &str, warm_up: &str| {
        let output = Command::new(env!("CARGO_BIN_EXE_kintsugi"))
            .args(["train", "run.toml", "--run-dir", name, "-s", "schedule.kind=cosine"])
            .args(["-s", "train.epochs=4", "-s", "data.train=set"])
            .args(["-s", &format!("schedule.warm_up={warm_up}")])
            .current_dir(place.0.path())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        let result = std::fs::read_to_string(place.at(name).join("result.json")).unwrap();
        serde_json::from_str::<RunResult>(&result).unwrap().state_sha256.unwrap()
    };
    // 8 steps, of which an epoch has 2.
    let share = trained("share", "0.25");
    assert_eq!(trained("epochs", "1epochs"), share);
    assert_eq!(trained("steps", "2steps"), share);
    assert_ne!(trained("none", "0.0"), share);
}

#[test]
fn what_is_no_set_is_refused_and_nothing_written() {
    let place = Place::new();
    std::fs::create_dir_all(place.at("empty/cat")).unwrap();
    std::fs::create_dir_all(place.at("one")).unwrap();
    std::fs::rename(place.at("set/odd"), place.at("one/odd")).unwrap();
    std::fs::create_dir_all(place.at("unreadable/a")).unwrap();
    std::fs::create_dir_all(place.at("unreadable/b")).unwrap();
    for name in ["a/1.png", "b/2.png"] {
        std::fs::write(place.at("unreadable").join(name), "no picture").unwrap();
    }
    for (words, code, part) in [
        (&["init", "nowhere"][..], 3, "nowhere"),
        (&["init", "empty"], 3, "empty"),
        (&["init", "one"], 3, "one class"),
        (&["init", "one"], 3, "Labels in a CSV file are not read"),
        (&["init", "run.toml"], 3, "run.toml is a file: name the folder of pictures. Labels in a"),
        (&["init", "one/odd"], 3, "labels in a CSV file are not read"),
        (&["init", "unreadable"], 3, "none of 2 pictures can be decoded"),
        (&["init", "one", "--output", "run.toml"], 2, "--force"),
    ] {
        let output = kintsugi(place.0.path(), words);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", said(&output));
        assert!(said(&output).contains(part), "{words:?}: {}", said(&output));
    }
    let files = std::fs::read_dir(place.0.path()).unwrap().flatten();
    let written = files.filter(|file| file.path().extension().is_some_and(|end| end == "toml"));
    assert_eq!(written.count(), 1, "run.toml alone");
}

/// A film's frame: a shape that no other film has, and a little noise.
fn frame(film: u32, number: u32) -> Vec<u8> {
    let level = |at: u32, key: u32| {
        let mixed = (at / 16 + 1).wrapping_mul(key.wrapping_mul(2_654_435_761) | 1);
        (mixed >> 16) % 200
    };
    let pixel = |at| (level(at, film + 1) + level(at, 1000 + film * 50 + number) / 20) as u8;
    [b"P5 16 16 255\n".to_vec(), (0..256).map(pixel).collect()].concat()
}

#[test]
fn frames_of_one_film_stay_together_where_names_say_which_they_are() {
    let folder = tempfile::tempdir().unwrap();
    for film in 0..24 {
        let class = folder.path().join(if film % 2 == 0 { "set/cat" } else { "set/dog" });
        std::fs::create_dir_all(&class).unwrap();
        for number in 0..20 {
            let name = class.join(format!("film{film:02}_{number:03}.pgm"));
            std::fs::write(name, frame(film, number)).unwrap();
        }
    }
    let init = kintsugi(folder.path(), &["init", "set"]);
    assert_eq!(init.status.code(), Some(0), "{}", said(&init));
    let config = parse::load(&folder.path().join("set.toml"), &[]).unwrap();
    let group = config.data.validation.unwrap();
    assert!(group.group().is_some(), "no group: {}", said(&init));
    let inspected = said(&kintsugi(folder.path(), &["data", "inspect", "set.toml"]));
    assert!(!inspected.contains("nearly the same picture"), "{inspected}");
    let plain = ["data", "inspect", "set.toml", "-s", "data.validation=20%"];
    let parted = said(&kintsugi(folder.path(), &plain));
    assert!(parted.contains("nearly the same picture"), "{parted}");
}

#[test]
fn every_recipe_builds_its_model_and_the_one_for_a_folder_trains() {
    let place = Place::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/recipe");
    let set = format!("data.train={}", place.at("set").display());
    let mut seen = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        // Experiments have a schema of their own.
        let text = std::fs::read_to_string(&path).unwrap();
        if text.contains("\n[[arm]]") || text.contains("\n[sweep]") {
            continue;
        }
        let config = parse::load(&path, std::slice::from_ref(&set));
        let config = config.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let side = config.data.image_size as usize;
        let built = catalogue::build(&config.model.name, [3, side, side], 10, config.model.width);
        built.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        seen += 1;
    }
    assert!(seen >= 3, "only {seen} recipes");
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (recipe, model) = ("configs/recipe/own-folder.toml", "configs/model/residual.toml");
    let own = format!("model.name={}", project.join(model).display());
    let recipe = project.join(recipe).display().to_string();
    let few = ["data.image_size=16", "train.steps=4", "train.global_batch=8", "train.owners=2"];
    let mut words = vec!["launch", &recipe, "-n", "1", "-s", &set, "-s", &own];
    few.iter().for_each(|key| words.extend(["-s", key]));
    let output = kintsugi(place.0.path(), &words);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("completed at step 4"), "{}", said(&output));
}
