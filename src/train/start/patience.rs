//! A run that goes on waits for its data set before it reads it, as it does between two steps: the
//! share may not be back yet. A first start is told at once: a path may be mistyped.

use std::sync::Arc;

use crate::data::DataError;
use crate::data::open;
use crate::observe::ledger;
use crate::run_folder::launcher;

use crate::train::TrainError;
use crate::train::compute::outage::{Outage, Wanted};
use crate::train::plan::TrainArguments;
use crate::train::record::waiting;
use crate::train::start::surroundings::Surroundings;
use crate::train::state::position::Position;
use crate::train::state::rank::Moment;

/// Waits until the folders of the data set are there, where the run has committed steps.
///
/// # Errors
/// Patience is over, somebody asks for the end, or `outage` is closed.
pub fn await_data(
    arguments: &TrainArguments,
    around: &Surroundings,
    outage: &Outage,
) -> Result<(), TrainError> {
    if arguments.join.is_some() {
        return Ok(());
    }
    let (position, _) = position_by_ledger(around);
    if position.step == 0 {
        return Ok(());
    }
    let data = &arguments.config.data;
    let rank = launcher::place().and_then(|place| place.rank).unwrap_or(0);
    let attempt = arguments.attempt.unwrap_or(1);
    let place = Moment { attempt, generation: 0, step: position.step, rank };
    let (storage, clock) = (Arc::clone(&around.storage), Arc::clone(&around.clock));
    let (origin, patience) = (around.origin, data.patience.0);
    let tell = move |wanted: Wanted<'_>| {
        waiting::tell(&storage, clock.as_ref(), (place, origin), patience, wanted);
    };
    outage.watch(Arc::clone(&around.stop), Box::new(tell));
    let mut missing = String::new();
    let reached = outage.patiently(|| {
        open::reach(data).map_err(|reason| {
            missing.clone_from(&reason);
            DataError::Store(reason)
        })
    });
    reached.map_err(|end| match end {
        TrainError::Closed => TrainError::StorageLost(missing),
        other => other,
    })
}

/// Where the run stands as far as the ledger knows, before any state is read, and the samples of an
/// epoch by which the cursor lies in that of the newest step.
pub fn position_by_ledger(around: &Surroundings) -> (Position, u64) {
    let mut position = Position::start();
    let newest = ledger::newest(around.storage.as_ref());
    let epochs = newest.map_or(1, |line| line.epoch + 1);
    if let Some(line) = newest {
        position.commit(line);
    }
    let samples = position.cursor / epochs + 1;
    (position, samples)
}
