//! One rank's program, from its arguments to its exit code: sets up what is real (MPI, clock,
//! files, signals) and hands it to the trainer.

use std::process::ExitCode;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::cluster::comm::mpi::{launchers_rank, under_mpirun};
use crate::cluster::comm::{CommError, Membership};
use crate::cluster::faults::Standing;
use crate::cluster::guard::report;
use crate::cluster::recovery::driver;
use crate::cluster::world::World;
use crate::config::Point;
use crate::observe::console::say;
use crate::observe::result::Status;
use crate::run_folder::lock::RunLock;

use crate::train::TrainError;
use crate::train::plan::{Plan, TrainArguments};
use crate::train::record::casualties;
use crate::train::record::inexact;
use crate::train::record::journal::last_world;
use crate::train::record::reason::{leave_reason, left_reason};
use crate::train::repair::restart::unread;
use crate::train::start::agreement::all_prepared;
use crate::train::start::announce::{Beginning, announce};
use crate::train::start::assemble::{conclude, is_spare, replica, trainer};
use crate::train::start::prepare::Prepared;
use crate::train::start::spare::Preparation;
use crate::train::start::surroundings::{Surroundings, communicator, start_guardian, surroundings};
use crate::train::start::{network, place, prepare, spare};
use crate::train::state::arithmetic;
use crate::train::state::position::{Ending, Position};

/// How long a supervisor that holds the run directory may take to end.
const LOCK_PATIENCE: Duration = Duration::from_secs(30);

/// Runs the rank; the exit code is README's, for a world of one.
pub fn run(arguments: &TrainArguments) -> ExitCode {
    if under_mpirun() && arguments.guarded {
        start_guardian(arguments);
    }
    if !is_spare(arguments) {
        place::take(arguments);
    }
    let code = match run_rank(arguments) {
        Ok(status) => {
            report::ending();
            status.exit_code()
        }
        Err(TrainError::Configuration(reason)) => {
            tracing::error!("{reason}");
            say!("error: {reason}");
            2
        }
        Err(error) => {
            tracing::error!("{error}");
            say!("error: {error}");
            if under_mpirun() && error.leaves_alone() {
                // The death that the others repair: the runtime does not tell them of an exit with
                // a code, and they would wait for it.
                report::last_words(&error.to_string());
                kintsugi_ffi::os::kill_self_now();
            }
            error.status().exit_code()
        }
    };
    if under_mpirun() {
        // After failures MPI's own end can wait for the dead; everything is written by now.
        kintsugi_ffi::os::exit_now(i32::from(code));
    }
    ExitCode::from(code)
}

fn run_rank(arguments: &TrainArguments) -> Result<Status, TrainError> {
    let around = surroundings(arguments)?;
    around.injector.at(Point::InInit, &Standing { ranks: 1, ..first_standing(arguments) });
    std::thread::scope(|scope| {
        let mut preparation = Preparation::new(scope, arguments, &around);
        if !is_spare(arguments) || arguments.config.recovery.warm_spares {
            preparation.begin();
        }
        let comm = match communicator(arguments) {
            Ok(comm) if comm.waits() => {
                return spare::wait(arguments, &around, comm, preparation);
            }
            started => started,
        };
        let prepared = preparation.finish();
        run_prepared(arguments, &around, comm?, prepared)
    })
}

/// A rank's program once it has its communicator and its part of the run: what a simulation runs
/// too. One that was told to join enters the survivors' repair.
pub fn run_prepared(
    arguments: &TrainArguments,
    around: &Surroundings,
    comm: Box<dyn Membership>,
    prepared: Result<Prepared, TrainError>,
) -> Result<Status, TrainError> {
    let slots = prepared.as_ref().ok().map(|prepared| Arc::clone(&prepared.slots));
    let status = match &arguments.join {
        None if comm.waits() => spare::wait(arguments, around, comm, Preparation::made(prepared)),
        Some(_) => match prepared {
            Ok(prepared) => run_newcomer(arguments, around, comm, prepared),
            // The ranks repair their world without it.
            Err(error) => Err(TrainError::Unready(error.to_string())),
        },
        None => run_initial(arguments, around, comm, prepared),
    };
    if let (Err(_), Some(slots)) = (&status, slots) {
        slots.read().unwrap_or_else(PoisonError::into_inner).leave_no_empty_file();
    }
    status
}

fn first_standing(arguments: &TrainArguments) -> Standing {
    let (newcomer, spare) = (arguments.join.is_some(), is_spare(arguments));
    Standing { rank: launchers_rank().unwrap_or(0), newcomer, spare, ..Standing::default() }
}

fn run_initial(
    arguments: &TrainArguments,
    around: &Surroundings,
    mut comm: Box<dyn Membership>,
    prepared: Result<Prepared, TrainError>,
) -> Result<Status, TrainError> {
    let prepared = all_prepared(arguments, around, comm.as_mut(), prepared)?;
    let config = &arguments.config;
    if comm.size() > around.owners as usize {
        let (ranks, owners) = (comm.size(), around.owners);
        let text = format!(
            "{ranks} ranks but train.owners = {owners}: every rank needs an owner; start at most \
             {owners} ranks or raise train.owners"
        );
        return Err(refuse(around, comm.as_mut(), TrainError::Configuration(text)));
    }
    // Held until the run ends: a second start on the same directory ends this one first.
    let taken = attempt_of(arguments, comm.as_ref());
    let (attempt, _lock) = taken.map_err(|error| refuse(around, comm.as_mut(), error))?;
    let before = last_world(around.storage.as_ref()).map_err(unread);
    let before = before.map_err(|error| refuse(around, comm.as_mut(), error))?;
    let next_member = before.as_ref().map_or(0, |world| world.next_member);
    let lost = |error: CommError| {
        // Another rank may have left the reason why it could not begin.
        match left_reason(around.storage.as_ref()) {
            Some(error @ TrainError::Configuration(_)) => error,
            _ => {
                TrainError::JobLost(format!("a rank was lost while the world was forming: {error}"))
            }
        }
    };
    let world =
        prepare::gather_world(comm.as_mut(), attempt, around.owners, next_member, &around.identity);
    let world = world.inspect_err(|_| comm.revoke()).map_err(lost)?;
    let mut replica = replica(arguments, around, &prepared, &world, Some(Position::start()));
    let storage = around.storage.as_ref();
    let begun = prepare::begin(comm.as_mut(), &mut replica, &prepared, config, storage, &world);
    let (from, of_weights) = match begun {
        Err(TrainError::Comm(error)) => {
            comm.revoke();
            return Err(lost(error));
        }
        other => other.map_err(|error| refuse(around, comm.as_mut(), error))?,
    };
    comm.warm().inspect_err(|_| comm.revoke()).map_err(lost)?;
    let network = network::look(arguments, comm.as_mut(), &world, around.clock.as_ref());
    let network = network.inspect_err(|_| comm.revoke()).map_err(lost)?;
    replica.position.go_on_with(config.train.exchange).settle(&prepared.plan);
    let seconds = around.clock.unix_seconds() - around.origin;
    let settled = end_in_time(comm.as_mut(), &mut replica.position, &prepared.plan, seconds);
    settled.inspect_err(|_| comm.revoke()).map_err(lost)?;
    let kinds = arithmetic::gather(comm.as_mut(), &prepared.facts.arithmetic);
    let kinds = kinds.inspect_err(|_| comm.revoke()).map_err(lost)?;
    let otherwise = inexact::compute_with(&mut replica.position, &kinds, &world);
    let inexact = otherwise.or_else(|| inexact::at_start(&replica.position, config.train.exchange));
    let (facts, plan) = (prepared.facts.clone(), prepared.plan.clone());
    let sets = prepared.sets.clone();
    let mut trainer = trainer(arguments, around, comm, world, replica, prepared);
    trainer.started();
    if trainer.rank.is_writer() {
        let storage = around.storage.as_ref();
        let lost = casualties::of_the_last(storage, trainer.rank.world.attempt, before.as_ref());
        let of = (sets, of_weights);
        let beginning = Beginning { from, facts, of, plan, lost, inexact };
        announce(arguments, around, &mut trainer, beginning)?;
        network::announce(&mut trainer, network);
    }
    conclude(arguments, around, trainer)
}

/// A run whose time is over may have been started again for its last checkpoint: it makes no
/// further step for that. `seconds`: of the run, by this rank's clock.
fn end_in_time(
    comm: &mut dyn Membership,
    position: &mut Position,
    plan: &Plan,
    seconds: f64,
) -> Result<(), CommError> {
    let Some(limit) = plan.max_seconds else { return Ok(()) };
    if position.step == 0 || position.ending.is_some() {
        return Ok(());
    }
    if comm.all_gather_u64(&[u64::from(seconds >= limit)])?.contains(&1) {
        position.end(Ending::OutOfTime, plan);
    }
    Ok(())
}

/// This rank cannot begin: the reason is left for the supervisor, nobody waits for it.
fn refuse(around: &Surroundings, comm: &mut dyn Membership, error: TrainError) -> TrainError {
    leave_reason(around.storage.as_ref(), &error);
    comm.revoke();
    error
}

/// Under `launch` the supervisor counts; alone, the run directory's lock does.
fn attempt_of(
    arguments: &TrainArguments,
    comm: &dyn Membership,
) -> Result<(u32, Option<RunLock>), TrainError> {
    match arguments.attempt {
        Some(attempt) => Ok((attempt, None)),
        None if comm.rank() == 0 => {
            let taken = RunLock::take(&arguments.run_dir, LOCK_PATIENCE, &mut |line| {
                tracing::warn!("{line}");
            });
            let raised = taken.and_then(|mut lock| lock.raise().map(|raised| (raised, Some(lock))));
            raised.map_err(|error| TrainError::Configuration(error.to_string()))
        }
        // Rank 0's number counts (`gather_world`).
        None => Ok((1, None)),
    }
}

fn run_newcomer(
    arguments: &TrainArguments,
    around: &Surroundings,
    mut comm: Box<dyn Membership>,
    prepared: Prepared,
) -> Result<Status, TrainError> {
    let none = World::initial(0, Vec::new(), around.owners);
    let mut replica = replica(arguments, around, &prepared, &none, None);
    replica.standing.rank = comm.rank() as u32;
    replica.standing.ranks = comm.size() as u32;
    let (world, _) = driver::join(comm.as_mut(), &prepared.plan.policy, &mut replica)?;
    let mut trainer = trainer(arguments, around, comm, world, replica, prepared);
    trainer.joined();
    conclude(arguments, around, trainer)
}
