//! The workers of a rank: threads, or in simulation nobody but the thread that asks.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::cluster::faults::Standing;
use crate::engine::Compute;

use crate::train::TrainError;
use crate::train::compute::board::{Board, Job, WAKE_EVERY, Work};
use crate::train::compute::totals::Totals;
use crate::train::compute::worker::{Shared, Worker, run_or_abort};

/// The worker threads of a rank.
pub struct Pool {
    /// What they share.
    pub shared: Arc<Shared>,
    board: Arc<Board>,
    threads: Vec<JoinHandle<()>>,
    /// In simulation: what works in the threads' place.
    inline: Option<Mutex<Worker<Box<dyn Compute + Send>>>>,
}

impl Pool {
    /// Starts `workers` threads; each opens its engine at once.
    pub fn start(shared: Shared, workers: usize) -> Result<Self, TrainError> {
        let (shared, board) = (Arc::new(shared), Arc::new(Board::default()));
        let mut threads = Vec::new();
        for index in 0..workers {
            let (shared, board) = (Arc::clone(&shared), Arc::clone(&board));
            let thread = std::thread::Builder::new()
                .name(format!("worker-{index}"))
                .spawn(move || run_or_abort(&shared, &board));
            let reason = "cannot start a worker thread: lower train.workers";
            threads.push(thread.map_err(|e| TrainError::Internal(format!("{reason}: {e}")))?);
        }
        Ok(Self { shared, board, threads, inline: None })
    }

    /// Starts a step for these owners, in this order.
    pub fn train(&self, owners: &[u32], standing: Standing) {
        self.shared.sum.begin(owners.len());
        self.put(Work::Train { owners: owners.to_vec(), standing });
    }

    /// Lets the workers run free.
    pub fn run_free(&self, standing: Standing) {
        self.put(Work::Free { standing });
    }

    /// Adds owners to the step under way.
    pub fn extend(&self, more: &[u32]) {
        self.shared.sum.extend(more.len());
        if let Work::Train { owners, .. } = &mut self.board.lock().work {
            owners.extend_from_slice(more);
        }
        self.board.changed.notify_all();
        self.work_inline();
    }

    /// Evaluates these ranges of the validation set and waits for the sums.
    pub fn evaluate(&self, ranges: Vec<(u64, u64)>) -> Result<Totals, TrainError> {
        self.put(Work::Evaluate { ranges });
        self.finish()
    }

    /// Waits until everything that was asked for is computed.
    pub fn finish(&self) -> Result<Totals, TrainError> {
        self.shared.pause.release();
        let mut job = self.board.lock();
        loop {
            if let Some(failure) = &job.failure {
                return Err(failure.clone());
            }
            let items = match &job.work {
                Work::Train { owners, .. } => owners.len(),
                Work::Evaluate { ranges } => ranges.len(),
                Work::Nothing | Work::Stop | Work::Free { .. } => 0,
            };
            if job.next >= items && job.busy == 0 {
                return Ok(job.totals);
            }
            let waited = self.board.changed.wait_timeout(job, WAKE_EVERY);
            job = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A worker's failure, if there is one.
    pub fn failure(&self) -> Option<TrainError> {
        self.board.lock().failure.clone()
    }

    /// Micro-batches begun since the start.
    pub fn begun(&self) -> u64 {
        self.board.begun.load(Ordering::Relaxed)
    }

    /// Microseconds since the start that the workers, one after the other, spent on micro-batches.
    pub fn busy_micros(&self) -> u64 {
        let busy = self.board.busy_micros.load(Ordering::Relaxed);
        busy.saturating_sub(self.shared.pause.waited_micros())
    }

    /// How many work at the same time.
    pub fn workers(&self) -> usize {
        self.threads.len()
    }

    /// Ends the threads and waits for them.
    pub fn stop(&mut self) {
        self.put(Work::Stop);
        self.shared.sum.close();
        self.shared.outage.close();
        for thread in self.threads.drain(..) {
            // A worker that panicked has aborted the process: nothing to learn here.
            let _ = thread.join();
        }
    }

    fn put(&self, work: Work) {
        self.shared.pause.release();
        let mut job = self.board.lock();
        let failure = job.failure.take();
        *job = Job { work, failure, ..Job::default() };
        drop(job);
        self.board.changed.notify_all();
        self.work_inline();
    }

    /// A pool that computes whatever it is given before it returns, on the thread that gives it:
    /// for simulation, by something cheaper than the engine. Only synchronous runs.
    pub fn inline(shared: Shared, compute: Box<dyn Compute + Send>) -> Self {
        let (shared, board) = (Arc::new(shared), Arc::new(Board::default()));
        let worker = Worker::new(Arc::clone(&shared), compute);
        Self { shared, board, threads: Vec::new(), inline: Some(Mutex::new(worker)) }
    }

    /// Without threads: computes everything that is to be done.
    fn work_inline(&self) {
        let Some(worker) = &self.inline else { return };
        let mut worker = worker.lock().unwrap_or_else(PoisonError::into_inner);
        // Every round takes one of the finitely many items of the work at hand.
        while let Some(item) = self.board.take_item() {
            let performed = worker.perform(&item, &self.board);
            // Real time has no place in a simulated run: it would not replay.
            self.board.busy_micros.store(0, Ordering::Relaxed);
            if let Err(failure) = performed {
                let mut job = self.board.lock();
                job.failure.get_or_insert(failure);
                job.busy = 0;
                return;
            }
        }
    }
}
