//! The validation set, shared by all ranks: with the weights, and with their running average where
//! the run keeps one.

use std::sync::PoisonError;

use crate::cluster::comm::{CommError, Elements};
use crate::config::Point;
use crate::data::Split;
use crate::observe::event::Kind;

use crate::model::parts::AVERAGE;
use crate::train::TrainError;
use crate::train::compute::committed::Which;
use crate::train::compute::pool::Pool;
use crate::train::compute::totals::Totals;
use crate::train::record::Record;
use crate::train::soundness;
use crate::train::state::State;
use crate::train::state::position::Evaluated;
use crate::train::state::rank::Rank;

/// What all ranks found.
#[derive(Debug, Clone, Copy)]
pub struct Found {
    totals: Totals,
    /// With the running average of the weights, where the run keeps one.
    averaged: Option<Totals>,
    /// Of the writer: the run's time when it had computed its share, and what that took it.
    at_ms: u64,
    took_ms: u64,
}

/// The validation set, in parts dealt round robin; the sums of all.
///
/// # Errors
/// A rank is lost, or too few samples could be decoded: the same on all.
pub fn evaluate(
    rank: &mut Rank,
    pool: &mut Pool,
    record: &mut Record,
) -> Result<Found, TrainError> {
    if rank.is_writer() {
        record.event(rank, Kind::Phase { name: "evaluating".into(), seconds: 0.0 });
    }
    rank.process.at(Point::InEvaluation);
    let began = rank.clock.now();
    let (own, ranks) = (rank.comm.rank() as u64, rank.comm.size() as u64);
    let (samples, part) = (rank.plan.validation_samples, rank.plan.evaluation_batch);
    let ranges: Vec<(u64, u64)> = (0..samples.div_ceil(part))
        .filter(|index| index % ranks == own)
        .map(|index| (index * part, part.min(samples - index * part)))
        .collect();
    let comm = rank.comm.as_mut();
    let mut lost_rank = || comm.is_broken().then_some(TrainError::Comm(CommError::ProcFailed));
    let averages = averages(&rank.state);
    let again = averages.then(|| ranges.clone());
    let mine = pool.evaluate(ranges, Which::Trained, &mut lost_rank)?;
    let mut words = mine.words().to_vec();
    if let Some(ranges) = again {
        words.extend(pool.evaluate(ranges, Which::Averaged, &mut lost_rank)?.words());
    }
    let at = words.len();
    let took_ms = (rank.clock.now() - began).as_millis() as u64;
    let at_ms = (record.journal.seconds() * 1e3) as u64;
    words.extend(if rank.is_writer() { [at_ms, took_ms] } else { [0, 0] });
    let mut sums = vec![0; words.len()];
    rank.comm.all_reduce(Elements::U64(&words, &mut sums))?;
    let (at_ms, took_ms) = (sums[at], sums[at + 1]);
    let totals = Totals::from_words(&sums[..Totals::WORDS]);
    soundness::check_evaluation(&totals, &rank.plan)?;
    let averaged = averages.then(|| Totals::from_words(&sums[Totals::WORDS..at]));
    Ok(Found { totals, averaged, at_ms, took_ms })
}

/// Whether this run keeps an average of its weights.
fn averages(state: &State) -> bool {
    let slots = state.slots.read().unwrap_or_else(PoisonError::into_inner);
    slots.shape().parts().iter().any(|part| part.name == AVERAGE)
}

impl Found {
    /// What could not be decoded, where something could not.
    pub fn bad_images(&self) -> Option<Kind> {
        let Totals { skipped, count, .. } = self.totals;
        let set = Split::Validation.name().to_string();
        (skipped > 0).then_some(Kind::BadImages { set, skipped, of: count })
    }

    /// Wrapping sum over the contents of the samples.
    pub fn contents(&self) -> u64 {
        self.totals.contents
    }

    /// Samples that were not as they were when the set was listed.
    pub fn altered(&self) -> u64 {
        self.totals.altered + self.averaged.map_or(0, |totals| totals.altered)
    }

    /// What becomes part of the position once all have agreed.
    pub fn evaluated(&self, rank: &Rank) -> Evaluated {
        Evaluated {
            attempt: rank.world.attempt,
            step: rank.state.position.step,
            error: self.totals.error(),
            average_error: self.averaged.map(|totals| totals.error()),
            loss_bits: self.totals.mean_loss().to_bits(),
            samples: self.totals.count,
            at_ms: self.at_ms,
            took_ms: self.took_ms,
        }
    }
}
