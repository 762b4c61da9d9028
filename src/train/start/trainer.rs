//! The trainer of a rank: put together, announced by the one who writes, run to its end. An end
//! that was not agreed on is written down here.

use std::sync::{Arc, PoisonError};

use crate::cluster::comm::Membership;
use crate::cluster::comm::mpi::under_mpirun;
use crate::cluster::recovery::set::SetIdentity;
use crate::cluster::world::World;
use crate::config::{Point, Shown, identity};
use crate::data::set;
use crate::data::source::Source;
use crate::engine;
use crate::observe::event::{Kind, name_of};
use crate::observe::ledger::counted_after;
use crate::observe::metrics::Metrics;
use crate::observe::notice::act_on;
use crate::observe::progress::Progress;
use crate::observe::result::Status;
use crate::observe::tensorboard::Tensorboard;
use crate::run_folder::{self, RESULT};

use crate::train::TrainError;
use crate::train::plan::{Facts, Plan, Staff};
use crate::train::record::Record;
use crate::train::record::began_with;
use crate::train::record::casualties;
use crate::train::record::current::Current;
use crate::train::record::journal::Journal;
use crate::train::record::keeper::{Keeper, Means};
use crate::train::record::outcome::Ended;
use crate::train::record::setup;
use crate::train::start::materials::Prepared;
use crate::train::start::network;
use crate::train::start::state::{From, Origin};
use crate::train::start::surroundings::Surroundings;
use crate::train::state::State;
use crate::train::state::position::Position;
use crate::train::state::process::Process;
use crate::train::state::rank::{Moment, Rank};
use crate::train::trainer::{Outcome, Trainer};
use crate::train::update::freeze;
use crate::train::update::schedule::{self, Length};

/// So many ranks without slots are told by their names.
const UNHOUSED_NAMED_MAX: usize = 4;

/// Longest wait for worker threads at the end.
const WORKERS_END_SECONDS_MAX: u32 = 30;

/// Everything that a rank trains with.
pub(super) fn trainer(
    around: &Surroundings,
    comm: Box<dyn Membership>,
    world: World,
    own: (State, Process),
    mut prepared: Prepared,
) -> Trainer {
    let progress = (!around.arguments.launched && comm.rank() == 0)
        .then(|| Progress::new().max_seconds(around.arguments.config.train.max_seconds));
    let (storage, clock) = (Arc::clone(&around.storage), Arc::clone(&around.clock));
    let tensorboard = (!around.arguments.launched && around.arguments.config.observe.tensorboard)
        .then(|| Tensorboard::new(&around.arguments.run_dir));
    let metrics = (!around.arguments.launched).then(|| Metrics::new(&around.arguments.run_dir));
    let journal = Journal::new(Arc::clone(&storage), Arc::clone(&clock), around.origin, progress)
        .with_tensorboard(tensorboard)
        .with_metrics(metrics);
    let keeper = Keeper::new(Means {
        facts: prepared.facts,
        storage: Arc::clone(&storage),
        clock,
        injector: Arc::clone(&around.injector),
        current: Current::new(&around.newest_attempt, world.attempt),
        staff: around.staff,
        urgent: Arc::clone(&prepared.exchange.pool().shared.loader.supply().urgent),
    });
    let mut plan = prepared.plan;
    plan.witness_wait = around.witness_wait;
    // Without a supervisor nobody would start it again.
    plan.renews &= around.arguments.launched;
    let (state, process) = own;
    let rank = Rank::new(comm, world, state, process, storage, plan);
    let mut record = Record::new(journal, keeper);
    // A fresh start takes its own rollback down (`announce`); a newcomer takes over where it is.
    if rank.is_writer() && rank.process.standing.newcomer {
        record.take_over(&rank);
    }
    Trainer::new(rank, prepared.exchange, record, Arc::clone(&around.stop))
}

/// Trains, and writes down an end that was not agreed on.
pub(super) fn conclude(around: &Surroundings, mut trainer: Trainer) -> Result<Status, TrainError> {
    let result = trainer.run();
    let agreed = result.as_ref().err().filter(|error| error.is_agreed());
    if let Some(error) = agreed {
        report_together(around, &mut trainer, error);
    }
    if matches!(result, Err(TrainError::Evicted(_))) {
        // Nobody may go on from what it holds.
        let slots = &trainer.rank.state.slots;
        let mut slots = slots.write().unwrap_or_else(PoisonError::into_inner);
        slots.refuse_all();
    }
    if result.is_ok() {
        trainer.exchange.pool().shared.loader.supply().leave_memory();
    }
    trainer.rank.process.at(Point::Over);
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
        report_own(around, &mut trainer, error);
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
fn report_together(around: &Surroundings, trainer: &mut Trainer, error: &TrainError) {
    trainer.rank.process.at(Point::InFinalize);
    report_own(around, trainer, error);
    // Who died meanwhile is not waited for.
    let _ = trainer.rank.comm.agree(0);
    if error.is_a_pause() && trainer.record.has_saved(&trainer.rank) {
        trainer.rank.state.retire();
    }
}

/// This rank's part of what is written of an attempt that failed.
fn report_own(around: &Surroundings, trainer: &mut Trainer, error: &TrainError) {
    if !trainer.record.keeper.is_current() {
        return;
    }
    trainer.record.report_rest(&mut trainer.rank);
    if trainer.rank.is_writer() {
        report_end(around, trainer, error);
    }
}

/// The writer's last words on an attempt that failed.
fn report_end(around: &Surroundings, trainer: &mut Trainer, error: &TrainError) {
    if error.is_a_pause() {
        if let Err(error) = trainer.record.pause(&trainer.rank, error) {
            tracing::error!("{error}");
        }
        return;
    }
    let place = trainer.rank.place();
    if trainer.rank.state.position.gone_back > 0 {
        // Who was to do it when all went back may be among the dead.
        trainer.record.distrust(trainer.rank.state.position.step);
    }
    let (status, reason) = (error.status(), error.to_string());
    let status = name_of(&status);
    trainer.record.event(&trainer.rank, Kind::RunEnd { status, reason, state_sha256: None });
    // A lost world is for the supervisor, where there is one, to judge: it may start again.
    let lost = matches!(error, TrainError::JobLost(_) | TrainError::Comm(_));
    if !(lost && around.arguments.launched) {
        let samples = trainer.rank.plan.samples_per_epoch;
        write_failure(around, place, &trainer.rank.state.position, samples, error);
    }
}

/// What the supervisor is told of an attempt that failed.
pub(super) fn write_failure(
    around: &Surroundings,
    place: Moment,
    position: &Position,
    samples_per_epoch: u64,
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

/// What an attempt begins with.
pub(in crate::train) struct Beginning {
    /// The state that it goes on from.
    pub origin: Origin,
    /// The run's constants.
    pub facts: Facts,
    /// Its data sets.
    pub sets: Vec<Arc<dyn Source>>,
    /// What it is to do.
    pub plan: Plan,
    /// The world of the attempt before.
    pub before: Option<World>,
    /// Why its bits are not those of a run without failures, where it is so.
    pub inexact: Option<Kind>,
    /// What the network between the nodes can do, where it was measured.
    pub network: Option<Kind>,
}

/// Ranks whose slots have no file; each has said why in its log.
fn unhoused_told(ranks: &[u32], world: &World, around: &Surroundings) -> String {
    let named = world.members.iter().filter(|member| ranks.contains(&member.rank));
    let named = named.map(|member| format!("{} on {}", member.rank, member.host));
    let mut named: Vec<String> = named.take(UNHOUSED_NAMED_MAX).collect();
    if ranks.len() > named.len() {
        named.push(format!("{} more", ranks.len() - named.len()));
    }
    format!(
        "resident state is off: no slots in {} of rank {} (why is in their logs, {}); a restart \
         will read a checkpoint",
        around.arguments.config.recovery.resident_dir.shown(),
        named.join(", "),
        around.arguments.run_dir.join("logs").shown()
    )
}

/// Writes them.
pub(in crate::train) fn announce(
    around: &Surroundings,
    trainer: &mut Trainer,
    beginning: Beginning,
) -> Result<(), TrainError> {
    let storage = around.storage.as_ref();
    let attempt = trainer.rank.world.attempt;
    let lost = casualties::of_the_last(storage, attempt, beginning.before.as_ref());
    if !around.arguments.launched {
        let text = identity::resolved_text(&around.arguments.config);
        let written = storage.write_whole("config.toml".as_ref(), &[text.as_bytes()]);
        written.map_err(|e| TrainError::Configuration(format!("cannot write config.toml: {e}")))?;
        let removed = storage.remove(RESULT.as_ref());
        removed.map_err(|e| TrainError::Configuration(format!("cannot remove {RESULT}: {e}")))?;
    }
    let Beginning { origin, facts, sets, plan, inexact, network, .. } = beginning;
    let Origin { from, unhoused, remarks } = origin;
    let Trainer { rank, record, .. } = trainer;
    record.journal.world(&rank.world);
    let step = rank.state.position.step;
    let init = around.arguments.config.model.init.as_deref().filter(|_| from == From::Scratch);
    let weights = init.map(|path| path.to_string_lossy().into_owned());
    let from_name = if weights.is_some() { "weights" } else { from.name() };
    let lost_steps = counted_after(storage, step).len() as u64;
    record.take_over(rank);
    if attempt > 1 {
        let (from, weights) = (from_name.into(), weights.clone());
        record.event(rank, Kind::Restarted { from, lost_steps, lost, weights });
    }
    if !unhoused.is_empty() {
        let message = unhoused_told(&unhoused, &rank.world, around);
        record.event(rank, Kind::Warning { message });
    }
    let layout = &facts.about.layout;
    let of_frozen = freeze::remark(layout, &freeze::frozen_in(&around.arguments.config, layout));
    let of_weights = remarks.into_iter().chain(of_frozen);
    let length = Length { steps: plan.steps_max, steps_per_epoch: facts.order.steps_per_epoch() };
    let of_rate = schedule::remark(&around.arguments.config.schedule, length);
    let of_weights =
        of_weights.chain(engine::remark(&around.arguments.config.device)).chain(of_rate);
    let news = keep_sets(around, plan.set, &sets);
    // Sets and device are the same as long as the run goes on: once is enough.
    let of_sets = sets.iter().flat_map(|set| set.remarks()).cloned();
    let of_both =
        sets.first().and_then(|train| set::remark(&**train, sets.get(1).map(|set| &**set)));
    let remarks = of_sets.chain(of_both).chain(of_weights);
    let remarks = remarks.filter(|_| from == From::Scratch);
    for kind in remarks.map(|message| Kind::Warning { message }).chain(news) {
        record.event(rank, kind);
    }
    let parameters = facts.about.layout.parameters as u64;
    let validation_samples = plan.validation_samples;
    record.event(
        rank,
        Kind::RunStart {
            run_id: facts.run_id.clone(),
            ranks: rank.comm.size() as u32,
            owners: around.owners,
            parameters,
            train_samples: facts.order.samples,
            validation_samples,
            steps_total: plan.steps_max,
            epoch: rank.state.position.epoch(),
            from: from_name.into(),
            weights,
        },
    );
    let setup = setup::of(&facts, &plan.arithmetic);
    for kind in std::iter::once(setup).chain(inexact) {
        record.event(rank, kind);
    }
    network::announce(trainer, network);
    Ok(())
}

/// Who comes later is to have the order that the ranks have agreed on. Without room for that it
/// lists the sets as they are then, and is not taken where they have changed. What there is to say
/// of sets that have changed already.
fn keep_sets(around: &Surroundings, listed: SetIdentity, sets: &[Arc<dyn Source>]) -> Vec<Kind> {
    let folder = around.arguments.run_dir.join(run_folder::CACHE);
    for set in sets {
        if let Err(error) = set.keep(&folder) {
            let place = folder.shown();
            act_on(&format!("the run's listing of its data cannot be kept in {place}: {error}"));
        }
    }
    let other = began_with::note(around.storage.as_ref(), listed).unwrap_or_else(|error| {
        act_on(&format!("the run's data cannot be written down: {error}"));
        None
    });
    let news = sets.iter().filter_map(|set| set.news());
    let news = news.map(|news| Kind::Warning { message: news.to_owned() });
    news.chain(other).collect()
}
