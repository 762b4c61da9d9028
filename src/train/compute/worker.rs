//! One worker: owns an engine, takes owners' micro-batches of the current step (or parts of the
//! validation set), and adds what it computed to the rank's sums. It never sees a communicator. A
//! panic in one ends the whole process: never a rank with a dead worker.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Instant;

use crate::cluster::faults::{Injector, Standing};
use crate::cluster::guard::report;
use crate::cluster::resident::Slots;
use crate::config::{Device, FaultKind, Point};
use crate::data::Batch;
use crate::data::loader::Loader;
use crate::data::loader::evaluation::Evaluation;
use crate::engine::memory::expected::Expected;
use crate::engine::memory::limits::Limits;
use crate::engine::{self, Compute, Flat, Passing, Seat, Targets, Watch};
use crate::model::parts::{PARAMETERS, STATISTICS};
use crate::model::spec::elements;
use crate::model::{Graph, Layout};
use crate::observe::panics::vital;
use crate::train::TrainError;
use crate::train::compute::accumulate::{Accumulator, MicroBatch, alone};
use crate::train::compute::board::{Board, Item};
use crate::train::compute::committed::{Committed, Which, flat};
use crate::train::compute::free_run::{FreeRun, Round, Turn};
use crate::train::compute::gradient_sum::GradientSum;
use crate::train::compute::moments::Moments;
use crate::train::compute::outage::Outage;
use crate::train::compute::pause::Pause;
use crate::train::compute::totals::Totals;

/// Share of a whole global batch in the running statistics, as in batch norm's own momentum.
const STATISTICS_SHARE: f32 = 0.1;

/// What a worker needs, shared by all of a rank.
pub struct Shared {
    /// The model.
    pub graph: Graph,
    /// Where its tensors lie.
    pub layout: Arc<Layout>,
    /// State of the committed step; workers only read.
    pub slots: Arc<RwLock<Slots>>,
    /// Where gradients go.
    pub sum: GradientSum,
    /// Training samples.
    pub loader: Loader,
    /// Validation samples.
    pub evaluation: Option<Evaluation>,
    /// Of the asynchronous exchange.
    pub free: Option<Arc<FreeRun>>,
    /// Fault injection.
    pub injector: Arc<Injector>,
    /// `run.seed`.
    pub seed: u64,
    /// What computes.
    pub device: Device,
    /// Tensors of the layout, by their number, that are not trained (`model.freeze`).
    pub frozen: Vec<bool>,
    /// OpenMP threads of each worker.
    pub threads: usize,
    /// What each may hold of the near tier of memory.
    pub limits: Limits,
    /// Pieces that a micro-batch is computed in (`train.accumulate`).
    pub accumulate: usize,
    /// `train.label_smoothing`
    pub label_smoothing: f32,
    /// What every worker does before it is needed.
    pub rehearsal: Rehearsal,
    /// While the world is repaired.
    pub pause: Pause,
    /// While storage does not answer.
    pub outage: Outage,
    /// How often a step was given up that all compute anew: engines keep nothing of its weights.
    pub tries: AtomicU64,
    /// Micro-batches that were taken before they were wanted: whoever wants one first gets it.
    pub ahead: Mutex<BTreeMap<(u64, u32), Samples>>,
    /// What micro-batches are expected to take, and took, that nobody has told yet.
    pub expected: Mutex<Vec<Expected>>,
}

impl Shared {
    /// What the samples of a micro-batch are to be taken for.
    fn targets<'a>(&self, batch: &'a Batch) -> Targets<'a> {
        let mixed = batch.mixed.as_ref();
        let partners = mixed.map(|mixed| (mixed.partners.as_slice(), mixed.share));
        Targets { labels: &batch.labels, partners, smoothing: self.label_smoothing }
    }

    /// The owner's micro-batch of that step, however long its files take.
    fn batch(&self, step: u64, owner: u32) -> Result<Batch, TrainError> {
        report::loading(|| {
            let (begun, tally) = (Instant::now(), &self.loader.supply().tally);
            let ready = |limit| self.loader.wait_staged(step, owner, limit);
            let mut before = None;
            let nearer = || {
                let progress = self.loader.supply().staging.as_ref()?.progress();
                let moved = before.replace(progress.bytes) != Some(progress.bytes);
                moved.then_some(progress)
            };
            self.outage.stand_by(ready, nearer)?;
            tally.stood_for_staging(begun.elapsed());
            let begun = Instant::now();
            let batch = self.outage.patiently(|| self.loader.take(step, owner));
            tally.stood_for_batch(begun.elapsed());
            batch
        })
    }
}

/// What makes a replacement's first micro-batch, of so many samples, come sooner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rehearsal {
    /// Everybody begins together: nobody is waited for.
    None,
    /// Programs are compiled.
    Compile(usize),
    /// One is computed for nothing: memory is present, too.
    Compute(usize),
}

/// A worker thread, of that number: works until the pool stops. A panic ends the process.
pub fn run_or_abort(shared: &Arc<Shared>, number: usize, board: &Board) {
    vital(|| {
        if let Err(failure) = run_worker(shared, number, board) {
            let mut job = board.lock();
            job.failure.get_or_insert(failure);
            job.busy = 0;
            board.changed.notify_all();
        }
    });
}

fn run_worker(shared: &Arc<Shared>, number: usize, board: &Board) -> Result<(), TrainError> {
    let Shared { device, graph, frozen, threads, limits, .. } = &**shared;
    let seat = Seat { worker: number, threads: *threads };
    let engine = engine::open_within(device, graph, frozen, seat, limits)?;
    let mut worker = Worker::new(Arc::clone(shared), engine);
    match shared.rehearsal {
        Rehearsal::None => {}
        Rehearsal::Compile(samples) => worker.engine.prepare(samples)?,
        Rehearsal::Compute(samples) => worker.rehearse(samples)?,
    }
    while let Some(item) = board.await_item(shared.free.as_deref()) {
        report::progress();
        match worker.perform(item, board) {
            Err(TrainError::Closed) => return Ok(()),
            other => other?,
        }
    }
    Ok(())
}

/// Lets planned faults strike where an engine copies and computes again.
fn struck(injector: &Arc<Injector>, standing: &Arc<Mutex<Standing>>) -> Watch {
    let (injector, standing) = (Arc::clone(injector), Arc::clone(standing));
    Box::new(move |passing| {
        let point = match passing {
            Passing::SwapOut => Point::InSwapOut,
            Passing::SwapIn => Point::InSwapIn,
            Passing::Recompute => Point::InRecompute,
        };
        let standing = *standing.lock().unwrap_or_else(PoisonError::into_inner);
        // Who rehearses stands nowhere.
        if standing.ranks > 0 {
            injector.at(point, &standing);
        }
    })
}

/// One worker thread's own things.
pub struct Worker<E: ?Sized> {
    shared: Arc<Shared>,
    engine: Box<E>,
    statistics: Vec<f32>,
    accumulator: Accumulator,
    moments: Moments,
    /// A micro-batch's.
    sums: Vec<f64>,
    /// The committed step whose weights the engine holds, which, and since which try.
    loaded: Option<(u64, Which, u64)>,
    /// Free running: -γ g of the micro-batch at hand.
    change: Vec<f32>,
    /// The micro-batch that it computed first in this step.
    first: Option<(u64, u32)>,
    /// Where it stands, for what strikes within the engine.
    standing: Arc<Mutex<Standing>>,
}

/// An owner's micro-batch, whose pictures an engine may hold as well.
pub struct Samples {
    batch: Batch,
    images: Arc<Vec<f32>>,
}

impl Samples {
    fn new(mut batch: Batch) -> Self {
        let images = Arc::new(std::mem::take(&mut batch.images));
        Self { batch, images }
    }

    /// With its memory, unless an engine still has that.
    fn used(self) -> Batch {
        Batch { images: Arc::try_unwrap(self.images).unwrap_or_default(), ..self.batch }
    }
}

impl<E: Compute + ?Sized> Worker<E> {
    /// It holds no weights yet.
    pub fn new(shared: Arc<Shared>, mut engine: Box<E>) -> Self {
        let standing = Arc::new(Mutex::new(Standing::default()));
        engine.watch(struck(&shared.injector, &standing));
        let (statistics, sums) =
            (vec![0.0; shared.layout.statistics], vec![0.0; shared.layout.statistics]);
        let (loaded, change, first) = (None, Vec::new(), None);
        let moments = Moments::of(&shared.graph, &shared.layout, &shared.frozen);
        let accumulator = Accumulator::new(moments.clone());
        Self {
            shared,
            engine,
            statistics,
            accumulator,
            moments,
            sums,
            loaded,
            change,
            first,
            standing,
        }
    }

    /// A micro-batch of zeros whose results nobody gets.
    fn rehearse(&mut self, samples: usize) -> Result<(), TrainError> {
        self.engine.prepare(samples)?;
        let Layout { parameters, statistics, .. } = *self.shared.layout;
        let (parameters, statistics) = (vec![0.0; parameters], vec![0.0; statistics]);
        let weights = &Flat { parameters: &parameters, statistics: &statistics };
        let images = vec![0.0; samples * elements(self.shared.graph.input)];
        let labels = vec![0; samples];
        let nothing = &mut |_: usize, _: &[f32]| {};
        let key = [0; 3];
        self.engine.train(
            &images,
            (&labels).into(),
            key,
            weights,
            &mut self.statistics,
            nothing,
        )?;
        Ok(())
    }

    /// Does what an item asks for and counts it.
    pub fn perform(&mut self, item: Item, board: &Board) -> Result<(), TrainError> {
        let mut totals = Totals::default();
        let job = match item {
            Item::Train { job, owner, standing } => {
                let began = Instant::now();
                self.train(owner, &standing, &mut totals, board)?;
                self.tell_expected();
                let micros = began.elapsed().as_micros() as u64;
                board.busy_micros.fetch_add(micros, Ordering::Relaxed);
                job
            }
            Item::Evaluate { job, first, count, which } => {
                self.evaluate(first, count, which, &mut totals)?;
                job
            }
            Item::Free { turn, round } => {
                self.run_free(turn, &round, board)?;
                self.tell_expected();
                return Ok(());
            }
            Item::Chore(chore) => {
                board.do_chore(chore);
                return Ok(());
            }
        };
        board.done(job, &totals);
        Ok(())
    }

    fn tell_expected(&mut self) {
        let expected = self.engine.take_expected();
        if !expected.is_empty() {
            let all = self.shared.expected.lock();
            all.unwrap_or_else(PoisonError::into_inner).extend(expected);
        }
    }

    /// Forgets the weights of another step than the committed one, whose are to be computed with.
    fn turn_to(&mut self, step: u64, which: Which) {
        let wanted = Some((step, which, self.shared.tries.load(Ordering::Relaxed)));
        if self.loaded != wanted {
            self.engine.renew();
            self.loaded = wanted;
        }
    }

    /// What was computed may have mixed two steps: nothing of it is used again.
    fn let_go(&mut self, weights: &Committed<'_>) {
        if weights.passed() {
            self.loaded = None;
        }
    }

    /// Reads the committed weights in one go, for a micro-batch during which others are committed.
    fn load_at_once(&mut self, samples: usize) -> Result<(), TrainError> {
        let shared = Arc::clone(&self.shared);
        let slots = shared.slots.read().unwrap_or_else(PoisonError::into_inner);
        let committed = slots.committed();
        self.turn_to(committed.step, Which::Trained);
        Ok(self.engine.load(samples, &flat(&committed, Which::Trained))?)
    }

    fn evaluate(
        &mut self,
        first: u64,
        count: u64,
        which: Which,
        totals: &mut Totals,
    ) -> Result<(), TrainError> {
        let set = self.shared.evaluation.as_ref();
        let set = set.expect("only runs with a validation set evaluate");
        let read = || self.shared.outage.patiently(|| set.batch(first, count));
        let batch = report::loading(read)?;
        totals.count = batch.count;
        (totals.skipped, totals.altered) = (batch.skipped, batch.altered);
        totals.contents = batch.contents;
        let shared = Arc::clone(&self.shared);
        let weights = Committed::now(&shared.slots).of(which);
        self.turn_to(weights.step(), which);
        totals.add_outcome(&self.engine.infer(&batch.images, &batch.labels, &weights, None)?);
        self.let_go(&weights);
        Ok(())
    }

    /// The owner's micro-batch of that step. A device that takes pictures while it computes is told
    /// of those that this worker will be given next, as far as it can be known and they are whole.
    fn samples(&mut self, of: (u64, u32), board: &Board) -> Result<Samples, TrainError> {
        let (step, owner) = of;
        let shared = Arc::clone(&self.shared);
        let ahead = || shared.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = ahead().remove(&of);
        let samples = match taken {
            Some(samples) => samples,
            None => Samples::new(shared.batch(step, owner)?),
        };
        if !engine::is_card(&shared.device) || shared.accumulate > 1 {
            return Ok(samples);
        }
        let first = self.first.filter(|first| first.0 == step).unwrap_or(of);
        self.first = Some(first);
        let next = board.next_owner().map_or((step + 1, first.1), |owner| (step, owner));
        // What could not be read is read again when it is wanted, and told then.
        if let Some(Ok(batch)) = shared.loader.take_ready(next.0, next.1) {
            let samples = Samples::new(batch);
            self.engine.foresee(&samples.images);
            let mut all = ahead();
            all.insert(next, samples);
            // Those of other ranks' owners, since the last repair.
            all.retain(|&(of, _), _| of >= step);
        }
        Ok(samples)
    }

    fn train(
        &mut self,
        owner: u32,
        standing: &Standing,
        totals: &mut Totals,
        board: &Board,
    ) -> Result<(), TrainError> {
        let shared = Arc::clone(&self.shared);
        let samples = self.samples((standing.step, owner), board)?;
        let batch = &samples.batch;
        board.begun.fetch_add(1, Ordering::Relaxed);
        totals.count = batch.count;
        (totals.skipped, totals.altered) = (batch.skipped, batch.altered);
        (totals.mix, totals.contents) = (batch.mix, batch.contents);
        totals.alone = alone(batch.labels.len(), shared.accumulate);
        shared.sum.count(totals.computed(), totals.alone);
        *self.standing.lock().unwrap_or_else(PoisonError::into_inner) = *standing;
        let poison = shared.injector.at(Point::InForward, standing) == Some(FaultKind::Nan);
        let key = [shared.seed, standing.step, u64::from(owner)];
        let mut first = true;
        let mut ready = |offset: usize, gradients: &[f32]| {
            if std::mem::take(&mut first) {
                shared.injector.at(Point::InBackward, standing);
            }
            shared.pause.pass();
            if poison {
                shared.sum.add(offset, &vec![f32::NAN; gradients.len()]);
            } else {
                shared.sum.add(offset, gradients);
            }
        };
        let weights = Committed::now(&shared.slots);
        self.turn_to(weights.step(), Which::Trained);
        let Self { engine, sums, accumulator, .. } = self;
        let (images, targets) = (&samples.images[..], shared.targets(batch));
        let (given, pieces) = (MicroBatch { images, targets, key }, shared.accumulate);
        let outcome =
            accumulator.train(&mut **engine, given, pieces, &weights, sums, &mut ready)?;
        self.let_go(&weights);
        shared.loader.give_back(samples.used());
        totals.add_outcome(&outcome);
        shared.sum.add_statistics(&self.sums);
        Ok(())
    }

    /// One micro-batch of Algorithm 1's GPU thread: g, then Δw <- Δw - γ g.
    fn run_free(&mut self, turn: Turn, round: &Round, board: &Board) -> Result<(), TrainError> {
        let shared = Arc::clone(&self.shared);
        let standing = &round.standing;
        let free = shared.free.as_ref().expect("only asynchronous runs run free");
        let batch = shared.batch(turn.batch, turn.owner)?;
        let mut totals = Totals::default();
        (totals.count, totals.skipped, totals.mix) = (batch.count, batch.skipped, batch.mix);
        *self.standing.lock().unwrap_or_else(PoisonError::into_inner) = *standing;
        shared.injector.at(Point::InForward, standing);
        self.load_at_once(batch.labels.len())?;
        board.begun.fetch_add(1, Ordering::Relaxed);
        let weights = Committed::now(&shared.slots);
        let gamma = (round.learning_rate / free.global_batch as f64) as f32;
        let change = &mut self.change;
        change.resize(shared.layout.parameters, 0.0);
        let mut ready = |offset: usize, gradients: &[f32]| {
            for (change, g) in change[offset..].iter_mut().zip(gradients) {
                *change = -gamma * g;
            }
        };
        let key = [shared.seed, turn.batch, u64::from(turn.owner)];
        let statistics = &mut self.statistics;
        let (images, targets) = (&batch.images, shared.targets(&batch));
        let outcome = self.engine.train(images, targets, key, &weights, statistics, &mut ready)?;
        shared.loader.give_back(batch);
        shared.injector.at(Point::InBackward, standing);
        totals.add_outcome(&outcome);
        let slots = shared.slots.read().unwrap_or_else(PoisonError::into_inner);
        let committed = slots.committed();
        let share = outcome.samples as f32;
        if free.weight_decay > 0.0 {
            let decay = gamma * share * free.weight_decay;
            for (change, w) in self.change.iter_mut().zip(committed.part(PARAMETERS)) {
                *change -= decay * w;
            }
        }
        let weight = STATISTICS_SHARE * share / free.global_batch as f32;
        let (samples, running) = (outcome.samples as usize, committed.part(STATISTICS));
        self.moments.towards(&mut self.statistics, samples, running);
        for (statistic, running) in self.statistics.iter_mut().zip(running) {
            *statistic = weight * (*statistic - running);
        }
        drop(slots);
        free.add(turn, &self.change, &self.statistics, &totals);
        Ok(())
    }
}
