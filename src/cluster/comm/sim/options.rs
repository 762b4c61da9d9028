//! What may go wrong in a simulation: deaths that are drawn, deaths that are planned, refusals.

/// Whether the trace's lines are kept or only their digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Trace {
    Digest,
    Kept,
}

/// What may go wrong in a simulation, and how much of it.
#[derive(Debug, Clone, PartialEq)]
pub struct SimOptions {
    /// Deaths that the board draws, at most; those of `Strike` come on top. The board never
    /// kills the last live process.
    pub deaths_max: u32,
    /// Probability (0..1) that a parked process dies at a decision in calm weather.
    pub death_chance: f64,
    /// The same shortly after a death: failures during recovery.
    pub cascade_chance: f64,
    /// Probability (0..1) that the runtime refuses to start replacements.
    pub refusal_chance: f64,
    /// Replacements the runtime can start in the whole run.
    pub spawns_max: u32,
    /// Processes that wait beside the first ranks.
    pub spares: usize,
    /// Decisions before the run counts as stuck.
    pub settles_max: u64,
    /// What is kept of the trace.
    pub trace: Trace,
    /// Deaths that were drawn beforehand, in order; see `Death`.
    pub deaths: Vec<Death>,
    /// The decision at which every process dies at once.
    pub crash_at: Option<u64>,
}

/// When a planned death strikes, in decisions of the board.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// At this one, or later.
    At(u64),
    /// So many after the last death, or at once where nobody has died.
    After(u64),
}

/// A death at whatever call its victim is parked in. It spares the last live process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Death {
    /// When.
    pub when: When,
    /// Modulo the parked processes: the victim; further bits say in which manner.
    pub draw: u64,
}

impl SimOptions {
    /// Nothing goes wrong.
    pub fn calm() -> Self {
        Self {
            deaths_max: 0,
            death_chance: 0.0,
            cascade_chance: 0.0,
            refusal_chance: 0.0,
            spawns_max: 64,
            spares: 0,
            settles_max: 100_000,
            trace: Trace::Digest,
            deaths: Vec::new(),
            crash_at: None,
        }
    }

    /// Up to `deaths_max` deaths, likelier while an earlier one is being repaired.
    pub fn stormy(deaths_max: u32) -> Self {
        Self { deaths_max, death_chance: 0.01, cascade_chance: 0.03, ..Self::calm() }
    }
}
