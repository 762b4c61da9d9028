//! Who is in the world: members, ranks, generation, and which rank computes which owner's
//! micro-batches. Pure; `world.json` is its picture for people and for `kill`.
//!
//! Owners are dealt in contiguous blocks: owner v starts on rank `v * ranks / owners`, so every
//! rank has `owners / ranks` of them, or one more. Afterwards the map is sticky: a replacement
//! takes exactly what its predecessor had, and a shrink moves only what the dead had.

use serde::{Deserialize, Serialize};
use thiserror::Error;

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

/// A world that arrived over the wire, or lay in a file, and is none.
#[derive(Debug, Error)]
#[error("a world table cannot be read: {0}")]
pub struct WorldError(#[from] serde_json::Error);

impl World {
    /// The first world of an attempt. `members` come sorted by rank, spares last; `owners` is the
    /// number of virtual owners (DESIGN 4.7), at least as many as there are ranks.
    pub fn initial(attempt: u32, members: Vec<Member>, owners: u32) -> Self {
        let ranks = members.iter().filter(|m| m.role == Role::Active).count() as u64;
        let block = |v: u32| (u64::from(v) * ranks / u64::from(owners.max(1))) as u32;
        let next_member = members.iter().map(|m| m.member + 1).max().unwrap_or(0);
        let owners = if ranks == 0 { Vec::new() } else { (0..owners).map(block).collect() };
        Self { attempt, generation: 0, members, next_member, owners }
    }

    /// Ranks that compute.
    pub fn ranks(&self) -> usize {
        self.active().count()
    }

    /// The member that holds `rank`.
    pub fn member_at(&self, rank: usize) -> Option<&Member> {
        self.active().find(|m| m.rank as usize == rank)
    }

    /// The owners that `rank` computes, ascending: the order in which they are summed.
    pub fn owners_of(&self, rank: usize) -> Vec<u32> {
        let mine = self.owners.iter().enumerate().filter(|(_, r)| **r as usize == rank);
        mine.map(|(owner, _)| owner as u32).collect()
    }

    /// The world after replacements took the dead's ranks: `newcomers[i]` sits on `lost[i]`, gets
    /// the next member number and the dead's owners. Everything else stays as it was; the
    /// `member`, `rank` and `role` that a newcomer brings are overwritten.
    pub fn replace(&self, lost: &[usize], newcomers: &[Member]) -> Self {
        assert_eq!(lost.len(), newcomers.len(), "one replacement for each lost rank");
        let mut world = self.clone();
        world.generation += 1;
        for (&rank, newcomer) in lost.iter().zip(newcomers) {
            let seat = world
                .members
                .iter_mut()
                .find(|m| m.role == Role::Active && m.rank as usize == rank)
                .expect("a lost rank is a rank of the world");
            *seat = Member {
                member: world.next_member,
                rank: rank as u32,
                role: Role::Active,
                ..newcomer.clone()
            };
            world.next_member += 1;
        }
        world
    }

    /// The world without the dead: ranks are renumbered in their old order, and only the dead's
    /// owners move, each to the rank that has the fewest (the lowest of several). When nobody is
    /// left the world is empty.
    pub fn drop_ranks(&self, lost: &[usize]) -> Self {
        let mut world = self.clone();
        world.generation += 1;
        world.members.retain(|m| m.role == Role::Spare || !lost.contains(&(m.rank as usize)));
        let mut new_rank = std::collections::BTreeMap::new();
        for member in world.members.iter_mut().filter(|m| m.role == Role::Active) {
            let rank = new_rank.len() as u32;
            new_rank.insert(member.rank, rank);
            member.rank = rank;
        }
        world.owners = move_orphans(&self.owners, &new_rank);
        world
    }

    /// JSON: the wire's form and the file's.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("a world is plain numbers and strings")
    }

    /// Reads what `encode` wrote.
    pub fn decode(bytes: &[u8]) -> Result<Self, WorldError> {
        Ok(serde_json::from_slice(bytes)?)
    }

    fn active(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|m| m.role == Role::Active)
    }
}

/// Renumbers the map by `new_rank` (old rank -> new rank, of the living) and gives every owner of
/// a dead rank to the least loaded living one.
fn move_orphans(owners: &[u32], new_rank: &std::collections::BTreeMap<u32, u32>) -> Vec<u32> {
    if new_rank.is_empty() {
        return Vec::new();
    }
    let mut load = vec![0u32; new_rank.len()];
    for rank in owners.iter().filter_map(|old| new_rank.get(old)) {
        load[*rank as usize] += 1;
    }
    let place = |old: &u32| {
        new_rank.get(old).copied().unwrap_or_else(|| {
            let (rank, _) = load.iter().enumerate().min_by_key(|(_, n)| **n).unwrap_or((0, &0));
            load[rank] += 1;
            rank as u32
        })
    };
    owners.iter().map(place).collect()
}
