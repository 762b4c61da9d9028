//! Nothing is counted as perfect: a run whose samples cannot be read, whose sums are no numbers, or
//! that is told of a world which is gone. The program itself, as a world of one.

use std::path::PathBuf;
use std::process::Command;

use kintsugi::observe::event::Kind;
use kintsugi::observe::log::read_events;
use kintsugi::observe::result::{RunResult, Status};

use crate::program::stderr;

/// One owner a rank: what says how many ranks there are decides the bits.
const CONFIGURATION: &str = r#"
[model]
name = "mlp"
width = 0.25
[data]
image_size = 16
[train]
steps = 12
global_batch = 8
[recovery]
resident = "off"
[observe]
tensorboard = false
"#;

/// A set of its own, and its runs.
pub(crate) struct Place(tempfile::TempDir);

impl Place {
    /// 48 training and 16 validation pictures.
    pub(crate) fn new() -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        let set = place.path("set");
        let mut synth = Command::new(env!("CARGO_BIN_EXE_kintsugi"));
        synth.args(["data", "synth", "--train", "48", "--validation", "16"]);
        let made = synth.args(["--classes", "4", "--image-size", "16"]).arg(set).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        std::fs::write(place.path("run.toml"), CONFIGURATION).unwrap();
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn train(&self, run: &str, overrides: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kintsugi"));
        command.arg("train").arg(self.path("run.toml")).arg("--run-dir").arg(self.path(run));
        let (train, validation) = (self.path("set/train"), self.path("set/validation"));
        for set in [
            format!("data.train={}", train.display()),
            format!("data.validation={}", validation.display()),
        ] {
            command.arg("-s").arg(set);
        }
        for set in overrides {
            command.args(["-s", set]);
        }
        command
    }

    fn result(&self, run: &str) -> RunResult {
        let text = std::fs::read(self.path(run).join("result.json")).unwrap();
        serde_json::from_slice(&text).unwrap()
    }

    /// Turns pictures of a split into text.
    pub(crate) fn spoil(&self, split: &str, count: usize) {
        let mut files: Vec<PathBuf> = std::fs::read_dir(self.path("set").join(split))
            .unwrap()
            .flat_map(|class| std::fs::read_dir(class.unwrap().path()).unwrap())
            .map(|file| file.unwrap().path())
            .collect();
        files.sort();
        for file in files.iter().take(count) {
            std::fs::write(file, "<html>not found</html>").unwrap();
        }
    }
}

#[test]
fn a_set_without_a_picture_is_an_error_and_no_error_of_0() {
    for (split, count, key) in [("train", 48, "data.train"), ("validation", 16, "data.validation")]
    {
        let place = Place::new();
        place.spoil(split, count);
        let ended = place.train("run", &[]).output().unwrap();
        let said = stderr(&ended);
        assert_eq!(ended.status.code(), Some(3), "{said}");
        assert!(
            said.contains(&format!("{key}: none of the")) && !said.contains(" 0.00%"),
            "{said}"
        );
        let result = place.result("run");
        assert_eq!((result.status, result.validation), (Status::DataError, None));
    }
}

#[test]
fn some_bad_pictures_are_counted_and_more_than_the_limit_end_the_run() {
    let place = Place::new();
    place.spoil("train", 2);
    place.spoil("validation", 1);
    let refused = place.train("refused", &[]).output().unwrap();
    assert_eq!(refused.status.code(), Some(3), "{}", stderr(&refused));
    assert!(stderr(&refused).contains("data.bad_images_max = 0.01"), "{}", stderr(&refused));
    assert!(place.result("refused").steps < 6, "within the first epoch");

    let ended = place.train("run", &["data.bad_images_max=0.1"]).output().unwrap();
    let said = stderr(&ended);
    assert_eq!(ended.status.code(), Some(0), "{said}");
    assert!(said.contains("bad images: 2 of 48 train samples"), "{said}");
    assert!(said.contains("bad images: 1 of 16 validation samples"), "{said}");
    let result = place.result("run");
    assert_eq!((result.bad_images.train, result.bad_images.validation), (4, 1), "two epochs");
    let audit = Command::new(env!("CARGO_BIN_EXE_kintsugi"))
        .arg("audit")
        .arg(place.path("run"))
        .output()
        .unwrap();
    assert!(audit.status.success(), "{audit:?}");
    // The same rule for `evaluate`.
    let evaluate = |limit: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kintsugi"));
        command.arg("evaluate").arg(place.path("run")).args(["-s", limit]);
        command.output().unwrap().status.code()
    };
    assert_eq!(evaluate("data.bad_images_max=0.01"), Some(3));
    assert_eq!(evaluate("data.bad_images_max=0.1"), Some(0));
}

#[test]
fn a_step_whose_only_sample_is_bad_is_counted_and_changes_no_weight() {
    let place = Place::new();
    place.spoil("train", 1);
    let slow = "optimizer.learning_rate=0.001";
    let more = [slow, "data.bad_images_max=0.1", "train.global_batch=1", "train.steps=48"];
    let ended = place.train("run", &more).output().unwrap();
    let said = stderr(&ended);
    assert_eq!(ended.status.code(), Some(0), "{said}");
    assert!(said.contains("none of its 1 samples could be decoded: no update"), "{said}");
    let result = place.result("run");
    assert_eq!((result.steps, result.bad_images.train, result.zero_updates), (48, 1, 1));
}

#[test]
fn a_run_that_diverges_ends_and_says_nan() {
    let place = Place::new();
    // The first update's weights are small enough to be kept.
    let rate = "optimizer.learning_rate=1e10";
    for (run, more) in
        [("plain", "train.steps=40"), ("asynchronous", "train.exchange=asynchronous")]
    {
        let ended = place.train(run, &[rate, "train.steps=400", more]).output().unwrap();
        let said = stderr(&ended);
        assert_eq!(ended.status.code(), Some(93), "{run}: {said}");
        assert!(said.contains("the run has diverged"), "{run}: {said}");
        let result = place.result(run);
        assert_eq!(result.status, Status::NoProgress);
        assert!(result.zero_updates >= 10 && result.steps < 40, "{run}: {result:?}");
        let events = read_events(&place.path(run).join("events.jsonl")).unwrap();
        let losses: Vec<f64> = events
            .iter()
            .filter_map(|event| match event.kind {
                Kind::Step { loss, .. } => Some(loss),
                _ => None,
            })
            .collect();
        assert!(losses.last().is_some_and(|loss| loss.is_nan()), "{run}: {losses:?}");
        let status = Command::new(env!("CARGO_BIN_EXE_kintsugi"))
            .arg("status")
            .arg(place.path(run))
            .output()
            .unwrap();
        let status = String::from_utf8_lossy(&status.stdout).into_owned();
        assert!(status.contains("loss of the newest steps NaN"), "{run}: {status}");
    }
}

#[test]
fn a_world_of_one_does_not_believe_a_launcher_that_is_gone() {
    let place = Place::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let ended = place.train("calm", &[]).output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{}", stderr(&ended));
    let mut command = place.train("told", &[]);
    for (name, value) in [
        ("OMPI_COMM_WORLD_SIZE", "4"),
        ("OMPI_COMM_WORLD_RANK", "2"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "2"),
        ("PMIX_RANK", "2"),
        ("PMIX_NAMESPACE", "prterun-gone-1@1"),
        ("PMIX_SERVER_TMPDIR", "/tmp/ompi.1"),
        ("SLURM_NTASKS", "4"),
        ("SLURM_PROCID", "2"),
    ] {
        command.env(name, value);
    }
    let uri = format!("prterun-gone-1@0.0;tcp4://127.0.0.1:{port}");
    let ended = command.env("PMIX_SERVER_URI41", uri).output().unwrap();
    assert_eq!(ended.status.code(), Some(0), "{}", stderr(&ended));
    let (calm, told) = (place.result("calm"), place.result("told"));
    assert_eq!((told.state_sha256, told.exact), (calm.state_sha256, calm.exact));
}
