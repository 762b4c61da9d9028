//! Who is in the world: members, ranks, generation, and which rank computes which owner's
//! micro-batches. Pure; `world.json` is its picture for people and for `kill`.

use serde::{Deserialize, Serialize};

/// What a process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Role {
    Active,
    Spare,
}

/// A process of the run; its number is never reused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Member {
    pub member: u32,
    pub rank: u32,
    pub role: Role,
    pub pid: u32,
    pub host: String,
    pub node: u32,
}

/// The world of one generation, the same on every rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct World {
    /// Starts of mpirun.
    pub attempt: u32,
    /// Repairs in this attempt.
    pub generation: u32,
    /// Sorted by rank, spares last.
    pub members: Vec<Member>,
    /// The next unused member number.
    #[serde(skip_serializing_if = "never", default)]
    pub next_member: u32,
    /// `owners[v]` is the rank that computes owner v.
    #[serde(default)]
    pub owners: Vec<u32>,
}

fn never(_: &u32) -> bool {
    false
}
