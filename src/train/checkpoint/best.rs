//! `checkpoints/best.json`: which checkpoint is of the run's best evaluation. That one stays,
//! whatever `checkpoint.keep` says. It is written once the checkpoint is there and verified. While
//! nobody has compared the replicas since (`recovery.integrity_every`), the best before it stays
//! too: a state that was damaged may look better than it is.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::observe::refusal::{if_there, insist};
use crate::observe::result::Best;
use crate::observe::storage::Storage;
use crate::train::checkpoint::reading::FOLDER;

/// The file, beside the checkpoints.
const BEST: &str = "best.json";

/// What it holds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// The best.
    #[serde(flatten)]
    pub best: Best,
    /// The one that counts if the run goes back behind the best.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Best>,
}

impl Kept {
    /// A new best beside what was kept. `proved`: the newest step after which all replicas were
    /// found equal; none where nobody compares them.
    pub fn next(old: Option<Self>, best: Best, proved: Option<u64>) -> Self {
        let is_proved = |step: u64| proved.is_none_or(|proved| step <= proved);
        let before = old.and_then(|old| match is_proved(old.best.step) {
            true => Some(old.best),
            false => old.before,
        });
        let before = before.filter(|before| !is_proved(best.step) && before.step < best.step);
        Self { best, before }
    }

    /// What counts once the run has gone back to this step.
    pub fn back_to(self, step: u64) -> Option<Self> {
        let counts = |best: &Best| best.step <= step;
        if counts(&self.best) {
            return Some(self);
        }
        self.before.filter(counts).map(|best| Self { best, before: None })
    }

    /// The steps whose checkpoints stay.
    pub fn steps(self) -> impl Iterator<Item = u64> {
        std::iter::once(self.best).chain(self.before).map(|best| best.step)
    }
}

fn path() -> PathBuf {
    Path::new(FOLDER).join(BEST)
}

/// What the run's folder says is the best; `None`: nothing has been kept for that, or the file is
/// damaged, which is warned of: the next best replaces it.
///
/// # Errors
/// It cannot be read now.
pub fn read(storage: &dyn Storage) -> io::Result<Option<Kept>> {
    let Some(body) = if_there(insist(|| storage.read(&path())))? else { return Ok(None) };
    let read = serde_json::from_slice(&body);
    Ok(read.inspect_err(|error| tracing::warn!("{BEST} is damaged: {error}")).ok())
}

/// Names another one.
///
/// # Errors
/// It cannot be written.
pub fn write(storage: &dyn Storage, kept: Kept) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(&kept).expect("steps and errors are plain data");
    text.push(b'\n');
    storage.write_whole(&path(), &[&text])
}

/// Nothing is the best any more.
///
/// # Errors
/// It cannot be removed.
pub fn forget(storage: &dyn Storage) -> io::Result<()> {
    storage.remove(&path())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn best(step: u64) -> Best {
        Best { step, error: 1.0 / step as f64, averaged: false }
    }

    #[test]
    fn a_best_that_is_not_proved_leaves_the_one_before_it() {
        let first = Kept::next(None, best(4), Some(0));
        assert_eq!(first, Kept { best: best(4), before: None });
        let second = Kept::next(Some(first), best(8), Some(6));
        assert_eq!(second.before, Some(best(4)), "step 4 is proved, step 8 is not");
        let third = Kept::next(Some(second), best(9), Some(6));
        assert_eq!(third.before, Some(best(4)), "and step 8 still is not");
        assert_eq!(third.back_to(6), Some(Kept { best: best(4), before: None }));
        assert_eq!(third.back_to(9), Some(third));
        assert_eq!(third.back_to(2), None);
        assert_eq!(Kept::next(Some(third), best(9), Some(10)).before, None, "all is proved");
        assert_eq!(Kept::next(Some(first), best(8), None).before, None, "nobody compares");
    }
}
