//! Ranks, leaders, spares and newcomers that die at each point of a step, of a repair and of a
//! promotion: every fault strikes, the world lives on, and the bits are those of the calm run.

use crate::cluster::comm::sim::Trace;
use crate::config::{Every, FaultKind, PlannedFault, Point, Rung, Who};

use super::broken::Rule;
use super::check::{calm, check};
use super::scenario::{Fault, STEPS, Scenario};
use super::supervise::{Final, play};

/// Each plan is played in so many orders of messages.
const SEEDS: u64 = 6;
const RESPAWN: (&[Rung], u32) = (&[Rung::Respawn], 0);
const SPARES: (&[Rung], u32) = (&[Rung::Spare, Rung::Respawn], 2);
/// Points of a repair that survivors pass.
const OF_A_REPAIR: [Point; 5] =
    [Point::InRevoke, Point::InShrink, Point::InSpawn, Point::InMerge, Point::InRestore];

fn kill(who: Who, rank: u32, point: Point) -> PlannedFault {
    let (kind, step, phase) = (FaultKind::Kill, Some(4), Some(point));
    PlannedFault { kind, who, rank, step, seconds: None, phase, pause: None }
}

/// All of these strike a world with this ladder and so many spares, which is not started again.
fn planned((ladder, spares): (&[Rung], u32), faults: &[PlannedFault]) {
    let mut scenario = Scenario::synchronous(0).calm();
    let config = &mut scenario.config;
    (config.run.ranks, config.train.owners) = (4, Some(8));
    let unharmed = calm(&play(&scenario, Rule::Vote, Trace::Digest)).unwrap();
    let recovery = &mut scenario.config.recovery;
    (recovery.ladder, recovery.regrow) = (Some(ladder.to_vec()), Every::Never);
    recovery.spares = (spares > 0).then_some(spares);
    scenario.faults = faults.iter().cloned().map(Fault::Point).collect();
    for seed in 0..SEEDS {
        let scenario = Scenario { seed, ..scenario.clone() };
        let played = play(&scenario, Rule::Vote, Trace::Digest);
        let context = format!("seed {seed}, {faults:?}");
        let Final::Result(result) = &played.end else { panic!("{context}: {:?}", played.end) };
        let happened = (played.deaths as usize, played.attempts.len());
        assert_eq!(happened, (faults.len(), 1), "{context}: {result:?}");
        assert!(result.exact, "{context}: {result:?}");
        assert_eq!(check(&scenario, &played, &unharmed), Ok(()), "{context}");
    }
}

#[test]
fn a_kill_at_any_point_of_a_step_is_transparent() {
    for who in [Who::Rank, Who::Leader] {
        for point in Point::OF_A_STEP {
            planned(RESPAWN, &[kill(who, 2, point)]);
        }
    }
}

#[test]
fn a_kill_at_any_point_of_a_repair_is_transparent() {
    let first = kill(Who::Rank, 2, Point::InBackward);
    for who in [Who::Leader, Who::Rank] {
        for point in OF_A_REPAIR {
            planned(RESPAWN, &[first.clone(), kill(who, 1, point)]);
        }
    }
    planned(RESPAWN, &[first, kill(Who::Source, 0, Point::InRestore)]);
}

#[test]
fn a_kill_at_any_point_of_a_promotion_is_transparent() {
    let first = kill(Who::Rank, 2, Point::InBackward);
    for who in [Who::Leader, Who::Rank] {
        for point in OF_A_REPAIR.into_iter().filter(|point| *point != Point::InSpawn) {
            planned(SPARES, &[first.clone(), kill(who, 1, point)]);
        }
    }
    let newcomers = [Point::InMerge, Point::InRestore, Point::BeforeFirstCommit];
    let others = newcomers.map(|point| (Who::Newcomer, point)).into_iter();
    for (who, point) in
        others.chain([(Who::Spare, Point::InMerge), (Who::Source, Point::InRestore)])
    {
        planned(SPARES, &[first.clone(), kill(who, 0, point)]);
    }
}

/// Once the spare, a rank to everybody else, went on waiting.
#[test]
fn a_spare_that_fills_one_of_two_seats_in_a_shrink_takes_part() {
    let two = [1, 2].map(|rank| kill(Who::Rank, rank, Point::InBackward));
    planned((&[Rung::Spare, Rung::Shrink], 1), &two);
}

#[test]
fn a_newcomer_may_die_at_any_point_of_its_first_step() {
    for point in Point::OF_A_STEP.into_iter().chain([Point::InRestore, Point::BeforeFirstCommit]) {
        let first = kill(Who::Rank, 2, Point::InForward);
        planned(RESPAWN, &[first, kill(Who::Newcomer, 0, point)]);
    }
}

#[test]
fn a_kill_after_the_last_step_leaves_a_finished_run() {
    planned(
        RESPAWN,
        &[PlannedFault { step: Some(STEPS), ..kill(Who::Rank, 2, Point::InFinalize) }],
    );
}
