//! A file of many samples, which lie in it by their offsets. If it is written anew while a run goes
//! on, the offsets may be of other samples, with other labels: whoever reads from it looks now and
//! then whether it is the one that was listed.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::data::store::{Stamp, Store};

/// How often a file is looked at while it is read from. What was read behind the last look is owed
/// one: at the run's end.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What is known of a file since it was listed.
#[derive(Debug)]
pub struct ListedFile {
    listed: Stamp,
    /// As it was when the run began, where that is known.
    began: OnceLock<(u64, i64)>,
    /// When it was looked at last, in milliseconds of this process; 0: never.
    looked_ms: AtomicU64,
    is_rewritten: AtomicBool,
    /// It was read from since it was looked at.
    owes_look: AtomicBool,
}

impl ListedFile {
    /// As it was when it was listed.
    pub fn of(listed: Stamp) -> Self {
        let (began, looked_ms) = (OnceLock::new(), AtomicU64::new(0));
        let (is_rewritten, owes_look) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { listed, began, looked_ms, is_rewritten, owes_look }
    }

    /// As it was when it was listed.
    pub fn listed(&self) -> Stamp {
        self.listed
    }

    /// What it is compared with from here on.
    pub fn began_as(&self, stamp: (u64, i64)) {
        let _ = self.began.set(stamp);
    }

    /// Whether what was listed is not what the run began with.
    pub fn is_another(&self) -> bool {
        self.began.get().is_some_and(|began| self.listed != Some(*began))
    }

    /// Whether it was written since the run began, or another one is read in its place, where this
    /// thread has just read. One that cannot be looked at is as it was, as far as anybody knows.
    pub fn is_rewritten(&self, store: &dyn Store, path: &Path) -> bool {
        let Some(known) = self.known() else { return false };
        let Some(looked_ms) = self.due() else {
            self.owes_look.store(true, Ordering::Release);
            return self.is_rewritten.load(Ordering::Relaxed);
        };
        // Before the look: who reads meanwhile owes another one.
        self.owes_look.store(false, Ordering::Release);
        if !self.judge(store.is_still(path, known)) {
            // The next one looks.
            self.looked_ms.store(looked_ms, Ordering::Relaxed);
            self.owes_look.store(true, Ordering::Release);
        }
        self.is_rewritten.load(Ordering::Relaxed)
    }

    /// The same of all that was read and not looked at since.
    pub fn settle(&self, store: &dyn Store, path: &Path) -> bool {
        if let (Some(known), true) = (self.known(), self.owes_look.swap(false, Ordering::AcqRel)) {
            self.judge(store.was_still(path, known));
        }
        self.is_rewritten.load(Ordering::Relaxed)
    }

    fn known(&self) -> Option<(u64, i64)> {
        self.began.get().copied().or(self.listed)
    }

    /// Whether it could be looked at.
    fn judge(&self, is_still: Option<bool>) -> bool {
        self.is_rewritten.fetch_or(is_still == Some(false), Ordering::Relaxed);
        is_still.is_some()
    }

    /// When it was looked at last, where that is long enough ago: for one of the threads that ask.
    fn due(&self) -> Option<u64> {
        static BEGAN: OnceLock<Instant> = OnceLock::new();
        let now_ms = BEGAN.get_or_init(Instant::now).elapsed().as_millis() as u64 + 1;
        let looked_ms = self.looked_ms.load(Ordering::Relaxed);
        let since_ms = u128::from(now_ms.saturating_sub(looked_ms));
        let is_due = looked_ms == 0 || since_ms >= LOOK_EVERY.as_millis();
        let order = Ordering::Relaxed;
        let exchanged = || self.looked_ms.compare_exchange(looked_ms, now_ms, order, order).is_ok();
        (is_due && exchanged()).then_some(looked_ms)
    }
}
