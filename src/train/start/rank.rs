//! A rank comes into its world: with all others at the start of an attempt, or into a repair. What
//! comes of it is its trainer.

use std::sync::Arc;

use crate::cluster::comm::Membership;
use crate::cluster::faults::Standing;
use crate::cluster::recovery::{Participant, driver};
use crate::cluster::world::World;

use crate::train::TrainError;
use crate::train::record::inexact;
use crate::train::record::journal::last_world;
use crate::train::record::reason::{leave_reason, left_reason};
use crate::train::repair::restart::unread;
use crate::train::repair::take_over::Repairing;
use crate::train::start::materials::Prepared;
use crate::train::start::surroundings::Surroundings;
use crate::train::start::trainer::{Beginning, announce, trainer};
use crate::train::start::world::{all_prepared, attempt_of, end_in_time, gather_world};
use crate::train::start::{network, state};
use crate::train::state::position::Position;
use crate::train::state::process::Process;
use crate::train::state::{State, arithmetic};
use crate::train::trainer::Trainer;

/// In the vote on an attempt's beginning: the writer has not written it.
const UNANNOUNCED: u32 = 1;

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
    let (world, own, beginning) = formed.map_err(|error| give_up(around, comm.as_mut(), error))?;
    let mut trainer = trainer(around, comm, world, own, prepared);
    trainer.started();
    announced(around, &mut trainer, beginning)?;
    Ok(trainer)
}

/// The writer writes how the attempt begins, and nobody goes on before it has: what a run is made
/// of stands nowhere else.
///
/// # Errors
/// It could not, or was lost meanwhile.
fn announced(
    around: &Surroundings,
    trainer: &mut Trainer,
    beginning: Beginning,
) -> Result<(), TrainError> {
    let is_writer = trainer.rank.is_writer();
    let storage = around.storage.as_ref();
    let mine = if is_writer { announce(around, trainer, beginning) } else { Ok(()) };
    let mine = mine.inspect_err(|error| leave_reason(storage, error));
    // Of a writer that dies before it votes no vote takes the bit away.
    let vote = if is_writer && mine.is_ok() { 0 } else { UNANNOUNCED };
    let missing = trainer.rank.comm.agree(vote).flags & UNANNOUNCED != 0;
    mine?;
    if missing {
        let lost = || TrainError::JobLost("rank 0 was lost as this attempt began".into());
        return Err(match left_reason(storage) {
            Some(error @ TrainError::Configuration(_)) => error,
            _ => lost(),
        });
    }
    Ok(())
}

/// The world, this rank's state in it, and what there is to say of both. All ranks make the same
/// calls in the same order.
fn form(
    around: &Surroundings,
    comm: &mut dyn Membership,
    prepared: &Prepared,
) -> Result<(World, (State, Process), Beginning), TrainError> {
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
    let mut process = process_of(around, world.attempt, Standing::default());
    let mut state = state_of(prepared, Some(Position::start()));
    let mut repairing = Repairing::of(&mut state, &mut process, prepared.plan.set);
    let origin = state::begin(comm, &mut repairing, prepared, around, &world)?;
    comm.warm()?;
    let network = network::look(around, comm, &world)?;
    state.position.go_on_with(kind).settle(&prepared.plan);
    end_in_time(comm, around, &mut state.position, &prepared.plan)?;
    let arithmetics = arithmetic::gather(comm, &prepared.plan.arithmetic)?;
    let inexact = inexact::compute_with(&mut state.position, &arithmetics, &world)
        .or_else(|| inexact::at_start(&state.position, kind));
    let Prepared { facts, plan, sets, .. } = prepared;
    let (facts, plan, sets) = (facts.clone(), plan.clone(), sets.clone());
    let beginning = Beginning { origin, facts, sets, plan, before, inexact, network };
    Ok((world, (state, process), beginning))
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
    let (rank, ranks) = (comm.rank() as u32, comm.size() as u32);
    let standing = Standing { rank, ranks, newcomer: true, ..Standing::default() };
    let (mut state, mut process) = (state_of(&prepared, None), process_of(around, 0, standing));
    let mut hooks = Repairing::of(&mut state, &mut process, prepared.plan.set);
    let (world, _) = driver::join(comm.as_mut(), &prepared.plan.policy, &mut hooks)?;
    Ok(seated(around, comm, world, (state, process), prepared))
}

/// From here on who joined is a rank like any other.
pub(super) fn seated(
    around: &Surroundings,
    comm: Box<dyn Membership>,
    world: World,
    own: (State, Process),
    prepared: Prepared,
) -> Trainer {
    let mut trainer = trainer(around, comm, world, own, prepared);
    trainer.joined();
    trainer
}

/// Its state, still empty without a position.
pub(super) fn state_of(prepared: &Prepared, position: Option<Position>) -> State {
    State::new(Arc::clone(&prepared.slots), prepared.slot_files.clone(), position)
}

/// This process, which stands there. `attempt` counts where no supervisor does.
pub(super) fn process_of(around: &Surroundings, attempt: u32, standing: Standing) -> Process {
    Process::new(
        participant(around, around.arguments.attempt.unwrap_or(attempt)),
        standing,
        Arc::clone(&around.clock),
        Arc::clone(&around.injector),
        Arc::clone(&around.generation),
    )
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
