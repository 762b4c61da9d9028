//! What is not as a run began for some of its processes: the set that they list, or the last bits
//! of what they compute. Production has to refuse the one and to tell of the other.

use crate::cluster::faults::Standing;
use crate::config::seed::Stream;

/// What is not as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Which samples there are, and in which order.
    Listing,
    /// What decides the last bits of what is computed.
    Instructions,
}

/// Who meets a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// Who replaces a rank of the attempt, or waits to.
    Newcomers,
    /// This rank of those that start together.
    Rank(u32),
    /// Everybody from the attempt on, as soon as the run has steps.
    All,
}

/// One change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Changed {
    /// What.
    pub change: Change,
    /// In which attempt, from 1.
    pub attempt: u32,
    /// For whom.
    pub whose: Whose,
}

impl Changed {
    /// Any, in a run of so many ranks.
    pub fn draw(draws: &mut Stream, ranks: u32) -> Self {
        let change = match draws.below(3) {
            0 => Change::Instructions,
            _ => Change::Listing,
        };
        let rank = draws.below(u64::from(ranks)) as u32;
        let attempt = 1 + draws.below(2) as u32;
        match draws.below(6) {
            0 => Self { change, attempt, whose: Whose::Rank(rank) },
            1 => Self { change, attempt: 2, whose: Whose::All },
            _ => Self { change, attempt, whose: Whose::Newcomers },
        }
    }

    /// Whether those who start this attempt list other samples than the run's or each other's.
    pub fn disturbs_start(self, number: u32) -> bool {
        let meets = match self.whose {
            Whose::Newcomers => false,
            Whose::Rank(_) => self.attempt == number,
            Whose::All => self.attempt <= number,
        };
        meets && self.change == Change::Listing
    }

    /// Whether everybody of this attempt computes otherwise, the run having had steps before.
    pub fn computes_otherwise(self, number: u32) -> bool {
        let all = self.whose == Whose::All && self.attempt <= number;
        all && self.change == Change::Instructions
    }

    /// Whether a process of this attempt meets it; `begun`: the run had steps when it started.
    pub fn meets(self, number: u32, begun: bool, standing: &Standing) -> bool {
        let first_born = !standing.newcomer && !standing.spare;
        match self.whose {
            Whose::Newcomers => self.attempt == number && !first_born,
            Whose::Rank(rank) => self.attempt == number && first_born && standing.rank == rank,
            Whose::All => self.attempt <= number && begun,
        }
    }
}
