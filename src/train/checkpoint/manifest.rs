//! `MANIFEST.json`: what makes a folder of files one checkpoint. Written last; its own last line is
//! the checksum of all that stands before, so that a flipped bit in it is found like any other.

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::cluster::resident::Key;
use crate::data::Normalization;
use crate::model::Shape;
use crate::train::checkpoint::{CheckpointError, Snapshot, TrainState};
use crate::train::fixed_point::Grid;
use crate::train::state::best::Improvement;
use crate::train::state::contents::Contents;

/// The manifest's name.
pub const MANIFEST: &str = "MANIFEST.json";
/// Weights and running statistics.
pub const MODEL: &str = "model.safetensors";
/// Momentum.
pub const OPTIMIZER: &str = "optimizer.safetensors";
/// `wire`'s file.
pub const STATE: &str = "state.bin";
/// What a checkpoint consists of, in the order of writing.
pub const FILES: [&str; 3] = [MODEL, OPTIMIZER, STATE];
/// The format this release writes.
pub const FORMAT: u32 = 1;

/// One file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct FileEntry {
    pub name: String,
    pub bytes: u64,
    /// XXH3-128, hexadecimal.
    pub xxh3_128: String,
}

/// The whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Manifest {
    pub format: u32,
    pub written_by: String,
    pub run_id: String,
    pub attempt: u32,
    pub generation: u32,
    pub step: u64,
    pub cursor: u64,
    /// What the ranks compute with; absent where an earlier release wrote it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub arithmetic: String,
    /// Of the newest steps, those that changed no weight; absent where there is none, and where an
    /// earlier release wrote it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub zero_updates: Vec<u64>,
    /// On which the next step is summed; absent in the asynchronous exchange, and where an earlier
    /// release wrote it.
    #[serde(default, skip_serializing_if = "Grid::is_empty")]
    pub grid: Grid,
    /// The best evaluation so far; absent before the first, and where an earlier release wrote it.
    #[serde(default, skip_serializing_if = "Improvement::is_none")]
    pub improvement: Improvement,
    /// What the samples of its epochs were; absent where an earlier release wrote it.
    #[serde(default, skip_serializing_if = "Contents::is_none")]
    pub contents: Contents,
    pub model: String,
    pub input: Shape,
    pub classes: Vec<String>,
    /// Absent where nobody knows it (an import), and where it is what is usual for the set's format
    /// and an earlier release wrote this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub normalization: Option<Normalization>,
    /// Hexadecimal, as `data_fingerprint`.
    pub config_fingerprint: String,
    pub data_fingerprint: String,
    pub files: Vec<FileEntry>,
}

const CHECKSUM_KEY: &str = ",\n  \"xxh3_128\": \"";
const CHECKSUM_END: &str = "\"\n}\n";

impl FileEntry {
    /// Of a file that consists of these parts.
    pub fn of(name: &str, parts: &[&[u8]]) -> Self {
        let mut hasher = Xxh3::new();
        parts.iter().for_each(|part| hasher.update(part));
        let bytes = parts.iter().map(|part| part.len() as u64).sum();
        Self { name: name.into(), bytes, xxh3_128: format!("{:032x}", hasher.digest128()) }
    }

    /// Says how a body differs from the file that was written.
    pub fn verify(&self, body: &[u8]) -> Result<(), String> {
        if body.len() as u64 != self.bytes {
            let (name, found, expected) = (&self.name, body.len(), self.bytes);
            return Err(format!("{name} has {found} bytes instead of {expected}"));
        }
        let found = format!("{:032x}", xxh3_128(body));
        if found != self.xxh3_128 {
            let (name, expected) = (&self.name, &self.xxh3_128);
            return Err(format!("{name} has checksum {found} instead of {expected}"));
        }
        Ok(())
    }
}

impl Manifest {
    /// Of the state, among those that lie in memory.
    pub fn key(&self) -> Key {
        Key { attempt: self.attempt, generation: self.generation, step: self.step }
    }

    /// For a snapshot whose files are written.
    pub fn of(snapshot: &Snapshot, files: Vec<FileEntry>) -> Self {
        let state = &snapshot.state;
        Self {
            format: FORMAT,
            written_by: format!("kintsugi {}", env!("CARGO_PKG_VERSION")),
            run_id: state.run_id.clone(),
            attempt: state.attempt,
            generation: state.generation,
            step: state.step,
            cursor: state.cursor,
            arithmetic: state.arithmetic.clone(),
            zero_updates: zero_updates(state),
            grid: state.grid.clone(),
            improvement: state.improvement,
            contents: state.contents,
            model: snapshot.model_name.clone(),
            input: snapshot.input,
            classes: snapshot.classes.clone(),
            normalization: snapshot.normalization,
            config_fingerprint: hex(state.config_fingerprint),
            data_fingerprint: hex(state.data_fingerprint),
            files,
        }
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// The file's text.
    pub fn to_text(&self) -> String {
        let json = serde_json::to_string_pretty(self).expect("strings and numbers are always JSON");
        let body = json.strip_suffix("\n}").expect("a pretty object ends with its brace");
        format!("{body}{CHECKSUM_KEY}{:032x}{CHECKSUM_END}", xxh3_128(body.as_bytes()))
    }

    /// Checks and reads the text of the manifest of checkpoint `name`.
    pub fn from_text(name: &str, text: &[u8]) -> Result<Self, CheckpointError> {
        let damaged = |reason: String| CheckpointError::Damaged {
            name: name.to_string(),
            reason: format!("{MANIFEST} {reason}"),
        };
        let body =
            checked_body(text).ok_or_else(|| damaged("does not have its checksum".into()))?;
        let json = format!("{body}\n}}");
        #[derive(Deserialize)]
        struct Version {
            format: u32,
        }
        let version: Version =
            serde_json::from_str(&json).map_err(|error| damaged(error.to_string()))?;
        if version.format > FORMAT {
            let (name, format) = (name.to_string(), version.format);
            return Err(CheckpointError::Newer { name, format, known: FORMAT });
        }
        let manifest: Self =
            serde_json::from_str(&json).map_err(|error| damaged(error.to_string()))?;
        let listed = manifest.files.iter().map(|file| file.name.as_str());
        if !listed.eq(FILES) {
            return Err(damaged(format!("does not list exactly {}", FILES.join(", "))));
        }
        Ok(manifest)
    }
}

fn zero_updates(state: &TrainState) -> Vec<u64> {
    let zero = state.ledger_tail.iter().filter(|line| line.zero_update);
    zero.map(|line| line.step).collect()
}

/// Sixteen hexadecimal digits.
pub fn hex(word: u64) -> String {
    format!("{word:016x}")
}

/// The text before the checksum, when that is right.
fn checked_body(text: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(text).ok()?;
    let (body, rest) = text.rsplit_once(CHECKSUM_KEY)?;
    let checksum = rest.strip_suffix(CHECKSUM_END)?;
    (checksum == format!("{:032x}", xxh3_128(body.as_bytes()))).then_some(body)
}
