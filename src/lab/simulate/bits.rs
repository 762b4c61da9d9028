//! Whether a run ended with the bits of one without failures, and measured on its way what that one
//! measured.

use std::collections::BTreeMap;
use std::path::Path;

use crate::config::Every;
use crate::observe::event::{Event, Kind};
use crate::observe::result::{Best, RunResult, Validation};
use crate::train::checkpoint::store;
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
    /// The best evaluation, and the state in the checkpoint that it kept of it.
    pub best: Option<(Best, String)>,
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
    let (validation, best) = (result.validation, kept(played, result)?);
    let curve = curve(&played.lines(EVENTS));
    Ok(Calm { state_sha256, weights, validation, best, curve, settles: played.settles })
}

/// The best evaluation and what its checkpoint holds.
fn kept(played: &Played, result: &RunResult) -> Result<Option<(Best, String)>, String> {
    let Some(best) = result.best else { return Ok(None) };
    let folder = Path::new(store::FOLDER).join(store::name_of(best.step));
    let snapshot = store::read_snapshot(&played.files.memory, &folder, None);
    let snapshot =
        snapshot.map_err(|error| format!("the best, {best:?}, cannot be read: {error}"))?;
    Ok(Some((best, snapshot.state_sha256())))
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
    played: &Played,
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
    let full = scenario.has_full_disk();
    // One that was damaged where it lay may be the best.
    let damaged = scenario.faults.iter().any(|f| matches!(f, scenario::Fault::Damage { .. }));
    let (found, expected) = match damaged {
        true => (calm.best.clone(), &calm.best),
        false => (kept(played, result)?, &calm.best),
    };
    if !timed && !full && found != *expected {
        return Err(format!("{found:?} is kept as the best, without failures {expected:?}"));
    }
    let curve = curve(events);
    if !timed && !full && curve != calm.curve {
        let expected = &calm.curve;
        return Err(format!("evaluations of {curve:?} are told, without failures {expected:?}"));
    }
    Ok(())
}
