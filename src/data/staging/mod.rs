//! Run-time file staging (Higuchi, Miwa, Yamaki and Honda): the files of a training set are copied
//! to storage of the node in the order in which training reads them, and training goes on beside
//! it on what is there. Neither the order of samples nor a bit of them changes.
//!
//! `walk` says which files, in which order; `folder` keeps the copies; `gate` knows up to which
//! micro-batch they are there; `pace` gives way. This file has the copy workers.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use kintsugi_ffi::os;

use crate::config::{Shown, StagingMode};
use crate::observe::notice::act_on;
use crate::observe::spans::amount;
use crate::observe::threads::explained;

use super::sampler::Order;
use super::set::DataSet;
use super::store::Extent;
use super::store::tally::{Tally, Tier};

pub mod ahead;
pub mod apart;
pub mod folder;
mod gate;
pub mod hands;
pub mod key;
mod manifest;
mod many;
pub mod pace;
pub mod place;
pub mod porter;
pub mod progress;
pub mod walk;

use folder::{CopyError, Done, Folder};
use gate::Gate;
use hands::{Hands, Workers};
use key::Key;
use many::{Many, Need};
use pace::Pace;
use progress::Progress;
use walk::{Next, Walk};

/// Left free where copies lie.
pub const SPARE_BYTES: u64 = 16 << 20;
/// Longest that a closing run waits for a file that is being copied.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);
/// Micro-batches that a worker goes through at a stretch, while others wait for their word.
const STRETCH_MAX: u64 = 256;

/// The copying of one rank's share.
pub struct Staging {
    set: DataSet,
    order: Order,
    folder: Arc<Folder>,
    mode: StagingMode,
    pace: Pace,
    tally: Arc<Tally>,
    /// There are no workers: who waits for a micro-batch copies it.
    readers_copy: bool,
    state: Mutex<State>,
    /// There may be something to copy, or it is over.
    work: Condvar,
    /// More micro-batches are let through, or nobody is held up any longer.
    open: Condvar,
    /// Everything is there, or nobody waits: asked without a lock.
    lets_all: AtomicBool,
}

#[derive(Default)]
struct State {
    /// Counts plans: what belongs to an earlier one is no news.
    serial: u64,
    owners: Vec<u32>,
    walk: Option<Walk>,
    /// The micro-batch that the walk is in.
    at: Option<u64>,
    gate: Gate,
    many: Many,
    /// Files that a dead worker had in hand.
    returned: Vec<Unit>,
    workers: usize,
    /// Why nothing is copied any more.
    stopped: Option<String>,
    closing: bool,
    begun: Option<Instant>,
    copied_bytes: u64,
    progress: Progress,
    /// Somebody has begun to count what there is; has not ended.
    surveyed: bool,
    surveying: bool,
}

impl State {
    /// Whether there is something to copy yet, or to count.
    fn lacks(&self) -> bool {
        let is_over = self.gate.is_whole() && self.surveyed && !self.surveying;
        self.stopped.is_none() && !is_over
    }
}

/// One file to be copied.
#[derive(Debug, Clone)]
struct Unit {
    serial: u64,
    micro_batch: u64,
    file: PathBuf,
}

/// What a worker finds in the walk.
enum Turn {
    /// A file to copy.
    Copy(Unit),
    /// So many micro-batches without one that others may have a word first.
    Pause,
    /// Nothing is left to do.
    Rest,
}

impl Staging {
    /// Starts the workers; nothing is copied before `plan`. The store of `set` brings the files.
    pub fn start(
        set: DataSet,
        order: Order,
        folder: Arc<Folder>,
        mode: StagingMode,
        pace: Pace,
        tally: Arc<Tally>,
        workers: impl Into<Workers>,
    ) -> Arc<Self> {
        let workers = workers.into();
        let staging = Arc::new(Self {
            set,
            order,
            folder,
            mode,
            pace,
            tally,
            readers_copy: matches!(workers, Workers::Readers),
            state: Mutex::default(),
            work: Condvar::new(),
            open: Condvar::new(),
            lets_all: AtomicBool::new(false),
        });
        for (index, hands) in workers.hands().into_iter().enumerate() {
            staging.lock().workers += 1;
            let own = Arc::clone(&staging);
            let thread = std::thread::Builder::new().name(format!("copy-{index}"));
            if let Err(error) = thread.spawn(move || own.work(hands)) {
                let (error, mut state) = (explained(error), staging.lock());
                state.workers -= 1;
                if state.workers == 0 {
                    staging.stop(&mut state, &format!("no copy worker could be started: {error}"));
                }
                break;
            }
        }
        staging
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From `step` on this rank computes `owners`.
    pub fn plan(&self, step: u64, owners: &[u32]) {
        let mut state = self.lock();
        if state.stopped.is_some() || (state.serial > 0 && state.owners == owners) {
            return;
        }
        // Others may have copied what is ours now.
        self.folder.catch_up();
        state.serial += 1;
        state.owners = owners.to_vec();
        state.walk = Some(Walk::new(self.order.clone(), step, owners));
        state.at = None;
        state.gate = Gate::new(step, owners);
        state.many = Many::default();
        state.returned.clear();
        (state.surveyed, state.progress) = (false, Progress::default());
        self.lets_all.store(false, Ordering::Release);
        drop(state);
        self.work.notify_all();
    }

    /// Whether the files of that micro-batch are there, or nobody waits for them.
    fn lets_in(&self, state: &State, step: u64, owner: u32) -> bool {
        let let_through = match self.mode {
            StagingMode::None => true,
            StagingMode::Before => state.gate.is_whole() || !state.owners.contains(&owner),
            StagingMode::During => state.gate.lets(step, owner),
        };
        state.stopped.is_some() || state.closing || state.serial == 0 || let_through
    }

    /// Waits for the files of that micro-batch, so long at most; whether they are there.
    pub fn wait(&self, step: u64, owner: u32, limit: Duration) -> bool {
        if self.lets_all.load(Ordering::Acquire) {
            return true;
        }
        if self.readers_copy {
            return self.copy_until(step, owner);
        }
        let held = |state: &mut State| !self.lets_in(state, step, owner);
        let waited = self.open.wait_timeout_while(self.lock(), limit, held);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// How far it is.
    pub fn progress(&self) -> Progress {
        let state = self.lock();
        let seconds = state.begun.map_or(0.0, |begun| begun.elapsed().as_secs_f64());
        let rate = state.copied_bytes as f64 / seconds.max(1e-3);
        Progress { rate, lacking: state.lacks().into(), ..state.progress }
    }

    /// Waits until everything is there and counted, or nothing is copied any more, so long at most;
    /// whether it is so.
    pub fn wait_for_all(&self, limit: Duration) -> bool {
        let waited = self.open.wait_timeout_while(self.lock(), limit, |state| state.lacks());
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    /// Why nothing is copied any more, if it is so before everything is there.
    pub fn stop_reason(&self) -> Option<String> {
        self.lock().stopped.clone()
    }

    /// Nothing is copied any more, and nobody is held up: training reads the shared store.
    fn stop(&self, state: &mut State, reason: &str) {
        if state.stopped.is_some() {
            return;
        }
        state.stopped = Some(reason.to_owned());
        if !state.closing {
            act_on(&format!("staging has stopped, training reads the shared store: {reason}"));
        }
        self.lets_all.store(true, Ordering::Release);
        self.open.notify_all();
        self.work.notify_all();
    }

    /// Copies what a micro-batch needs, and all before it.
    ///
    /// # Panics
    /// The walk is over and the way not open: a gate that holds readers up for ever is no way to
    /// end.
    fn copy_until(&self, step: u64, owner: u32) -> bool {
        let mut state = self.lock();
        while !self.lets_in(&state, step, owner) {
            if !state.surveyed {
                state = self.survey(state);
                continue;
            }
            let kept = state.returned.pop();
            match kept.map_or_else(|| self.next_turn(&mut state), Turn::Copy) {
                // The first file of the next micro-batch shows that this one is counted.
                Turn::Copy(unit) if self.lets_in(&state, step, owner) => state.returned.push(unit),
                Turn::Copy(unit) => {
                    drop(state);
                    let lives = self.carry(&mut Hands::Own, unit);
                    state = self.lock();
                    if !lives {
                        self.stop(&mut state, "the copy worker has died");
                    }
                }
                Turn::Pause => {}
                Turn::Rest => {
                    let open = self.lets_in(&state, step, owner);
                    assert!(open, "step {step}, owner {owner}: all is copied and the way not open");
                }
            }
        }
        true
    }

    /// Copies a file and gives word of it; whether who carried it lives.
    fn carry(&self, hands: &mut Hands, unit: Unit) -> bool {
        let (store, pace) = (&*self.set.store, &self.pace);
        let copied = hands.copy(store, &self.folder, pace, &unit.file);
        let mut state = self.lock();
        match copied {
            Some(Ok(Done::Made(bytes))) => {
                self.tally.fetched(Tier::Shared, bytes);
                state.copied_bytes += bytes;
                self.arrived(&mut state, &unit, bytes);
            }
            Some(Ok(Done::Found(bytes))) => self.arrived(&mut state, &unit, bytes),
            Some(Err(CopyError::Source(reason))) => {
                // Whoever reads it meets the same, and says so.
                tracing::warn!("not staged: {reason}");
                self.failed(&mut state, &unit);
            }
            Some(Err(CopyError::Folder(reason))) => self.stop(&mut state, &reason),
            None => {
                // Its share is the others'.
                state.returned.push(unit);
                return false;
            }
        }
        true
    }

    /// The life of a copy worker.
    fn work(&self, mut hands: Hands) {
        while let Some(unit) = self.await_unit() {
            if !self.carry(&mut hands, unit) {
                break;
            }
        }
        // A process lets go of the folder before this one does.
        drop(hands);
        let mut state = self.lock();
        state.workers -= 1;
        if state.workers == 0 {
            self.stop(&mut state, "every copy worker has died");
        }
        self.work.notify_all();
        self.open.notify_all();
    }

    fn arrived(&self, state: &mut State, unit: &Unit, bytes: u64) {
        if unit.serial == state.serial {
            state.progress.files += 1;
            state.progress.bytes += bytes;
            let waiting = state.many.copied(Key::of(&unit.file));
            self.all_moved(state, unit, waiting);
        }
    }

    fn failed(&self, state: &mut State, unit: &Unit) {
        if unit.serial == state.serial {
            state.progress.files += 1;
            let waiting = state.many.give_up(Key::of(&unit.file));
            self.all_moved(state, unit, waiting);
        }
    }

    /// The word on a file, for its micro-batch or for all that wait for it.
    fn all_moved(&self, state: &mut State, unit: &Unit, waiting: Option<Vec<u64>>) {
        let waiting = waiting.unwrap_or_else(|| vec![unit.micro_batch]);
        waiting.into_iter().for_each(|number| self.moved(state, number));
    }

    /// One thing less that a micro-batch waits for.
    fn moved(&self, state: &mut State, micro_batch: u64) {
        let more = state.gate.arrived(micro_batch);
        if state.gate.is_whole() {
            self.lets_all.store(true, Ordering::Release);
        }
        if more || state.gate.is_whole() {
            self.open.notify_all();
        }
    }

    /// The next file to copy; `None`: the worker's life is over.
    fn await_unit(&self) -> Option<Unit> {
        let mut state = self.lock();
        loop {
            if state.closing || state.stopped.is_some() {
                return None;
            }
            if let Some(unit) = state.returned.pop() {
                return Some(unit);
            }
            if state.walk.is_some() && !state.surveyed {
                state = self.survey(state);
                continue;
            }
            match self.next_turn(&mut state) {
                Turn::Copy(unit) => return Some(unit),
                Turn::Pause => {
                    drop(state);
                    std::thread::yield_now();
                    state = self.lock();
                }
                Turn::Rest => {
                    state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Before the first file of a plan: how much there is, and whether there is room for it.
    fn survey<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        (state.surveyed, state.surveying) = (true, true);
        let (serial, owners) = (state.serial, state.owners.clone());
        drop(state);
        let (files, bytes) = walk::survey(&self.set, &self.order, &owners);
        let free = os::free_disk_bytes(self.folder.root()).unwrap_or(u64::MAX);
        let lacking = bytes.saturating_sub(self.folder.bytes());
        let mut state = self.lock();
        if state.serial == serial {
            state.surveying = false;
            if !self.readers_copy {
                state.begun.get_or_insert_with(Instant::now);
            }
            // Other workers may have copied some meanwhile.
            (state.progress.files_total, state.progress.bytes_total) = (files, bytes);
            self.open.notify_all();
            if lacking > free.saturating_sub(SPARE_BYTES) {
                let root = self.folder.root().shown();
                // How much differs from rank to rank; the warning is the same for all.
                tracing::warn!("{root}: {lacking} bytes are needed, {free} are free");
                let spare = amount(SPARE_BYTES);
                let reason = format!(
                    "no room in {root}, of which {spare} stay free; set staging.folder to a larger \
                     local disk"
                );
                self.stop(&mut state, &reason);
            }
        }
        state
    }

    /// Goes on with the walk to the next file that is not here yet.
    fn next_turn(&self, state: &mut State) -> Turn {
        let mut begun = 0;
        while begun < STRETCH_MAX {
            let Some(walk) = &mut state.walk else { return Turn::Rest };
            let (next, before) = (walk.next(), state.at);
            match next {
                Some(Next::MicroBatch) => {
                    begun += 1;
                    state.at = Some(state.gate.begin());
                    // The one before it is counted.
                    before.into_iter().for_each(|number| self.moved(state, number));
                }
                Some(Next::Sample(sample)) => {
                    if let Some(unit) = self.unit_of(state, sample) {
                        return Turn::Copy(unit);
                    }
                }
                None => {
                    state.walk = None;
                    state.gate.close();
                    before.into_iter().for_each(|number| self.moved(state, number));
                }
            }
        }
        Turn::Pause
    }

    /// The file of a sample, if it is to be copied.
    fn unit_of(&self, state: &mut State, sample: u64) -> Option<Unit> {
        let (location, micro_batch) = (self.set.source.location(sample)?, state.at?);
        let key = Key::of(&location.file);
        let here = self.folder.copy_of(key);
        let need = match location.extent {
            Extent::Whole { .. } => Need::of_one(here.is_some()),
            Extent::Range { .. } => state.many.need(key, micro_batch, here.is_some()),
        };
        match need {
            Need::Nothing => {}
            Need::Here => {
                state.progress.files += 1;
                state.progress.bytes += here.unwrap_or(0);
            }
            Need::Wait => state.gate.lacks_another(),
            Need::Copy => {
                state.gate.lacks_another();
                let (serial, file) = (state.serial, location.file.into_owned());
                return Some(Unit { serial, micro_batch, file });
            }
        }
        None
    }

    /// Ends the workers; this rank needs no copies any more.
    pub fn retire(&self) {
        self.close();
        self.folder.retire();
    }

    /// Ends the workers after the file at hand.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closing = true;
        self.work.notify_all();
        self.open.notify_all();
        let working = |state: &mut State| state.workers > 0;
        state.walk = None;
        drop(self.open.wait_timeout_while(state, CLOSE_LIMIT, working));
    }
}

#[cfg(test)]
mod tests;
