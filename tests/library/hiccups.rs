//! One call of the file system fails, once: whichever it is, a run ends with the calm run's bits or
//! refuses by name, and a second start without the fault ends with the calm run's bits.
//!
//! A preloaded library (`hiccups.c`) counts the calls that open to read, look at, list, map or read
//! what a run or its set holds, and fails one of them. CI plays some of each case's calls, with the
//! errors in turn; `KINTSUGI_HICCUPS=all` plays every call with every error:
//!
//! ```sh
//! KINTSUGI_HICCUPS=all cargo test --release --test library hiccups:: -- --nocapture
//! ```

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use kintsugi::observe::result::{RunResult, Status};

use crate::program::stderr;

/// EIO, EMFILE, EACCES.
const ERRORS: [i32; 3] = [5, 24, 13];
/// Calls of a case that CI plays.
const PLAYED: usize = 10;
/// Codes by which a start refuses, as the README has them.
const REFUSALS: [i32; 4] = [2, 3, 75, 85];

/// The library, built once.
fn preloaded() -> &'static Path {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    &BUILT
        .get_or_init(|| {
            let folder = tempfile::tempdir().unwrap();
            let library = folder.path().join("hiccups.so");
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/library/hiccups.c");
            let mut compiler = Command::new("cc");
            compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).arg("-ldl");
            assert!(compiler.status().unwrap().success());
            (folder, library)
        })
        .1
}

/// A configuration and what it names, in a folder of its own.
struct Case {
    name: &'static str,
    folder: tempfile::TempDir,
    keys: Vec<String>,
    /// Made anew before each start: what a first start found.
    fresh: fn(&Path),
}

const SAMPLES: u8 = 9;
const CLASSES: u8 = 3;

fn picture(number: u8) -> image::RgbImage {
    image::RgbImage::from_fn(8, 8, |x, y| image::Rgb([number * 20, x as u8 * 30, y as u8 * 30]))
}

fn pictures(root: &Path) {
    for number in 0..SAMPLES {
        let class = root.join(format!("class{}", number % CLASSES));
        fs::create_dir_all(&class).unwrap();
        picture(number).save(class.join(format!("{number}.png"))).unwrap();
    }
    // What has changed just now is not kept.
    let before = SystemTime::now() - Duration::from_secs(60);
    for folder in fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path()) {
        File::open(folder).unwrap().set_modified(before).unwrap();
    }
    File::open(root).unwrap().set_modified(before).unwrap();
}

fn shards(root: &Path) {
    fs::create_dir_all(root).unwrap();
    for shard in 0..3 {
        let file = File::create(root.join(format!("{shard}.tar"))).unwrap();
        let mut builder = tar::Builder::new(file);
        for number in (0..SAMPLES).filter(|number| number % 3 == shard) {
            let mut bytes = std::io::Cursor::new(Vec::new());
            picture(number).write_to(&mut bytes, image::ImageFormat::Png).unwrap();
            let label = (number / 3).to_string().into_bytes();
            for (ending, body) in [("png", bytes.into_inner()), ("cls", label)] {
                let mut header = tar::Header::new_gnu();
                header.set_size(body.len() as u64);
                header.set_mode(0o644);
                builder.append_data(&mut header, format!("{number}.{ending}"), &*body).unwrap();
            }
        }
        builder.finish().unwrap();
    }
}

fn binary_cifar(root: &Path) {
    fs::create_dir_all(root).unwrap();
    for batch in 1..=5_u8 {
        let records = (0..2_u8)
            .flat_map(|number| [&[number + batch][..], &[number * 100 + batch; 3072][..]].concat());
        let bytes: Vec<u8> = records.collect();
        fs::write(root.join(format!("data_batch_{batch}.bin")), bytes).unwrap();
    }
    let names: Vec<String> = (0..10).map(|class| format!("class {class}")).collect();
    fs::write(root.join("batches.meta.txt"), names.join("\n")).unwrap();
}

fn nothing(_: &Path) {}

fn remove(path: &Path) {
    let _ = fs::remove_dir_all(path);
}

impl Case {
    fn new(name: &'static str, keys: &[&str]) -> Self {
        let folder = tempfile::Builder::new().prefix("hiccup-").tempdir().unwrap();
        let text = format!(
            r#"
            model = {{ name = "mlp", width = 0.1 }}
            data = {{ train = {:?}, image_size = 8, patience = "0s" }}
            train = {{ steps = 3, global_batch = 5, owners = 1, workers = 1 }}
            evaluation = {{ every = "never" }}
            recovery = {{ resident = "off" }}
            observe = {{ tensorboard = false }}
            "#,
            folder.path().join("set")
        );
        fs::write(folder.path().join("run.toml"), text).unwrap();
        let keys = keys.iter().map(ToString::to_string).collect();
        Self { name, folder, keys, fresh: nothing }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self) -> PathBuf {
        self.path("run")
    }

    fn train(&self, fault: Option<(usize, i32)>) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kintsugi"));
        command.arg("train").arg(self.path("run.toml")).arg("--run-dir").arg(self.run());
        for key in &self.keys {
            command.args(["-s", key]);
        }
        command.env("LD_PRELOAD", preloaded()).env("HICCUP_MATCH", self.folder.path());
        command.env("HICCUP_COUNT", self.path("count"));
        if let Some((number, error)) = fault {
            command.env("HICCUP_NTH", number.to_string()).env("HICCUP_ERRNO", error.to_string());
        }
        command.output().unwrap()
    }

    /// As a first start finds it.
    fn restore(&self) {
        remove(&self.run());
        (self.fresh)(self.folder.path());
    }

    /// The state after a start that must complete.
    fn completed(&self, output: &Output, when: &str) -> String {
        let said = stderr(output);
        assert_eq!(output.status.code(), Some(0), "{}, {when}: {said}", self.name);
        let result = fs::read(self.run().join("result.json")).unwrap();
        let result: RunResult = serde_json::from_slice(&result).unwrap();
        assert_eq!((result.status, result.steps), (Status::Completed, 3), "{}, {when}", self.name);
        assert_eq!(result.bad_images.train, 0, "{}, {when}: {said}", self.name);
        result.state_sha256.unwrap()
    }

    /// Plays it; how many calls there are, and how many starts were refused.
    fn play(&self) -> (usize, usize, usize) {
        self.restore();
        let output = self.train(None);
        let calm = self.completed(&output, "calm");
        let count: usize = fs::read_to_string(self.path("count")).unwrap().trim().parse().unwrap();
        let all = std::env::var_os("KINTSUGI_HICCUPS").is_some_and(|played| played == "all");
        let stride = if all { 1 } else { count.div_ceil(PLAYED).max(1) };
        let (mut played, mut refused) = (0, 0);
        // Not always the same ones of what comes in turn.
        for (turn, number) in (1..=count).step_by(stride).enumerate() {
            let errors = if all { &ERRORS[..] } else { &ERRORS[turn % ERRORS.len()..][..1] };
            for error in errors {
                played += 1;
                refused += usize::from(self.meets((number, *error), &calm));
            }
        }
        (count, played, refused)
    }

    /// Whether the start was refused.
    fn meets(&self, fault: (usize, i32), calm: &str) -> bool {
        self.restore();
        let when = format!("call {} fails with {}", fault.0, fault.1);
        let output = self.train(Some(fault));
        let said = stderr(&output);
        let code = output.status.code();
        let refused = code != Some(0);
        if refused {
            let by_name = code.is_some_and(|code| REFUSALS.contains(&code));
            assert!(by_name, "{}, {when}: {code:?}: {said}", self.name);
            assert!(said.contains("error: ") || code == Some(85), "{}, {when}: {said}", self.name);
        } else {
            let state = self.completed(&output, &when);
            assert_eq!(state, calm, "{}, {when}: {said}", self.name);
            // Another run of what this one has left beside its set.
            remove(&self.run());
        }
        let output = self.train(None);
        let state = self.completed(&output, &format!("after {when}: {said}"));
        assert_eq!(state, calm, "{}, after {when}: {said}", self.name);
        refused
    }
}

fn report(case: &Case) {
    let begun = std::time::Instant::now();
    let (count, played, refused) = case.play();
    println!(
        "{}: {count} calls, {played} failed, {refused} starts refused, {:.0} s",
        case.name,
        begun.elapsed().as_secs_f64()
    );
    assert!(count > 20, "{}: {count} calls", case.name);
}

#[test]
fn pictures_that_are_listed_and_read() {
    let case = Case::new("image folder", &[]);
    pictures(&case.path("set"));
    report(&case);
}

#[test]
fn pictures_that_are_measured() {
    let case = Case::new("evaluation", &["evaluation.every=epoch"]);
    pictures(&case.path("set"));
    pictures(&case.path("measured"));
    let validation = format!("data.validation={}", case.path("measured").display());
    report(&Case { keys: [case.keys.clone(), vec![validation]].concat(), ..case });
}

#[test]
fn shards_that_are_listed_and_read() {
    fn fresh(folder: &Path) {
        for shard in 0..3 {
            let _ = fs::remove_file(folder.join(format!("set/{shard}.tar.index")));
        }
    }
    let case = Case { fresh, ..Case::new("shards", &["data.format=tar"]) };
    shards(&case.path("set"));
    report(&case);
    report(&Case { name: "shards with an index", fresh: nothing, ..case });
}

/// A process that may hold 64 files open, of which some are its own.
#[test]
fn more_shards_than_files_can_be_open_are_read() {
    // Each step reads a third of them.
    let case = Case::new("many shards", &["data.format=tar", "train.global_batch=80"]);
    let set = case.path("set");
    shards(&set);
    for copy in 3..80 {
        // Keys are a shard's own.
        fs::copy(set.join(format!("{}.tar", copy % 3)), set.join(format!("{copy}.tar"))).unwrap();
    }
    let calm = case.completed(&case.train(None), "calm");
    remove(&case.run());
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -n 64; exec \"$0\" train run.toml --run-dir run \"$@\""]);
    shell.arg(env!("CARGO_BIN_EXE_kintsugi")).current_dir(case.folder.path());
    for key in &case.keys {
        shell.args(["-s", key]);
    }
    assert_eq!(case.completed(&shell.output().unwrap(), "few files"), calm);
}

#[test]
fn copies_that_are_staged() {
    fn fresh(folder: &Path) {
        remove(&folder.join("copies"));
        fs::create_dir(folder.join("copies")).unwrap();
    }
    for (name, mode) in [("staged before", "before"), ("staged meanwhile", "during")] {
        let case = Case { fresh, ..Case::new(name, &["staging.keep=true"]) };
        pictures(&case.path("set"));
        let folder = format!("staging.folder={}", case.path("copies").display());
        let mode = format!("staging.mode={mode}");
        report(&Case { keys: [case.keys.clone(), vec![folder, mode]].concat(), ..case });
    }
}

#[test]
fn files_that_hold_a_whole_set() {
    let case = Case::new("CIFAR-10", &["data.format=cifar10"]);
    binary_cifar(&case.path("set"));
    report(&case);
}

#[test]
fn a_run_that_goes_on_from_its_checkpoints_and_its_saved_listing() {
    fn fresh(folder: &Path) {
        copy(&folder.join("begun"), &folder.join("run"));
    }
    let case = Case::new("resumed", &["checkpoint.every=1steps", "train.steps=2"]);
    pictures(&case.path("set"));
    assert_eq!(case.train(None).status.code(), Some(0));
    fs::rename(case.run(), case.path("begun")).unwrap();
    let keys = vec!["checkpoint.every=1steps".to_owned()];
    report(&Case { keys, fresh, ..case });
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false => drop(fs::copy(entry.path(), target).unwrap()),
        }
    }
}

#[test]
fn weights_that_a_run_begins_with() {
    let case = Case::new("first weights", &["run.seed=2"]);
    pictures(&case.path("set"));
    assert_eq!(case.train(None).status.code(), Some(0));
    let weights = case.run().join("checkpoints/step-00000003/model.safetensors");
    fs::copy(weights, case.path("weights.safetensors")).unwrap();
    let init = format!("model.init={}", case.path("weights.safetensors").display());
    let case = Case { keys: vec![init], ..case };
    report(&case);
    // The checkpoint of another run.
    remove(&case.path("before"));
    fs::rename(case.run(), case.path("before")).unwrap();
    let init = format!("model.init={}", case.path("before").display());
    report(&Case { name: "weights of a run", keys: vec![init], ..case });
}
