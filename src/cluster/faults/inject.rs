//! Injects the fault plan into a process: everybody asks at every point of a step, and almost
//! always the answer is no, in nanoseconds. When it is yes the fault is claimed in the run
//! directory first, so that it fires once in the whole run, restarts included.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::config::{FaultKind, Faults, PlannedFault, Point, Shown};
use crate::observe::clock::Clock;
use crate::observe::notice::act_on;
use crate::observe::storage::Storage;

use super::plan::{self, RandomFault, RandomFaults};
use super::{Standing, Strike};

/// Where fired faults are claimed, below the run directory.
pub const FOLDER: &str = "faults";

/// In it: when each fault struck, unix seconds, a line each. A claim is synced to the disk before
/// its fault strikes, which can take any time.
pub const STRUCK: &str = "struck";

/// A due random fault with another victim is looked at again after this many seconds: it may have
/// been claimed, or a shrink may have made this process its victim.
const SECOND_LOOK_SECONDS: f64 = 1.0;

/// What a rank that was struck `slow` is held up by in every forward pass from then on, where its
/// fault does not say.
pub const SLOW_PAUSE: Duration = Duration::from_millis(50);

/// Random faults that may be due and unclaimed at once; later ones wait their turn.
const PENDING_MAX: usize = 64;

type Recording = Box<dyn Fn(&FaultKind, Point, &Standing) + Send + Sync>;

/// Shared by all threads of a process.
pub struct Injector {
    /// `None` when nothing will ever fail on purpose.
    armed: Option<Armed>,
    recording: Mutex<Option<Arc<Recording>>>,
}

struct Armed {
    planned: Vec<Planned>,
    random: Option<Random>,
    storage: Arc<dyn Storage>,
    clock: Arc<dyn Clock>,
    /// The run's age when `zero` was read from the monotonic clock.
    age_at_zero: f64,
    zero: Duration,
    strike: Arc<dyn Strike>,
    /// What this process is held up by in every forward pass, in microseconds.
    pause_micros: AtomicU64,
}

struct Planned {
    fault: PlannedFault,
    /// Fired, here or elsewhere.
    spent: AtomicBool,
}

struct Random {
    /// Run seconds (bits of an f64) before which nobody needs the lock.
    look_at: AtomicU64,
    queue: Mutex<Queue>,
}

struct Queue {
    coming: std::iter::Peekable<RandomFaults>,
    /// Due, and not known to be claimed.
    pending: Vec<RandomFault>,
    /// Run seconds of the next look at the claims.
    look_again: f64,
}

impl Injector {
    /// For one process of a run that began at `run_started_unix` (seconds since 1970).
    pub fn new(
        faults: &Faults,
        storage: Arc<dyn Storage>,
        clock: Arc<dyn Clock>,
        run_started_unix: f64,
        strike: Arc<dyn Strike>,
    ) -> Self {
        if faults.plan.is_empty() && faults.mtbf_seconds.is_none() {
            return Self::none();
        }
        let spent = || AtomicBool::new(false);
        let planned =
            faults.plan.iter().map(|f| Planned { fault: f.clone(), spent: spent() }).collect();
        let random = faults.mtbf_seconds.map(|mtbf| Random {
            look_at: AtomicU64::new(0f64.to_bits()),
            queue: Mutex::new(Queue {
                coming: RandomFaults::new(mtbf, faults.seed).peekable(),
                pending: Vec::new(),
                look_again: f64::INFINITY,
            }),
        });
        let age_at_zero = clock.unix_seconds() - run_started_unix;
        let zero = clock.now();
        let pause_micros = AtomicU64::new(0);
        let armed =
            Armed { planned, random, storage, clock, age_at_zero, zero, strike, pause_micros };
        Self { armed: Some(armed), recording: Mutex::new(None) }
    }

    /// For a run in which nothing fails on purpose.
    pub fn none() -> Self {
        Self { armed: None, recording: Mutex::new(None) }
    }

    /// Called just before a fault fires, in the thread that it strikes.
    pub fn set_recording(&self, recording: Recording) {
        *lock(&self.recording) = Some(Arc::new(recording));
    }

    /// Asks at a point whether a fault strikes here. Deaths do not return. What returns is a kind
    /// that the caller must perform: `Nan`, `BitFlip`; or `Slow`: from then on this process is held
    /// up in here in every forward pass. A process that was stopped and continued gets `None`.
    #[inline]
    pub fn at(&self, point: Point, standing: &Standing) -> Option<FaultKind> {
        let armed = self.armed.as_ref().filter(|_| point.is_fault_point())?;
        if point == Point::InForward {
            armed.hold_up();
        }
        if let Some(fault) = armed.next_planned(point, standing) {
            let performed = self.fire(armed, fault.kind, point, standing);
            armed.slow_down(fault);
            return performed;
        }
        if armed.next_random(point, standing) {
            return self.fire(armed, FaultKind::Kill, point, standing);
        }
        None
    }

    /// Planned faults that nobody has claimed, as people number them: a test that waits for one
    /// has tested nothing. Where the claims cannot be listed, none is named.
    pub fn unclaimed(&self) -> Vec<(usize, &PlannedFault)> {
        let Some(armed) = &self.armed else { return Vec::new() };
        let claims = match armed.storage.list(Path::new(FOLDER)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Vec::new(),
            claims => claims.unwrap_or_default(),
        };
        let planned = armed.planned.iter().map(|planned| &planned.fault).enumerate();
        let unclaimed = planned.filter(|(index, _)| !claims.contains(&name_of_planned(*index)));
        unclaimed.map(|(index, fault)| (index + 1, fault)).collect()
    }

    fn fire(
        &self,
        armed: &Armed,
        kind: FaultKind,
        point: Point,
        standing: &Standing,
    ) -> Option<FaultKind> {
        let recording = lock(&self.recording).clone();
        if let Some(recording) = recording {
            recording(&kind, point, standing);
        }
        let now = format!("{:.6}", armed.clock.unix_seconds());
        if let Err(error) = armed.storage.append_line(&Path::new(FOLDER).join(STRUCK), &now) {
            tracing::debug!("the moment of a fault is not written down: {error}");
        }
        armed.strike.strike(kind, point);
        let performed_by_caller =
            matches!(kind, FaultKind::Nan | FaultKind::BitFlip | FaultKind::Slow);
        performed_by_caller.then_some(kind)
    }
}

impl std::fmt::Debug for Injector {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Injector").field("armed", &self.armed.is_some()).finish_non_exhaustive()
    }
}

impl Armed {
    fn run_seconds(&self) -> f64 {
        self.age_at_zero + self.clock.now().saturating_sub(self.zero).as_secs_f64()
    }

    /// From now on, where the fault says so. The slowest of several counts.
    fn slow_down(&self, fault: &PlannedFault) {
        if fault.kind == FaultKind::Slow {
            let pause = fault.pause.map_or(SLOW_PAUSE, |pause| pause.0);
            let micros = u64::try_from(pause.as_micros()).unwrap_or(u64::MAX);
            self.pause_micros.fetch_max(micros, Ordering::Relaxed);
        }
    }

    fn hold_up(&self) {
        let micros = self.pause_micros.load(Ordering::Relaxed);
        if micros > 0 {
            self.clock.sleep(Duration::from_micros(micros));
        }
    }

    /// The planned fault that strikes here and that this thread has claimed.
    fn next_planned(&self, point: Point, standing: &Standing) -> Option<&PlannedFault> {
        for (index, planned) in self.planned.iter().enumerate() {
            let fault = &planned.fault;
            if planned.spent.load(Ordering::Relaxed)
                || !plan::strikes(fault, point, standing)
                || (fault.seconds.is_some() && !plan::is_due(fault, self.run_seconds()))
                || planned.spent.swap(true, Ordering::AcqRel)
            {
                continue;
            }
            if self.claim(&name_of_planned(index), fault.kind, point, standing) {
                return Some(fault);
            }
        }
        None
    }

    /// Whether a random fault strikes here and this thread has claimed it.
    fn next_random(&self, point: Point, standing: &Standing) -> bool {
        let Some(random) = &self.random else { return false };
        let now = self.run_seconds();
        if now < f64::from_bits(random.look_at.load(Ordering::Relaxed)) {
            return false;
        }
        if standing.ranks == 0 || standing.spare {
            return false;
        }
        let mut queue = lock(&random.queue);
        self.refresh(&mut queue, now);
        let mine = |fault: &RandomFault| fault.victim(standing.ranks) == standing.rank;
        let struck =
            queue.pending.iter().position(|fault| mine(fault) && fault.strikes(point, now));
        let fired = struck.is_some_and(|at| {
            let fault = queue.pending.remove(at);
            self.claim(&format!("random-{}", fault.index), FaultKind::Kill, point, standing)
        });
        let waits_for_point = queue.pending.iter().any(mine);
        let look_at = if waits_for_point { now } else { queue.next_look() };
        random.look_at.store(look_at.to_bits(), Ordering::Relaxed);
        fired
    }

    /// Moves what became due to `pending`, and looks from time to time at what others claimed.
    fn refresh(&self, queue: &mut Queue, now: f64) {
        let before = queue.pending.len();
        while queue.pending.len() < PENDING_MAX
            && let Some(fault) = queue.coming.next_if(|fault| fault.seconds <= now)
        {
            queue.pending.push(fault);
        }
        if queue.pending.len() == before && now < queue.look_again {
            return;
        }
        let claimed = self.storage.list(Path::new(FOLDER)).unwrap_or_default();
        queue.pending.retain(|fault| !claimed.contains(&format!("random-{}", fault.index)));
        queue.look_again =
            if queue.pending.is_empty() { f64::INFINITY } else { now + SECOND_LOOK_SECONDS };
    }

    /// Makes the fault this process's own for the whole run. A fault that cannot be recorded does
    /// not fire: it could fire again after a restart.
    fn claim(&self, name: &str, kind: FaultKind, point: Point, standing: &Standing) -> bool {
        let path = Path::new(FOLDER).join(name);
        let mut body = String::new();
        let _ = writeln!(
            body,
            "{:.6} unix: {kind:?} {point:?} rank {} of {} step {} at {:.3} s",
            self.clock.unix_seconds(),
            standing.rank,
            standing.ranks,
            standing.step.saturating_add(1),
            self.run_seconds()
        );
        let claimed = self
            .storage
            .create_dir(Path::new(FOLDER))
            .and_then(|()| self.storage.create_new(&path, body.as_bytes()));
        match claimed {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::AlreadyExists => false,
            Err(error) => {
                let path = path.shown();
                act_on(&format!("planned fault {name} does not fire: {path}: {error}"));
                false
            }
        }
    }
}

/// A planned fault's claim.
fn name_of_planned(index: usize) -> String {
    format!("plan-{index}")
}

impl Queue {
    /// Run seconds before which nothing changes for this process.
    fn next_look(&mut self) -> f64 {
        let coming = if self.pending.len() < PENDING_MAX {
            self.coming.peek().map_or(f64::INFINITY, |fault| fault.seconds)
        } else {
            f64::INFINITY
        };
        coming.min(self.look_again)
    }
}

/// A thread that panicked on purpose while it held a lock left nothing half done in here.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "inject_tests.rs"]
mod tests;
