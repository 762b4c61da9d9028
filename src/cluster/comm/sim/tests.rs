//! The simulator's own claims.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::{Membership as _, SpawnError, SpawnRequest};
use super::*;
use crate::observe::clock::Clock;

const RANKS: usize = 4;

/// Three ranks work, the last one is struck before its part reaches anybody or after.
fn one_all_reduce(seed: u64, options: SimOptions) -> SimOutcome<Result<u64, CommError>> {
    run(seed, RANKS, options, |mut comm, _| {
        let mut sum = [0];
        comm.all_reduce(Elements::U64(&[1 << (4 * comm.rank())], &mut sum)).map(|()| sum[0])
    })
}

fn deadly() -> SimOptions {
    SimOptions { death_chance: 0.25, ..SimOptions::stormy(1) }
}

#[test]
fn calm_weather_gives_every_rank_the_same_sum() {
    let outcome = one_all_reduce(1, SimOptions::calm());
    assert_eq!(outcome.ends, vec![End::Finished(Ok(0x1111)); RANKS]);
    assert_eq!((outcome.stuck, outcome.deaths), (None, 0));
}

/// A program that reaches most of the board: errors revoke, then agree, shrink, respawn, go on.
fn small_world(seed: u64, options: SimOptions) -> SimOutcome<Vec<u64>> {
    run(seed, RANKS, options, |mut comm, join| {
        let mut log = Vec::new();
        if join.is_some() && comm.warm().is_err() {
            comm.revoke();
        }
        for _ in 0..15 {
            let mut sum = [0];
            let done = comm.all_reduce(Elements::U64(&[1], &mut sum));
            let done = done.and_then(|()| ring(&mut comm));
            if done.is_err() {
                comm.revoke();
            }
            if comm.agree(u32::from(done.is_ok())).committed() {
                log.push(sum[0]);
                continue;
            }
            comm.revoke();
            repair(&mut comm);
        }
        comm.finalize();
        log
    })
}

fn ring(comm: &mut SimComm) -> Result<(), CommError> {
    let (rank, size) = (comm.rank(), comm.size());
    if size < 2 {
        return Ok(());
    }
    if rank.is_multiple_of(2) && rank + 1 < size {
        comm.send(&[7; 3], rank + 1, 5)
    } else if rank % 2 == 1 {
        let mut three = [0; 3];
        comm.recv(&mut three, rank - 1, 5)?;
        assert_eq!(three, [7; 3]);
        Ok(())
    } else {
        Ok(())
    }
}

fn repair(comm: &mut SimComm) {
    for _ in 0..20 {
        if comm.shrink().is_ok() {
            break;
        }
    }
    if comm.size() < RANKS {
        let ranks = comm.size() + 1;
        let my_rank = comm.rank();
        let request =
            SpawnRequest { my_rank, lost: vec![ranks - 1], ranks, arguments: vec!["x".into()] };
        let joined = comm.spawn_and_merge(&request, &mut |_| ()).is_ok();
        if !joined || comm.warm().is_err() {
            comm.revoke();
        }
    }
}

#[test]
fn a_seed_replays_exactly() {
    let stormy = SimOptions { trace: Trace::Kept, refusal_chance: 0.2, ..SimOptions::stormy(3) };
    let mut digests = BTreeSet::new();
    for seed in 0..20 {
        let [a, b] = [0, 1].map(|_| small_world(seed, stormy.clone()));
        assert_eq!(a.trace, b.trace, "seed {seed}");
        assert_eq!((a.ends, a.digest), (b.ends, b.digest), "seed {seed}");
        assert_eq!(a.stuck, None, "seed {seed}");
        assert!(!a.trace.is_empty());
        digests.insert(a.digest);
    }
    assert_eq!(digests.len(), 20, "different seeds take different ways");
}

#[test]
fn one_failed_call_ends_differently_on_different_ranks() {
    let mut kinds = BTreeSet::new();
    let mut mixed = 0;
    for seed in 0..400 {
        let outcome = one_all_reduce(seed, deadly());
        let results: Vec<_> = outcome.finished().collect();
        for result in &results {
            kinds.insert(format!("{result:?}"));
        }
        let good = results.iter().filter(|result| result.is_ok()).count();
        mixed += u32::from(outcome.deaths == 1 && good > 0 && good < results.len());
    }
    assert!(mixed > 20, "only {mixed} of 400 calls ended differently on different ranks");
    let expected = ["Err(Pending)", "Err(ProcFailed)", "Ok(4369)"];
    assert_eq!(kinds, expected.map(String::from).into(), "a sum is right or not given");
}

#[test]
fn whoever_is_not_told_of_a_failure_is_freed_by_a_revocation() {
    let work = |revokes: bool| {
        move |mut comm: SimComm, _| {
            let mut sum = [0];
            let done = comm.all_reduce(Elements::U64(&[1], &mut sum));
            if revokes && done.is_err() {
                comm.revoke();
            }
            comm.agree(u32::from(done.is_ok()))
        }
    };
    let stuck = |revokes| {
        let seeds = 0..200;
        seeds.filter(|&s| run(s, RANKS, deadly(), work(revokes)).stuck.is_some()).count()
    };
    assert_eq!(stuck(true), 0);
    assert!(stuck(false) > 10, "agree without revoke has to be caught");
}

#[test]
fn survivors_agree_and_a_dying_rank_may_have_decided_otherwise() {
    let otherwise = Mutex::new(0);
    for seed in 0..400 {
        let decided = Mutex::new(Vec::new());
        let outcome = run(seed, RANKS, deadly(), |mut comm, _| {
            let agreement = comm.agree(1);
            decided.lock().unwrap().push(agreement.committed());
            comm.revoke();
            agreement
        });
        let survivors: Vec<_> = outcome.finished().collect();
        assert!(survivors.windows(2).all(|pair| pair[0] == pair[1]), "seed {seed}");
        let decided = decided.into_inner().unwrap();
        let unlike = decided.iter().any(|&d| d != survivors[0].committed());
        *otherwise.lock().unwrap() += u32::from(unlike);
    }
    let otherwise = otherwise.into_inner().unwrap();
    assert!(otherwise > 5, "only {otherwise} dying ranks decided otherwise");
}

#[test]
fn agreement_ands_the_flags_and_fails_while_a_death_is_unrepaired() {
    let outcome = run(3, RANKS, SimOptions::calm(), |mut comm, _| {
        let calm = comm.agree(if comm.rank() == 2 { 0b011 } else { 0b111 });
        if comm.rank() == 3 {
            comm.strike().strike(FaultKind::Kill, Point::BeforeVote);
        }
        let broken = comm.agree(1);
        comm.revoke();
        let again = comm.agree(1);
        comm.shrink().unwrap();
        (calm, broken.committed(), again.committed(), comm.agree(1).committed(), comm.size())
    });
    for (calm, broken, again, mended, size) in outcome.finished() {
        assert_eq!(*calm, Agreement { flags: 0b011, outcome: Ok(()) });
        assert_eq!((*broken, *again, *mended, *size), (false, false, true, 3));
    }
    assert_eq!(outcome.finished().count(), 3);
    assert_eq!(outcome.ends[3], End::Died);
}

#[test]
fn replacements_take_the_ranks_of_the_dead() {
    let outcome = run(5, RANKS, SimOptions::calm(), |mut comm, join| {
        if let Some(join) = &join {
            assert_eq!((join.ranks, join.arguments.as_slice()), (RANKS, &["a".to_string()][..]));
        } else {
            if comm.rank() == 1 {
                comm.strike().strike(FaultKind::Segv, Point::InForward);
            }
            let old_rank = comm.rank();
            comm.revoke();
            comm.shrink().unwrap();
            let (my_rank, lost) = (old_rank, vec![1]);
            let arguments = vec!["a".into()];
            let request = SpawnRequest { my_rank, lost, ranks: RANKS, arguments };
            let mut points = Vec::new();
            comm.spawn_and_merge(&request, &mut |point| points.push(point)).unwrap();
            assert_eq!(points, [Point::InSpawn, Point::InMerge]);
            assert_eq!(comm.rank(), old_rank);
        }
        comm.warm().unwrap();
        comm.all_gather_u64(&[comm.process() as u64]).unwrap()
    });
    assert_eq!(outcome.stuck, None);
    let gathered: Vec<_> = outcome.finished().cloned().collect();
    assert_eq!(gathered, vec![vec![0, 4, 2, 3]; 4]);
}

#[test]
fn a_refused_spawn_is_refused_everywhere_and_leaves_the_world_usable() {
    let refusing = SimOptions { refusal_chance: 1.0, ..SimOptions::calm() };
    let outcome = run(5, 3, refusing, |mut comm, _| {
        let my_rank = comm.rank();
        let request = SpawnRequest { my_rank, lost: vec![3], ranks: 4, arguments: Vec::new() };
        let refusal = comm.spawn_and_merge(&request, &mut |_| ()).unwrap_err();
        assert!(matches!(refusal, SpawnError::Refused(_)), "{refusal}");
        comm.all_gather_u64(&[1]).unwrap().len()
    });
    assert_eq!(outcome.ends, vec![End::Finished(3); 3]);
}

#[test]
fn a_deadlock_is_reported_and_names_who_waits_where() {
    let outcome = run(1, 2, SimOptions::calm(), |mut comm, _| {
        if comm.rank() == 0 {
            let mut byte = [0];
            comm.recv(&mut byte, 1, 0).ok();
        } else {
            comm.agree(1);
        }
    });
    let stuck = outcome.stuck.unwrap();
    assert!(stuck.contains("rank 0") && stuck.contains("in recv"), "{stuck}");
    assert!(stuck.contains("rank 1") && stuck.contains("in agree"), "{stuck}");
    assert_eq!(outcome.ends, vec![End::Halted, End::Halted]);
}

#[test]
fn an_endless_program_ends_at_the_bound() {
    let bounded = SimOptions { settles_max: 50, ..SimOptions::calm() };
    let outcome = run(1, 2, bounded, |mut comm, _| {
        loop {
            comm.agree(1);
        }
    });
    let _: &Vec<End<()>> = &outcome.ends;
    assert_eq!(outcome.stuck.unwrap(), "not done after 50 decisions");
}

#[test]
fn ranks_that_call_different_collectives_are_told_so() {
    let outcome = run(1, 2, SimOptions::calm(), |mut comm, _| {
        if comm.rank() == 0 { comm.warm() } else { comm.broadcast(&mut [0], 0) }
    });
    let End::Panicked(text) = &outcome.ends[0] else { panic!("{:?}", outcome.ends) };
    assert!(text.contains("ranks disagree about a call"), "{text}");
}

#[test]
fn the_clock_advances_with_decisions_and_sleeps() {
    let outcome = run(1, 2, SimOptions::calm(), |mut comm, _| {
        let clock = comm.clock();
        let before = clock.now();
        comm.warm().unwrap();
        let after = clock.now();
        clock.sleep(Duration::from_secs(2));
        assert!(clock.now() >= after + Duration::from_secs(2));
        after > before
    });
    assert_eq!(outcome.ends, vec![End::Finished(true); 2]);
}
