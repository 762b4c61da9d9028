//! One rank's program, from its arguments to its exit code: sets up what is real (MPI, clock,
//! files, signals) and hands it to the trainer.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use crate::cluster::comm::mpi::{JoinArguments, MpiComm, start_orphan_watch, under_mpirun};
use crate::cluster::comm::solo::SoloComm;
use crate::cluster::comm::{CommError, Communicator};
use crate::cluster::faults::{Injector, RealStrike, Standing};
use crate::cluster::launch::lock::{self, RunLock};
use crate::cluster::launch::mpirun;
use crate::cluster::recovery::driver;
use crate::cluster::world::World;
use crate::config::{Config, FaultKind, Phase, identity};
use crate::observe::clock::{Clock, RealClock};
use crate::observe::event::{Event, Kind, VERSION};
use crate::observe::log::{EventLog, read_events};
use crate::observe::progress::Progress;
use crate::observe::result::Status;
use crate::observe::storage::{FileSystem, Storage};

use super::TrainError;
use super::journal::{EVENTS, Journal, Place, WORLD};
use super::keeper::{Facts, Keeper, leave_reason, log_name, read_reason};
use super::outcome::{Ended, RESULT};
use super::position::Position;
use super::replica::Replica;
use super::start::{self, From, Prepared};
use super::trainer::Trainer;

/// How long a supervisor that holds the run directory may take to end.
const LOCK_PATIENCE: Duration = Duration::from_secs(30);

/// Set by mpirun: ranks of its first world.
const WORLD_SIZE: &str = "OMPI_COMM_WORLD_SIZE";

/// What a rank is started with.
#[derive(Debug, Clone)]
pub struct TrainArguments {
    /// Checked.
    pub config: Config,
    /// The run directory.
    pub run_dir: PathBuf,
    /// Of a replacement: what the leader of the survivors told it.
    pub join: Option<String>,
    /// Under `launch`: this start of mpirun.
    pub attempt: Option<u32>,
    /// Under `launch`: unix time at which the run's seconds were zero.
    pub origin: Option<f64>,
    /// Whether a supervisor draws progress and keeps the logs.
    pub launched: bool,
}

/// What is real around a rank.
struct Surroundings {
    storage: Arc<dyn Storage>,
    clock: Arc<dyn Clock>,
    origin: f64,
    injector: Arc<Injector>,
    generation: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    run_id: String,
    fingerprint: u64,
    owners: u32,
}

/// Runs the rank; the exit code is that of DESIGN 4.6 for a world of one.
pub fn run(arguments: &TrainArguments) -> ExitCode {
    let code = match run_rank(arguments) {
        Ok(status) => status.exit_code(),
        Err(TrainError::Configuration(reason)) => {
            tracing::error!("{reason}");
            eprintln!("error: {reason}");
            2
        }
        Err(error) => {
            tracing::error!("{error}");
            eprintln!("error: {error}");
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
    around.injector.at(Phase::InInit, &Standing { ranks: 1, ..first_standing(arguments) });
    std::thread::scope(|scope| {
        let preparing = scope.spawn(|| {
            let (run_id, owners) = (&around.run_id, around.owners);
            let (config, injector) = (&arguments.config, &around.injector);
            start::prepare(config, run_id, around.fingerprint, owners, injector)
        });
        let comm = communicator(arguments);
        let prepared = preparing.join().unwrap_or_else(|_| {
            Err(TrainError::Internal("preparing the run panicked; see the message above".into()))
        });
        let comm = comm?;
        match &arguments.join {
            Some(_) => run_newcomer(arguments, &around, comm, prepared?),
            None => run_initial(arguments, &around, comm, prepared),
        }
    })
}

fn first_standing(arguments: &TrainArguments) -> Standing {
    let rank = std::env::var("OMPI_COMM_WORLD_RANK").ok().and_then(|rank| rank.parse().ok());
    Standing { rank: rank.unwrap_or(0), newcomer: arguments.join.is_some(), ..Standing::default() }
}

fn surroundings(arguments: &TrainArguments) -> Result<Surroundings, TrainError> {
    let file_system = FileSystem::new(&arguments.run_dir);
    let storage: Arc<dyn Storage> = Arc::new(file_system);
    let cannot = |what: &str, error: std::io::Error| {
        let folder = arguments.run_dir.display();
        TrainError::Configuration(format!("cannot {what} in the run directory {folder}: {error}"))
    };
    storage.create_dir("logs".as_ref()).map_err(|error| cannot("make a folder", error))?;
    if arguments.launched {
        let attempt = arguments.attempt.unwrap_or(1);
        let name = log_name(attempt, std::process::id());
        let log = std::fs::File::create(arguments.run_dir.join("logs").join(name));
        let log = log.map_err(|error| cannot("open a log", error))?;
        kintsugi_ffi::os::redirect_stderr(&log).map_err(|error| cannot("use a log", error))?;
    }
    let clock: Arc<dyn Clock> = Arc::new(RealClock::default());
    let origin = arguments.origin.unwrap_or_else(|| {
        let past = read_events(&arguments.run_dir.join(EVENTS)).unwrap_or_default();
        clock.unix_seconds() - past.last().map_or(0.0, |event| event.seconds)
    });
    let generation = Arc::new(AtomicU32::new(0));
    let injector = Arc::new(injector(arguments, &storage, &clock, origin, &generation));
    let stop = stop_flag()?;
    let fingerprint = identity::fingerprint(&arguments.config);
    let run_id = arguments.run_dir.file_name().map(|name| name.to_string_lossy().into_owned());
    let run_id = run_id.unwrap_or_else(|| arguments.config.run.name.clone());
    let ranks = std::env::var(WORLD_SIZE).ok().and_then(|size| size.parse().ok()).unwrap_or(1);
    let workers = arguments.config.train.workers;
    let owners = arguments.config.train.owners.unwrap_or(ranks * workers);
    Ok(Surroundings {
        storage,
        clock,
        origin,
        injector,
        generation,
        stop,
        run_id,
        fingerprint,
        owners,
    })
}

/// The first signal asks for a checkpoint and the end; a second Ctrl-C does not wait for it.
fn stop_flag() -> Result<Arc<AtomicBool>, TrainError> {
    use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
    let stop = Arc::new(AtomicBool::new(false));
    let exit = i32::from(Status::Interrupted.exit_code());
    let second = signal_hook::flag::register_conditional_shutdown(SIGINT, exit, Arc::clone(&stop));
    let registered = [SIGINT, SIGTERM, SIGUSR1]
        .into_iter()
        .map(|signal| signal_hook::flag::register(signal, Arc::clone(&stop)));
    for result in std::iter::once(second).chain(registered) {
        let failed = |error| TrainError::Internal(format!("cannot watch for signals: {error}"));
        result.map_err(failed)?;
    }
    Ok(stop)
}

/// Fault injection that writes its event just before it strikes.
fn injector(
    arguments: &TrainArguments,
    storage: &Arc<dyn Storage>,
    clock: &Arc<dyn Clock>,
    origin: f64,
    generation: &Arc<AtomicU32>,
) -> Injector {
    let faults = &arguments.config.faults;
    let strike = Arc::new(RealStrike);
    let injector = Injector::new(faults, Arc::clone(storage), Arc::clone(clock), origin, strike);
    let attempt = arguments.attempt.unwrap_or(1);
    let (storage, clock, generation) =
        (Arc::clone(storage), Arc::clone(clock), Arc::clone(generation));
    let record = move |kind: &FaultKind, phase: Phase, standing: &Standing| {
        let time = clock.unix_seconds();
        let event = Event {
            v: VERSION,
            time,
            seconds: time - origin,
            attempt,
            generation: generation.load(Ordering::Relaxed),
            step: standing.step,
            rank: standing.rank,
            kind: Kind::FaultInjected {
                kind: name_of(kind),
                phase: name_of(&phase),
                target: standing.rank,
            },
        };
        if let Err(error) = EventLog::new(Arc::clone(&storage)).append(&event) {
            tracing::warn!("cannot record an injected fault: {error}");
        }
    };
    injector.set_recording(Box::new(record));
    injector
}

/// As in configuration files.
fn name_of(value: &impl serde::Serialize) -> String {
    let json = serde_json::to_string(value).unwrap_or_default();
    json.trim_matches('"').to_string()
}

fn communicator(arguments: &TrainArguments) -> Result<Box<dyn Communicator>, TrainError> {
    if !under_mpirun() {
        return Ok(Box::new(SoloComm::default()));
    }
    start_orphan_watch();
    if !arguments.launched && arguments.join.is_none() {
        warn_of_flags();
    }
    let join = arguments.join.as_deref().map(JoinArguments::parse).transpose();
    let join = join.map_err(|error| TrainError::Internal(format!("--join: {error}")))?;
    Ok(Box::new(MpiComm::initialise(join.as_ref())?))
}

/// What plain mpirun was not told, once, from its first rank.
fn warn_of_flags() {
    let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|now| now == value);
    if !is("OMPI_COMM_WORLD_RANK", "0") {
        return;
    }
    let wanted = [
        ("OMPI_MCA_mpi_ft_enable", "1", "--with-ft ulfm: without it one dead rank ends the job"),
        ("OMPI_MCA_btl", "self,sm,tcp", "--mca btl self,sm,tcp: others were not tested"),
        ("OMPI_MCA_coll", "^han", "--mca coll ^han: han is not fault tolerant"),
    ];
    let missing = wanted.iter().filter(|(name, value, _)| !is(name, value));
    let missing: Vec<&str> = missing.map(|(_, _, why)| *why).collect();
    if !missing.is_empty() {
        let flags = mpirun::recovery_flags().join(" ");
        eprintln!(
            "warning: mpirun was started without {}\n  use: mpirun {flags} -n RANKS kintsugi train \
             CONFIG\n  or let `kintsugi launch` write the line (--dry-run shows it)",
            missing.join("; without ")
        );
    }
}

fn run_initial(
    arguments: &TrainArguments,
    around: &Surroundings,
    mut comm: Box<dyn Communicator>,
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
        return Err(TrainError::Configuration(text));
    }
    // Held until the run ends: a second start on the same directory ends this one first.
    let (attempt, _lock) = attempt_of(arguments, comm.as_ref())?;
    let next_member = next_member(around.storage.as_ref());
    let identity = (std::process::id(), kintsugi_ffi::os::hostname());
    let lost = |error: CommError| {
        TrainError::JobLost(format!("a rank was lost while the world was forming: {error}"))
    };
    let world = start::gather_world(comm.as_mut(), attempt, around.owners, next_member, identity);
    let world = world.inspect_err(|_| comm.revoke()).map_err(lost)?;
    let (position, from) = match comm.rank() {
        0 => start::first_state(&prepared, config, around.storage.as_ref()),
        _ => start::scratch(&prepared, config).map(|()| (Position::start(), From::Scratch)),
    }
    .inspect_err(|_| comm.revoke())?;
    let mut replica = replica(arguments, around, &prepared, &world, Some(position));
    let from = start::spread(comm.as_mut(), &mut replica, &world, from);
    let from = from.inspect_err(|_| comm.revoke()).map_err(lost)?;
    comm.warm().inspect_err(|_| comm.revoke()).map_err(lost)?;
    let facts = prepared.facts.clone();
    let (train_samples, plan) = (prepared.train_samples, prepared.plan.clone());
    let mut trainer = trainer(arguments, around, comm, world, replica, prepared);
    trainer.started();
    if trainer.is_writer() {
        announce(arguments, around, &mut trainer, from, &facts, train_samples, &plan)?;
    }
    conclude(around, trainer)
}

/// Everybody learns whether everybody is ready; the reason of the first that is not is kept.
fn all_prepared(
    arguments: &TrainArguments,
    around: &Surroundings,
    comm: &mut dyn Communicator,
    prepared: Result<Prepared, TrainError>,
) -> Result<Prepared, TrainError> {
    if let Err(error) = &prepared {
        leave_reason(around.storage.as_ref(), error);
    }
    let told = comm.all_gather_u64(&[u64::from(prepared.is_err())])?;
    if told.iter().all(|&failed| failed == 0) {
        return prepared;
    }
    let error = match prepared {
        Err(error) => error,
        Ok(_) => read_reason(around.storage.as_ref()),
    };
    if comm.rank() == 0 && !matches!(error, TrainError::Configuration(_)) {
        let place = Place { attempt: arguments.attempt.unwrap_or(1), ..Place::default() };
        write_failure(around, place, &Position::start(), &error);
    }
    Err(error)
}

fn write_failure(around: &Surroundings, place: Place, position: &Position, error: &TrainError) {
    let seconds = around.clock.unix_seconds() - around.origin;
    let ended = Ended {
        run_id: &around.run_id,
        place,
        status: error.status(),
        reason: error.to_string(),
        seconds,
        position,
        state_sha256: None,
    };
    if let Err(error) = ended.write(around.storage.as_ref()) {
        tracing::warn!("cannot write {RESULT}: {error}");
    }
}

/// Under `launch` the supervisor counts; alone, the run directory's lock does.
fn attempt_of(
    arguments: &TrainArguments,
    comm: &dyn Communicator,
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

fn next_member(storage: &dyn Storage) -> u32 {
    let text = storage.read(WORLD.as_ref()).unwrap_or_default();
    serde_json::from_slice::<World>(&text).map_or(0, |world| world.next_member)
}

fn run_newcomer(
    arguments: &TrainArguments,
    around: &Surroundings,
    mut comm: Box<dyn Communicator>,
    prepared: Prepared,
) -> Result<Status, TrainError> {
    let none = World::initial(0, Vec::new(), around.owners);
    let mut replica = replica(arguments, around, &prepared, &none, None);
    replica.standing.rank = comm.rank() as u32;
    replica.standing.ranks = comm.size() as u32;
    let (world, _) = driver::join(comm.as_mut(), &prepared.plan.policy, &mut replica)
        .map_err(|reason| TrainError::JobLost(reason.to_string()))?;
    let mut trainer = trainer(arguments, around, comm, world, replica, prepared);
    trainer.joined();
    conclude(around, trainer)
}

fn replica(
    arguments: &TrainArguments,
    around: &Surroundings,
    prepared: &Prepared,
    world: &World,
    position: Option<Position>,
) -> Replica {
    let run_dir = std::path::absolute(&arguments.run_dir);
    let run_dir = run_dir.unwrap_or_else(|_| arguments.run_dir.clone());
    let attempt = arguments.attempt.unwrap_or(world.attempt);
    let mut spawned: Vec<String> = vec![
        "train".into(),
        run_dir.join("config.toml").display().to_string(),
        "--run-dir".into(),
        run_dir.display().to_string(),
        "--attempt".into(),
        attempt.to_string(),
        "--origin".into(),
        format!("{:.6}", around.origin),
    ];
    if arguments.launched {
        spawned.push("--launched".into());
    }
    Replica::new(
        Arc::clone(&prepared.slots),
        position,
        Arc::clone(&around.injector),
        Arc::clone(&around.clock),
        spawned,
        Arc::clone(&around.generation),
    )
}

fn trainer(
    arguments: &TrainArguments,
    around: &Surroundings,
    comm: Box<dyn Communicator>,
    world: World,
    replica: Replica,
    prepared: Prepared,
) -> Trainer {
    let progress = (!arguments.launched && comm.rank() == 0)
        .then(|| Progress::new().max_seconds(arguments.config.train.max_seconds));
    let (storage, clock) = (Arc::clone(&around.storage), Arc::clone(&around.clock));
    let journal = Journal::new(Arc::clone(&storage), Arc::clone(&clock), around.origin, progress);
    let (run_dir, attempt) = (arguments.run_dir.clone(), world.attempt);
    let still_current =
        Arc::new(move || lock::current_attempt(&run_dir).is_none_or(|now| now <= attempt));
    let injector = Arc::clone(&around.injector);
    let mut keeper =
        Keeper::new(prepared.facts, storage, Arc::clone(&clock), injector, still_current);
    // A fresh start takes its own rollback down (`announce`); a newcomer takes over where it is.
    if comm.rank() == 0 && arguments.join.is_some() {
        keeper.take_over(&replica, &world, &journal);
    }
    let stop = Arc::clone(&around.stop);
    let (exchange, plan) = (prepared.exchange, prepared.plan);
    Trainer::new(comm, world, replica, exchange, journal, keeper, stop, clock, plan)
}

/// The first lines of an attempt.
fn announce(
    arguments: &TrainArguments,
    around: &Surroundings,
    trainer: &mut Trainer,
    from: From,
    facts: &Facts,
    train_samples: u64,
    plan: &super::trainer::Plan,
) -> Result<(), TrainError> {
    if !arguments.launched {
        let text = identity::resolved_text(&arguments.config);
        let written = around.storage.write_whole("config.toml".as_ref(), &[text.as_bytes()]);
        written.map_err(|e| TrainError::Configuration(format!("cannot write config.toml: {e}")))?;
        let _ = around.storage.remove(RESULT.as_ref());
    }
    trainer.journal.world(&trainer.world);
    let (attempt, step) = (trainer.world.attempt, trainer.position().step);
    let from_name = match from {
        From::Scratch => "scratch",
        From::Checkpoint => "checkpoint",
    };
    let lost_steps = start::steps_thrown_away(around.storage.as_ref(), step);
    trainer.keeper.take_over(&trainer.replica, &trainer.world, &trainer.journal);
    if attempt > 1 {
        trainer.event(Kind::Restarted { from: from_name.into(), lost_steps });
    }
    let parameters = facts.about.layout.parameters as u64;
    let validation_samples = plan.validation_samples;
    trainer.event(Kind::RunStart {
        run_id: facts.run_id.clone(),
        ranks: trainer.comm.size() as u32,
        owners: around.owners,
        parameters,
        train_samples,
        validation_samples,
        steps_total: plan.steps_max,
        from: from_name.into(),
    });
    Ok(())
}

/// Trains, and writes down an end that was not agreed on.
fn conclude(around: &Surroundings, mut trainer: Trainer) -> Result<Status, TrainError> {
    let result = trainer.run();
    trainer.exchange.pool().stop();
    trainer.journal.finish();
    if let Err(error) = &result
        && trainer.is_writer()
    {
        let place = trainer.place();
        let (status, reason) = (error.status(), error.to_string());
        let status = super::outcome::status_name(status).to_string();
        trainer.event(Kind::RunEnd { status, reason, state_sha256: None });
        // A lost world is for the supervisor to judge: it may start again.
        if !matches!(error, TrainError::JobLost(_) | TrainError::Comm(_)) {
            write_failure(around, place, trainer.position(), error);
        }
    }
    if result.is_ok() {
        trainer.comm.finalize();
    }
    result
}
