//! Everybody learns whether everybody is ready to begin, and whether all are ready for the same:
//! sets that differ give orders that differ, which nothing would show later.

use crate::cluster::comm::Membership;
use crate::cluster::recovery::set::{self, SetIdentity};

use crate::train::TrainError;
use crate::train::plan::TrainArguments;
use crate::train::record::began_with;
use crate::train::record::reason::{Failure, leave_reason, reason_of};
use crate::train::start::assemble::write_failure;
use crate::train::start::patience::position_by_ledger;
use crate::train::start::prepare::Prepared;
use crate::train::start::surroundings::Surroundings;
use crate::train::state::rank::Moment;

/// Whether this rank failed, as its place among all kinds of failure, and its sets.
const WORDS: usize = 1 + SetIdentity::WORDS;

/// Goes on where all ranks are prepared and have listed the same sets; else the reason of the
/// first that is not, or how the sets differ, is kept for whoever started the run.
///
/// # Errors
/// That reason, on every rank; or a rank was lost.
pub fn all_prepared(
    arguments: &TrainArguments,
    around: &Surroundings,
    comm: &mut dyn Membership,
    prepared: Result<Prepared, TrainError>,
) -> Result<Prepared, TrainError> {
    let prepared = prepared.and_then(|prepared| as_it_began(around, prepared));
    if let Err(error) = &prepared {
        leave_reason(around.storage.as_ref(), error);
    }
    // Its place among all kinds; beyond them there is none.
    let mine = prepared.as_ref().map_or_else(|e| Failure::of(e) as usize, |_| Failure::ALL.len());
    let set = prepared.as_ref().map_or_else(|_| SetIdentity::default(), |p| p.facts.set);
    let mut words = vec![mine as u64];
    words.extend(set.to_words());
    let told = comm.all_gather_u64(&words)?;
    let told = || told.chunks_exact(WORDS);
    let met = told().find_map(|words| Failure::ALL.get(words[0] as usize).copied());
    let error = match (prepared, met) {
        (Ok(prepared), None) => {
            let sets: Vec<_> = told().map(|words| SetIdentity::from_words(&words[1..])).collect();
            match set::difference(&sets) {
                None => return Ok(prepared),
                Some(difference) => TrainError::Data(difference),
            }
        }
        (Err(error), _) => error,
        (Ok(_), Some(failure)) => reason_of(around.storage.as_ref(), failure),
    };
    if comm.rank() == 0 && !matches!(error, TrainError::Configuration(_)) {
        let place = Moment { attempt: arguments.attempt.unwrap_or(1), ..Moment::default() };
        let (position, samples) = position_by_ledger(around);
        let place = Moment { step: position.step, ..place };
        write_failure(around, place, (&position, samples), &error);
    }
    // The launcher ends every rank once one has left with a code: the result comes first.
    let _ = comm.agree(0);
    Err(error)
}

/// The steps of a run that goes on follow the order of the set that it began with.
fn as_it_began(around: &Surroundings, prepared: Prepared) -> Result<Prepared, TrainError> {
    if position_by_ledger(around).0.step > 0 {
        began_with::check(around.storage.as_ref(), prepared.facts.set)?;
    }
    Ok(prepared)
}
