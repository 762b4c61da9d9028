//! What is real around a rank: files, clock, signals, fault injection, MPI.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::cluster::comm::Communicator;
use crate::cluster::comm::mpi::{JoinArguments, MpiComm, start_orphan_watch, under_mpirun};
use crate::cluster::comm::solo::SoloComm;
use crate::cluster::faults::{Injector, RealStrike, Standing};
use crate::cluster::launch::mpirun;
use crate::config::{FaultKind, Phase, identity};
use crate::observe::clock::{Clock, RealClock};
use crate::observe::event::{Event, Kind, VERSION};
use crate::observe::log::{EventLog, read_events};
use crate::observe::result::Status;
use crate::observe::storage::{FileSystem, Storage};

use super::TrainError;
use super::journal::EVENTS;
use super::keeper::log_name;
use super::run::TrainArguments;

/// What is real around a rank.
pub(super) struct Surroundings {
    pub storage: Arc<dyn Storage>,
    pub clock: Arc<dyn Clock>,
    pub origin: f64,
    pub injector: Arc<Injector>,
    pub generation: Arc<AtomicU32>,
    pub stop: Arc<AtomicBool>,
    pub run_id: String,
    pub fingerprint: u64,
    pub owners: u32,
}

/// Sets it all up.
pub(super) fn surroundings(arguments: &TrainArguments) -> Result<Surroundings, TrainError> {
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
        // A full disk must not keep a replacement from joining: its words go to mpirun's log then.
        let kept = log.and_then(|log| kintsugi_ffi::os::redirect_stderr(&log));
        if let Err(error) = kept {
            tracing::warn!("no log of this rank's own: {error}");
        }
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
    let (ranks, workers) = (arguments.config.run.ranks, arguments.config.train.workers);
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

/// MPI under mpirun, a world of one elsewhere.
pub(super) fn communicator(
    arguments: &TrainArguments,
) -> Result<Box<dyn Communicator>, TrainError> {
    if !under_mpirun() {
        return Ok(Box::new(SoloComm::default()));
    }
    start_orphan_watch();
    if !arguments.launched && arguments.join.is_none() {
        warn_of_flags();
    }
    let join = arguments.join.as_deref().map(JoinArguments::parse).transpose();
    let join = join.map_err(|error| TrainError::Internal(format!("--join: {error}")))?;
    Ok(Box::new(match &join {
        Some(join) => MpiComm::initialise(Some(join))?,
        None => MpiComm::initialise_with_spares(arguments.config.run.ranks as usize)?,
    }))
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
