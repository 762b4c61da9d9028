//! What a rank tells its guardian. Without one (a world of one, a simulation) nobody is told
//! anything, at the cost of one branch.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::config::Point;

use super::board::Board;
use super::last_words;

/// Of this process.
static GUARDIAN: OnceLock<Guardian> = OnceLock::new();

#[derive(Debug)]
struct Guardian {
    board: Arc<Board>,
    last_words: PathBuf,
}

/// From here on this process speaks to its guardian. The first call counts.
pub(super) fn begin(board: Arc<Board>, last_words: PathBuf) {
    // A second guardian would only repeat what the first does.
    let _ = GUARDIAN.set(Guardian { board, last_words });
}

fn tell(say: impl FnOnce(&Board)) {
    if let Some(guardian) = GUARDIAN.get() {
        say(&guardian.board);
    }
}

/// The communicating thread has come to this point. `step`: the one that is computed or repaired,
/// from 1.
pub fn at(point: Point, step: u64) {
    tell(|board| board.at(point, step));
}

/// Any thread got something done.
pub fn progress() {
    tell(Board::progress);
}

/// Runs a call of the communicator: while it lasts, this rank may be waiting for others.
pub fn waiting<T>(call: impl FnOnce() -> T) -> T {
    tell(Board::waits);
    let value = call();
    tell(Board::waits_no_more);
    value
}

/// Runs a worker's wait for samples.
pub fn loading<T>(wait: impl FnOnce() -> T) -> T {
    tell(Board::loads);
    let value = wait();
    tell(Board::has_loaded);
    value
}

/// The shared memory segment that dies with this rank.
pub fn segment(name: &str) {
    tell(|board| board.set_segment(name));
}

/// MPI has started.
pub fn met() {
    tell(Board::set_met);
}

/// This process is about to end in order.
pub fn ending() {
    tell(Board::set_ended);
}

/// Leaves word of why this process is about to end, for whoever reports its loss.
pub fn last_words(verdict: &str) {
    if let Some(guardian) = GUARDIAN.get() {
        last_words::leave(&guardian.last_words, last_words::VERDICT, verdict);
    }
}

/// Processes of this run whose verdict begins like this.
pub fn verdicts_beginning(text: &str) -> usize {
    let folder = GUARDIAN.get().and_then(|guardian| guardian.last_words.parent());
    folder.map_or(0, |folder: &Path| last_words::verdicts_beginning(folder, text))
}
