//! Which of a process's workers computes, and with how many threads.

/// Who computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    /// Which of its process's workers: each has a card of its own, as far as they go round.
    pub worker: usize,
    /// OpenMP threads of its team (a constant of the run: it decides the last bits); of a card's,
    /// threads of the host.
    pub threads: usize,
}

impl Seat {
    /// The only worker of its process.
    pub const fn only(threads: usize) -> Self {
        Self { worker: 0, threads }
    }
}
