//! Spares as the ranks see them: which are known to be dead, and what became of them.

use std::collections::BTreeSet;

use crate::cluster::world::{Role, World};
use crate::observe::event::Kind;

use crate::train::record::journal::Journal;
use crate::train::state::rank::Rank;

/// What one rank knows of the spares.
#[derive(Debug, Default)]
pub struct Spares {
    /// Members known to be dead since the last repair.
    dead: BTreeSet<u32>,
}

impl Spares {
    /// Whether nobody waits any more.
    pub fn are_used_up(&self, world: &World) -> bool {
        world.spares().all(|spare| self.dead.contains(&spare.member))
    }

    /// The writer's look, once per step: one that died is no failure of the world, only a line, and
    /// a shorter list for whoever reads `world.json`.
    pub fn look(&mut self, rank: &mut Rank, journal: &mut Journal) {
        let failed = rank.comm.failed_spares();
        if failed.len() == self.dead.len() {
            return;
        }
        let members: Vec<u32> = rank.world.spares().map(|m| m.member).collect();
        for member in failed.into_iter().filter_map(|index| members.get(index).copied()) {
            if self.dead.insert(member) {
                journal.event(rank.place(), Kind::Spare { member, state: "lost".into() });
            }
        }
        let mut picture = rank.world.clone();
        picture.members.retain(|m| !self.dead.contains(&m.member));
        journal.world(&picture);
    }

    /// What became of them in a repair.
    pub fn report(&mut self, rank: &Rank, journal: &mut Journal, before: &World) {
        let mut say = |member: u32, state: &str| {
            journal.event(rank.place(), Kind::Spare { member, state: state.into() });
        };
        for spare in before.spares() {
            let now = rank.world.members.iter().find(|m| m.member == spare.member);
            match now.map(|m| m.role) {
                Some(Role::Spare) => {}
                Some(Role::Active) => say(spare.member, "promoted"),
                None if self.dead.contains(&spare.member) => {}
                None => say(spare.member, "lost"),
            }
        }
        self.dead.clear();
    }
}
