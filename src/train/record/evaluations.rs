//! The word of an evaluation must not die with the rank that was to write it: it is part of the
//! position, so that newcomers hold it too.

use crate::train::record::journal::Journal;
use crate::train::state::rank::Rank;

/// After a repair: its writer may have died between the vote and the line, and so may whoever
/// was to make up for that. No later step can have been committed then, since the writer takes
/// part in that behind the line.
pub fn make_up(rank: &Rank, journal: &mut Journal) {
    let (attempt, step) = (rank.world.attempt, rank.state.position.step);
    let found = rank.state.position.evaluation;
    let Some(found) = found.filter(|found| (found.attempt, found.step) == (attempt, step)) else {
        return;
    };
    let kind = found.event(found.took_ms as f64 / 1e3);
    if rank.reports() && !journal.tells(attempt, step, &kind) {
        let stamp = journal.stamp_at(rank.place(), found.at_ms as f64 / 1e3);
        journal.event_of(stamp, kind);
    }
}
