//! A small set of pictures in a folder of its own, as on a share, and the program run over it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{kintsugi, run, run_dir};

/// Seconds that making the set may take.
const MADE_WITHIN: u64 = 30;

/// Without `train.steps`: whoever runs it says how long.
const CONFIGURATION: &str = r#"
[run]
ranks = 2
[model]
name = "mlp"
width = 0.25
[data]
image_size = 16
[train]
global_batch = 8
owners = 4
[evaluation]
every = "never"
[checkpoint]
every = "never"
[observe]
tensorboard = false
"#;

/// The folder; runs have theirs in it.
pub struct Share(pub PathBuf);

impl Share {
    /// Pictures to train on: each is a file.
    pub const FILES: u64 = 96;

    /// Made anew.
    pub fn new(name: &str) -> Self {
        Self::of(name, Self::FILES)
    }

    /// The same with so many pictures.
    pub fn of(name: &str, files: u64) -> Self {
        let share = Self(run_dir(name));
        let mut synth = kintsugi();
        synth.args(["data", "synth", "--train", &files.to_string(), "--validation", "8"]);
        synth.args(["--classes", "4", "--image-size", "16"]).arg(share.set());
        let made = run(&mut synth, MADE_WITHIN);
        assert_eq!(made.code, Some(0), "{}", made.stderr);
        std::fs::write(share.0.join("run.toml"), CONFIGURATION).unwrap();
        share
    }

    /// Where the set lies.
    pub fn set(&self) -> PathBuf {
        self.0.join("set")
    }

    /// A run over it by this subcommand.
    pub fn command(&self, subcommand: &str, run: &Path, overrides: &[&str]) -> Command {
        let mut command = kintsugi();
        command.arg(subcommand).arg(self.0.join("run.toml")).arg("--run-dir").arg(run);
        for split in ["train", "validation"] {
            let folder = self.set().join(split);
            command.arg("-s").arg(format!("data.{split}={}", folder.display()));
        }
        for key in overrides {
            command.args(["-s", key]);
        }
        command
    }
}

/// The pictures of an image folder in so many shards, in the order of the folder.
pub fn pack(folder: &Path, shards: usize, into: &Path) {
    let sorted = |folder: &Path| -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let mut paths: Vec<PathBuf> = entries.collect();
        paths.sort();
        paths
    };
    let classes = sorted(folder);
    let pictures: Vec<(usize, PathBuf)> = (classes.iter().enumerate())
        .flat_map(|(class, folder)| sorted(folder).into_iter().map(move |path| (class, path)))
        .collect();
    std::fs::create_dir(into).unwrap();
    let each = pictures.len().div_ceil(shards);
    for (number, part) in pictures.chunks(each).enumerate() {
        let shard = std::fs::File::create(into.join(format!("train-{number:02}.tar"))).unwrap();
        let mut builder = tar::Builder::new(shard);
        let mut append = |name: String, bytes: &[u8]| {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            builder.append_data(&mut header, name, bytes).unwrap();
        };
        for (key, (class, path)) in part.iter().enumerate() {
            append(format!("{key:06}.jpg"), &std::fs::read(path).unwrap());
            append(format!("{key:06}.cls"), class.to_string().as_bytes());
        }
        builder.finish().unwrap();
    }
}
