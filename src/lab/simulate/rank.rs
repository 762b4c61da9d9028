//! One simulated rank: the production program of a rank, with simulated things around it.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use crate::cluster::comm::sim::{JoinInfo, SimClock, SimComm};
use crate::cluster::comm::{Communicator, Membership as _};
use crate::cluster::faults::{Injector, Standing};
use crate::cluster::resident::Slots;
use crate::config::{Every, Point, identity, seed};
use crate::data::Occasion;
use crate::observe::clock::Clock;
use crate::observe::result::Status;
use crate::observe::storage::Storage;
use crate::train::TrainError;
use crate::train::plan::{Staff, TrainArguments};
use crate::train::start::enter;
use crate::train::start::materials::{Materials, Preparation, Prepared, prepare_from};
use crate::train::start::surroundings::{Begun, Entry, Surroundings, record_faults};
use crate::train::state::slot_files::SlotFiles;

use super::broken::{Rule, under};
use super::change::{Change, Changed};
use super::disk::{Disk, Files};
use super::nodes::Nodes;
use super::plane::Layout;
use super::scenario::{RUN_ID, SAMPLES, Scenario, VALIDATION};
use super::stand_in::{Committed, Instructions, Listing, Sightings, StandIn, graph, samples};

/// What the ranks of an attempt share.
pub struct Attempt<'a> {
    /// The run.
    pub scenario: &'a Scenario,
    /// Its number, from 1.
    pub number: u32,
    /// The run directory.
    pub files: &'a Arc<Files>,
    /// What was computed.
    pub sightings: &'a Sightings,
    /// Time and signals.
    pub hours: &'a Arc<Hours>,
    /// The run's newest attempt.
    pub newest: &'a Arc<AtomicU32>,
    /// The commit rule in force.
    pub rule: Rule,
    /// Where copies and caches lie, if anywhere.
    pub nodes: Option<&'a Nodes>,
    /// Whether the run has steps already.
    pub begun: bool,
}

impl Attempt<'_> {
    /// What this process lists and computes with.
    fn meets(&self, standing: &Standing) -> (Listing, Instructions) {
        let (mut listing, mut instructions) = (Listing::Own, Instructions::Usual);
        let met = |changed: &&Changed| changed.meets(self.number, self.begun, standing);
        for changed in self.scenario.changes().filter(met) {
            match changed.change {
                Change::Listing => listing = Listing::Other,
                Change::Instructions => instructions = Instructions::Other,
            }
        }
        (listing, instructions)
    }
}

/// How a rank ended that was not killed.
#[derive(Debug, Clone, PartialEq)]
pub struct Left {
    /// Its program's own result.
    pub status: Result<Status, TrainError>,
    /// Its committed step.
    pub step: u64,
    /// Hash of its committed tensors.
    pub digest: u64,
}

/// The time of a whole run, over all its attempts, and the moment at which it is asked to stop.
#[derive(Debug, Default)]
pub struct Hours {
    /// Nanoseconds before this attempt.
    before: AtomicU64,
    /// The latest reading.
    latest: AtomicU64,
    stop_after: Option<Duration>,
    /// Whether the request was heard in this attempt.
    heard: AtomicBool,
    spent: AtomicBool,
}

impl Hours {
    /// A run that is asked to stop then, if ever.
    pub fn new(stop_after: Option<Duration>) -> Self {
        Self { stop_after, ..Self::default() }
    }

    /// A new attempt begins a while after the last one ended.
    pub fn pause(&self, pause: Duration) {
        let latest = self.latest.load(Ordering::Relaxed);
        self.before.store(latest + pause.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Whether the last attempt was asked to stop; later ones are not.
    pub fn was_stopped(&self) -> bool {
        let heard = self.heard.swap(false, Ordering::Relaxed);
        self.spent.fetch_or(heard, Ordering::Relaxed);
        heard
    }
}

/// The clock of one process; it carries the request to stop, as a signal handler would.
struct Watch {
    clock: SimClock,
    hours: Arc<Hours>,
    stop: Arc<AtomicBool>,
}

/// Seconds since 1970 at which every simulated run begins.
pub const ORIGIN: f64 = 1.7e9;

/// There are no guardians here: a repair is written down at once, or some steps later.
const WITNESS_WAITS: [Duration; 2] = [Duration::ZERO, Duration::from_millis(200)];

/// More than any attempt has processes.
const PIDS_PER_ATTEMPT: u32 = 1000;

impl Clock for Watch {
    fn now(&self) -> Duration {
        let before = Duration::from_nanos(self.hours.before.load(Ordering::Relaxed));
        let now = before + self.clock.now();
        self.hours.latest.fetch_max(now.as_nanos() as u64, Ordering::Relaxed);
        let asked = self.hours.stop_after.is_some_and(|at| now >= at);
        if asked && !self.hours.spent.load(Ordering::Relaxed) {
            self.hours.heard.store(true, Ordering::Relaxed);
            self.stop.store(true, Ordering::Relaxed);
        }
        now
    }

    fn unix_seconds(&self) -> f64 {
        ORIGIN + self.now().as_secs_f64()
    }

    fn sleep(&self, time: Duration) {
        self.clock.sleep(time);
    }
}

fn witness_wait(attempt: &Attempt<'_>) -> Duration {
    WITNESS_WAITS[attempt.scenario.seed as usize % WITNESS_WAITS.len()]
}

/// The whole life of a process that is not killed.
pub fn live(attempt: &Attempt<'_>, comm: SimComm, join: Option<&JoinInfo>) -> Left {
    let (config, newest) = (&attempt.scenario.config, Arc::clone(attempt.newest));
    let (process, strike) = (comm.process(), comm.strike());
    let stop = Arc::new(AtomicBool::new(false));
    let clock: Arc<dyn Clock> = Arc::new(Watch {
        clock: comm.clock(),
        hours: Arc::clone(attempt.hours),
        stop: Arc::clone(&stop),
    });
    let storage: Arc<dyn Storage> = Arc::new(Disk::new(Arc::clone(attempt.files), strike.clone()));
    let (generation, striker) = (Arc::new(AtomicU32::new(0)), Arc::new(strike));
    let injector =
        Injector::new(&config.faults, Arc::clone(&storage), Arc::clone(&clock), ORIGIN, striker);
    let pid = attempt.number * PIDS_PER_ATTEMPT + process as u32;
    let begun = Begun { origin: ORIGIN, attempt: attempt.number, pid };
    record_faults(&injector, &storage, &clock, begun, &generation);
    let arguments = TrainArguments {
        measure_network: false,
        guarded: false,
        config: config.clone(),
        run_dir: RUN_ID.into(),
        join: join.map(|_| "simulated".into()),
        attempt: Some(attempt.number),
        origin: Some(ORIGIN),
        launched: true,
    };
    let around = Surroundings {
        entry: Entry::of(&arguments, comm.waits()),
        arguments,
        lock: OnceLock::new(),
        porters: Mutex::default(),
        storage,
        clock: Arc::clone(&clock),
        origin: ORIGIN,
        injector: Arc::new(injector),
        generation,
        stop,
        identity: (pid, "simulated".into()),
        run_id: RUN_ID.into(),
        fingerprint: identity::fingerprint(config),
        owners: config.train.owners.unwrap_or(config.run.ranks),
        newest_attempt: Arc::new(move || Ok(Some(newest.load(Ordering::Relaxed)))),
        staff: Staff::Inline,
        witness_wait: witness_wait(attempt),
    };
    let standing = Standing {
        rank: comm.rank() as u32,
        ranks: comm.ranks() as u32,
        newcomer: join.is_some(),
        spare: comm.waits(),
        ..Standing::default()
    };
    around.injector.at(Point::InInit, &standing);
    let (listing, instructions) = attempt.meets(&standing);
    let (sightings, state) = (Arc::clone(attempt.sightings), Committed::default());
    let (number, held) = (attempt.number, Arc::clone(&state));
    let compute = StandIn::new(clock, sightings, number, process, instructions, held);
    let materials = materials(attempt, process, listing, compute, instructions);
    let prepared = prepare_from(&around, materials);
    let prepared = prepared.map(|prepared| match attempt.scenario.in_file {
        true => in_file(attempt, around.storage.as_ref(), prepared, &standing),
        false => prepared,
    });
    let slots = prepared.as_ref().ok().map(|prepared| Arc::clone(&prepared.slots));
    slots.iter().for_each(|slots| drop(state.set(Arc::clone(slots))));
    let status = enter(&around, Ok(under(attempt.rule, comm)), Preparation::made(prepared));
    let (step, digest) = slots.map_or((0, 0), |slots| digest(&slots));
    Left { status, step, digest }
}

/// What a process trains, and with what.
fn materials(
    attempt: &Attempt<'_>,
    process: usize,
    listing: Listing,
    compute: StandIn,
    instructions: Instructions,
) -> Materials {
    let evaluates = attempt.scenario.config.evaluation.every != Every::Never;
    Materials {
        train: match attempt.nodes {
            Some(nodes) => nodes.samples(&attempt.scenario.faults, listing),
            None => samples(SAMPLES, 0, Layout::OneFile, listing),
        },
        validation: evaluates.then(|| samples(VALIDATION, 1, Layout::OneFile, Listing::Own)),
        // What a node holds is the scenario's to say.
        occasion: Occasion::GoesOn,
        graph: graph(),
        inline: Some(Box::new(compute)),
        arithmetic: instructions.name().into(),
        porters: Vec::new(),
        local: attempt.nodes.map_or_else(|| RUN_ID.into(), |nodes| nodes.local(process)),
    }
}

/// Finds a place for the slots, as a rank does before it has a communicator: one that starts with
/// the others takes what an earlier attempt left.
fn in_file(
    attempt: &Attempt<'_>,
    storage: &dyn Storage,
    mut prepared: Prepared,
    standing: &Standing,
) -> Prepared {
    let starts = !standing.newcomer && !standing.spare;
    let recovery = &attempt.scenario.config.recovery;
    let slot_files = SlotFiles::of(recovery, Path::new(RUN_ID), storage, &prepared.facts);
    prepared.slot_files = slot_files.unwrap_or_default();
    if let Some(slot_files) = prepared.slot_files.as_ref().filter(|_| starts) {
        if attempt.rule == Rule::Forgetful {
            slot_files.folder.clear_free();
        }
        let mut slots = prepared.slots.write().unwrap_or_else(PoisonError::into_inner);
        if let Err(reason) = slot_files.make_file(&mut slots) {
            tracing::warn!("{reason}");
        }
    }
    prepared
}

fn digest(slots: &RwLock<Slots>) -> (u64, u64) {
    let slots = slots.read().unwrap_or_else(PoisonError::into_inner);
    if !slots.holds_state() {
        return (0, 0);
    }
    let state = slots.committed();
    let parts = state.parts().map(|(_, part)| xxh3_64(bytemuck::cast_slice(part)));
    (state.step, seed::key(&parts.collect::<Vec<u64>>()))
}
