//! An attempt that nobody is left of. mpirun can go on without ranks: where they died while it
//! started replacements, it still waits for those; and in two of twelve restarts of eight and
//! sixteen ranks it was seen not to end though all of them had left.

use std::time::{Duration, Instant};

use crate::launch::traces::janitor;

use super::record::Record;

/// How often ranks are looked for, and how long there must be none: one that is in the middle of
/// its start has no name for a moment.
const LOOK: Duration = Duration::from_millis(200);
const PATIENCE: Duration = Duration::from_secs(3);
/// The same once the attempt's result is written: nobody starts after it, and an mpirun that ends
/// takes half a second.
const PATIENCE_AFTER_RESULT: Duration = Duration::from_secs(1);

/// Since when nobody has been seen.
#[derive(Debug)]
pub(super) struct Deserted {
    looked: Instant,
    since: Option<Instant>,
}

impl Deserted {
    /// The attempt begins.
    pub(super) fn at(now: Instant) -> Self {
        Self { looked: now, since: None }
    }

    /// Who was the first to end, and why, once no rank is left. On several nodes this machine does
    /// not see them all.
    pub(super) fn look(
        &mut self,
        record: &mut Record<'_>,
        job: &str,
        now: Instant,
    ) -> Option<String> {
        if record.job.nodes.is_some() || now.duration_since(self.looked) < LOOK {
            return None;
        }
        self.looked = now;
        // Processes are looked at only where enough ends are known.
        let first = record.first_end_of(record.job.config.run.ranks as usize);
        let first = first.filter(|_| janitor::ranks(job).is_empty());
        let Some(first) = first else {
            self.since = None;
            return None;
        };
        let since = *self.since.get_or_insert(now);
        let patience = match record.job.run.result() {
            Some(_) => PATIENCE_AFTER_RESULT,
            None => PATIENCE,
        };
        (now.duration_since(since) >= patience).then_some(first)
    }
}
