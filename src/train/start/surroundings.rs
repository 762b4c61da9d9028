//! What is around a rank: its arguments, files, clock, signals, fault injection. Real ones are made
//! here; a simulation brings its own.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::cluster::comm::mpi::{launchers_rank, under_mpirun};
use crate::cluster::faults::{Injector, RealStrike, Standing};
use crate::config::{FaultKind, Point, Shown, StagingMode, identity, resolve_owners};
use crate::data::staging::porter::{self, Porter};
use crate::observe::clock::{Clock, RealClock};
use crate::observe::event::{Kind, name_of};
use crate::observe::log::{EventLog, read_events};
use crate::observe::notice::act_on;
use crate::observe::refusal::{self, Meaning};
use crate::observe::result::Status;
use crate::observe::storage::{FileSystem, Storage};
use crate::run_folder::lock::{self, RunLock};

use crate::train::TrainError;
use crate::train::plan::{Staff, TrainArguments};
use crate::train::record::cause::{WITNESS_WAIT_MAX, log_name};
use crate::train::record::current::NewestAttempt;
use crate::train::record::journal::{EVENTS, Stamp};
use crate::train::repair::restart::unread;
use crate::train::state::rank::Moment;

/// How a process comes into the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// A rank from the start.
    Initial,
    /// Replaces a rank that is dead already: every millisecond is waited for.
    Newcomer,
    /// Waits, and is ready (`recovery.warm_spares`).
    WarmSpare,
    /// Waits with nothing but MPI until it gets a dead rank's seat.
    ColdSpare,
}

impl Entry {
    /// What this process was started as. Spares are those of the first-born that are beyond the
    /// world's ranks.
    pub(super) fn told(arguments: &TrainArguments) -> Self {
        let is_beyond = |rank| rank >= arguments.config.run.ranks;
        let waits = arguments.join.is_none() && launchers_rank().is_some_and(is_beyond);
        Self::of(arguments, waits)
    }

    /// Of a process that waits beside the world, or is a rank.
    pub fn of(arguments: &TrainArguments, waits: bool) -> Self {
        match (waits, &arguments.join) {
            (true, _) if arguments.config.recovery.warm_spares => Self::WarmSpare,
            (true, _) => Self::ColdSpare,
            (false, Some(_)) => Self::Newcomer,
            (false, None) => Self::Initial,
        }
    }

    /// Whether it begins as a spare.
    pub fn waits(self) -> bool {
        matches!(self, Self::WarmSpare | Self::ColdSpare)
    }
}

/// What is around a rank.
pub struct Surroundings {
    /// What it was started with.
    pub arguments: TrainArguments,
    /// How it comes into the world.
    pub entry: Entry,
    /// The run directory.
    pub storage: Arc<dyn Storage>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Unix time at which the run's seconds were zero.
    pub origin: f64,
    /// What goes wrong on purpose.
    pub injector: Arc<Injector>,
    /// The world's, for whoever records a fault.
    pub generation: Arc<AtomicU32>,
    /// Set by signals.
    pub stop: Arc<AtomicBool>,
    /// This process, as others know it: its pid and its host.
    pub identity: (u32, String),
    /// Names the run.
    pub run_id: String,
    /// Of what decides the arithmetic.
    pub fingerprint: u64,
    /// Virtual owners.
    pub owners: u32,
    /// The run's newest attempt, where one is recorded.
    pub newest_attempt: NewestAttempt,
    /// Who works beside the communicating thread.
    pub staff: Staff,
    /// See `Plan`.
    pub witness_wait: Duration,
    /// Copy workers that are processes, until somebody takes them.
    pub porters: Mutex<Vec<Porter>>,
    /// Of the run directory, where no supervisor holds it: a second start ends this one first.
    pub lock: OnceLock<RunLock>,
}

impl Surroundings {
    /// The copy workers, for whoever needs them first.
    pub fn take_porters(&self) -> Vec<Porter> {
        std::mem::take(&mut *self.porters.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Starts the copy workers that are to be processes, from the thread that lives as long as the
/// rank. Where none can be had, threads copy.
fn hire(arguments: &TrainArguments) -> Vec<Porter> {
    let staging = &arguments.config.staging;
    if staging.mode == StagingMode::None || !staging.processes {
        return Vec::new();
    }
    porter::hire(staging.workers, &arguments.run_dir).unwrap_or_else(|error| {
        act_on(&format!("staging.processes: threads copy, no process could be started: {error}"));
        Vec::new()
    })
}

/// Sets it all up.
pub(super) fn surroundings(
    arguments: &TrainArguments,
    entry: Entry,
) -> Result<Surroundings, TrainError> {
    let cannot = |what: &str, error: std::io::Error| {
        let folder = arguments.run_dir.shown();
        TrainError::Configuration(format!("cannot {what} in the run directory {folder}: {error}"))
    };
    refuse_planted(arguments)?;
    let storage: Arc<dyn Storage> = Arc::new(hold(arguments).map_err(|error| {
        let error = format!("{error}{}", refusal::advice(&error));
        cannot("make a folder", std::io::Error::other(error))
    })?);
    if arguments.launched {
        let attempt = arguments.attempt.unwrap_or(1);
        let name = log_name(attempt, &kintsugi_ffi::os::hostname(), std::process::id());
        let log = std::fs::File::create(arguments.run_dir.join("logs").join(name));
        // A full disk must not keep a replacement from joining: its words go to mpirun's log then.
        let kept = log.and_then(|log| kintsugi_ffi::os::redirect_stderr(&log));
        if let Err(error) = kept {
            tracing::warn!("no log of this rank's own: {error}");
        }
    }
    let clock: Arc<dyn Clock> = Arc::new(RealClock::default());
    let origin = match arguments.origin {
        Some(origin) => origin,
        None => clock.unix_seconds() - seconds_so_far(&arguments.run_dir).map_err(unread)?,
    };
    let generation = Arc::new(AtomicU32::new(0));
    let injector = Arc::new(injector(arguments, &storage, &clock, origin, &generation));
    let stop = stop_flag()?;
    let fingerprint = identity::fingerprint(&arguments.config);
    let run_id = arguments.run_dir.file_name().map(|name| name.to_string_lossy().into_owned());
    let run_id = run_id.unwrap_or_else(|| arguments.config.run.name.clone());
    let owners = resolve_owners(&arguments.config);
    let run_dir = arguments.run_dir.clone();
    let newest_attempt = Arc::new(move || lock::current_attempt(&run_dir));
    Ok(Surroundings {
        arguments: arguments.clone(),
        entry,
        lock: OnceLock::new(),
        porters: Mutex::new(hire(arguments)),
        newest_attempt,
        staff: Staff::Threads,
        witness_wait: if under_mpirun() && arguments.guarded {
            WITNESS_WAIT_MAX
        } else {
            Duration::ZERO
        },
        storage,
        clock,
        origin,
        injector,
        generation,
        stop,
        identity: (std::process::id(), kintsugi_ffi::os::hostname()),
        run_id,
        fingerprint,
        owners,
    })
}

/// Of the run, by its last event.
fn seconds_so_far(run_dir: &std::path::Path) -> std::io::Result<f64> {
    let past = refusal::if_there(refusal::insist(|| read_events(&run_dir.join(EVENTS))));
    let past = past.or_else(|error| match Meaning::of(&error) {
        Meaning::Damaged => Ok(None),
        _ => Err(error),
    })?;
    Ok(past.unwrap_or_default().last().map_or(0.0, |event| event.seconds))
}

/// A path that another user made where everybody makes names is no run's. `launch` has asked, and
/// so has the rank that a replacement joins.
fn refuse_planted(arguments: &TrainArguments) -> Result<(), TrainError> {
    if arguments.launched || arguments.join.is_some() {
        return Ok(());
    }
    let Some(user) = kintsugi_ffi::private::planted_by(&arguments.run_dir) else { return Ok(()) };
    let folder = arguments.run_dir.shown();
    Err(TrainError::Configuration(format!(
        "{folder} was put there by user {user}, in a folder where everybody makes names; name \
         another --run-dir"
    )))
}

/// The run directory, made where there is none. That of a launch holds its lock: where that is not,
/// the folder is elsewhere by now.
fn hold(arguments: &TrainArguments) -> std::io::Result<FileSystem> {
    let run_dir = &arguments.run_dir;
    if arguments.launched && !run_dir.join("lock").exists() {
        let text = "the lock of its launch is not in it: it was moved, removed or replaced";
        return Err(std::io::Error::new(std::io::ErrorKind::NotFound, text));
    }
    std::fs::create_dir_all(run_dir.join("logs"))?;
    FileSystem::holding(run_dir)
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
    let begun = Begun { origin, attempt, pid: std::process::id() };
    record_faults(&injector, storage, clock, begun, generation);
    injector
}

/// What the lines of a process have in common.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub struct Begun {
    /// Unix time at which the run's seconds were zero.
    pub origin: f64,
    pub attempt: u32,
    pub pid: u32,
}

/// Faults are events: written just before they strike.
pub fn record_faults(
    injector: &Injector,
    storage: &Arc<dyn Storage>,
    clock: &Arc<dyn Clock>,
    begun: Begun,
    generation: &Arc<AtomicU32>,
) {
    let Begun { origin, attempt, pid } = begun;
    let (storage, clock, generation) =
        (Arc::clone(storage), Arc::clone(clock), Arc::clone(generation));
    let record = move |kind: &FaultKind, point: Point, standing: &Standing| {
        let Standing { step, rank, .. } = *standing;
        let place = Moment { attempt, generation: generation.load(Ordering::Relaxed), step, rank };
        let (kind, phase) = (name_of(kind), name_of(&point));
        let fault = Kind::FaultInjected { kind, phase, target: rank, pid };
        let event = Stamp::new(place, clock.unix_seconds(), origin).event(fault);
        if let Err(error) = EventLog::new(Arc::clone(&storage)).append(&event) {
            tracing::warn!("cannot record an injected fault: {error}");
        }
    };
    injector.set_recording(Box::new(record));
}
