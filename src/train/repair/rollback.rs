//! Replicas that differ: everybody goes back to the last state that all held alike.

use std::sync::PoisonError;

use crate::cluster::comm::CommError;
use crate::cluster::world::World;
use crate::observe::event::Kind;

use crate::train::TrainError;
use crate::train::record::Record;
use crate::train::record::inexact;
use crate::train::repair::integrity::{GOING_BACK_MAX, Integrity, Judgement, Vote, judge};
use crate::train::state::State;
use crate::train::state::rank::Rank;

/// What follows from the hashes of all ranks; the same on every rank.
pub fn answer(
    rank: &mut Rank,
    record: &mut Record,
    integrity: &mut Integrity,
    votes: &[Vote],
) -> Result<(), TrainError> {
    match judge(votes) {
        Judgement::Same => {
            integrity.found_equal(&mut rank.state, votes);
            Ok(())
        }
        Judgement::Differ(evicted) => {
            let_all_hear(rank);
            let who = differing(&rank.world, &evicted);
            Err(go_back(rank, record, integrity, (&evicted, &who)))
        }
    }
}

/// What ends the step of all where these newcomers hold another state than the others.
pub fn answer_newcomers(
    rank: &mut Rank,
    record: &mut Record,
    integrity: &mut Integrity,
    newcomers: &[usize],
) -> TrainError {
    let_all_hear(rank);
    if newcomers.contains(&rank.comm.rank()) {
        return leave(&rank.state);
    }
    if integrity.is_on() {
        let who = format!("{} took over another state", named(&rank.world, newcomers));
        return go_back(rank, record, integrity, (newcomers, &who));
    }
    let doubtful = inexact::doubtful(&mut rank.state.position);
    let doubted = rank.state.copy(None);
    rank.state.put(&doubted, rank.world.generation + 1);
    if let Some(doubtful) = doubtful.filter(|_| speaks(rank, newcomers)) {
        record.event(rank, doubtful);
    }
    TrainError::Comm(CommError::ProcFailed)
}

/// What this rank holds must not be taken over by the next newcomer.
fn leave(state: &State) -> TrainError {
    state.slots.write().unwrap_or_else(PoisonError::into_inner).refuse_all();
    let text = "the state that it took over differs from the survivors'";
    tracing::error!("{text}: this rank leaves, the next newcomer gets the state from a survivor");
    TrainError::Evicted(text.into())
}

/// An agreement fails for those who have not come back from it when somebody who has leaves: they
/// would keep what is to be given up. Whatever comes of this, all that live have come back.
fn let_all_hear(rank: &mut Rank) {
    if let Err(error) = rank.comm.all_gather_u64(&[0]) {
        tracing::debug!("behind a vote on states that differ: {error}");
    }
}

/// Whether this rank is the one of those who stay that speaks for all.
fn speaks(rank: &Rank, leaving: &[usize]) -> bool {
    (0..).find(|rank| !leaving.contains(rank)) == Some(rank.comm.rank())
}

/// Goes back to the last state that was found equal, by way of a repair: it replaces those who
/// leave and gives the state to those who lack it.
fn go_back(
    rank: &mut Rank,
    record: &mut Record,
    integrity: &mut Integrity,
    (evicted, who): (&[usize], &str),
) -> TrainError {
    let (own, step) = (rank.comm.rank(), rank.state.position.step);
    let target = rank.state.position.verified;
    let text = format!("silent corruption: after step {step} {who}; back to step {target}");
    if evicted.contains(&own) {
        // Nobody is to go on from it, whatever ends this process before it ends itself.
        rank.state.slots.write().unwrap_or_else(PoisonError::into_inner).refuse_all();
        if rank.is_writer() {
            // What it is writing must not be published behind what the others clear away.
            record.distrust(target);
        }
        return TrainError::Evicted(text);
    }
    if speaks(rank, evicted) {
        tracing::warn!("{text}");
        record.event(rank, Kind::Warning { message: text.clone() });
        record.distrust(target);
    }
    if rank.state.position.gone_back >= GOING_BACK_MAX {
        let text = format!("{text}; {GOING_BACK_MAX} times in a row: is the memory sound?");
        return TrainError::JobLost(text);
    }
    // Above what is given up: a rank may die before it has given it up.
    integrity.go_back(&mut rank.state, rank.world.generation + 1);
    record.steps.give_up();
    rank.given_up_steps += step - target;
    rank.update_standing();
    TrainError::Comm(CommError::ProcFailed)
}

fn differing(world: &World, evicted: &[usize]) -> String {
    match evicted {
        [] => "the ranks hold different states and no majority says which is right".into(),
        evicted => {
            format!("{} differs from the other ranks and is evicted", named(world, evicted))
        }
    }
}

fn named(world: &World, ranks: &[usize]) -> String {
    let name = |rank: &usize| match world.member_at(*rank) {
        Some(member) => format!("rank {rank} (member {}, {})", member.member, member.host),
        None => format!("rank {rank}"),
    };
    ranks.iter().map(name).collect::<Vec<_>>().join(", ")
}
