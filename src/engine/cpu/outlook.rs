//! What a program whose values leave is expected to take, until that was compared with what it
//! took.

use crate::engine::memory::arrange::Arranged;
use crate::engine::memory::schedule::Costs;
use crate::engine::plan::steps::Draft;

/// What a program is expected to take.
pub struct Outlook {
    /// In core.
    pub draft: Draft,
    /// As it runs.
    pub arranged: Arranged,
    /// Of its places.
    pub budget_bytes: Option<usize>,
    /// What steps and copies take, as far as was measured.
    pub costs: Costs,
    /// Passes that are still compared.
    pub left: u32,
    /// The quickest of them so far.
    pub best_seconds: f64,
    /// Whether it may be planned again.
    pub is_first: bool,
}

impl Outlook {
    /// Whether there is still something to compare.
    pub fn is_open(&self) -> bool {
        self.left > 0
    }

    /// How much it is off.
    pub fn error(&self) -> f64 {
        self.best_seconds / self.arranged.forecast.seconds - 1.0
    }
}
