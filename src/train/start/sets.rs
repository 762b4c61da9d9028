//! A run that goes on waits for its data set before it reads it, as it does between two steps: the
//! share may not be back yet. A first start is told after a few tries: a path may be mistyped.

use std::sync::Arc;

use crate::config::{Config, Every};
use crate::data::set::{DataSet, open};
use crate::data::source::{Source, began};
use crate::data::{Cache, DataError, Occasion, Split};
use crate::observe::ledger;
use crate::observe::notice::act_on;
use crate::run_folder::{self, launcher};
use crate::train::TrainError;
use crate::train::compute::outage::{Outage, Wanted};
use crate::train::record::journal::Stamp;
use crate::train::record::waiting;
use crate::train::start::surroundings::{Entry, Surroundings};
use crate::train::state::position::Position;
use crate::train::state::rank::Moment;

/// The run's sets, with their indexes.
pub struct Sets {
    /// Training samples.
    pub train: DataSet,
    /// Validation samples, where errors are measured.
    pub validation: Option<DataSet>,
    /// What they were opened for.
    pub occasion: Occasion,
}

/// Opens the sets: at once where the run has committed no step, else once their storage answers.
///
/// # Errors
/// What is wrong with them; patience is over, somebody asks for the end, or `outage` is closed.
pub(super) fn await_data(around: &Surroundings, outage: &Outage) -> Result<Sets, TrainError> {
    let arguments = &around.arguments;
    let (position, _) = position_by_ledger(around);
    let folder = arguments.run_dir.join(run_folder::CACHE);
    let occasion = occasion(around);
    let cache = Some(Cache { folder: &folder, occasion });
    if arguments.join.is_some() || occasion == Occasion::Begins {
        let opened = open_sets(&arguments.config, cache);
        return opened.map_err(|error| match error {
            // The others wait for a newcomer, and can do without.
            DataError::Store(reason) if arguments.join.is_some() => TrainError::Unready(reason),
            error => of_first_start(error),
        });
    }
    let data = &arguments.config.data;
    let rank = launcher::place().and_then(|place| place.rank).unwrap_or(0);
    let attempt = arguments.attempt.unwrap_or(1);
    let place = Moment { attempt, generation: 0, step: position.step, rank };
    let (storage, clock) = (Arc::clone(&around.storage), Arc::clone(&around.clock));
    let (origin, patience) = (around.origin, data.patience.0);
    let tell = move |wanted: Wanted<'_>| {
        let stamp = Stamp::new(place, clock.unix_seconds(), origin);
        waiting::tell(&storage, stamp, patience, wanted);
    };
    outage.watch(Arc::clone(&around.stop), Box::new(tell));
    let mut missing = String::new();
    let opened = outage.patiently(|| {
        let reach = || open::reach(data).map_err(DataError::Store);
        // What seems to be wrong with a set that went meanwhile says nothing.
        let opened = reach().and_then(|()| open_sets(&arguments.config, cache));
        let opened = opened.or_else(|error| reach().and(Err(error)));
        opened.inspect_err(|error| missing = error.to_string())
    });
    opened.map_err(|end| match end {
        TrainError::Closed => TrainError::StorageLost(missing),
        other => other,
    })
}

/// What this process opens the sets for. Before the first committed step a start begins the run,
/// whatever an earlier one has kept.
fn occasion(around: &Surroundings) -> Occasion {
    let joins = around.arguments.join.is_some() || around.entry == Entry::ColdSpare;
    match (joins, has_begun(around)) {
        (true, _) => Occasion::Joins,
        (false, true) => Occasion::GoesOn,
        (false, false) => Occasion::Begins,
    }
}

/// Whether the run has committed a step. A ledger that cannot be read is of one that has.
pub(super) fn has_begun(around: &Surroundings) -> bool {
    let newest = ledger::newest(around.storage.as_ref());
    newest.map_or(true, |newest| newest.is_some_and(|line| line.step > 0))
}

/// Opens the sets as a first start does, and keeps nothing of what is learned of them.
///
/// # Errors
/// What is wrong with them.
pub fn look(config: &Config) -> Result<Sets, TrainError> {
    open_sets(config, None).map_err(of_first_start)
}

fn of_first_start(error: DataError) -> TrainError {
    match error {
        DataError::Store(reason) => TrainError::Data(reason),
        error => error.into(),
    }
}

/// What is learned of the sets is kept in the run's folder.
fn open_sets(config: &Config, cache: Option<Cache<'_>>) -> Result<Sets, DataError> {
    let open = |split| open::open_with(&config.data, split, config.run.seed, cache);
    let train = open(Split::Train)?;
    let validation = match config.evaluation.every {
        Every::Never => None,
        _ => Some(open(Split::Validation)?),
    };
    if let Some(cache) = cache {
        let sets = [Some(&train), validation.as_ref()].into_iter().flatten();
        let sets: Vec<&dyn Source> = sets.map(|set| &*set.source).collect();
        if let Err(error) = began::recall(&sets, cache) {
            act_on(&format!(
                "how the set's files were when the run began cannot be read or kept: {error}; one \
                 that is exchanged may not be noticed"
            ));
        }
    }
    let occasion = cache.map_or(Occasion::Begins, |cache| cache.occasion);
    Ok(Sets { train, validation, occasion })
}

/// Where the run stands as far as the ledger knows, before any state is read, and the samples of an
/// epoch by which the cursor lies in that of the newest step.
pub(super) fn position_by_ledger(around: &Surroundings) -> (Position, u64) {
    let mut position = Position::start();
    position.go_on_with(around.arguments.config.train.exchange);
    // Of one that cannot be read nothing is known; reading the state finds out.
    let newest = ledger::newest(around.storage.as_ref()).ok().flatten();
    let epochs = newest.map_or(1, |line| line.epoch + 1);
    if let Some(line) = newest {
        position.commit(line);
    }
    let samples = position.cursor / epochs + 1;
    (position, samples)
}
