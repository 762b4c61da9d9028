//! A rank comes into its world: with all others at the start of an attempt, or into a repair. What
//! comes of it is its trainer.

use std::sync::Arc;

use crate::cluster::comm::Membership;
use crate::cluster::recovery::{Participant, driver};
use crate::cluster::world::World;

use crate::train::TrainError;
use crate::train::record::inexact;
use crate::train::record::journal::last_world;
use crate::train::record::reason::{leave_reason, left_reason};
use crate::train::repair::restart::unread;
use crate::train::start::materials::Prepared;
use crate::train::start::surroundings::Surroundings;
use crate::train::start::trainer::{Beginning, announce, trainer};
use crate::train::start::world::{all_prepared, attempt_of, end_in_time, gather_world};
use crate::train::start::{network, state};
use crate::train::state::arithmetic;
use crate::train::state::position::Position;
use crate::train::state::replica::Replica;
use crate::train::trainer::Trainer;

/// A rank of the first world of an attempt.
///
/// # Errors
/// This rank or another cannot begin, or was lost meanwhile.
pub(super) fn initial(
    around: &Surroundings,
    mut comm: Box<dyn Membership>,
    prepared: Result<Prepared, TrainError>,
) -> Result<Trainer, TrainError> {
    let prepared = all_prepared(around, comm.as_mut(), prepared)?;
    let formed = form(around, comm.as_mut(), &prepared);
    let (world, replica, beginning) =
        formed.map_err(|error| give_up(around, comm.as_mut(), error))?;
    let mut trainer = trainer(around, comm, world, replica, prepared);
    trainer.started();
    if trainer.rank.is_writer() {
        announce(around, &mut trainer, beginning)?;
    }
    Ok(trainer)
}

/// The world, this rank's state in it, and what there is to say of both. All ranks make the same
/// calls in the same order.
fn form(
    around: &Surroundings,
    comm: &mut dyn Membership,
    prepared: &Prepared,
) -> Result<(World, Replica, Beginning), TrainError> {
    let kind = around.arguments.config.train.exchange;
    if comm.size() > around.owners as usize {
        let (ranks, owners) = (comm.size(), around.owners);
        return Err(TrainError::Configuration(format!(
            "{ranks} ranks but train.owners = {owners}: every rank needs an owner; start at most \
             {owners} ranks or raise train.owners"
        )));
    }
    let attempt = attempt_of(around, comm)?;
    let before = last_world(around.storage.as_ref()).map_err(unread)?;
    let next_member = before.as_ref().map_or(0, |world| world.next_member);
    let world = gather_world(comm, around, attempt, next_member)?;
    let mut replica = replica(around, prepared, world.attempt, Some(Position::start()));
    let (from, of_weights) = state::begin(comm, &mut replica, prepared, around, &world)?;
    comm.warm()?;
    let network = network::look(around, comm, &world)?;
    replica.position.go_on_with(kind).settle(&prepared.plan);
    end_in_time(comm, around, &mut replica.position, &prepared.plan)?;
    let arithmetics = arithmetic::gather(comm, &prepared.facts.arithmetic)?;
    let inexact = inexact::compute_with(&mut replica.position, &arithmetics, &world)
        .or_else(|| inexact::at_start(&replica.position, kind));
    let (facts, plan) = (prepared.facts.clone(), prepared.plan.clone());
    let of = (prepared.sets.clone(), of_weights);
    Ok((world, replica, Beginning { from, facts, of, plan, before, inexact, network }))
}

/// This rank cannot begin: nobody waits for it, and the reason is left for the supervisor.
fn give_up(around: &Surroundings, comm: &mut dyn Membership, error: TrainError) -> TrainError {
    let storage = around.storage.as_ref();
    let TrainError::Comm(error) = error else {
        leave_reason(storage, &error);
        comm.revoke();
        return error;
    };
    comm.revoke();
    // Another rank may have left the reason why it could not begin.
    match left_reason(storage) {
        Some(error @ TrainError::Configuration(_)) => error,
        _ => TrainError::JobLost(format!("a rank was lost while the world was forming: {error}")),
    }
}

/// One that was started to join enters the survivors' repair.
///
/// # Errors
/// They did not take it; or it is not ready, and they repair their world without it.
pub(super) fn newcomer(
    around: &Surroundings,
    mut comm: Box<dyn Membership>,
    prepared: Result<Prepared, TrainError>,
) -> Result<Trainer, TrainError> {
    let prepared = prepared.map_err(|error| TrainError::Unready(error.to_string()))?;
    let mut replica = replica(around, &prepared, 0, None);
    replica.standing.rank = comm.rank() as u32;
    replica.standing.ranks = comm.size() as u32;
    let (world, _) = driver::join(comm.as_mut(), &prepared.plan.policy, &mut replica)?;
    Ok(seated(around, comm, world, replica, prepared))
}

/// From here on who joined is a rank like any other.
pub(super) fn seated(
    around: &Surroundings,
    comm: Box<dyn Membership>,
    world: World,
    replica: Replica,
    prepared: Prepared,
) -> Trainer {
    let mut trainer = trainer(around, comm, world, replica, prepared);
    trainer.joined();
    trainer
}

/// Its state, still empty without a position. `attempt` counts where no supervisor does.
pub(super) fn replica(
    around: &Surroundings,
    prepared: &Prepared,
    attempt: u32,
    position: Option<Position>,
) -> Replica {
    let attempt = around.arguments.attempt.unwrap_or(attempt);
    let mut replica = Replica::new(
        Arc::clone(&prepared.slots),
        position,
        Arc::clone(&around.injector),
        Arc::clone(&around.clock),
        Arc::clone(&around.generation),
        participant(around, attempt),
    );
    replica.slot_files.clone_from(&prepared.slot_files);
    replica.set = prepared.facts.set;
    replica.arithmetic.clone_from(&prepared.facts.arithmetic);
    replica
}

/// This process, as others know it, and what a replacement of this run is started with.
pub(super) fn participant(around: &Surroundings, attempt: u32) -> Participant {
    let arguments = &around.arguments;
    let run_dir = std::path::absolute(&arguments.run_dir);
    let run_dir = run_dir.unwrap_or_else(|_| arguments.run_dir.clone());
    let mut spawned = vec![
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
    let (pid, host) = around.identity.clone();
    Participant { pid, host, arguments: spawned }
}
