//! How far down the ladder a repair is: what ranks compare when they meet.

/// How far down the ladder a rank is. Later descents compare greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Descent {
    /// Index into the ladder.
    pub rung: usize,
    /// Tries that failed on this rung.
    pub tries: u32,
    /// Roll calls that failed in this repair.
    pub roll_calls: u32,
}
