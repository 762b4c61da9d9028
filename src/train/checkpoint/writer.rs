//! Checkpoints behind the loop: one thread copies the committed slot into a buffer that is used
//! again, while the loop computes the next gradients; another one writes. One checkpoint may be in
//! the writer's hands and one in its queue; a third is skipped, so a slow or hanging disk costs
//! memory for two and never a step.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::cluster::resident::{SlotView, Slots};
use crate::observe::clock::{Clock, RealClock};
use crate::observe::notice::act_on;
use crate::observe::storage::Storage;
use crate::observe::threads::explained;
use crate::train::state::beside::Beside;

use crate::model::parts::{PARAMETERS, STATISTICS, is_of_optimizer};
use crate::train::checkpoint::store::{self, WriterReport};
use crate::train::checkpoint::{CheckpointError, Snapshot, TrainState};
use crate::train::plan::About;

/// Buffer sets: one being written, one waiting or being filled.
const SETS_MAX: usize = 2;
/// Outcomes nobody fetched; older ones are dropped.
const REPORTS_MAX: usize = 64;

#[derive(Debug, Default)]
struct Buffers {
    parameters: Vec<f32>,
    statistics: Vec<f32>,
    optimizer: Vec<(String, Vec<f32>)>,
}

impl Buffers {
    /// Becomes a copy of a state.
    fn fill(&mut self, slot: &SlotView<'_>) {
        refill(&mut self.parameters, slot.part(PARAMETERS));
        refill(&mut self.statistics, slot.part(STATISTICS));
        let of_optimizer = slot.parts().filter(|(name, _)| is_of_optimizer(name));
        for (at, (name, values)) in of_optimizer.enumerate() {
            if self.optimizer.len() == at {
                self.optimizer.push((name.to_owned(), Vec::new()));
            }
            refill(&mut self.optimizer[at].1, values);
        }
    }
}

#[derive(Debug, Default)]
struct Queue {
    free: Vec<Buffers>,
    /// Sets that are filled, queued or written.
    lent: usize,
    queued: Option<Snapshot>,
    writing: bool,
    closing: bool,
    gone: bool,
    reports: Vec<WriterReport>,
}

impl Queue {
    fn report(&mut self, report: WriterReport) {
        self.reports.push(report);
        if self.reports.len() > REPORTS_MAX {
            self.reports.remove(0);
        }
    }
    fn take_back(&mut self, buffers: Buffers) {
        self.lent = self.lent.saturating_sub(1);
        if self.free.len() + self.lent < SETS_MAX {
            self.free.push(buffers);
        }
    }
    fn busy(&self) -> bool {
        (self.queued.is_some() || self.writing) && !self.gone
    }
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<Queue>,
    changed: Condvar,
}

impl Shared {
    /// A panic elsewhere leaves the state usable: every change of it is one assignment.
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn submit(&self, snapshot: Snapshot) {
        let mut state = self.lock();
        if state.gone || state.queued.is_some() {
            let (name, step) = (store::name_of(snapshot.state.step), snapshot.state.step);
            let error = if state.gone {
                CheckpointError::WriterGone(name)
            } else {
                CheckpointError::Busy(name)
            };
            state.take_back(buffers_of(snapshot));
            state.report(WriterReport::of(step, Err(error)));
            return;
        }
        state.queued = Some(snapshot);
        drop(state);
        self.changed.notify_all();
    }
}

/// The right to make one checkpoint, with the buffers for it. Dropped unused, it gives them back.
#[derive(Debug)]
pub struct Ticket {
    buffers: Option<Buffers>,
    shared: Arc<Shared>,
}

impl Ticket {
    /// Copies the committed slot in a thread of its own and submits the copy. No update may begin
    /// before `Copying::wait` has returned.
    pub fn copy_behind(
        self,
        about: About,
        slots: Arc<RwLock<Slots>>,
        state: TrainState,
    ) -> Copying {
        let copy = move || {
            let began = Instant::now();
            let shared = Arc::clone(&self.shared);
            let slots = slots.read().unwrap_or_else(PoisonError::into_inner);
            let snapshot = self.fill(&about, slots.committed(), state);
            drop(slots);
            shared.submit(snapshot);
            began.elapsed()
        };
        let thread = Beside::start("snapshot", copy);
        Copying(thread.inspect_err(|e| tracing::warn!("no checkpoint: no thread: {e}")).ok())
    }

    /// Copies a committed slot at once. Hand the result to `submit`.
    pub fn fill(mut self, about: &About, slot: SlotView<'_>, state: TrainState) -> Snapshot {
        let mut buffers = self.buffers.take().unwrap_or_default();
        buffers.fill(&slot);
        let Buffers { parameters, statistics, optimizer } = buffers;
        Snapshot {
            layout: Arc::clone(&about.layout),
            model_name: about.model_name.clone(),
            classes: about.classes.clone(),
            input: about.input,
            normalization: about.normalization,
            parameters,
            statistics,
            optimizer,
            state,
        }
    }
}

/// A copy under way.
#[derive(Debug)]
pub struct Copying(Option<Beside<Duration>>);

impl Copying {
    /// Waits for its end; returns how long the copy took.
    pub fn wait(self) -> Duration {
        // A copy that panicked has submitted nothing: its checkpoint is left out.
        self.0.and_then(Beside::wait).unwrap_or_default()
    }
}

fn refill(buffer: &mut Vec<f32>, values: &[f32]) {
    if buffer.len() == values.len() {
        buffer.copy_from_slice(values);
    } else {
        buffer.clear();
        buffer.extend_from_slice(values);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(buffers) = self.buffers.take() {
            self.shared.lock().take_back(buffers);
        }
    }
}

/// The background writer of the run's lowest live rank.
pub struct Writer {
    shared: Arc<Shared>,
    /// In simulation: does the thread's work when `poll` or `finish` is called.
    inline: Option<(Worker, Arc<dyn Clock>)>,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("shared", &self.shared).finish_non_exhaustive()
    }
}

impl Writer {
    /// Starts the thread, which first removes what a dead writer left. `keep` verified checkpoints
    /// stay; `current_attempt` says, before every publication, whether this process still belongs
    /// to the run's attempt.
    pub fn new(
        storage: Arc<dyn Storage>,
        keep: u32,
        current_attempt: Box<dyn Fn() -> bool + Send>,
    ) -> Self {
        let shared = Arc::new(Shared::default());
        let worker = Worker { shared: Arc::clone(&shared), storage, keep, current_attempt };
        let started = thread::Builder::new().name("checkpoint".into()).spawn(move || worker.run());
        if let Err(error) = started {
            let error = explained(error);
            act_on(&format!("no checkpoints: the writer's thread cannot be started: {error}"));
            shared.lock().gone = true;
        }
        Self { shared, inline: None }
    }

    /// A writer without a thread, for simulation: what was submitted is written when the outcome
    /// is asked for.
    pub fn inline(
        storage: Arc<dyn Storage>,
        keep: u32,
        current_attempt: Box<dyn Fn() -> bool + Send>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let shared = Arc::new(Shared::default());
        let worker = Worker { shared: Arc::clone(&shared), storage, keep, current_attempt };
        worker.clean();
        Self { shared, inline: Some((worker, clock)) }
    }

    fn work_inline(&self) {
        let Some((worker, clock)) = &self.inline else { return };
        let queued = self.shared.lock().queued.take();
        if let Some(snapshot) = queued {
            worker.write(snapshot, &**clock);
        }
    }

    /// The buffers for one checkpoint; `None` while one is written and one waits: skip it.
    pub fn try_begin(&self) -> Option<Ticket> {
        let mut state = self.shared.lock();
        if state.lent >= SETS_MAX || state.queued.is_some() {
            return None;
        }
        state.lent += 1;
        let buffers = Some(state.free.pop().unwrap_or_default());
        drop(state);
        Some(Ticket { buffers, shared: Arc::clone(&self.shared) })
    }

    /// Whether its thread has ended, or never began.
    pub fn is_gone(&self) -> bool {
        self.shared.lock().gone
    }

    /// Queues a snapshot and returns at once; the outcome comes through `poll`.
    pub fn submit(&self, snapshot: Snapshot) {
        self.shared.submit(snapshot);
    }

    /// What was written, or failed, since the last call.
    pub fn poll(&self) -> Vec<WriterReport> {
        self.work_inline();
        std::mem::take(&mut self.shared.lock().reports)
    }

    /// Waits until everything submitted is written or failed; false when `limit` came first.
    pub fn finish(&self, limit: Duration) -> bool {
        self.work_inline();
        let state = self.shared.lock();
        let waited = self.shared.changed.wait_timeout_while(state, limit, |state| state.busy());
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        !state.busy()
    }
}

impl Drop for Writer {
    /// The thread ends after what it has in hand; it is not waited for (`finish` does that).
    fn drop(&mut self) {
        self.shared.lock().closing = true;
        self.shared.changed.notify_all();
    }
}

fn buffers_of(snapshot: Snapshot) -> Buffers {
    let Snapshot { parameters, statistics, optimizer, .. } = snapshot;
    Buffers { parameters, statistics, optimizer }
}

/// The thread's side.
struct Worker {
    shared: Arc<Shared>,
    storage: Arc<dyn Storage>,
    keep: u32,
    current_attempt: Box<dyn Fn() -> bool + Send>,
}

impl Worker {
    fn run(self) {
        self.clean();
        let clock = RealClock::default();
        // Ends when the writer is dropped.
        while let Some(snapshot) = self.next() {
            self.write(snapshot, &clock);
        }
    }

    fn clean(&self) {
        if (self.current_attempt)() {
            store::clean(&*self.storage);
        }
    }

    fn write(&self, snapshot: Snapshot, clock: &dyn Clock) {
        let current = || (self.current_attempt)();
        let report = store::write(&*self.storage, &snapshot, self.keep, &current, clock);
        let mut state = self.shared.lock();
        state.writing = false;
        state.take_back(buffers_of(snapshot));
        state.report(report);
        drop(state);
        self.shared.changed.notify_all();
    }

    fn next(&self) -> Option<Snapshot> {
        let state = self.shared.lock();
        let idle = |state: &mut Queue| state.queued.is_none() && !state.closing;
        let waited = self.shared.changed.wait_while(state, idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        let next = if state.closing { None } else { state.queued.take() };
        state.writing = next.is_some();
        next
    }
}

impl Drop for Worker {
    /// However the thread ends, nobody waits for it afterwards.
    fn drop(&mut self) {
        self.shared.lock().gone = true;
        self.shared.changed.notify_all();
    }
}
