//! The workers of a rank: threads, or in simulation nobody but the thread that asks.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::cluster::faults::Standing;
use crate::config::seed;
use crate::data::staging::progress::Progress;
use crate::data::store::tally::Counts;
use crate::engine::Compute;
use crate::observe::panics::vital;
use crate::observe::threads::explained;
use crate::train::TrainError;
use crate::train::compute::board::{Board, Item, Work};
use crate::train::compute::committed::Which;
use crate::train::compute::totals::Totals;
use crate::train::compute::worker::{Shared, Worker, run_or_abort};

/// How often whoever waits for the workers asks whether they are still wanted.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Micro-batches that are computed beside a sum where there are no threads: fewer than so many.
const BESIDE_BELOW: u64 = 3;

/// The worker threads of a rank.
pub struct Pool {
    /// What they share.
    pub shared: Arc<Shared>,
    /// Where their work is, and chores.
    pub board: Arc<Board>,
    threads: Vec<JoinHandle<()>>,
    /// They do chores while workers wait for their device.
    hands: Vec<JoinHandle<()>>,
    /// In simulation: what works in the threads' place.
    inline: Option<Inline>,
}

/// As a program's first thread has by default: engines call libraries that were tried on such (one
/// frame of cuDNN's heuristics takes 122 KiB). Pages that are not touched cost nothing.
const STACK_BYTES: usize = 8 << 20;

type Inline = Mutex<Worker<dyn Compute + Send>>;

impl Pool {
    /// Starts `workers` threads, each of which opens its engine at once, and `hands`.
    pub fn start(shared: Shared, workers: usize, hands: usize) -> Result<Self, TrainError> {
        let (shared, board) = (Arc::new(shared), Arc::new(Board::default()));
        let start = |name: String, work: Box<dyn FnOnce() + Send>| {
            let thread = std::thread::Builder::new().name(name).stack_size(STACK_BYTES).spawn(work);
            let reason = "cannot start a worker thread: lower train.workers";
            let refuse = |error| TrainError::JobLost(format!("{reason}: {}", explained(error)));
            thread.map_err(refuse)
        };
        let worker = |index| {
            let (shared, board) = (Arc::clone(&shared), Arc::clone(&board));
            start(format!("worker-{index}"), Box::new(move || run_or_abort(&shared, index, &board)))
        };
        let hand = |index| {
            let board = Arc::clone(&board);
            start(format!("hand-{index}"), Box::new(move || vital(|| board.serve())))
        };
        let threads = (0..workers).map(worker).collect::<Result<_, _>>()?;
        let hands = (0..hands).map(hand).collect::<Result<_, _>>()?;
        Ok(Self { shared, board, threads, hands, inline: None })
    }

    /// Starts a step for these owners, in this order.
    pub fn train(&self, owners: &[u32], standing: Standing) {
        self.shared.sum.begin(owners.len());
        self.put(Work::Train { owners: owners.to_vec(), standing });
    }

    /// Lets the workers run free.
    pub fn run_free(&self) {
        self.put(Work::Free);
        self.compute_free();
    }

    /// Without threads: computes the micro-batch that a free worker would take now. False where
    /// there is none, and where workers compute by themselves.
    pub fn compute_free(&self) -> bool {
        let (Some(worker), Some(free)) = (&self.inline, &self.shared.free) else { return false };
        let Some((turn, round)) = free.next_turn(Duration::ZERO) else { return false };
        self.perform_inline(worker, Item::Free { turn, round })
    }

    /// Without threads: computes some of what free workers compute while a round is summed.
    pub fn compute_beside(&self, standing: &Standing) {
        let some = seed::key(&[standing.step, u64::from(standing.rank)]) % BESIDE_BELOW;
        (0..some).take_while(|_| self.compute_free()).for_each(drop);
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

    /// Evaluates these ranges of the validation set, with these weights, and waits for the sums.
    /// `give_up`: as for `finish`; what is left then is not computed.
    pub fn evaluate(
        &self,
        ranges: Vec<(u64, u64)>,
        which: Which,
        give_up: impl FnMut() -> Option<TrainError>,
    ) -> Result<Totals, TrainError> {
        self.put(Work::Evaluate { ranges, which });
        let found = self.finish(give_up);
        if found.is_err() {
            self.put(Work::Nothing);
        }
        found
    }

    /// Waits until everything that was asked for is computed. A worker may wait long, for storage
    /// say: `give_up` is asked meanwhile, and what it returns ends the wait.
    pub fn finish(
        &self,
        mut give_up: impl FnMut() -> Option<TrainError>,
    ) -> Result<Totals, TrainError> {
        self.shared.pause.release();
        let mut job = self.board.lock();
        loop {
            if let Some(failure) = &job.failure {
                return Err(failure.clone());
            }
            let items = match &job.work {
                Work::Train { owners, .. } => owners.len(),
                Work::Evaluate { ranges, .. } => ranges.len(),
                Work::Nothing | Work::Stop | Work::Free => 0,
            };
            if job.next >= items && job.busy == 0 {
                return Ok(job.totals);
            }
            if let Some(end) = give_up() {
                return Err(end);
            }
            let waited = self.board.changed.wait_timeout(job, LOOK_EVERY);
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

    /// What reading took since the start.
    pub fn counts(&self) -> Counts {
        let counts = self.shared.loader.supply().tally.counts();
        // Real time has no place in a simulated run: it would not replay.
        if self.inline.is_some() { counts.timeless() } else { counts }
    }

    /// How far this rank's files are copied; nothing where none are.
    pub fn staged(&self) -> Progress {
        let staging = self.shared.loader.supply().staging.as_ref();
        staging.map_or_else(Progress::default, |staging| staging.progress())
    }

    /// How many work at the same time.
    pub fn workers(&self) -> usize {
        self.threads.len()
    }

    /// Ends the threads and waits for them.
    pub fn stop(&mut self) {
        self.put(Work::Stop);
        self.shared.outage.close();
        for thread in self.threads.drain(..).chain(self.hands.drain(..)) {
            // A worker that panicked has aborted the process: nothing to learn here.
            let _ = thread.join();
        }
    }

    fn put(&self, work: Work) {
        self.shared.pause.release();
        self.board.begin(work);
        self.work_inline();
    }

    /// A pool that computes whatever it is given before it returns, on the thread that gives it:
    /// for simulation, by something cheaper than the engine. What runs free is computed when
    /// somebody waits for it, and beside sums.
    pub fn inline(shared: Shared, compute: Box<dyn Compute + Send>) -> Self {
        let (shared, board) = (Arc::new(shared), Arc::new(Board::default()));
        let worker = Worker::new(Arc::clone(&shared), compute);
        let inline = Some(Mutex::new(worker));
        Self { shared, board, threads: Vec::new(), hands: Vec::new(), inline }
    }

    /// Without threads: computes everything that is to be done.
    fn work_inline(&self) {
        let Some(worker) = &self.inline else { return };
        // Every round takes one of the finitely many items of the work at hand.
        while let Some(item) = self.board.take_item() {
            if !self.perform_inline(worker, item) {
                return;
            }
        }
    }

    /// Whether it was performed; a failure is noted where a worker notes it.
    fn perform_inline(&self, worker: &Inline, item: Item) -> bool {
        let mut worker = worker.lock().unwrap_or_else(PoisonError::into_inner);
        let performed = worker.perform(item, &self.board);
        // Real time has no place in a simulated run: it would not replay.
        self.board.busy_micros.store(0, Ordering::Relaxed);
        let Err(failure) = performed else { return true };
        let mut job = self.board.lock();
        job.failure.get_or_insert(failure);
        job.busy = 0;
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::RwLock;
    use std::sync::atomic::AtomicU64;

    use super::*;
    use crate::cluster::comm::CommError;
    use crate::cluster::faults::Injector;
    use crate::cluster::resident::Slots;
    use crate::config::Config;
    use crate::data::loader::{Loader, LoaderOptions, Threads};
    use crate::data::sampler::Order;
    use crate::data::set::open::open;
    use crate::data::{Normalization, Split};
    use crate::engine::memory::limits::Limits;
    use crate::model::{catalogue, layout, parts};
    use crate::train::compute::gradient_sum::GradientSum;
    use crate::train::compute::outage::Outage;
    use crate::train::compute::pause::Pause;
    use crate::train::compute::worker::Rehearsal;

    /// What workers share who never come to anything.
    fn shared() -> Shared {
        let config: Config = toml::from_str("data = { format = \"synthetic\" }").unwrap();
        let graph = catalogue::build("mlp", [3, 8, 8], 2, 0.1).unwrap();
        let layout = Arc::new(layout::of(&graph));
        let options = LoaderOptions {
            threads: Threads::Fixed(0),
            prefetch: 0,
            steps: None,
            image_size: 8,
            channels: 3,
            augment: false,
            look: config.data.look(),
            normalization: Normalization::of(&config.data),
            seed: 1,
            bad_image: config.data.bad_image,
        };
        let set = open(&config.data, Split::Train, 1).unwrap();
        let order = Order::new(set.source.len(), 1, 1, 4).unwrap();
        let shape = parts::shape(&layout, &config);
        Shared {
            sum: GradientSum::new(&layout, 1),
            slots: Arc::new(RwLock::new(Slots::vacant(shape))),
            loader: Loader::new(set, order, options),
            evaluation: None,
            free: None,
            injector: Arc::new(Injector::none()),
            seed: 1,
            device: config.device.clone(),
            threads: 1,
            limits: Limits::none(),
            frozen: Vec::new(),
            accumulate: 1,
            label_smoothing: 0.0,
            rehearsal: Rehearsal::None,
            pause: Pause::default(),
            outage: Outage::new(config.data.patience.0),
            tries: AtomicU64::default(),
            ahead: Mutex::default(),
            expected: Mutex::default(),
            graph,
            layout,
        }
    }

    #[test]
    fn a_death_is_heard_of_while_a_worker_waits() {
        let pool = Pool::start(shared(), 0, 0).unwrap();
        let mut looks = 0;
        let found = pool.evaluate(vec![(0, 4)], Which::Trained, || {
            looks += 1;
            (looks > 2).then_some(TrainError::Comm(CommError::ProcFailed))
        });
        assert_eq!(found, Err(TrainError::Comm(CommError::ProcFailed)));
        assert!(pool.board.take_item().is_none(), "nobody begins what is not wanted");
        assert_eq!(pool.finish(|| None), Ok(Totals::default()));
    }
}
