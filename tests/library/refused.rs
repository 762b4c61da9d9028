//! Starts that are refused: whatever was there before is there afterwards, and nothing else.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::stranger::{Stranger, USER};
use crate::tree::tree;

/// Twelve pictures in two classes.
fn pictures(folder: &Path) {
    for index in 0..12_u8 {
        let class = folder.join(if index % 2 == 0 { "even" } else { "odd" });
        std::fs::create_dir_all(&class).unwrap();
        let picture = image::RgbImage::from_pixel(8, 8, image::Rgb([20 * index, 0, 90]));
        picture.save(class.join(format!("{index}.png"))).unwrap();
    }
}

const CONFIG: &str = r#"
model = { name = "mlp", width = 0.1 }
data = { format = "image_folder", image_size = 8, augment = false }
train = { steps = 3, global_batch = 6, owners = 2 }
evaluation = { every = "never" }
"#;

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        pictures(&place.at("set"));
        std::fs::write(place.at("run.toml"), CONFIG).unwrap();
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn program(&self, command: &[&str], keys: &[&str]) -> Command {
        let set = format!("data.train={}", self.at("set").display());
        let mut program = Command::new(env!("CARGO_BIN_EXE_kintsugi"));
        program.args(command).arg(self.at("run.toml")).args(["-s", &set]);
        for key in keys {
            program.args(["-s", key]);
        }
        program.arg("--run-dir").arg(self.at("run"));
        program
    }

    fn command(&self, command: &[&str], keys: &[&str]) -> Output {
        self.program(command, keys).output().unwrap()
    }

    fn tree(&self) -> Vec<(PathBuf, Vec<u8>)> {
        tree(self.0.path())
    }
}

/// What launch found out of its ranks stands in its own report, on stdout.
fn said(output: &Output) -> String {
    [&output.stderr, &output.stdout].map(|text| String::from_utf8_lossy(text).into_owned()).concat()
}

#[test]
fn a_completed_run_stays_completed_when_its_resumption_is_refused() {
    let place = Place::new();
    let done = place.command(&["train"], &[]);
    assert_eq!(done.status.code(), Some(0), "{}", said(&done));
    let completed = place.tree();
    let refused = |command: &[&str], keys: &[&str], (code, reason): (i32, &str)| {
        let output = place.command(command, keys);
        assert_eq!(output.status.code(), Some(code), "{command:?} {keys:?}: {}", said(&output));
        assert!(said(&output).contains(reason), "{command:?} {keys:?}: {}", said(&output));
    };
    for command in [&["train"][..], &["launch", "-n", "1"]] {
        refused(command, &["run.seed=9"], (2, "run.seed: 1 -> 9"));
        assert!(place.tree() == completed, "{command:?}: another seed left something");
    }
    // The ranks find that it is another set.
    let picture = place.at("set/even/0.png");
    let bytes = std::fs::read(&picture).unwrap();
    std::fs::remove_file(&picture).unwrap();
    for command in [&["train"][..], &["launch", "-n", "1"]] {
        refused(command, &["train.steps=6"], (3, "not the set that the run began with"));
    }
    std::fs::write(&picture, bytes).unwrap();
    // The page is drawn by launch of what is there.
    std::fs::remove_file(place.at("run/report.html")).unwrap();
    let now = place.tree();
    let differing: Vec<_> = now.iter().filter(|file| !completed.contains(file)).collect();
    let cached = |path: &Path| path.starts_with(place.at("run/cache"));
    assert!(differing.iter().all(|(path, _)| cached(path)), "{differing:?}");
    assert_eq!(now.len(), completed.len(), "a refused start left something");
}

#[test]
fn a_first_start_that_is_refused_leaves_no_run() {
    let place = Place::new();
    let before = place.tree();
    for command in [&["train"][..], &["launch", "-n", "1"]] {
        // What does not fit shows only when the set is read.
        let output = place.command(command, &["model.freeze=[\"nothing\"]"]);
        assert_eq!(output.status.code(), Some(2), "{command:?}: {}", said(&output));
        assert!(place.tree() == before, "{command:?} left something: {}", said(&output));
    }
}

#[test]
fn what_a_run_makes_does_not_lie_in_its_set() {
    let place = Place::new();
    let before = place.tree();
    let inside = format!("staging.folder={}", place.at("set/copies").display());
    let keys = ["staging.mode=before", &inside];
    for command in [&["train"][..], &["launch", "-n", "1"], &["data", "stage"]] {
        let output = place.command(command, &keys);
        assert_eq!(output.status.code(), Some(2), "{command:?}: {}", said(&output));
        assert!(said(&output).contains("lies inside data.train"), "{}", said(&output));
    }
    assert!(place.tree() == before);
}

/// Root has no such limit.
#[test]
fn a_limit_on_processes_is_named() {
    let Some(stranger) = Stranger::new("a limit on processes") else { return };
    let folder = std::env::temp_dir().join(format!("kintsugi-few-{}", std::process::id()));
    std::fs::create_dir(&folder).unwrap();
    std::os::unix::fs::chown(&folder, Some(USER), Some(USER)).unwrap();
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("configs/mlp_synthetic.toml");
    let (program, run) = (env!("CARGO_BIN_EXE_kintsugi"), folder.display());
    let config = config.display();
    let line = format!("ulimit -u 1; exec {program} train {config} --run-dir {run}/run");
    // Not every sh knows this limit.
    let line = format!("exec bash -c '{line}'");
    let output = stranger.tries(&line);
    std::fs::remove_dir_all(&folder).unwrap();
    let said = said(&output);
    assert_eq!(output.status.code(), Some(75), "{said}");
    assert!(said.contains("the limit on processes (ulimit -u) is 1; raise it"), "{said}");
}

#[test]
fn teams_that_would_be_smaller_than_asked_are_refused() {
    let place = Place::new();
    let before = place.tree();
    let limited = |threads: &str| {
        let mut program = place.program(&["train"], &[threads]);
        program.env("OMP_THREAD_LIMIT", "1").output().unwrap()
    };
    let refused = limited("train.threads=2");
    assert_eq!(refused.status.code(), Some(2), "{}", said(&refused));
    assert!(said(&refused).contains("OMP_THREAD_LIMIT: a team of 2 threads would have 1"));
    assert!(place.tree() == before, "it left something");
    let enough = limited("train.threads=1");
    assert_eq!(enough.status.code(), Some(0), "{}", said(&enough));
}
