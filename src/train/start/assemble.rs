//! The parts of a rank, put together; and its end, written down where it was not agreed on. Ranks
//! of the first start, newcomers and spares share it.

use std::sync::{Arc, PoisonError};

use crate::cluster::comm::Membership;
use crate::cluster::comm::mpi::{JoinArguments, launchers_rank, under_mpirun};
use crate::cluster::world::World;
use crate::config::Point;
use crate::observe::event::Kind;
use crate::observe::notice::act_on;
use crate::observe::progress::Progress;
use crate::observe::result::Status;
use crate::observe::tensorboard::Tensorboard;

use crate::train::TrainError;
use crate::train::plan::{Staff, TrainArguments};
use crate::train::record::Record;
use crate::train::record::journal::Journal;
use crate::train::record::keeper::Keeper;
use crate::train::record::outcome::{Ended, RESULT};
use crate::train::start::prepare::{Prepared, Purpose};
use crate::train::start::surroundings::Surroundings;
use crate::train::state::position::Position;
use crate::train::state::rank::{Moment, Rank};
use crate::train::state::replica::Replica;
use crate::train::state::slot_files::SlotFiles;
use crate::train::trainer::{Outcome, Trainer};

/// Longest wait for worker threads at the end.
const WORKERS_END_SECONDS_MAX: u32 = 30;

/// Finds a place for the slots where they outlive this process. A newcomer takes its own only when
/// it knows which state it needs.
pub fn place_slots(
    arguments: &TrainArguments,
    around: &Surroundings,
    mut prepared: Prepared,
) -> Prepared {
    let recovery = &arguments.config.recovery;
    let storage = around.storage.as_ref();
    let slot_files = SlotFiles::of(recovery, &arguments.run_dir, storage, &prepared.facts);
    prepared.slot_files = slot_files.unwrap_or_else(|reason| {
        tracing::warn!("{reason}");
        None
    });
    let starts = arguments.join.is_none() && !is_spare(arguments);
    if let Some(slot_files) = prepared.slot_files.as_ref().filter(|_| starts) {
        let mut slots = prepared.slots.write().unwrap_or_else(PoisonError::into_inner);
        if let Err(reason) = slot_files.make_file(&mut slots) {
            tracing::warn!("{reason}");
        }
    }
    prepared
}

/// Whether this process is to wait: first-born beyond the world's ranks, or started as a spare.
pub fn is_spare(arguments: &TrainArguments) -> bool {
    match arguments.join.as_deref().map(JoinArguments::parse) {
        Some(join) => join.is_ok_and(|join| join.spares),
        None => launchers_rank().is_some_and(|rank| rank >= arguments.config.run.ranks),
    }
}

/// What this process is prepared for.
pub fn part(arguments: &TrainArguments) -> Purpose {
    match (is_spare(arguments), arguments.join.is_some()) {
        (true, _) if arguments.config.recovery.warm_spares => Purpose::WarmSpare,
        (false, false) => Purpose::FirstBorn,
        _ => Purpose::Replacement,
    }
}

/// What the supervisor is told of an attempt that failed.
pub fn write_failure(
    around: &Surroundings,
    place: Moment,
    (position, samples_per_epoch): (&Position, u64),
    error: &TrainError,
) {
    let seconds = around.clock.unix_seconds() - around.origin;
    let ended = Ended {
        run_id: &around.run_id,
        place,
        status: error.status(),
        reason: error.to_string(),
        seconds,
        position,
        samples_per_epoch,
        state_sha256: None,
        conclusive: error.is_conclusive(),
    };
    if let Err(error) = ended.write(around.storage.as_ref()) {
        act_on(&format!("cannot write {RESULT}: {error}"));
    }
}

/// What a replacement of this run is started with.
pub fn replacement_arguments(
    arguments: &TrainArguments,
    around: &Surroundings,
    attempt: u32,
) -> Vec<String> {
    let run_dir = std::path::absolute(&arguments.run_dir);
    let run_dir = run_dir.unwrap_or_else(|_| arguments.run_dir.clone());
    let mut spawned: Vec<String> = vec![
        "train".into(),
        run_dir.join("config.toml").to_string_lossy().into_owned(),
        "--run-dir".into(),
        run_dir.to_string_lossy().into_owned(),
        "--attempt".into(),
        attempt.to_string(),
        "--origin".into(),
        format!("{:.6}", around.origin),
    ];
    if arguments.launched {
        spawned.push("--launched".into());
    }
    spawned
}

/// Its state, still empty without a position.
pub fn replica(
    arguments: &TrainArguments,
    around: &Surroundings,
    prepared: &Prepared,
    world: &World,
    position: Option<Position>,
) -> Replica {
    let attempt = arguments.attempt.unwrap_or(world.attempt);
    let spawned = replacement_arguments(arguments, around, attempt);
    let mut replica = Replica::new(
        Arc::clone(&prepared.slots),
        position,
        Arc::clone(&around.injector),
        Arc::clone(&around.clock),
        spawned,
        Arc::clone(&around.generation),
        around.identity.clone(),
    );
    replica.slot_files.clone_from(&prepared.slot_files);
    replica.set = prepared.facts.set;
    replica.arithmetic.clone_from(&prepared.facts.arithmetic);
    replica
}

/// Everything that a rank trains with.
pub fn trainer(
    arguments: &TrainArguments,
    around: &Surroundings,
    comm: Box<dyn Membership>,
    world: World,
    replica: Replica,
    mut prepared: Prepared,
) -> Trainer {
    let progress = (!arguments.launched && comm.rank() == 0)
        .then(|| Progress::new().max_seconds(arguments.config.train.max_seconds));
    let (storage, clock) = (Arc::clone(&around.storage), Arc::clone(&around.clock));
    let tensorboard = (!arguments.launched && arguments.config.observe.tensorboard)
        .then(|| Tensorboard::new(&arguments.run_dir));
    let journal = Journal::new(Arc::clone(&storage), Arc::clone(&clock), around.origin, progress)
        .with_tensorboard(tensorboard);
    let (newest, attempt) = (Arc::clone(&around.newest_attempt), world.attempt);
    let still_current = Arc::new(move || newest().is_none_or(|now| now <= attempt));
    let injector = Arc::clone(&around.injector);
    let urgent = Arc::clone(&prepared.exchange.pool().shared.loader.supply().urgent);
    let keeper = Keeper::new(
        prepared.facts,
        Arc::clone(&storage),
        Arc::clone(&clock),
        injector,
        still_current,
    )
    .staffed(around.staff)
    .given_way(urgent);
    let mut plan = prepared.plan;
    plan.witness_wait = around.witness_wait;
    // Without a supervisor nobody would start it again.
    plan.renews &= arguments.launched;
    let rank = Rank::new(comm, world, replica, (storage, clock), plan);
    let mut record = Record::new(journal, keeper);
    // A fresh start takes its own rollback down (`announce`); a newcomer takes over where it is.
    if rank.is_writer() && rank.replica.standing.newcomer {
        record.take_over(&rank);
    }
    Trainer::new(rank, prepared.exchange, record, Arc::clone(&around.stop))
}

/// Trains, and writes down an end that was not agreed on.
pub fn conclude(
    arguments: &TrainArguments,
    around: &Surroundings,
    mut trainer: Trainer,
) -> Result<Status, TrainError> {
    let result = trainer.run();
    let agreed = result.as_ref().err().filter(|error| error.is_agreed());
    if let Some(error) = agreed {
        report_together(arguments, around, &mut trainer, error);
    }
    if matches!(result, Err(TrainError::Evicted(_))) {
        // Nobody may go on from what it holds.
        let slots = &trainer.rank.replica.slots;
        let mut slots = slots.write().unwrap_or_else(PoisonError::into_inner);
        slots.refuse_all();
    }
    if result.is_ok() {
        trainer.exchange.pool().shared.loader.supply().leave_memory();
    }
    trainer.rank.replica.at(Point::Over);
    if around.staff == Staff::Threads && under_mpirun() {
        // A worker may sit in a file that hangs; the run's end does not wait for it.
        kintsugi_ffi::os::exit_after(WORKERS_END_SECONDS_MAX);
    }
    trainer.exchange.pool().stop();
    trainer.record.journal.finish();
    if let Err(error) = &result
        && agreed.is_none()
        && !matches!(error, TrainError::Evicted(_) | TrainError::Minority(_))
    {
        report_own(arguments, around, &mut trainer, error);
    }
    // A rank that left does not wait for those who stay.
    match result? {
        Outcome::Ended(status) => {
            trainer.rank.comm.finalize();
            Ok(status)
        }
        Outcome::Left => Ok(Status::Completed),
    }
}

/// An end that all ranks voted for. The launcher ends every rank once one has left with a code:
/// nobody leaves before the writer has written.
fn report_together(
    arguments: &TrainArguments,
    around: &Surroundings,
    trainer: &mut Trainer,
    error: &TrainError,
) {
    trainer.rank.replica.at(Point::InFinalize);
    report_own(arguments, around, trainer, error);
    // Who died meanwhile is not waited for.
    let _ = trainer.rank.comm.agree(0);
    if error.is_a_pause() && trainer.record.has_saved(&trainer.rank) {
        trainer.rank.replica.retire();
    }
}

/// This rank's part of what is written of an attempt that failed.
fn report_own(
    arguments: &TrainArguments,
    around: &Surroundings,
    trainer: &mut Trainer,
    error: &TrainError,
) {
    if !trainer.record.keeper.is_current() {
        return;
    }
    trainer.record.report_rest(&mut trainer.rank);
    if trainer.rank.is_writer() {
        report_end(arguments, around, trainer, error);
    }
}

/// The writer's last words on an attempt that failed.
fn report_end(
    arguments: &TrainArguments,
    around: &Surroundings,
    trainer: &mut Trainer,
    error: &TrainError,
) {
    if error.is_a_pause() {
        if let Err(error) = trainer.record.pause(&trainer.rank, error) {
            tracing::error!("{error}");
        }
        return;
    }
    let place = trainer.rank.place();
    let (status, reason) = (error.status(), error.to_string());
    let status = crate::train::record::outcome::status_name(status).to_string();
    trainer.record.event(&trainer.rank, Kind::RunEnd { status, reason, state_sha256: None });
    // A lost world is for the supervisor, where there is one, to judge: it may start again.
    let lost = matches!(error, TrainError::JobLost(_) | TrainError::Comm(_));
    if !(lost && arguments.launched) {
        let samples = trainer.rank.plan.samples_per_epoch;
        write_failure(around, place, (&trainer.rank.replica.position, samples), error);
    }
}
