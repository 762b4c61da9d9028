//! Whether a run ended with the bits of one without failures, and measured on its way what that one
//! measured.

use std::collections::BTreeMap;

use crate::config::Every;
use crate::observe::event::{Event, Kind};
use crate::observe::result::{Best, RunResult, Validation};
use crate::train::record::journal::EVENTS;

use super::scenario::{self, Scenario};
use super::supervise::{Final, Played};

/// What a run without failures is like.
#[derive(Debug, Clone, PartialEq)]
pub struct Calm {
    /// Its final state.
    pub state_sha256: String,
    /// Weights before each step.
    pub weights: BTreeMap<u64, u64>,
    /// Its validation errors.
    pub validation: Option<Validation>,
    /// The best evaluation, whose checkpoint it kept.
    pub best: Option<Best>,
    /// Steps of which its events tell an evaluation.
    pub curve: Curve,
    /// Decisions of the board it took.
    pub settles: u64,
}

/// Reads what a run without failures is like; it must have ended.
pub fn calm(played: &Played) -> Result<Calm, String> {
    let Final::Result(result) = &played.end else {
        return Err(format!("the run without failures: {:?}", played.end));
    };
    let state_sha256 = result.state_sha256.clone().ok_or("a result without a hash")?;
    let mut weights = BTreeMap::new();
    for seen in &played.sightings {
        if *weights.entry(seen.step).or_insert(seen.weights) != seen.weights {
            return Err(format!("two states before step {}", seen.step + 1));
        }
    }
    let (validation, best) = (result.validation, result.best);
    let curve = curve(&played.lines(EVENTS));
    Ok(Calm { state_sha256, weights, validation, best, curve, settles: played.settles })
}

/// Validation errors as bits, by step: what the events tell last.
pub(super) type Curve = BTreeMap<u64, u64>;

/// Of a run's events.
pub(super) fn curve(events: &[Event]) -> Curve {
    let points = events.iter().filter_map(|event| match event.kind {
        Kind::Evaluation { error, .. } => Some((event.step, error.to_bits())),
        _ => None,
    });
    points.collect()
}

/// The final state, and the validation errors on the way to it.
pub(super) fn check(
    scenario: &Scenario,
    result: &RunResult,
    events: &[Event],
    calm: &Calm,
) -> Result<(), String> {
    if result.state_sha256.as_ref() != Some(&calm.state_sha256) {
        return Err("it ends with another hash than without failures".into());
    }
    let timed = matches!(scenario.config.evaluation.every, Every::Time(_));
    if !timed && result.validation != calm.validation {
        let (found, expected) = (result.validation, calm.validation);
        return Err(format!("validation {found:?}, without failures {expected:?}"));
    }
    // What a full disk did not take is nowhere.
    let full = scenario.faults.iter().any(|fault| matches!(fault, scenario::Fault::Full { .. }));
    if !timed && !full && result.best != calm.best {
        let (found, expected) = (result.best, calm.best);
        return Err(format!("{found:?} is kept as the best, without failures {expected:?}"));
    }
    let curve = curve(events);
    if !timed && !full && curve != calm.curve {
        let expected = &calm.curve;
        return Err(format!("evaluations of {curve:?} are told, without failures {expected:?}"));
    }
    Ok(())
}
