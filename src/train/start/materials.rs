//! What a rank needs besides a communicator: data sets, model, worker threads, a place for its
//! state. It is made beside MPI's own start.

use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use crate::cluster::resident::{Ahead, Slots};
use crate::config::{Config, ExchangeKind};
use crate::data::loader::evaluation::Evaluation;
use crate::data::loader::{Loader, LoaderOptions, Threads};
use crate::data::sampler::Order;
use crate::data::set::{self, DataSet};
use crate::data::source::Source;
use crate::data::staging::porter::Porter;
use crate::data::tiers::supply::Supply;
use crate::data::view::mixing::Mixing;
use crate::data::{Normalization, Occasion};
use crate::engine::memory::limits::Limits;
use crate::engine::{self, Compute, Together};
use crate::model::{Graph, Layout, layout, parts};
use crate::observe::threads::explained;
use crate::run_folder;
use crate::train::TrainError;
use crate::train::compute::free_run::FreeRun;
use crate::train::compute::gradient_sum::GradientSum;
use crate::train::compute::outage::Outage;
use crate::train::compute::pause::Pause;
use crate::train::compute::pool::Pool;
use crate::train::compute::worker::{Rehearsal, Shared};
use crate::train::exchange::Exchange;
use crate::train::exchange::asynchronous::Asynchronous;
use crate::train::exchange::synchronous::Synchronous;
use crate::train::plan::{About, Facts, Plan, steps_total};
use crate::train::repair::restart::unread;
use crate::train::start::feasible;
use crate::train::start::sets::{self, Sets};
use crate::train::start::surroundings::{Entry, Surroundings};
use crate::train::state::slot_files::{Nameless, SlotFiles};
use crate::train::update::freeze;
use crate::train::update::optimizer::Optimizer;
use crate::train::update::schedule::{self, Length};

/// Decoded validation images kept in memory, at most.
const EVALUATION_CACHE_BYTES: u64 = 256 << 20;

/// Shortest wait for the checkpoint that a run ends with. It grows with `recovery.time_limit`, by
/// half of which guardians take a rank for hung.
const LAST_CHECKPOINT_MIN: Duration = Duration::from_secs(25);

/// Threads of the host of a card that keep its memory busy.
const HOST_THREADS_MAX: usize = 8;

/// Everything of a rank that needs no communicator.
pub struct Prepared {
    /// The run's constants.
    pub facts: Facts,
    /// What it is to do.
    pub plan: Plan,
    /// Where the state lives; vacant.
    pub slots: Arc<RwLock<Slots>>,
    /// Where it is to lie so that it outlives this process; `None`: in its memory.
    pub slot_files: Option<SlotFiles>,
    /// How gradients meet, with the worker threads running.
    pub exchange: Box<dyn Exchange + Send>,
    pub(super) graph: Graph,
    pub(super) layout: Arc<Layout>,
    /// The training set, and the validation set where there is one.
    pub sets: Vec<Arc<dyn Source>>,
}

impl Prepared {
    /// The slots may come to lie in one of these.
    pub fn foresee(&self, ahead: Ahead) {
        self.slots.write().unwrap_or_else(PoisonError::into_inner).foresee(ahead);
    }
}

/// What a rank is prepared from: read from files, or made up by a simulation.
pub struct Materials {
    /// Training samples.
    pub train: DataSet,
    /// Validation samples, where errors are measured.
    pub validation: Option<DataSet>,
    /// What they were opened for.
    pub occasion: Occasion,
    /// The model.
    pub graph: Graph,
    /// What computes micro-batches on the communicating thread; `None` = worker threads do.
    pub inline: Option<Box<dyn Compute + Send>>,
    /// What computes, as far as it decides bits.
    pub arithmetic: String,
    /// What the folders of this run are named after on the node: copies and cache.
    pub local: String,
    /// Copy workers that are processes.
    pub porters: Vec<Porter>,
}

impl Materials {
    /// Workers of this rank: no more threads than it has processors.
    fn workers(&self, config: &Config) -> u32 {
        match self.inline {
            Some(_) => config.train.workers,
            None => feasible::workers(config),
        }
    }

    /// Threads of each worker, and hands beside the workers. The host of a card, whose threads
    /// decide no bit, has as many as there are processors, up to those that memory keeps busy.
    fn threads(&self, config: &Config) -> (usize, usize) {
        if self.inline.is_some() || !engine::is_card(&config.device) {
            return (config.train.threads as usize, 0);
        }
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let workers = self.workers(config) as usize;
        let each = (processors / workers).clamp(1, HOST_THREADS_MAX);
        (each, processors.saturating_sub(workers).min(HOST_THREADS_MAX))
    }

    fn loader_options(&self, config: &Config, order: &Order) -> LoaderOptions {
        let is_in_step = config.train.exchange == ExchangeKind::Synchronous;
        LoaderOptions {
            threads: match self.inline {
                Some(_) => Threads::Fixed(0),
                None => Threads::of_rank(config.data.decode_threads, self.workers(config)),
            },
            prefetch: config.data.prefetch as usize,
            // Owners that run free do not all do as many.
            steps: steps_total(config, order).filter(|_| is_in_step),
            image_size: config.data.image_size,
            channels: self.train.source.channels(),
            augment: config.data.augment,
            look: config.data.look(),
            normalization: Normalization::of(&config.data),
            seed: config.run.seed,
            bad_image: config.data.bad_image,
        }
    }
}

/// What worker threads do before the first step. Nobody waits for a warm spare.
fn rehearsal(around: &Surroundings) -> Rehearsal {
    let train = &around.arguments.config.train;
    // Samples that most owners compute at a time; where there are fewer samples than owners, those
    // that have any have one.
    let owned = train.global_batch / u64::from(around.owners.max(1));
    let samples = (owned / u64::from(train.pieces())).max(1) as usize;
    match around.entry {
        Entry::Initial => Rehearsal::None,
        Entry::Newcomer | Entry::ColdSpare => Rehearsal::Compile(samples),
        Entry::WarmSpare => Rehearsal::Compute(samples),
    }
}

/// Opens the sets, builds the model, starts the worker threads, finds a place for the state.
///
/// # Errors
/// The sets cannot be had, or the run is one that cannot be trained.
fn prepare(around: &Surroundings, outage: &Outage) -> Result<Prepared, TrainError> {
    let config = &around.arguments.config;
    let sets = sets::await_data(around, outage)?;
    let model = feasible::model(config, &*sets.train.source, around.owners)?;
    let together = match around.entry {
        Entry::Initial => Together::WithOthers,
        _ => Together::Alone,
    };
    feasible::check_room(config, &model, &sets, around.owners, together)?;
    let Sets { train, validation, occasion } = sets;
    let feasible::Model { graph, arithmetic, .. } = model;
    // As `launch` calls the run: it removes what killed ranks leave.
    let run_dir = &around.arguments.run_dir;
    let run_dir = std::path::absolute(run_dir).unwrap_or_else(|_| run_dir.clone());
    let local = run_folder::id(&run_dir);
    let inline = None;
    let porters = around.take_porters();
    let materials =
        Materials { train, validation, occasion, graph, inline, arithmetic, local, porters };
    prepare_from(around, materials).and_then(|prepared| place_slots(around, prepared))
}

/// The part of it that reads nothing, which a simulation runs with materials of its own.
pub fn prepare_from(around: &Surroundings, materials: Materials) -> Result<Prepared, TrainError> {
    let config = &around.arguments.config;
    let order = Order::of(config, materials.train.source.len())?;
    let options = materials.loader_options(config, &order);
    let workers = materials.workers(config);
    let (threads, hands) = materials.threads(config);
    let Materials { train, validation, occasion, graph, inline, arithmetic, local, porters } =
        materials;
    let (seed, input, classes) = (config.run.seed, graph.input, train.source.classes().to_vec());
    let layout = Arc::new(layout::of(&graph));
    let frozen = freeze::frozen_in(config, &layout);
    let both = [Some(&train), validation.as_ref()].into_iter().flatten();
    let sets = both.map(|set| Arc::clone(&set.source)).collect::<Vec<_>>();
    let evaluation = validation.map(|set| Evaluation::new(set, &options, EVALUATION_CACHE_BYTES));
    let validation_samples = evaluation.as_ref().map_or(0, Evaluation::len);
    let facts = Facts {
        about: About::of(config, &layout, classes, input),
        run_id: around.run_id.clone(),
        config_fingerprint: around.fingerprint,
        data_fingerprint: train.source.fingerprint(),
        every: config.checkpoint.every,
        keep: config.checkpoint.keep,
        keep_best: config.checkpoint.keep_best > 0,
        mtbf: config.checkpoint.mtbf.0,
        last_limit: LAST_CHECKPOINT_MIN.max(config.recovery.time_limit.0 * 5 / 12),
        order: order.clone(),
    };
    let slots = Arc::new(RwLock::new(Slots::vacant(parts::shape(&layout, config))));
    let supply = Supply::of(config, train, &order, &local, porters, occasion);
    let shared = Shared {
        graph: graph.clone(),
        layout: Arc::clone(&layout),
        slots: Arc::clone(&slots),
        sum: gradient_sum(config, &layout, &frozen),
        loader: Loader::new(supply, order.clone(), options).mixing(Mixing::of(config)),
        evaluation,
        free: free_run(config, &layout, &order),
        injector: Arc::clone(&around.injector),
        seed,
        device: config.device.clone(),
        frozen,
        threads,
        limits: Limits::of(config, workers as usize),
        accumulate: config.train.pieces() as usize,
        label_smoothing: config.train.label_smoothing.unwrap_or(0.0) as f32,
        rehearsal: inline.as_ref().map_or_else(|| rehearsal(around), |_| Rehearsal::None),
        pause: Pause::default(),
        outage: Outage::new(config.data.patience.0),
        tries: AtomicU64::default(),
        ahead: Mutex::default(),
        expected: Mutex::default(),
    };
    let pool = match inline {
        Some(compute) => Pool::inline(shared, compute),
        None => Pool::start(shared, workers as usize, hands)?,
    };
    let set = set::identity(sets[0].as_ref(), sets.get(1).map(AsRef::as_ref));
    let plan = Plan::of(config, &order, validation_samples);
    let plan = Plan { workers, set, arithmetic, ..plan };
    let exchange = exchange(config, pool, order, &layout);
    Ok(Prepared { facts, plan, slots, slot_files: None, exchange, graph, layout, sets })
}

/// Frozen tensors are not reduced.
fn gradient_sum(config: &Config, layout: &Layout, frozen: &[bool]) -> GradientSum {
    let mut frozen = frozen.iter();
    let mut trained = layout.clone();
    trained.tensors.retain(|_| frozen.next() != Some(&true));
    GradientSum::new(&trained, config.train.bucket.0)
}

fn free_run(config: &Config, layout: &Layout, order: &Order) -> Option<Arc<FreeRun>> {
    let length = layout.parameters + layout.statistics;
    let (batch, decay) = (config.train.global_batch, config.optimizer.weight_decay);
    let free = || {
        let free = FreeRun::new(length, order.owners as usize, batch, decay);
        Arc::new(free.ending_with(steps_total(config, order)))
    };
    (config.train.exchange == ExchangeKind::Asynchronous).then(free)
}

fn exchange(
    config: &Config,
    pool: Pool,
    order: Order,
    layout: &Layout,
) -> Box<dyn Exchange + Send> {
    let length =
        Length { steps: steps_total(config, &order), steps_per_epoch: order.steps_per_epoch() };
    let schedule = config.schedule.clone();
    let (rate, batch) = (config.optimizer.learning_rate, config.train.global_batch);
    let rate = schedule::scaled_rate(&schedule, rate, batch);
    match config.train.exchange {
        ExchangeKind::Synchronous => {
            let frozen = &pool.shared.frozen;
            let optimizer = Optimizer::new(&config.optimizer, layout, frozen);
            Box::new(Synchronous::new(pool, optimizer, order, (schedule, rate), length))
        }
        ExchangeKind::Asynchronous => {
            let rates = (schedule, rate, config.optimizer.momentum);
            Box::new(Asynchronous::new(pool, order, rates, length))
        }
    }
}

/// Finds a place for the slots where they outlive this process. A newcomer takes its own only when
/// it knows which state it needs.
///
/// # Errors
/// Nobody knows which state an earlier attempt left.
fn place_slots(around: &Surroundings, mut prepared: Prepared) -> Result<Prepared, TrainError> {
    let Surroundings { arguments, storage, .. } = around;
    let recovery = &arguments.config.recovery;
    let starts = around.entry == Entry::Initial;
    let slot_files = SlotFiles::of(recovery, &arguments.run_dir, storage.as_ref(), &prepared.facts);
    prepared.slot_files = match slot_files {
        Ok(slot_files) => slot_files,
        Err(Nameless::Unread(error)) if starts => {
            return Err(unread(format!(
                "{error}; -s recovery.resident=off goes on from the checkpoint"
            )));
        }
        Err(reason) => {
            tracing::warn!("{reason}");
            None
        }
    };
    if let Some(slot_files) = prepared.slot_files.as_ref().filter(|_| starts) {
        let mut slots = prepared.slots.write().unwrap_or_else(PoisonError::into_inner);
        if let Err(reason) = slot_files.make_file(&mut slots) {
            tracing::warn!("{reason}");
        }
    }
    Ok(prepared)
}

/// Being prepared: in a thread of its own, which is started once; or made already.
#[derive(Default)]
pub struct Preparation<'scope> {
    /// While the data set is away.
    outage: Option<Arc<Outage>>,
    start: Option<Box<dyn FnOnce() -> Begun<'scope> + 'scope>>,
    thread: Option<Begun<'scope>>,
    made: Option<Box<Result<Prepared, TrainError>>>,
    slots: Option<Arc<RwLock<Slots>>>,
}

type Begun<'scope> = io::Result<ScopedJoinHandle<'scope, Result<Prepared, TrainError>>>;

impl<'scope> Preparation<'scope> {
    /// A thread of this scope is to do it.
    pub(super) fn beside<'env>(
        scope: &'scope Scope<'scope, 'env>,
        around: &'env Surroundings,
    ) -> Self {
        let outage = Arc::new(Outage::new(around.arguments.config.data.patience.0));
        let closes = Some(Arc::clone(&outage));
        let start = move || {
            let thread = std::thread::Builder::new().name("prepare".into());
            thread.spawn_scoped(scope, move || prepare(around, &outage))
        };
        Self { outage: closes, start: Some(Box::new(start)), ..Self::default() }
    }

    /// A simulation has made it.
    pub fn made(prepared: Result<Prepared, TrainError>) -> Self {
        Self { made: Some(Box::new(prepared)), ..Self::default() }
    }

    /// Begins it, unless it was begun.
    pub(super) fn begin(&mut self) {
        if let Some(start) = self.start.take() {
            self.thread = Some(start());
        }
    }

    /// Begins it if need be; from here on others wait for it: a data set that is away is an error.
    pub(super) fn hurry(&mut self) {
        self.outage.iter().for_each(|outage| outage.close());
        self.begin();
    }

    /// Waits for its end.
    pub(super) fn finish(&mut self) -> Result<Prepared, TrainError> {
        self.begin();
        let joined = |thread: Begun<'scope>| match thread {
            Ok(thread) => thread.join().ok(),
            Err(error) => {
                let error = explained(error);
                Some(Err(TrainError::JobLost(format!("nothing can be prepared: {error}"))))
            }
        };
        let made = self.made.take().map(|made| *made);
        let panicked =
            || TrainError::Internal("preparing the run panicked; see the message above".into());
        let prepared = made.or_else(|| joined(self.thread.take()?));
        let prepared = prepared.unwrap_or_else(|| Err(panicked()))?;
        self.slots = Some(Arc::clone(&prepared.slots));
        Ok(prepared)
    }

    /// Where the state lives, once this was finished.
    pub(super) fn slots(&self) -> Option<&RwLock<Slots>> {
        self.slots.as_deref()
    }
}
