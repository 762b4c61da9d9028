//! The state that an attempt goes on from: what outlived the last one, a checkpoint, or first
//! weights.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use crate::cluster::comm::Communicator;
use crate::cluster::resident::SlotView;
use crate::cluster::world::World;
use crate::config::{Config, Resident, Shown};
use crate::data::Normalization;
use crate::model::{Graph, Layout, init, parts};
use crate::observe::ledger::{self, Entry};
use crate::observe::storage::Storage;

use crate::train::TrainError;
use crate::train::checkpoint::{
    Answers, CONFIGURATION, CheckpointError, Expectation, Fitted, Snapshot, newest_verified,
    weights,
};
use crate::train::repair::restart::{Outlived, from_resident, unread};
use crate::train::repair::take_over::{Repairing, hand_to_all};
use crate::train::start::materials::Prepared;
use crate::train::start::surroundings::Surroundings;
use crate::train::state::State;
use crate::train::state::position::Position;

/// Where the run goes on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// First weights.
    Scratch,
    /// A verified checkpoint.
    Checkpoint,
    /// State that outlived the processes of an earlier attempt.
    Resident,
}

impl From {
    /// In events and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scratch => "scratch",
            Self::Checkpoint => "checkpoint",
            Self::Resident => "resident",
        }
    }
}

/// The state that an attempt goes on from.
pub(in crate::train) struct Origin {
    /// Where it came from.
    pub from: From,
    /// Ranks whose slots lie in their own memory although they should not.
    pub unhoused: Vec<u32>,
    /// What was done to make first weights fit.
    pub remarks: Vec<String>,
}

/// Gives every rank the state that this attempt goes on from: what outlived the last one, else
/// rank 0's newest verified checkpoint, else first weights (a pure function of the seed). Nothing
/// enters the slots before it is known which: an attempt that dies meanwhile loses nothing.
pub(super) fn begin(
    comm: &mut dyn Communicator,
    repairing: &mut Repairing<'_>,
    prepared: &Prepared,
    around: &Surroundings,
    world: &World,
) -> Result<Origin, TrainError> {
    let (config, storage) = (&around.arguments.config, around.storage.as_ref());
    let Outlived { found, verified, unhoused } = match config.recovery.resident {
        Resident::On => from_resident(comm, repairing, storage, world, prepared.plan.integrity)?,
        Resident::Off => Outlived::default(),
    };
    if found {
        return Ok(Origin { from: From::Resident, unhoused, remarks: Vec::new() });
    }
    repairing.state.settle(world, comm.rank());
    let mut found = None;
    if comm.rank() == 0 {
        found = find_checkpoint(prepared, storage)?;
    }
    let told = comm.all_gather_u64(&[u64::from(found.is_some())])?;
    if told[0] == 0 {
        let remarks = scratch(repairing.state, prepared, config)?;
        return Ok(Origin { from: From::Scratch, unhoused, remarks });
    }
    if let Some(snapshot) = found {
        let shape = parts::shape(&prepared.layout, config);
        let state = snapshot.slot(shape, &[]).map_err(|part| {
            let text = format!(
                "the newest checkpoint holds no \"{part}\", which this run's optimizer needs: an \
                 earlier release wrote it; start anew with `launch --fresh`"
            );
            TrainError::Configuration(text)
        })?;
        let entries = ledger::of_storage(storage).map_err(unread)?;
        let samples = prepared.facts.order.samples;
        let mut position = position_of(&snapshot, &entries, samples);
        // One that is younger may hold the flaw that no majority could tell.
        position.exact &= verified.is_none_or(|verified| position.step <= verified);
        repairing.state.begin_with(state, position);
    }
    hand_to_all(comm, repairing, 0, world)?;
    Ok(Origin { from: From::Checkpoint, unhoused, remarks: Vec::new() })
}

fn find_checkpoint(
    prepared: &Prepared,
    storage: &dyn Storage,
) -> Result<Option<Snapshot>, TrainError> {
    let facts = &prepared.facts;
    let expectation = Expectation {
        layout: Arc::clone(&prepared.layout),
        model_name: facts.about.model_name.clone(),
        config_fingerprint: Some(facts.config_fingerprint),
        data_fingerprint: Some(facts.data_fingerprint),
        run_id: None,
    };
    newest_verified(storage, &expectation).map_err(|error| match error.is_passing() {
        true => TrainError::JobLost(format!("{error}; none is marked: start again")),
        // A supervisor, or `train`, compares the keys before: only without the file it gets here.
        false if matches!(error, CheckpointError::Other { what: CONFIGURATION, .. }) => {
            TrainError::Configuration(format!(
                "{error}; which keys differ stands in the run's config.toml, which is gone or was \
                 edited"
            ))
        }
        false => TrainError::Configuration(error.to_string()),
    })
}

/// The ledger knows how many samples of the epoch at hand were skipped.
fn position_of(snapshot: &Snapshot, entries: &[Entry], samples_per_epoch: u64) -> Position {
    let state = &snapshot.state;
    let epoch_began = state.cursor - state.cursor % samples_per_epoch.max(1);
    let skipped_in_epoch = ledger::skipped_between(entries, epoch_began, state.step);
    Position {
        step: state.step,
        cursor: state.cursor,
        evaluation_due: state.evaluation_due,
        evaluated_ms: state.evaluated_ms,
        last_error: state.last_error,
        best_error: state.best_error,
        improvement: state.improvement,
        contents: state.contents,
        exact: state.exact,
        arithmetic: state.arithmetic.clone(),
        grid: state.grid.clone(),
        ledger_tail: state.ledger_tail.clone(),
        ending: None,
        owner_batches: state.order.clone(),
        skipped_in_epoch,
        ..Position::start()
    }
}

/// First weights: a pure function of the seed, or those of `model.init`; what was done to make
/// these fit.
fn scratch(
    state: &mut State,
    prepared: &Prepared,
    config: &Config,
) -> Result<Vec<String>, TrainError> {
    let layout = &prepared.layout;
    let Fitted { parameters, statistics, remarks, .. } = match config.model.found_init() {
        Some(path) => {
            let model = (&prepared.graph, &**layout);
            given_weights(&path, config, model, &prepared.facts.about.classes)?
        }
        None => Fitted {
            parameters: init::parameters(&prepared.graph, layout, config.run.seed),
            statistics: init::statistics(layout),
            remarks: Vec::new(),
            about: BTreeMap::new(),
        },
    };
    let shape = parts::shape(layout, config);
    // Velocities begin at zero, an average with the first weights and statistics;
    // nothing was received before.
    let zeros = vec![0.0; parameters.len()];
    let average = [&parameters[..], &statistics].concat();
    let values = shape.parts().iter().map(|part| match part.name {
        parts::PARAMETERS | parts::W_OLD => &parameters[..],
        parts::AVERAGE => &average[..],
        parts::STATISTICS => &statistics[..],
        _ => &zeros[..],
    });
    let first = SlotView::new(shape, 0, 0, &values.collect::<Vec<_>>(), &[]);
    state.begin_with(first, Position::start());
    Ok(remarks)
}

/// The weights that `model.init` names: all that the model needs, and no others than the run has
/// begun with; and what was done to make them fit.
///
/// # Errors
/// What does not fit, or is not what it was.
pub fn given_weights(
    path: &Path,
    config: &Config,
    model: (&Graph, &Layout),
    classes: &[String],
) -> Result<Fitted, TrainError> {
    // Errors of the reader name the path.
    let refuse = |error| TrainError::Configuration(format!("model.init: {error}"));
    let wrong = |reason: String| {
        TrainError::Configuration(format!("model.init = {}: {reason}", path.shown()))
    };
    let (mut bytes, passed_over) = weights::bytes_of(path).map_err(refuse)?;
    if let Some(expected) = &config.model.init_hash
        && weights::hash_of(&bytes) != expected.to_lowercase()
    {
        let older = path.is_dir().then(|| weights::bytes_of_hash(path, &expected.to_lowercase()));
        let damaged: String = passed_over.iter().map(|why| format!(" ({why})")).collect();
        bytes = older.transpose().map_err(refuse)?.flatten().ok_or_else(|| {
            wrong(format!(
                "these are not the weights of this run, whose XXH3-128 is {expected}: put them \
                 back, or start anew with `launch --fresh` (of a run that still trains, with what \
                 `kintsugi checkpoint export` has written){damaged}"
            ))
        })?;
    }
    let (graph, layout) = model;
    let answers = Answers { seed: config.run.seed, classes };
    let fitted = weights::initial_weights(path, &bytes, graph, layout, answers);
    let mut fitted = fitted.map_err(refuse)?;
    let now = Some(Normalization::of(&config.data));
    let pictures = weights::other_pictures(&config.model.name, &fitted.about, now);
    fitted.remarks.extend(pictures);
    fitted.remarks.splice(0..0, passed_over);
    for remark in &mut fitted.remarks {
        *remark = format!("model.init = {}: {remark}", path.shown());
    }
    Ok(fitted)
}
