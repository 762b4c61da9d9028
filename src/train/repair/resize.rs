//! A world that changes its size on purpose, between two steps: back to the ranks it should have
//! (`recovery.regrow`), or to as many as somebody asks for (`kintsugi scale`).
//!
//! The writer rank asks with a bit of the vote; once that step is committed, everybody takes part.
//! Then the writer says what it wants, all agree that they heard it, and the world grows (spawn and
//! merge, as for a replacement) or the ranks beyond the new size leave. Whatever dies meanwhile is
//! repaired as always: the run goes on with the world that lives, and asks again later.

use crate::cluster::recovery::driver::{Growth, grow, recover};
use crate::cluster::recovery::{Policy, Repaired};
use crate::config::Rung;
use crate::observe::event::{Kind, Phases, ResizeRecord};

use crate::train::TrainError;
use crate::train::record::Record;
use crate::train::record::repairs::report_notes;
use crate::train::repair::size::{Resizer, Wish};
use crate::train::repair::take_over::Repairing;
use crate::train::repair::world::{Lasting, gave_up, newcomers, repair_of, survived};
use crate::train::state::rank::Rank;

/// What came of a change of size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resized {
    /// This rank is in the world, whatever its size.
    Stays,
    /// It has left a world that became smaller on purpose.
    Leaves,
}

/// The writer says what it wants; everybody hears it.
pub fn hear_wish(rank: &mut Rank, resizer: &Resizer) -> Result<Wish, TrainError> {
    let mut told = match rank.is_writer() {
        true => resizer.wish(&rank.world).to_bytes(),
        false => [0; Wish::BYTES],
    };
    rank.comm.broadcast(&mut told, 0)?;
    Ok(Wish::from_bytes(told))
}

/// What all ranks do between two steps once all have agreed that they heard a wish. Where all die
/// meanwhile, the request is there for whoever starts them again.
pub fn resize(
    rank: &mut Rank,
    record: &mut Record,
    lasting: &mut Lasting,
    wish: Wish,
) -> Result<Resized, TrainError> {
    let resized = change(rank, record, lasting, wish);
    if rank.is_writer() {
        lasting.resizer.forget_request(&rank.world, wish);
    }
    resized
}

fn change(
    rank: &mut Rank,
    record: &mut Record,
    lasting: &mut Lasting,
    wish: Wish,
) -> Result<Resized, TrainError> {
    rank.state.position.resize_due = false;
    rank.world.target = wish.target;
    let before = rank.world.ranks();
    let to = wish.now as usize;
    if to != before && rank.world.spares().next().is_some() {
        // They would have to learn the new size, and would fill the seats that were given up.
        rank.world.target = before as u32;
        if rank.is_writer() {
            let message = "the number of ranks stays: it cannot change while spares wait";
            record.event(rank, Kind::Warning { message: message.into() });
        }
        return Ok(Resized::Stays);
    }
    let cause = if wish.asked { "scale" } else { "regrow" };
    if to > before {
        enlarge(rank, record, lasting, to, cause)?;
    } else if to < before {
        if rank.comm.rank() >= to {
            return Ok(Resized::Leaves);
        }
        reduce(rank, record, to, cause)?;
    }
    Ok(Resized::Stays)
}

fn enlarge(
    rank: &mut Rank,
    record: &mut Record,
    lasting: &mut Lasting,
    to: usize,
    cause: &str,
) -> Result<(), TrainError> {
    let (before, old) = (rank.world.ranks(), rank.world.clone());
    lasting.resizer.tried(rank.clock.now());
    let (comm, policy) = (rank.comm.as_mut(), &rank.plan.policy);
    let mut hooks = Repairing::of(&mut rank.state, &mut rank.process, rank.plan.set);
    let grown = grow(comm, &mut rank.world, to, policy, &mut hooks);
    let grown = grown.map_err(|end| gave_up(rank, record, end))?;
    lasting.tries.grew(&grown, &rank.plan.policy);
    match grown {
        Growth::Grown(repaired) => {
            rank.newcomers = newcomers(&old, &rank.world);
            if rank.world.ranks() < to {
                lasting.resizer.fell_short();
            }
            resized(rank, record, Change { before, cause, leave_from: usize::MAX }, repaired);
            Ok(())
        }
        Growth::Refused(reason) => {
            could_not_grow(rank, record, &mut lasting.resizer, to, &reason);
            Ok(())
        }
        Growth::Broken(error, reason) => {
            could_not_grow(rank, record, &mut lasting.resizer, to, &reason);
            Err(error.into())
        }
    }
}

fn could_not_grow(
    rank: &Rank,
    record: &mut Record,
    resizer: &mut Resizer,
    to: usize,
    reason: &str,
) {
    resizer.fell_short();
    if !rank.is_writer() {
        return;
    }
    let (failures, tries) = resizer.tries();
    let next = match resizer.misses_ranks(&rank.world) {
        true => format!("try {failures} of {tries}"),
        false => "given up until the world changes or somebody asks".into(),
    };
    let message = format!("the world could not grow to {to} ranks ({next}): {reason}");
    record.event(rank, Kind::Warning { message });
}

/// The ranks beyond `to` leave: for those who stay it is a shrink whose dead are volunteers.
fn reduce(rank: &mut Rank, record: &mut Record, to: usize, cause: &str) -> Result<(), TrainError> {
    let before = rank.world.ranks();
    // Somebody asked for so few.
    let ladder = vec![Rung::Shrink];
    let leave_from = Some(to);
    let policy = Policy { ladder, ranks_min: 1, leave_from, ..rank.plan.policy.clone() };
    let mut hooks = Repairing::of(&mut rank.state, &mut rank.process, rank.plan.set);
    let recovered = recover(rank.comm.as_mut(), &mut rank.world, &policy, &mut hooks);
    let repaired = recovered.map_err(|end| gave_up(rank, record, end))?;
    // Nobody came: whoever is the lowest now speaks for all.
    rank.newcomers.clear();
    resized(rank, record, Change { before, cause, leave_from: to }, repaired);
    Ok(())
}

/// A change of size that has happened. Members with a rank below `leave_from` that are gone died.
#[derive(Clone, Copy)]
struct Change<'a> {
    before: usize,
    cause: &'a str,
    leave_from: usize,
}

fn resized(rank: &mut Rank, record: &mut Record, change: Change<'_>, repaired: Repaired) {
    if rank.reports() {
        report_notes(rank, &mut record.journal, &repaired.notes);
        record.steps.make_up(&mut record.journal);
    }
    let mut died = repaired.clone();
    died.lost.retain(|member| (member.rank as usize) < change.leave_from);
    if !died.lost.is_empty() {
        died.seconds = Phases::default();
        record.repairs.add(repair_of(rank, died));
    }
    record.repairs.add_resize(ResizeRecord {
        generation: rank.world.generation,
        step: repaired.step,
        cause: change.cause.into(),
        from: change.before as u32,
        to: rank.world.ranks() as u32,
        seconds: repaired.seconds,
    });
    survived(rank, record);
    if rank.is_writer() {
        record.journal.world(&rank.world);
        record.take_over(rank);
    }
}
