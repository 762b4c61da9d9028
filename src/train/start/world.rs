//! How the first world of an attempt forms: all are prepared, and for the same; who they are;
//! whether there is something left to do. Every rank makes the same calls in the same order.

use std::time::Duration;

use crate::cluster::comm::{CommError, Communicator, Membership};
use crate::cluster::recovery::set::{self, SetIdentity};
use crate::cluster::wire;
use crate::cluster::world::{Member, Role, World};
use crate::config::identity;
use crate::run_folder::lock::RunLock;

use crate::train::TrainError;
use crate::train::plan::Plan;
use crate::train::record::began_with;
use crate::train::record::reason::{Failure, leave_reason, reason_of};
use crate::train::start::materials::Prepared;
use crate::train::start::sets::{has_begun, position_by_ledger};
use crate::train::start::surroundings::Surroundings;
use crate::train::start::trainer::write_failure;
use crate::train::state::position::{Ending, Position};
use crate::train::state::rank::Moment;

/// How long a supervisor that holds the run directory may take to end.
const LOCK_PATIENCE: Duration = Duration::from_secs(30);

/// Whether this rank failed, as its place among all kinds of failure; its configuration; its sets.
const WORDS: usize = 2 + SetIdentity::WORDS;

/// Goes on where all ranks are prepared, for the same run, and have listed the same sets; else the
/// reason of the first that is not, or how they differ, is kept for whoever started the run.
///
/// # Errors
/// That reason, on every rank; or a rank was lost.
pub(super) fn all_prepared(
    around: &Surroundings,
    comm: &mut dyn Membership,
    prepared: Result<Prepared, TrainError>,
) -> Result<Prepared, TrainError> {
    let prepared = prepared.and_then(|prepared| as_it_began(around, prepared));
    if let Err(error) = &prepared {
        leave_reason(around.storage.as_ref(), error);
    }
    // Its place among all kinds; beyond them there is none.
    let mine = prepared.as_ref().map_or_else(|e| Failure::of(e) as usize, |_| Failure::ALL.len());
    let set = prepared.as_ref().map_or_else(|_| SetIdentity::default(), |p| p.plan.set);
    let keys = identity::of_world(&around.arguments.config);
    let mut words = vec![mine as u64, keys];
    words.extend(set.to_words());
    let told = comm.all_gather_u64(&words)?;
    let told = || told.chunks_exact(WORDS);
    let met = told().find_map(|words| Failure::ALL.get(words[0] as usize).copied());
    let error = match (prepared, met) {
        (Ok(prepared), None) => {
            let sets: Vec<_> = told().map(|words| SetIdentity::from_words(&words[2..])).collect();
            let other = told().position(|words| words[1] != keys);
            match (other, set::difference(&sets)) {
                (None, None) => return Ok(prepared),
                (None, Some(difference)) => TrainError::Data(difference),
                (Some(other), _) => TrainError::Configuration(other_run(comm.rank(), other)),
            }
        }
        (Err(error), _) => error,
        (Ok(_), Some(failure)) => reason_of(around.storage.as_ref(), failure),
    };
    if comm.rank() == 0 && !matches!(error, TrainError::Configuration(_)) {
        let place = Moment { attempt: around.arguments.attempt.unwrap_or(1), ..Moment::default() };
        let (position, samples) = position_by_ledger(around);
        let place = Moment { step: position.step, ..place };
        write_failure(around, place, &position, samples, &error);
    }
    // The launcher ends every rank once one has left with a code: the result comes first.
    let _ = comm.agree(0);
    Err(error)
}

/// Each rank of a plain mpirun reads the configuration itself.
fn other_run(rank: usize, other: usize) -> String {
    format!(
        "rank {rank} and rank {other} were started with other keys, another model file or other \
         weights (model.init): give all ranks the same configuration, and no device.kind = \
         \"auto\", which each decides by itself"
    )
}

/// The steps of a run that goes on follow the order of the set that it began with.
fn as_it_began(around: &Surroundings, prepared: Prepared) -> Result<Prepared, TrainError> {
    if has_begun(around) {
        began_with::check(around.storage.as_ref(), prepared.plan.set)?;
    }
    Ok(prepared)
}

/// Under `launch` the supervisor counts; alone, the run directory's lock does, held until the end.
pub(super) fn attempt_of(around: &Surroundings, comm: &dyn Membership) -> Result<u32, TrainError> {
    match around.arguments.attempt {
        Some(attempt) => Ok(attempt),
        None if comm.rank() == 0 => {
            let run_dir = &around.arguments.run_dir;
            let taken = RunLock::take(run_dir, LOCK_PATIENCE, &mut || false, &mut |line| {
                tracing::warn!("{line}");
            });
            let raised = taken.and_then(|mut lock| {
                let raised = lock.raise();
                around.lock.get_or_init(|| lock);
                raised
            });
            raised.map_err(|error| TrainError::Configuration(error.to_string()))
        }
        // Rank 0's number counts (`gather_world`).
        None => Ok(1),
    }
}

/// Host names travel in so many words.
const HOST_WORDS: usize = 8;

/// The world of a fresh start: everybody, spares included, tells pid and host. Member numbers go on
/// from the ones that earlier attempts used.
pub(super) fn gather_world(
    comm: &mut dyn Membership,
    around: &Surroundings,
    attempt: u32,
    next_member: u32,
) -> Result<World, CommError> {
    let identity = &around.identity;
    let mut words = vec![u64::from(identity.0), u64::from(next_member), u64::from(attempt)];
    words.extend(wire::of_text::<HOST_WORDS>(&identity.1));
    let all = comm.introduce(&words)?;
    let ranks = comm.ranks();
    // The numbers of rank 0 count: it is the one that read the run directory.
    let (first, attempt) = (all[1] as u32, all[2] as u32);
    let mut hosts: Vec<String> = Vec::new();
    let members = all.chunks_exact(words.len()).enumerate().map(|(rank, words)| {
        let host = wire::to_text(&words[3..]);
        let known = hosts.iter().position(|known| *known == host);
        let node = known.unwrap_or_else(|| {
            hosts.push(host.clone());
            hosts.len() - 1
        });
        Member {
            member: first + rank as u32,
            rank: rank as u32,
            role: if rank < ranks { Role::Active } else { Role::Spare },
            pid: words[0] as u32,
            host,
            node: node as u32,
        }
    });
    Ok(World::initial(attempt, members.collect(), around.owners))
}

/// A run whose time is over may have been started again for its last checkpoint: it makes no
/// further step for that.
pub(super) fn end_in_time(
    comm: &mut dyn Communicator,
    around: &Surroundings,
    position: &mut Position,
    plan: &Plan,
) -> Result<(), CommError> {
    // By this rank's clock.
    let seconds = around.clock.unix_seconds() - around.origin;
    let Some(limit) = plan.max_seconds else { return Ok(()) };
    if position.step == 0 || position.ending.is_some() {
        return Ok(());
    }
    if comm.all_gather_u64(&[u64::from(seconds >= limit)])?.contains(&1) {
        position.end(Ending::OutOfTime, plan);
    }
    Ok(())
}
