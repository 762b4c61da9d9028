//! The world after a repair, from the one before, the holdings and the roll: pure. A process keeps
//! the member number it was first given: a promoted spare its own, a replacement the next unused.

use super::rollcall::{Answer, Holdings, Resident};
use crate::cluster::world::{Member, Role, World};

/// The world after a repair, and the members that it lost. Slots held by a process without state
/// have a new member, unless it held them before; slots that nobody holds are dropped; slots beyond
/// the old ranks make the world larger. All count as one generation. `waiting` are the spares, in
/// the gathering's order.
pub(super) fn next_world(
    old: &World,
    holdings: &Holdings,
    waiting: &[&Answer],
) -> (World, Vec<Member>) {
    let ranks = old.ranks();
    // Who went back and had no copy of that state is still who it was.
    let stayed = |r: &Resident| {
        old.member_at(r.slot).is_some_and(|member| member.pid == r.pid && member.host == r.host)
    };
    let fresh = holdings.residents.iter().filter(|r| r.step.is_none() && !stayed(r));
    let (replacing, growing): (Vec<&Resident>, Vec<_>) = fresh.partition(|r| r.slot < ranks);
    let filled: Vec<usize> = replacing.iter().map(|r| r.slot).collect();
    let dropped: Vec<usize> =
        (0..ranks).filter(|slot| holdings.residents.iter().all(|r| r.slot != *slot)).collect();
    let mut lost: Vec<usize> = filled.iter().chain(&dropped).copied().collect();
    lost.sort_unstable();
    let lost = lost.iter().filter_map(|rank| old.member_at(*rank).cloned()).collect();

    let mut nodes = NodesByHost::of(old);
    let mut members = |of: &[&Resident]| -> Vec<Newcomer> {
        of.iter().map(|r| newcomer(old, &mut nodes, r.pid, &r.host)).collect()
    };
    let (replacing, growing) = (members(&replacing), members(&growing));
    let spares: Vec<Newcomer> =
        waiting.iter().map(|a| newcomer(old, &mut nodes, a.pid, &a.host)).collect();
    let mut world = old.replace(&filled, &replacing);
    if !dropped.is_empty() {
        world = world.drop_ranks(&dropped);
    }
    if !growing.is_empty() {
        let growing: Vec<Member> = growing.into_iter().map(|(_, member)| member).collect();
        world = world.grow(&growing);
    }
    world.set_spares(&spares);
    world.generation = old.generation + 1;
    (world, lost)
}

/// A process that takes a place: the member that it is, or what will become one.
pub(super) type Newcomer = (Option<u32>, Member);

fn newcomer(old: &World, nodes: &mut NodesByHost, pid: u32, host: &str) -> Newcomer {
    let known =
        old.members.iter().find(|m| m.role == Role::Spare && m.pid == pid && m.host == host);
    let node = nodes.of_host(host);
    let role = Role::Active;
    let member = Member { member: 0, rank: 0, role, pid, host: host.to_owned(), node };
    (known.map(|known| known.member), member)
}

/// Which node a host is: as the old world has it, or the next unused number.
struct NodesByHost(Vec<(String, u32)>);

impl NodesByHost {
    fn of(world: &World) -> Self {
        Self(world.members.iter().map(|m| (m.host.clone(), m.node)).collect())
    }

    fn of_host(&mut self, host: &str) -> u32 {
        let known = self.0.iter().find(|(known, _)| known == host).map(|(_, node)| *node);
        known.unwrap_or_else(|| {
            let node = self.0.iter().map(|(_, node)| node + 1).max().unwrap_or(0);
            self.0.push((host.to_owned(), node));
            node
        })
    }
}
