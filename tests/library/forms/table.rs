//! The table of what every argument may be, `forms.txt`, and who plays it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const TABLE: &str = include_str!("forms.txt");

/// One form of an argument.
#[derive(Debug)]
pub struct Form {
    pub name: String,
    pub play: Play,
}

/// How a form is played.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Play {
    /// By these words, in one process.
    Alone(Line),
    /// By these words, which start ranks.
    Ranks(Line),
    /// By a test of this name in this file.
    Test { file: String, name: String },
    /// By a job under SLURM.
    Job(String),
}

/// What is typed, the exit codes it may end with, and a part of what is said.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Line {
    pub words: Vec<String>,
    codes: Vec<i32>,
    says: String,
}

/// An argument.
#[derive(Debug, Default)]
pub struct Row {
    pub help: String,
    pub forms: Vec<Form>,
}

/// `[COMMAND ARGUMENT]`, its help, and a line a form: `FORM: kintsugi WORDS => CODE SAYS`, `FORM:
/// ranks WORDS => CODE SAYS`, `FORM: test FILE NAME` or `FORM: slurm JOB`.
pub fn rows() -> BTreeMap<String, Row> {
    let mut rows: BTreeMap<String, Row> = BTreeMap::new();
    let mut key = String::new();
    for line in TABLE.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            key = name.to_owned();
            assert!(rows.insert(key.clone(), Row::default()).is_none(), "two rows of {key}");
            continue;
        }
        let row = rows.get_mut(&key).unwrap();
        match line.strip_prefix("help ") {
            Some(help) => row.help = help.to_owned(),
            None => row.forms.push(form(line).unwrap_or_else(|| panic!("no form: {line}"))),
        }
    }
    rows
}

fn form(line: &str) -> Option<Form> {
    let (name, play) = line.split_once(": ")?;
    let (by, rest) = play.split_once(' ')?;
    let play = match by {
        "kintsugi" => Play::Alone(typed(rest)?),
        "ranks" => Play::Ranks(typed(rest)?),
        "slurm" => Play::Job(rest.to_owned()),
        "test" => {
            let (file, name) = rest.split_once(' ')?;
            Play::Test { file: file.into(), name: name.into() }
        }
        _ => return None,
    };
    Some(Form { name: name.to_owned(), play })
}

fn typed(text: &str) -> Option<Line> {
    let (words, ends) = text.split_once(" => ")?;
    let (codes, says) = ends.split_once(' ').unwrap_or((ends, ""));
    let codes: Option<Vec<i32>> = codes.split('|').map(|code| code.parse().ok()).collect();
    let words = words.split_whitespace().map(str::to_owned).collect();
    Some(Line { words, codes: codes?, says: says.into() })
}

/// Plays each line once, and says which of them did not do what they say.
pub fn wrong(pick: impl Fn(Play) -> Option<Line>) -> Vec<String> {
    let plays = rows().into_values().flat_map(|row| row.forms).map(|form| form.play);
    let lines: BTreeSet<Line> = plays.filter_map(pick).collect();
    let things = Things::new();
    lines.iter().filter_map(|line| things.wrong(line)).collect()
}

fn kintsugi() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kintsugi"));
    command.stdin(Stdio::null());
    command
}

fn done(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// What the words that begin with `@` stand for: a run of 8 steps, one of its checkpoints, that
/// checkpoint taken out of it, sets, files of weights, pictures.
struct Things(tempfile::TempDir);

const NET: &str = r#"
name = "net"
layer = [
    { name = "conv1", kind = "conv", channels = 6, kernel = 3, padding = 1 },
    { name = "bn1", kind = "batch_norm" },
    { kind = "relu" },
    { name = "conv2", kind = "conv", channels = 8, kernel = 3, stride = 2, bias = false },
    { name = "bn2", kind = "batch_norm" },
    { kind = "global_avg_pool" },
    { name = "fc", kind = "linear", features = "classes" },
]
"#;

const EXPERIMENT: &str = r#"
title = "Small"
description = "Small."
config = "run.toml"
ranks = 1
seconds = 5.0
seeds = [1]
schedule = { checkpoints = 2, evaluations = 2, failures = [] }
[set]
train.steps = 2
[[arm]]
name = "calm"
failures = []
"#;

impl Things {
    fn new() -> Self {
        let things = Self(tempfile::tempdir().unwrap());
        let set = things.path("set");
        done(
            kintsugi()
                .args(["data", "synth", "--train", "48", "--validation", "16"])
                .args(["--classes", "4", "--image-size", "16"])
                .arg(&set),
        );
        let config = format!(
            "run = {{ name = \"made\" }}\nmodel = {{ name = \"mlp\", width = 0.25 }}\n\
             data = {{ train = {:?}, validation = {:?}, image_size = 16 }}\n\
             train = {{ steps = 8, global_batch = 8, owners = 4 }}\n\
             optimizer = {{ ema_decay = 0.5 }}\ncheckpoint = {{ every = \"4steps\" }}\n\
             observe = {{ tensorboard = false }}\n",
            set.join("train"),
            set.join("validation")
        );
        for (name, text) in [("run.toml", &config[..]), ("net.toml", NET), ("e.toml", EXPERIMENT)] {
            std::fs::write(things.path(name), text).unwrap();
        }
        let run = things.path("run");
        done(kintsugi().arg("train").arg(things.path("run.toml")).arg("--run-dir").arg(&run));
        let copy = things.path("elsewhere/step-00000008");
        copy_folder(&run.join("checkpoints/step-00000008"), &copy);
        std::fs::copy(run.join("config.toml"), things.path("elsewhere/config.toml")).unwrap();
        let weights = things.path("w.safetensors");
        done(kintsugi().args(["checkpoint", "export"]).arg(&run).arg(&weights));
        things.draw_sets();
        things
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A few samples of each format, and a picture in each.
    fn draw_sets(&self) {
        let pixels = |side: u32| {
            image::RgbImage::from_fn(side, side, |x, y| image::Rgb([x as u8, y as u8, 9]))
        };
        for ending in ["jpg", "png", "webp", "bmp", "gif", "tiff", "ppm"] {
            pixels(20).save(self.path(&format!("p.{ending}"))).unwrap();
        }
        let grey = image::GrayImage::from_pixel(20, 20, image::Luma([7]));
        grey.save(self.path("p.pgm")).unwrap();
        for shard in 0..2 {
            let file = std::fs::File::create(self.path(&format!("t-{shard}.tar"))).unwrap();
            let mut archive = tar::Builder::new(file);
            let picture = std::fs::read(self.path("p.jpg")).unwrap();
            for (name, bytes) in [("a.jpg", picture), ("a.cls", shard.to_string().into_bytes())] {
                let mut header = tar::Header::new_gnu();
                header.set_size(bytes.len() as u64);
                header.set_mode(0o644);
                archive.append_data(&mut header, format!("{shard}{name}"), &bytes[..]).unwrap();
            }
            archive.finish().unwrap();
        }
        let record = |labels: &[u8]| [labels, &[100; 3072]].concat();
        std::fs::write(self.path("cifar10.bin"), [record(&[0]), record(&[9])].concat()).unwrap();
        std::fs::write(self.path("cifar100.bin"), [record(&[0, 1]), record(&[9, 99])].concat())
            .unwrap();
        std::fs::create_dir(self.path("mnist")).unwrap();
        let numbers = |all: &[u32]| all.iter().flat_map(|n| n.to_be_bytes()).collect::<Vec<u8>>();
        let images = [numbers(&[0x803, 2, 28, 28]), vec![50; 2 * 28 * 28]].concat();
        let labels = [numbers(&[0x801, 2]), vec![3, 8]].concat();
        std::fs::write(self.path("mnist/train-images-idx3-ubyte"), images).unwrap();
        std::fs::write(self.path("mnist/train-labels-idx1-ubyte"), labels).unwrap();
    }

    /// What a line did that it does not say. It runs in a folder of its own: `@tmp`.
    fn wrong(&self, line: &Line) -> Option<String> {
        let folder = tempfile::tempdir_in(self.0.path()).unwrap();
        let tmp = folder.path();
        let needs = |thing: &str| line.words.iter().any(|word| word.contains(thing));
        if needs("@tmp/run") {
            copy_folder(&self.path("run"), &tmp.join("run"));
        }
        if needs("@onnx") {
            for ending in ["", ".data"] {
                let file = format!("plain-default.onnx{ending}");
                std::fs::copy(project("tests/library/onnx").join(&file), tmp.join(file)).unwrap();
            }
        }
        let output = kintsugi()
            .args(line.words.iter().map(|word| self.meant(word, tmp)))
            .current_dir(tmp)
            .env("TMPDIR", tmp)
            .output()
            .unwrap();
        let said = said(&output);
        let ended = output.status.code().is_some_and(|code| line.codes.contains(&code));
        let right = ended && said.contains(&self.meant(&line.says, tmp));
        (!right).then(|| format!("{}\n{:?}: {said}", line.words.join(" "), output.status.code()))
    }

    fn meant(&self, word: &str, tmp: &Path) -> String {
        let places = [
            ("@onnx", tmp.join("plain-default.onnx")),
            ("@tmp", tmp.to_path_buf()),
            ("@step", self.path("run/checkpoints/step-00000008")),
            ("@copy", self.path("elsewhere/step-00000008")),
            ("@project", project("")),
        ];
        let known = places.iter().fold(word.to_owned(), |word, (name, place)| {
            word.replace(name, &place.to_string_lossy())
        });
        // Whatever else lies in the folder; `@2` is a step's number.
        let folder = self.path("");
        let mut parts = known.split('@');
        let first = parts.next().unwrap_or_default().to_owned();
        parts.fold(first, |word, part| match part.starts_with(|c: char| c.is_ascii_digit()) {
            true => format!("{word}@{part}"),
            false => format!("{word}{}{part}", folder.to_string_lossy()),
        })
    }
}

fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn said(output: &Output) -> String {
    [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat()
}

fn copy_folder(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().map(|entry| entry.unwrap().path()) {
        let copy = to.join(entry.file_name().unwrap());
        if entry.is_dir() {
            copy_folder(&entry, &copy);
        } else {
            std::fs::copy(&entry, copy).unwrap();
        }
    }
}
