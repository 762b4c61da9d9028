//! Who is in the world: members, ranks, generation, and which rank computes which owner's
//! micro-batches. Pure; `world.json` is its picture for people and for `kill`.
//!
//! Owners are dealt in contiguous blocks: owner v starts on rank `v * ranks / owners`, so every
//! rank has `owners / ranks` of them, or one more. Afterwards the map is sticky: a replacement
//! takes exactly what its predecessor had, a shrink moves only what the dead had, and new ranks
//! take only what evens the load (`growth`).

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::config::Shown;
use crate::observe::refusal::{Meaning, if_there, insist};

mod growth;

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
    /// Ranks that the world should have: those it started with, or as many as were asked for.
    #[serde(default)]
    pub target: u32,
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
    /// number of virtual owners, at least as many as there are ranks.
    pub fn initial(attempt: u32, members: Vec<Member>, owners: u32) -> Self {
        let ranks = members.iter().filter(|m| m.role == Role::Active).count() as u64;
        let block = |v: u32| (u64::from(v) * ranks / u64::from(owners.max(1))) as u32;
        let next_member = members.iter().map(|m| m.member + 1).max().unwrap_or(0);
        let owners = if ranks == 0 { Vec::new() } else { (0..owners).map(block).collect() };
        Self { attempt, generation: 0, members, next_member, owners, target: ranks as u32 }
    }

    /// Nodes on which ranks compute.
    pub fn nodes(&self) -> usize {
        let active = self.members.iter().filter(|member| member.role == Role::Active);
        active.map(|member| member.node).collect::<BTreeSet<u32>>().len()
    }

    /// Ranks that compute.
    pub fn ranks(&self) -> usize {
        self.active().count()
    }

    /// The member that holds `rank`.
    pub fn member_at(&self, rank: usize) -> Option<&Member> {
        self.active().find(|m| m.rank as usize == rank)
    }

    /// Processes of the ranks on a machine, by rank; 0 for those elsewhere.
    pub fn pids_on(&self, host: &str) -> Vec<u32> {
        let member = |rank| self.member_at(rank).filter(|member| member.host == host);
        (0..self.ranks()).map(|rank| member(rank).map_or(0, |member| member.pid)).collect()
    }

    /// The owners that `rank` computes, ascending: the order in which they are summed.
    pub fn owners_of(&self, rank: usize) -> Vec<u32> {
        let mine = self.owners.iter().enumerate().filter(|(_, r)| **r as usize == rank);
        mine.map(|(owner, _)| owner as u32).collect()
    }

    /// The owners that the other ranks on the node of `rank` compute, ascending.
    pub fn owners_beside(&self, rank: usize) -> Vec<u32> {
        let node = |rank: usize| self.member_at(rank).map(|member| member.node);
        let mine = node(rank);
        let beside = |other: usize| other != rank && mine.is_some() && node(other) == mine;
        let owners = self.owners.iter().enumerate();
        owners.filter(|(_, r)| beside(**r as usize)).map(|(owner, _)| owner as u32).collect()
    }

    /// The world after newcomers took the dead's ranks: `newcomers[i]` sits on `lost[i]` and gets
    /// the dead's owners. One that is no member yet (`None`: not a spare of this world) gets the
    /// next number. Everything else stays as it was; the `member`, `rank` and `role` that a
    /// newcomer brings are overwritten. Spares of the same number are gone from their list.
    pub fn replace(&self, lost: &[usize], newcomers: &[(Option<u32>, Member)]) -> Self {
        assert_eq!(lost.len(), newcomers.len(), "one newcomer for each lost rank");
        let mut world = self.clone();
        world.generation += 1;
        for (&rank, (known, newcomer)) in lost.iter().zip(newcomers) {
            let member = known.unwrap_or(world.next_member);
            world.next_member = world.next_member.max(member + 1);
            world.members.retain(|m| m.role == Role::Active || m.member != member);
            let seat = world
                .members
                .iter_mut()
                .find(|m| m.role == Role::Active && m.rank as usize == rank)
                .expect("a lost rank is a rank of the world");
            *seat = Member { member, rank: rank as u32, role: Role::Active, ..newcomer.clone() };
        }
        world
    }

    /// From now on these wait, and no others; a spare's `rank` is its place behind the ranks.
    pub fn set_spares(&mut self, spares: &[(Option<u32>, Member)]) {
        self.members.retain(|m| m.role == Role::Active);
        let ranks = self.members.len() as u32;
        for (rank, (known, spare)) in (ranks..).zip(spares) {
            let member = known.unwrap_or(self.next_member);
            self.next_member = self.next_member.max(member + 1);
            self.members.push(Member { member, rank, role: Role::Spare, ..spare.clone() });
        }
    }

    /// Those that wait, in the order of the pool.
    pub fn spares(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|m| m.role == Role::Spare)
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

    /// Reads its JSON, the wire's form and the file's.
    pub fn decode(bytes: &[u8]) -> Result<Self, WorldError> {
        Ok(serde_json::from_slice(bytes)?)
    }

    /// What a run has written of its world.
    ///
    /// # Errors
    /// There is none, or it cannot be read; `InvalidData` where it is damaged.
    pub fn read(run_dir: &Path) -> io::Result<Self> {
        let path = run_dir.join("world.json");
        let damaged = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let world = std::fs::read(&path).and_then(|bytes| Self::decode(&bytes).map_err(damaged));
        world.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.shown())))
    }

    /// The same; `None` where there is none, or it is damaged.
    ///
    /// # Errors
    /// It cannot be read now.
    pub fn newest(run_dir: &Path) -> io::Result<Option<Self>> {
        match insist(|| Self::read(run_dir)) {
            Err(error) if Meaning::of(&error) == Meaning::Damaged => Ok(None),
            read => if_there(read),
        }
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

#[cfg(test)]
impl Member {
    /// A rank of a test, on its one node.
    pub fn of_test(rank: u32) -> Self {
        let (role, host) = (Role::Active, "here".into());
        Self { member: rank, rank, role, pid: 100 + rank, host, node: 0 }
    }
}

#[cfg(test)]
impl World {
    /// A test's world at its start.
    pub fn of_test(ranks: u32, owners: u32) -> Self {
        Self::initial(1, (0..ranks).map(Member::of_test).collect(), owners)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn member(rank: u32, role: Role) -> Member {
        let host = format!("node{}", rank / 2);
        Member { role, host, node: rank / 2, ..Member::of_test(rank) }
    }

    fn world(ranks: u32, owners: u32) -> World {
        let members = (0..ranks).map(|r| member(r, Role::Active)).collect();
        World::initial(1, members, owners)
    }

    /// Ranks, owners (at least as many), and a proper subset of the ranks to lose.
    fn a_loss() -> impl Strategy<Value = (World, Vec<usize>)> {
        (1u32..9, 0u32..40).prop_flat_map(|(ranks, more)| {
            let lost = proptest::collection::btree_set(0..ranks as usize, 0..ranks as usize);
            (Just(world(ranks, ranks + more)), lost.prop_map(|s| s.into_iter().collect()))
        })
    }

    fn assert_owners_partitioned(world: &World) {
        let all: Vec<u32> = (0..world.ranks()).flat_map(|r| world.owners_of(r)).collect();
        let set: BTreeSet<u32> = all.iter().copied().collect();
        assert_eq!(all.len(), world.owners.len(), "no owner on two ranks or on none: {world:?}");
        assert_eq!(set.len(), world.owners.len());
    }

    fn load_spread(world: &World) -> usize {
        let loads = || (0..world.ranks()).map(|r| world.owners_of(r).len());
        loads().max().unwrap_or(0) - loads().min().unwrap_or(0)
    }

    #[test]
    fn owners_are_dealt_in_contiguous_blocks() {
        assert_eq!(world(4, 12).owners, [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]);
        assert_eq!(world(3, 4).owners, [0, 0, 1, 2]);
        assert_eq!(world(4, 12).owners_of(1), [3, 4, 5]);
        assert_eq!(world(4, 12).next_member, 4);
    }

    #[test]
    fn a_shrink_moves_only_the_deads_owners_and_renumbers_in_order() {
        let shrunk = world(4, 12).drop_ranks(&[1]);
        assert_eq!(shrunk.owners, [0, 0, 0, 0, 1, 2, 1, 1, 1, 2, 2, 2]);
        let survivors: Vec<(u32, u32)> =
            shrunk.members.iter().map(|m| (m.rank, m.member)).collect();
        assert_eq!(survivors, [(0, 0), (1, 2), (2, 3)]);
        assert_eq!(shrunk.generation, 1);
    }

    /// Two ranks a node.
    #[test]
    fn owners_beside_a_rank_are_those_of_its_nodes_others() {
        let whole = world(4, 12);
        assert_eq!(
            [whole.owners_beside(0), whole.owners_beside(3)],
            [vec![3, 4, 5], vec![6, 7, 8]]
        );
        let shrunk = whole.drop_ranks(&[1]);
        assert_eq!([shrunk.owners_beside(0), shrunk.owners_of(0)], [vec![], vec![0, 1, 2, 3]]);
        assert_eq!(shrunk.owners_beside(1), shrunk.owners_of(2), "ranks have moved up");
        assert_eq!(whole.owners_beside(9), Vec::<u32>::new());
    }

    #[test]
    fn spares_keep_their_place_and_own_nothing() {
        let mut members: Vec<Member> = (0..3).map(|r| member(r, Role::Active)).collect();
        members.push(member(3, Role::Spare));
        let shrunk = World::initial(1, members, 6).drop_ranks(&[0]);
        assert_eq!(shrunk.ranks(), 2);
        assert_eq!(shrunk.members.last().map(|m| (m.role, m.rank)), Some((Role::Spare, 3)));
        assert!(shrunk.owners.iter().all(|r| *r < 2));
    }

    #[test]
    fn a_promoted_spare_keeps_its_number_and_leaves_the_list() {
        let mut world = world(3, 6);
        let spare =
            |number: Option<u32>, pid: u32| (number, Member { pid, ..member(9, Role::Spare) });
        world.set_spares(&[spare(None, 50), spare(None, 51)]);
        let waiting = |world: &World| -> Vec<(u32, u32, u32)> {
            world.spares().map(|m| (m.member, m.rank, m.pid)).collect()
        };
        assert_eq!(waiting(&world), [(3, 3, 50), (4, 4, 51)]);
        let after = world.replace(&[1], &[spare(Some(4), 51)]);
        assert_eq!(waiting(&after), [(3, 3, 50)]);
        assert_eq!(after.member_at(1).map(|m| (m.member, m.pid)), Some((4, 51)));
        assert_eq!((after.next_member, &after.owners), (5, &world.owners));
        let respawned = after.replace(&[0], &[spare(None, 60)]);
        assert_eq!(respawned.member_at(0).map(|m| m.member), Some(5));
    }

    #[test]
    fn a_world_of_which_nobody_is_left_is_empty() {
        let none = world(2, 4).drop_ranks(&[0, 1]);
        assert_eq!((none.ranks(), none.owners.len()), (0, 0));
    }

    #[test]
    fn what_is_no_world_is_refused() {
        assert!(World::decode(b"{\"attempt\":1}").is_err());
        assert!(World::decode(b"").is_err());
    }

    proptest! {
        #[test]
        fn owners_are_always_partitioned_over_the_ranks((world, lost) in a_loss()) {
            assert_owners_partitioned(&world);
            prop_assert!(load_spread(&world) <= 1);
            assert_owners_partitioned(&world.drop_ranks(&lost));
            let newcomers = vec![(None, member(99, Role::Spare)); lost.len()];
            assert_owners_partitioned(&world.replace(&lost, &newcomers));
        }

        #[test]
        fn a_replacement_changes_nothing_but_the_deads_part((world, lost) in a_loss()) {
            let newcomers = vec![(None, member(99, Role::Spare)); lost.len()];
            let after = world.replace(&lost, &newcomers);
            prop_assert_eq!(&after.owners, &world.owners);
            prop_assert_eq!(after.generation, world.generation + 1);
            for rank in 0..world.ranks() {
                let (old, new) = (world.member_at(rank).unwrap(), after.member_at(rank).unwrap());
                prop_assert_eq!(old == new, !lost.contains(&rank));
                prop_assert!(old == new || new.member >= world.next_member);
            }
            let numbers: BTreeSet<u32> = after.members.iter().map(|m| m.member).collect();
            prop_assert_eq!(numbers.len(), after.members.len());
            prop_assert!(numbers.iter().all(|n| *n < after.next_member));
        }

        #[test]
        fn a_shrink_keeps_the_survivors_owners_and_stays_balanced((world, lost) in a_loss()) {
            let after = world.drop_ranks(&lost);
            for (new, old) in (0..world.ranks()).filter(|r| !lost.contains(r)).enumerate() {
                let (before, now) = (world.owners_of(old), after.owners_of(new));
                prop_assert!(before.iter().all(|owner| now.contains(owner)));
                prop_assert_eq!(
                    world.member_at(old).unwrap().member,
                    after.member_at(new).unwrap().member
                );
            }
            prop_assert!(load_spread(&after) <= 1, "{:?}", after.owners);
        }

        #[test]
        fn the_wire_keeps_every_bit((world, lost) in a_loss()) {
            let world = world.drop_ranks(&lost);
            prop_assert_eq!(World::decode(&serde_json::to_vec(&world).unwrap()).unwrap(), world);
        }
    }
}
