//! Who copies files: threads of the rank, or processes that threads of it mind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::data::store::Store;

use super::folder::{CopyError, Done, Folder};
use super::key::Key;
use super::pace::{Pace, Paced};
use super::porter::Porter;

/// The copy workers of a rank.
#[derive(Debug)]
pub enum Workers {
    /// None of its own: who waits for a micro-batch copies it, as in simulated runs.
    Readers,
    /// So many threads.
    Threads(u32),
    /// Processes, each minded by a thread.
    Processes(Vec<Porter>),
}

impl From<u32> for Workers {
    fn from(workers: u32) -> Self {
        if workers == 0 { Self::Readers } else { Self::Threads(workers) }
    }
}

impl Workers {
    /// For each thread that is to be started.
    pub(super) fn hands(self) -> Vec<Hands> {
        match self {
            Self::Readers => Vec::new(),
            Self::Threads(workers) => (0..workers).map(|_| Hands::Own).collect(),
            Self::Processes(porters) => porters.into_iter().map(Hands::Porter).collect(),
        }
    }
}

/// What a thread copies with.
pub(super) enum Hands {
    Own,
    Porter(Porter),
}

impl Hands {
    /// Copies a file at that pace; `None`: whoever copied it has died.
    pub(super) fn copy(
        &mut self,
        store: &dyn Store,
        folder: &Folder,
        pace: &Pace,
        file: &Path,
    ) -> Option<Result<Done, CopyError>> {
        match self {
            Self::Own => {
                catch_unwind(AssertUnwindSafe(|| folder.copy(&Paced { store, pace }, file))).ok()
            }
            Self::Porter(porter) => {
                pace.await_turn();
                let copied = porter.copy(file);
                let copied = copied.inspect_err(|error| tracing::warn!("a copy worker: {error}"));
                if let Ok(Ok(Done::Made(bytes))) = copied {
                    pace.copied(bytes);
                }
                // It stands in the manifest; one that lay there before was looked at.
                folder.catch_up();
                if let Ok(Ok(_)) = copied {
                    folder.seen(Key::of(file));
                }
                copied.ok()
            }
        }
    }
}
