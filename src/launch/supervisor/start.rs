//! A start that cannot succeed: a process ended before MPI had started. Open MPI tells nobody of
//! it, so the others would wait for it there until `recovery.start_limit`.

use std::time::{Duration, Instant};

use super::record::Record;

/// How often last words are looked for.
const LOOK: Duration = Duration::from_millis(200);
/// How long after the first of them the attempt may still end by itself: others that end too leave
/// word of it, and of why.
const PATIENCE: Duration = Duration::from_secs(2);

/// The start of one attempt.
#[derive(Debug)]
pub(super) struct Start {
    looked: Instant,
    failed: Option<Instant>,
}

impl Start {
    /// It begins now.
    pub(super) fn at(now: Instant) -> Self {
        Self { looked: now, failed: None }
    }

    /// Why the attempt is to end, if it is. A person is told at once.
    pub(super) fn fails(&mut self, record: &mut Record<'_>, now: Instant) -> Option<String> {
        if record.history.met() || now.duration_since(self.looked) < LOOK {
            return None;
        }
        self.looked = now;
        let told = record.tell_end()?;
        let since = *self.failed.get_or_insert(now);
        (now.duration_since(since) >= PATIENCE).then_some(told)
    }
}
