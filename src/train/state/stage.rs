//! What a rank's communicating thread is at between two repairs: where it met a failure, as the
//! event `failure_detected` tells it.

/// Every call of the communicator between two repairs belongs to one of these. A checkpoint is
/// none: its writer asks nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Stage {
    /// Loading and computing this rank's part of a step: a death is heard of beside it.
    #[default]
    Step,
    /// Summing gradients and totals over all ranks.
    AllReduce,
    /// Comparing a newcomer's state, and deciding whether the step commits.
    Vote,
    /// The validation set, its vote included.
    Evaluation,
    /// Comparing all replicas, the vote included.
    Comparison,
    /// Taking new spares in.
    Refill,
    /// Another number of ranks, on purpose.
    Resize,
    /// The last agreements of a run.
    Finish,
}

impl Stage {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Step,
        Self::AllReduce,
        Self::Vote,
        Self::Evaluation,
        Self::Comparison,
        Self::Refill,
        Self::Resize,
        Self::Finish,
    ];

    /// In events.
    pub fn name(self) -> &'static str {
        match self {
            Self::Step => "step",
            Self::AllReduce => "all_reduce",
            Self::Vote => "vote",
            Self::Evaluation => "evaluation",
            Self::Comparison => "comparison",
            Self::Refill => "refill",
            Self::Resize => "resize",
            Self::Finish => "finish",
        }
    }
}
