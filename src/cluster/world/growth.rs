//! How a world becomes larger: new ranks come after the old ones, and owners move to them only as
//! far as the load asks for it. Pure.

use super::{Member, Role, World};

impl World {
    /// The world with more ranks: `newcomers` take the ranks after the last one, in this order,
    /// and get the next member numbers; the `member`, `rank` and `role` that they bring are
    /// overwritten. Owners move to them, one at a time from the most loaded rank (the lowest of
    /// several, its last owner) to the least loaded newcomer, until no rank has two more than it.
    pub fn grow(&self, newcomers: &[Member]) -> Self {
        let mut world = self.clone();
        world.generation += 1;
        let old = world.ranks() as u32;
        let spares = world.members.partition_point(|m| m.role == Role::Active);
        for (rank, newcomer) in (old..).zip(newcomers) {
            let member = world.next_member;
            let active = Member { member, rank, role: Role::Active, ..newcomer.clone() };
            world.members.insert(spares + (rank - old) as usize, active);
            world.next_member += 1;
        }
        deal(&mut world.owners, old, old + newcomers.len() as u32);
        world
    }
}

/// Moves owners to the ranks `old..ranks`.
fn deal(owners: &mut [u32], old: u32, ranks: u32) {
    let mut load = vec![0_u32; ranks as usize];
    owners.iter().for_each(|rank| load[*rank as usize] += 1);
    // Each turn makes a difference of at least two smaller: bounded by the number of owners.
    for _ in 0..owners.len() {
        let most = (0..ranks).rev().max_by_key(|rank| load[*rank as usize]);
        let least = (old..ranks).min_by_key(|rank| load[*rank as usize]);
        let (Some(from), Some(to)) = (most, least) else { return };
        if load[from as usize] <= load[to as usize] + 1 {
            return;
        }
        let last = owners.iter().rposition(|rank| *rank == from);
        owners[last.expect("a loaded rank has an owner")] = to;
        load[from as usize] -= 1;
        load[to as usize] += 1;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn members(ranks: u32) -> Vec<Member> {
        (0..ranks).map(Member::of_test).collect()
    }

    fn loads(world: &World) -> Vec<usize> {
        (0..world.ranks()).map(|rank| world.owners_of(rank).len()).collect()
    }

    #[test]
    fn a_world_that_was_shrunk_grows_back_to_even_shares() {
        let world = World::initial(1, members(4), 12).drop_ranks(&[2]);
        let grown = world.grow(&members(1));
        assert_eq!(loads(&grown), [3, 3, 3, 3]);
        assert_eq!((grown.members[3].member, grown.members[3].rank), (4, 3));
        assert_eq!((grown.next_member, grown.generation), (5, 2));
        assert_eq!(grown.owners.iter().filter(|rank| **rank == 3).count(), 3);
    }

    #[test]
    fn new_ranks_come_before_waiting_spares() {
        let mut all = members(2);
        all.push(Member { member: 2, rank: 2, role: Role::Spare, ..all[0].clone() });
        let grown = World::initial(1, all, 4).grow(&members(2));
        let roles: Vec<Role> = grown.members.iter().map(|member| member.role).collect();
        assert_eq!(roles, [Role::Active, Role::Active, Role::Active, Role::Active, Role::Spare]);
        assert_eq!(loads(&grown), [1, 1, 1, 1]);
    }

    proptest! {
        #[test]
        fn growth_balances_the_load_and_moves_owners_to_newcomers_only(
            ranks in 1u32..8, more in 1u32..8, spare_owners in 0u32..30,
        ) {
            let world = World::initial(1, members(ranks), ranks + more + spare_owners);
            let grown = world.grow(&members(more));
            prop_assert_eq!(grown.ranks(), (ranks + more) as usize);
            prop_assert_eq!(loads(&grown).iter().sum::<usize>(), world.owners.len());
            let newcomers = &loads(&grown)[ranks as usize..];
            let most = loads(&grown).into_iter().max().unwrap_or(0);
            prop_assert!(newcomers.iter().all(|load| load + 1 >= most), "{:?}", loads(&grown));
            for (before, after) in world.owners.iter().zip(&grown.owners) {
                prop_assert!(before == after || *after >= ranks);
            }
        }
    }
}
