//! The rank's side of its guardian: what it says about itself. A process has one pulse; without a
//! guardian (a world of one, a simulation) it says nothing, at the cost of one branch.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::board::{Activity, Board};
use super::last_words;

static PULSE: OnceLock<Pulse> = OnceLock::new();
static INERT: Pulse = Pulse { inner: None };

/// This process's pulse.
pub fn pulse() -> &'static Pulse {
    PULSE.get().unwrap_or(&INERT)
}

/// See the module.
#[derive(Debug)]
pub struct Pulse {
    inner: Option<Inner>,
}

#[derive(Debug)]
struct Inner {
    board: Arc<Board>,
    last_words: PathBuf,
}

/// From here on this process speaks to its guardian. The first call counts.
pub(super) fn begin(board: Arc<Board>, last_words: PathBuf) {
    let inner = Some(Inner { board, last_words });
    // A second guardian would only repeat what the first does.
    let _ = PULSE.set(Pulse { inner });
}

impl Pulse {
    fn with(&self, say: impl FnOnce(&Board)) {
        if let Some(inner) = &self.inner {
            say(&inner.board);
        }
    }

    /// Whether this process has a guardian, and so its peers have.
    pub fn is_watched(&self) -> bool {
        self.inner.is_some()
    }

    /// What the communicating thread does from now on.
    pub fn enter(&self, activity: Activity) {
        self.with(|board| board.set_activity(activity));
    }

    /// It begins to compute this step (from 1), or goes on with it after a repair.
    pub fn step(&self, step: u64) {
        self.with(|board| {
            board.set_activity(Activity::Step);
            board.set_step(step);
        });
    }

    /// Any thread got something done.
    pub fn progress(&self) {
        self.with(Board::progress);
    }

    /// Runs a call of the communicator: while it lasts, this rank may be waiting for others.
    pub fn waiting<T>(&self, call: impl FnOnce() -> T) -> T {
        self.with(|board| board.set_waiting(true));
        let value = call();
        self.with(|board| board.set_waiting(false));
        value
    }

    /// Runs a worker's wait for samples.
    pub fn loading<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.with(|board| board.set_loading(true));
        let value = wait();
        self.with(|board| board.set_loading(false));
        value
    }

    /// MPI has started.
    pub fn met(&self) {
        self.with(Board::set_met);
    }

    /// The shared memory segment that dies with this rank.
    pub fn segment(&self, name: &str) {
        self.with(|board| board.set_segment(name));
    }

    /// This process is about to end in order.
    pub fn ending(&self) {
        self.with(Board::set_ended);
    }

    /// Leaves word of why this process is about to end, for whoever reports its loss.
    pub fn last_words(&self, verdict: &str) {
        if let Some(inner) = &self.inner {
            last_words::leave(&inner.last_words, last_words::VERDICT, verdict);
        }
    }

    /// Processes of this run whose verdict begins like this.
    pub fn verdicts_beginning(&self, text: &str) -> usize {
        let folder = self.inner.as_ref().and_then(|inner| inner.last_words.parent());
        folder.map_or(0, |folder: &Path| last_words::verdicts_beginning(folder, text))
    }
}
