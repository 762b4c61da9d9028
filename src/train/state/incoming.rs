//! A state on its way to a rank that has none.

use crate::cluster::resident::Key;

use crate::train::state::position::Position;

/// How a state came to a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// It lay there already: in a dead rank's file, or its own from an earlier attempt.
    Mapped,
    /// From a file of the same node.
    Copied,
    /// Over MPI.
    Sent,
}

impl Way {
    /// On the wire.
    pub fn to_byte(self) -> u8 {
        match self {
            Self::Mapped => 0,
            Self::Copied => 1,
            Self::Sent => 2,
        }
    }

    /// The reverse of `to_byte`.
    pub fn from_byte(byte: u8) -> Self {
        match byte {
            0 => Self::Mapped,
            1 => Self::Copied,
            _ => Self::Sent,
        }
    }

    /// In events.
    pub fn name(self) -> &'static str {
        match self {
            Self::Mapped => "state_mapped",
            Self::Copied => "state_copied",
            Self::Sent => "state_sent",
        }
    }
}

/// A state on its way in, until everybody agreed that it arrived.
#[derive(Debug, Clone, PartialEq)]
pub struct Incoming {
    /// Which.
    pub key: Key,
    /// Everything that is not a tensor, as its source has it now.
    pub position: Position,
    /// Where the tensors are: mapped ones are committed, the others await it.
    pub way: Way,
}
