//! `checkpoints/best.json`: which checkpoint is of the run's best evaluation. That one stays,
//! whatever `checkpoint.keep` says. It is written once the checkpoint is there and verified, so it
//! names one that is on disk, or is the next to be replaced.

use std::io;
use std::path::{Path, PathBuf};

use crate::observe::refusal::{if_there, insist};
use crate::observe::result::Best;
use crate::observe::storage::Storage;
use crate::train::checkpoint::reading::FOLDER;

/// The file, beside the checkpoints.
const BEST: &str = "best.json";

fn path() -> PathBuf {
    Path::new(FOLDER).join(BEST)
}

/// What the run's folder says is the best; `None`: nothing has been kept for that.
///
/// # Errors
/// It cannot be read now, or is no such file.
pub fn read(storage: &dyn Storage) -> io::Result<Option<Best>> {
    let body = if_there(insist(|| storage.read(&path())))?;
    let decode = |body: Vec<u8>| serde_json::from_slice(&body).map_err(io::Error::from);
    body.map(decode).transpose()
}

/// Names another one.
///
/// # Errors
/// It cannot be written.
pub fn write(storage: &dyn Storage, best: Best) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(&best).expect("a step and its error are plain data");
    text.push(b'\n');
    storage.write_whole(&path(), &[&text])
}

/// Nothing is the best any more: the run has gone back behind it.
///
/// # Errors
/// It cannot be removed.
pub fn forget(storage: &dyn Storage) -> io::Result<()> {
    storage.remove(&path())
}
