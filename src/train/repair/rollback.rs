//! Replicas that differ: everybody goes back to the last state that all held alike.

use crate::cluster::comm::CommError;
use crate::cluster::world::World;
use crate::observe::event::Kind;

use crate::train::TrainError;
use crate::train::record::Record;
use crate::train::repair::integrity::{GOING_BACK_MAX, Integrity, Judgement, Vote, judge};
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
            integrity.keep(&mut rank.state);
            Ok(())
        }
        Judgement::Differ(evicted) => Err(go_back(rank, record, integrity, &evicted)),
    }
}

/// Goes back to the last state that was found equal, by way of a repair: it replaces those who
/// leave and gives the state to those who lack it.
fn go_back(
    rank: &mut Rank,
    record: &mut Record,
    integrity: &mut Integrity,
    evicted: &[usize],
) -> TrainError {
    let (own, step) = (rank.comm.rank(), rank.state.position.step);
    let target = rank.state.position.verified;
    let text = difference(&rank.world, evicted, step, target);
    if evicted.contains(&own) {
        return TrainError::Evicted(text);
    }
    let speaks = (0..).find(|rank| !evicted.contains(rank)) == Some(own);
    if speaks {
        tracing::warn!("{text}");
        record.event(rank, Kind::Warning { message: text.clone() });
        record.distrust(target);
    }
    if rank.state.position.gone_back >= GOING_BACK_MAX {
        let text = format!("{text}; {GOING_BACK_MAX} times in a row: is the memory sound?");
        return TrainError::JobLost(text);
    }
    integrity.go_back(&mut rank.state, rank.world.generation);
    rank.update_standing();
    TrainError::Comm(CommError::ProcFailed)
}

fn difference(world: &World, evicted: &[usize], step: u64, target: u64) -> String {
    let name = |rank: &usize| match world.member_at(*rank) {
        Some(member) => format!("rank {rank} (member {}, {})", member.member, member.host),
        None => format!("rank {rank}"),
    };
    let who = match evicted {
        [] => "the ranks hold different states and no majority says which is right".into(),
        evicted => {
            let names: Vec<String> = evicted.iter().map(name).collect();
            format!("{} differs from the other ranks and is evicted", names.join(", "))
        }
    };
    format!("silent corruption: after step {step} {who}; back to step {target}")
}
