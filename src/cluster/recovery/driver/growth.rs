//! A whole world becomes larger, between two steps: spawn, merge, roll call and restore as in
//! a repair, entered where a replacement enters. What goes wrong on the way is repaired as always,
//! and leaves the world that lives.

use crate::cluster::comm::{CommError, Membership, SpawnError, SpawnRequest};
use crate::cluster::recovery::{GaveUp, Hooks, Policy, Remark, Repaired, machine};
use crate::cluster::world::World;
use crate::config::Point;

use super::{Driver, Ended};

/// What came of it; the same on every rank that was there before.
#[derive(Debug)]
pub enum Growth {
    /// The world is whole, with the newcomers that live, perhaps without a member that died
    /// meanwhile (`Repaired::lost`).
    Grown(Repaired),
    /// The runtime refused to start processes; nothing was touched.
    Refused(String),
    /// Joining failed: the world has to be repaired before anything else.
    Broken(CommError, String),
}

/// All ranks of a whole world call it with the same `ranks`, more than there are. On `Grown`,
/// `comm` and `world` have them.
pub fn grow(
    comm: &mut dyn Membership,
    world: &mut World,
    ranks: usize,
    policy: &Policy,
    hooks: &mut dyn Hooks,
) -> Result<Growth, GaveUp> {
    let begun = hooks.now();
    let request = SpawnRequest {
        my_rank: comm.rank(),
        lost: (comm.size()..ranks).collect(),
        ranks,
        arguments: hooks.who().arguments.clone(),
    };
    let mut merging = None;
    let mut reached = |point: Point| {
        if point == Point::InMerge {
            merging = Some(hooks.now());
        }
        hooks.tell(Remark::Reached(point));
    };
    match comm.spawn_and_merge(&request, &mut reached) {
        Ok(()) => {}
        Err(SpawnError::Refused(reason)) => return Ok(Growth::Refused(reason)),
        Err(SpawnError::Failed(reason)) => {
            return Ok(Growth::Broken(CommError::ProcFailed, reason));
        }
    }
    let mut driver = Driver::new(comm, Some(&*world), policy, hooks, machine::grow(policy));
    let merging = merging.unwrap_or(begun);
    driver.gathering.add_span("spawn", begun, merging);
    driver.gathering.add("merge", merging);
    match driver.run()? {
        Ended::Resumed(grown, repaired) => {
            *world = grown;
            Ok(Growth::Grown(repaired))
        }
        Ended::Waits(..) => Err(super::unseated()),
    }
}

#[cfg(test)]
#[path = "growth_tests.rs"]
mod tests;
