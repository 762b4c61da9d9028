//! A step that lost a rank is not computed again by those who live: their gradients of it still
//! hold, and only what the dead rank owned is computed once more.

use std::collections::BTreeMap;

use crate::cluster::comm::sim::Trace;
use crate::config::{Every, FaultKind, PlannedFault, Point, Rung, Who};

use super::broken::Rule;
use super::scenario::{Fault, Scenario};
use super::supervise::{Final, play};

const RANKS: u32 = 4;
const OWNERS: u64 = 8;
/// The rank that dies, and what it owns: blocks of two.
const VICTIM: u32 = 1;
const LOST: [u64; 2] = [2, 3];
/// Its last step, from 1; neither an epoch's first nor its last.
const STEP: u64 = 5;

/// The first process that is no rank of the start.
const REPLACEMENT: usize = RANKS as usize;

/// How often each process computed each owner's micro-batch of the step in which a rank dies.
fn computed(ladder: &[Rung], point: Point) -> BTreeMap<(usize, u64), u32> {
    let mut scenario = Scenario::synchronous(0).calm();
    let config = &mut scenario.config;
    config.run.ranks = RANKS;
    config.train.owners = Some(OWNERS as u32);
    config.recovery.ladder = Some(ladder.to_vec());
    config.recovery.regrow = Every::Never;
    scenario.faults = vec![Fault::Point(PlannedFault {
        kind: FaultKind::Kill,
        who: Who::Rank,
        rank: VICTIM,
        step: Some(STEP),
        seconds: None,
        phase: Some(point),
        pause: None,
    })];
    let played = play(&scenario, Rule::Vote, Trace::Digest);
    let Final::Result(result) = &played.end else { panic!("{point:?}: {:?}", played.end) };
    assert_eq!((played.deaths, played.attempts.len()), (1, 1), "{point:?}: {result:?}");
    assert_eq!(result.recoveries.len(), 1, "{point:?}: {result:?}");
    let mut counts = BTreeMap::new();
    for seen in played.sightings.iter().filter(|seen| seen.step + 1 == STEP) {
        *counts.entry((seen.process, seen.owner)).or_default() += 1;
    }
    counts
}

/// Survivors computed their own part once, and somebody else the dead one's.
fn check(what: &str, counts: &BTreeMap<(usize, u64), u32>, victim_computed: bool) {
    for owner in 0..OWNERS {
        let rank = (owner * u64::from(RANKS) / OWNERS) as usize;
        let own = counts.get(&(rank, owner)).copied().unwrap_or(0);
        let by_others: u32 =
            counts.iter().filter(|((p, o), _)| *o == owner && *p != rank).map(|(_, n)| n).sum();
        let expected = match LOST.contains(&owner) {
            true => (u32::from(victim_computed), 1),
            false => (1, 0),
        };
        assert_eq!((own, by_others), expected, "{what}: owner {owner} of rank {rank}: {counts:?}");
    }
}

const POINTS: [(Point, bool); 3] =
    [(Point::BeforeLoad, false), (Point::InAllReduce, true), (Point::BeforeVote, true)];

#[test]
fn after_a_replacement_only_the_lost_owners_are_computed_again() {
    for (point, computed_before) in POINTS {
        let counts = computed(&[Rung::Respawn], point);
        check(&format!("{point:?}"), &counts, computed_before);
        let again: Vec<u64> =
            counts.keys().filter(|(p, _)| *p == REPLACEMENT).map(|(_, o)| *o).collect();
        assert_eq!(again, LOST, "{point:?}: the replacement's part");
    }
}

#[test]
fn after_a_shrink_only_the_lost_owners_are_computed_again() {
    for (point, computed_before) in POINTS {
        let counts = computed(&[Rung::Shrink], point);
        check(&format!("{point:?}, shrunk"), &counts, computed_before);
        assert!(counts.keys().all(|(process, _)| *process < REPLACEMENT), "nobody came");
    }
}
