//! What a rank does when its world has to be repaired, between two steps or within one.

use crate::cluster::comm::CommError;
use crate::cluster::recovery::driver::{Growth, recover_after};
use crate::cluster::recovery::unproved::Unproved;
use crate::cluster::recovery::{GaveUp, Leaves, Policy, Repaired};
use crate::cluster::world::World;
use crate::config::Point;
use crate::observe::event::Kind;

use crate::train::TrainError;
use crate::train::record::repairs::{Begin, Repair, report_notes};
use crate::train::record::{Record, evaluations};
use crate::train::repair::size::Resizer;
use crate::train::repair::spares::Spares;
use crate::train::repair::take_over::Repairing;
use crate::train::state::incoming::Way;
use crate::train::state::rank::Rank;

/// Repairs without a committed step between before the run gives up.
const REPAIRS_WITHOUT_STEP_MAX: u32 = 20;

/// Repairs that bring the run no step further.
#[derive(Debug, Default)]
pub struct Tries {
    without_step: u32,
    /// What the last of them has used up of the ladder.
    unproved: Unproved,
}

impl Tries {
    /// A step was committed.
    pub fn committed(&mut self) {
        self.without_step = 0;
        self.unproved.committed();
    }

    /// A growth was tried; one that changed the world has to prove itself by steps.
    pub fn grew(&mut self, growth: &Growth, policy: &Policy) {
        match growth {
            Growth::Grown(_) | Growth::Broken(..) => self.unproved.grew(policy),
            Growth::Refused(_) => {}
        }
    }

    /// One more repair.
    ///
    /// # Errors
    /// Too many without a committed step between.
    pub fn count(&mut self) -> Result<(), TrainError> {
        self.without_step += 1;
        if self.without_step > REPAIRS_WITHOUT_STEP_MAX {
            let text = format!("{REPAIRS_WITHOUT_STEP_MAX} repairs without a committed step");
            return Err(TrainError::JobLost(text));
        }
        Ok(())
    }
}

/// What lasts from one repair to the next.
pub struct Lasting {
    /// When the world is to have another size.
    pub resizer: Resizer,
    /// Repairs that brought the run no step further.
    pub tries: Tries,
}

/// Repairs the world, or ends with the ladder. Afterwards all hold the state of the last committed
/// step, and survivors still their own gradients of the one that failed.
pub fn repair(
    rank: &mut Rank,
    record: &mut Record,
    spares: &mut Spares,
    lasting: &mut Lasting,
    error: &CommError,
) -> Result<(), TrainError> {
    rank.process.at(Point::InRepair);
    let detect = record.keeper.seconds_since_fault();
    let before = rank.world.clone();
    let (policy, of_growth) = (&rank.plan.policy, lasting.tries.unproved.of_growth());
    let mut hooks = Repairing::of(&mut rank.state, &mut rank.process, rank.plan.set);
    let (comm, unproved) = (rank.comm.as_mut(), &mut lasting.tries.unproved);
    let result = recover_after(comm, &mut rank.world, policy, &mut hooks, unproved);
    let given = hooks.given;
    rank.newcomers = newcomers(&before, &rank.world);
    let mut repaired = match result {
        Ok(repaired) => repaired,
        Err(end) => return Err(gave_up(rank, record, end)),
    };
    if let Some(detect) = detect {
        repaired.seconds.insert("detect".into(), detect);
    }
    let fewer = rank.world.ranks() < before.ranks();
    match (fewer, of_growth) {
        (true, true) => lasting.resizer.fell_short(),
        (true, false) => lasting.resizer.shrunk(rank.clock.now()),
        (false, _) => {}
    }
    if rank.reports() {
        report_notes(rank, &mut record.journal, &repaired.notes);
        let phase = rank.process.met_in().to_string();
        record.event(rank, Kind::FailureDetected { phase, error: error.to_string() });
        record.steps.make_up(&mut record.journal);
        tell(rank, record, spares, &before, &repaired, &given);
    }
    if rank.is_writer() {
        record.take_over(rank);
    }
    record.repairs.add(repair_of(rank, repaired));
    evaluations::make_up(rank, &mut record.journal);
    survived(rank, record);
    Ok(())
}

/// A repair or a change of size that is at its end; what it noted is written where the others do
/// not go on without this rank.
pub fn gave_up(rank: &mut Rank, record: &mut Record, end: GaveUp) -> TrainError {
    if rank.is_writer() && end.leaves != Leaves::Outvoted {
        report_notes(rank, &mut record.journal, &end.notes);
    }
    rank.gave_up(end)
}

/// Who is in the repaired world, and how newcomers got its state.
fn tell(
    rank: &Rank,
    record: &mut Record,
    spares: &mut Spares,
    before: &World,
    repaired: &Repaired,
    given: &[Way],
) {
    record.journal.world(&rank.world);
    spares.report(rank, &mut record.journal, before);
    let seconds = repaired.seconds.get("restore").copied().unwrap_or(0.0);
    for way in given {
        record.event(rank, Kind::Phase { name: way.name().into(), seconds });
    }
}

/// What is to be written of a repair that has just made this world.
pub fn repair_of(rank: &mut Rank, repaired: Repaired) -> Repair {
    let (generation, ranks) = (rank.world.generation, rank.world.ranks() as u32);
    let lost_steps = std::mem::take(&mut rank.given_up_steps);
    Repair { generation, ranks, repaired, holders: rank.survivors(), lost_steps }
}

/// The world is whole again, or has another size: its next step is watched.
pub fn survived(rank: &mut Rank, record: &mut Record) {
    record.repairs.begins(rank.clock.now(), Begin::Survived);
    rank.watch_neighbours();
}

/// Members that became ranks between two worlds.
pub fn newcomers(before: &World, after: &World) -> Vec<u32> {
    let ranks = |world: &World| -> Vec<u32> {
        (0..world.ranks()).filter_map(|rank| Some(world.member_at(rank)?.member)).collect()
    };
    let before = ranks(before);
    ranks(after).into_iter().filter(|member| !before.contains(member)).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::Rung;

    #[test]
    fn a_growth_that_was_refused_leaves_the_ladder_as_it_was() {
        let ladder = vec![Rung::Respawn, Rung::Shrink];
        let limit = Duration::from_secs(60);
        let policy = Policy::new(ladder, 3, limit);
        let mut tries = Tries::default();
        tries.grew(&Growth::Refused("no slot".into()), &policy);
        assert!(!tries.unproved.of_growth(), "a death is respawned first");
        tries.grew(&Growth::Broken(CommError::ProcFailed, "a newcomer died".into()), &policy);
        assert!(tries.unproved.of_growth());
    }
}
