//! From a configuration to a rank that can train: what is read and built before the first step.
//! Split so that the part that needs no communicator runs beside MPI's own start.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use kintsugi_ffi::cgroup;

use crate::cluster::comm::{CommError, Communicator, Membership};
use crate::cluster::faults::Injector;
use crate::cluster::processors::places::Wish;
use crate::cluster::resident::{Ahead, SlotView, Slots};
use crate::cluster::wire;
use crate::cluster::world::{Member, Role, World};
use crate::config::{Config, ExchangeKind, Resident};
use crate::data::Normalization;
use crate::data::evaluation::Evaluation;
use crate::data::loader::{Loader, LoaderOptions, Threads};
use crate::data::mixing::Mixing;
use crate::data::sampler::Order;
use crate::data::set::{self, DataSet};
use crate::data::source::Source;
use crate::data::staging::porter::Porter;
use crate::data::supply::Supply;
use crate::engine::{self, Compute};
use crate::model::{Graph, Layout, catalogue, init, layout};
use crate::needs::{Load, needs};
use crate::observe::ledger::{self, Entry};
use crate::observe::storage::Storage;
use crate::run_folder;

use crate::model::parts;
use crate::train::TrainError;
use crate::train::checkpoint::{Expectation, Fitted, Snapshot, newest_verified};
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
use crate::train::repair::take_over::hand_to_all;
use crate::train::start::patience::Sets;
use crate::train::start::{effect, few, initial};
use crate::train::state::position::Position;
use crate::train::state::replica::Replica;
use crate::train::state::slot_files::SlotFiles;
use crate::train::update::freeze::{self, check_freeze};
use crate::train::update::optimizer::Optimizer;
use crate::train::update::schedule;

/// Decoded validation images kept in memory, at most.
const EVALUATION_CACHE_BYTES: u64 = 256 << 20;

/// Shortest wait for the checkpoint that a run ends with. It grows with `recovery.time_limit`, by
/// half of which guardians take a rank for hung.
const LAST_CHECKPOINT_MIN: Duration = Duration::from_secs(25);

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
    graph: Graph,
    layout: Arc<Layout>,
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
    /// The model.
    pub graph: Graph,
    /// What computes micro-batches on the communicating thread; `None` = worker threads do.
    pub inline: Option<Box<dyn Compute + Send>>,
    /// What computes, as far as it decides bits.
    pub arithmetic: String,
    /// Who is to use it.
    pub part: Purpose,
    /// What the folders of this run are named after on the node: copies and cache.
    pub local: String,
    /// Copy workers that are processes.
    pub porters: Vec<Porter>,
}

impl Materials {
    /// Workers of this rank: no more threads than it has processors.
    fn workers(&self, config: &Config) -> u32 {
        let processors = std::thread::available_parallelism().map_or(1, usize::from) as u32;
        match self.inline {
            Some(_) => config.train.workers,
            None => Wish::of(config, 1).workers_on(processors),
        }
    }

    fn loader_options(&self, config: &Config) -> LoaderOptions {
        LoaderOptions {
            threads: match self.inline {
                Some(_) => Threads::Fixed(0),
                None => Threads::of_rank(config.data.decode_threads, self.workers(config)),
            },
            prefetch: config.data.prefetch as usize,
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

/// What a process is prepared for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A rank from the start.
    FirstBorn,
    /// To replace a rank that is dead already: every millisecond is waited for.
    Replacement,
    /// To replace one that may die: time is plenty.
    WarmSpare,
}

impl Purpose {
    fn rehearsal(self, samples: usize) -> Rehearsal {
        match self {
            Self::FirstBorn => Rehearsal::None,
            Self::Replacement => Rehearsal::Compile(samples),
            Self::WarmSpare => Rehearsal::Compute(samples),
        }
    }
}

/// Samples that most owners compute at a time; where there are fewer samples than owners, those
/// that have any have one.
fn micro_batch(config: &Config, owners: u32) -> usize {
    let owned = config.train.global_batch / u64::from(owners.max(1));
    (owned / u64::from(config.train.pieces())).max(1) as usize
}

/// Builds the model for the sets, starts the worker threads.
pub fn prepare(
    (config, run_dir): (&Config, &Path),
    (sets, porters): (Sets, Vec<Porter>),
    run_id: &str,
    config_fingerprint: u64,
    owners: u32,
    injector: &Arc<Injector>,
    part: Purpose,
) -> Result<Prepared, TrainError> {
    let Sets { train, validation } = sets;
    let size = config.data.image_size as usize;
    let input = [train.source.channels() as usize, size, size];
    let classes = train.source.classes().len();
    let graph = catalogue::build(&config.model.found_name(), input, classes, config.model.width)
        .map_err(|error| TrainError::Configuration(error.to_string()))?;
    let model = (&graph, &layout::of(&graph));
    let load = Load { ranks: 1, samples: train.source.len(), planned: None };
    let need = needs(config, model, load);
    let refusal = cgroup::total_memory_bytes().and_then(|memory| need.refusal(memory));
    refusal.map_or(Ok(()), |reason| Err(TrainError::Configuration(reason)))?;
    check_freeze(model.1, &config.model.freeze)
        .map_err(|error| TrainError::Configuration(error.to_string()))?;
    let refusal = effect::refusal(config, model.1)
        .or_else(|| few::refusal(config, model, (train.source.len(), owners)));
    refusal.map_or(Ok(()), |reason| Err(TrainError::Configuration(reason)))?;
    // As `launch` calls the run: it removes what killed ranks leave.
    let run_dir = std::path::absolute(run_dir).unwrap_or_else(|_| run_dir.to_owned());
    let local = run_folder::id(&run_dir);
    let (inline, arithmetic) = (None, engine::arithmetic());
    let materials =
        Materials { train, validation, graph, inline, arithmetic, part, local, porters };
    prepare_from(materials, config, run_id, config_fingerprint, owners, injector)
}

/// The part of `prepare` that reads nothing.
pub fn prepare_from(
    materials: Materials,
    config: &Config,
    run_id: &str,
    config_fingerprint: u64,
    owners: u32,
    injector: &Arc<Injector>,
) -> Result<Prepared, TrainError> {
    let (options, workers) = (materials.loader_options(config), materials.workers(config));
    let Materials { train, validation, graph, inline, arithmetic, part, local, porters } =
        materials;
    let (seed, input, classes) = (config.run.seed, graph.input, train.source.classes().to_vec());
    let layout = Arc::new(layout::of(&graph));
    let order = Order::of(config, train.source.len())?;
    let frozen = freeze::frozen_in(config, &layout);
    let both = [Some(&train), validation.as_ref()].into_iter().flatten();
    let sets = both.map(|set| Arc::clone(&set.source)).collect::<Vec<_>>();
    let evaluation = validation.map(|set| Evaluation::new(set, &options, EVALUATION_CACHE_BYTES));
    let validation_samples = evaluation.as_ref().map_or(0, Evaluation::len);
    let facts = Facts {
        about: About::of(config, &layout, classes, input),
        run_id: run_id.to_string(),
        config_fingerprint,
        data_fingerprint: train.source.fingerprint(),
        set: set::identity(sets[0].as_ref(), sets.get(1).map(AsRef::as_ref)),
        arithmetic,
        every: config.checkpoint.every,
        keep: config.checkpoint.keep,
        mtbf: config.checkpoint.mtbf.0,
        last_limit: LAST_CHECKPOINT_MIN.max(config.recovery.time_limit.0 * 5 / 12),
        order: order.clone(),
    };
    let slots = Arc::new(RwLock::new(Slots::vacant(parts::shape(&layout, config))));
    let supply = Supply::of(config, train, &order, (&local, porters));
    let shared = Shared {
        graph: graph.clone(),
        layout: Arc::clone(&layout),
        slots: Arc::clone(&slots),
        sum: gradient_sum(config, &layout, &frozen),
        loader: Loader::new(supply, order.clone(), options).mixing(Mixing::of(config)),
        evaluation,
        free: free_run(config, &layout, &order),
        injector: Arc::clone(injector),
        seed,
        device: config.device.clone(),
        frozen,
        threads: config.train.threads as usize,
        accumulate: config.train.pieces() as usize,
        label_smoothing: config.train.label_smoothing.unwrap_or(0.0) as f32,
        rehearsal: part.rehearsal(micro_batch(config, owners)),
        pause: Pause::default(),
        outage: Outage::new(config.data.patience.0),
    };
    let pool = match inline {
        Some(compute) => Pool::inline(shared, compute),
        None => Pool::start(shared, workers as usize)?,
    };
    let plan = Plan { workers, ..Plan::of(config, &order, validation_samples) };
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
    let steps_total = steps_total(config, &order);
    let schedule = config.schedule.clone();
    let (rate, batch) = (config.optimizer.learning_rate, config.train.global_batch);
    let rate = schedule::scaled_rate(&schedule, rate, batch);
    match config.train.exchange {
        ExchangeKind::Synchronous => {
            let frozen = &pool.shared.frozen;
            let optimizer = Optimizer::new(&config.optimizer, layout, frozen);
            Box::new(Synchronous::new(pool, optimizer, order, (schedule, rate), steps_total))
        }
        ExchangeKind::Asynchronous => {
            let rates = (schedule, rate, config.optimizer.momentum);
            Box::new(Asynchronous::new(pool, order, rates, steps_total))
        }
    }
}

/// Host names travel in so many words.
const HOST_WORDS: usize = 8;

/// The world of a fresh start: everybody, spares included, tells pid and host. Member numbers go on
/// from the ones that earlier attempts used.
pub fn gather_world(
    comm: &mut dyn Membership,
    attempt: u32,
    owners: u32,
    next_member: u32,
    identity: &(u32, String),
) -> Result<World, CommError> {
    let mut words = vec![u64::from(identity.0), u64::from(next_member), u64::from(attempt)];
    words.extend(wire::of_text::<HOST_WORDS>(&identity.1));
    let all = comm.introduce(&words)?;
    let ranks = comm.ranks();
    // The numbers of rank 0 count: it is the one that read the run directory.
    let (first, attempt) = (all[1] as u32, all[2] as u32);
    let mut hosts: Vec<String> = Vec::new();
    let members = all.chunks_exact(words.len()).enumerate().map(|(rank, words)| {
        let host = wire::to_text(&words[3..]);
        let known = hosts.iter().position(|known| *known == host);
        let node = known.unwrap_or_else(|| {
            hosts.push(host.clone());
            hosts.len() - 1
        });
        Member {
            member: first + rank as u32,
            rank: rank as u32,
            role: if rank < ranks { Role::Active } else { Role::Spare },
            pid: words[0] as u32,
            host,
            node: node as u32,
        }
    });
    Ok(World::initial(attempt, members.collect(), owners))
}

/// Where the run goes on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    /// First weights.
    Scratch,
    /// A verified checkpoint.
    Checkpoint,
    /// State that outlived the processes of an earlier attempt.
    Resident,
}

impl From {
    /// In events and results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Scratch => "scratch",
            Self::Checkpoint => "checkpoint",
            Self::Resident => "resident",
        }
    }
}

/// Gives every rank the state that this attempt goes on from: what outlived the last one, else
/// rank 0's newest verified checkpoint, else first weights (a pure function of the seed). Nothing
/// enters the slots before it is known which: an attempt that dies meanwhile loses nothing. Also
/// what there is to say of first weights.
pub fn begin(
    comm: &mut dyn Communicator,
    replica: &mut Replica,
    prepared: &Prepared,
    config: &Config,
    storage: &dyn Storage,
    world: &World,
) -> Result<(From, Vec<String>), TrainError> {
    let resident = config.recovery.resident == Resident::On;
    if resident && crate::train::repair::restart::from_resident(comm, replica, storage, world)? {
        return Ok((From::Resident, Vec::new()));
    }
    replica.settle(world, comm.rank());
    let mut found = None;
    if comm.rank() == 0 {
        found = find_checkpoint(prepared, storage)?;
    }
    let told = comm.all_gather_u64(&[u64::from(found.is_some())])?;
    if told[0] == 0 {
        return Ok((From::Scratch, scratch(replica, prepared, config)?));
    }
    if let Some(snapshot) = found {
        let shape = parts::shape(&prepared.layout, config);
        let state = snapshot.slot(shape, &[]).map_err(|part| {
            let text = format!(
                "the newest checkpoint holds no \"{part}\", which this run's optimizer needs: an \
                 earlier release wrote it; start anew with --fresh"
            );
            TrainError::Configuration(text)
        })?;
        let entries = ledger::of_storage(storage).map_err(unread)?;
        let samples = prepared.facts.order.samples;
        replica.begin_with(state, position_of(&snapshot, &entries, samples));
    }
    hand_to_all(comm, replica, 0, world)?;
    Ok((From::Checkpoint, Vec::new()))
}

fn find_checkpoint(
    prepared: &Prepared,
    storage: &dyn Storage,
) -> Result<Option<Snapshot>, TrainError> {
    let facts = &prepared.facts;
    let expectation = Expectation {
        layout: Arc::clone(&prepared.layout),
        model_name: facts.about.model_name.clone(),
        config_fingerprint: Some(facts.config_fingerprint),
        data_fingerprint: Some(facts.data_fingerprint),
        run_id: None,
    };
    newest_verified(storage, &expectation).map_err(|error| match error.is_passing() {
        true => TrainError::JobLost(format!("{error}; none is marked: start again")),
        false => TrainError::Configuration(error.to_string()),
    })
}

/// The ledger knows how many samples of the epoch at hand were skipped.
fn position_of(snapshot: &Snapshot, entries: &[Entry], samples_per_epoch: u64) -> Position {
    let state = &snapshot.state;
    let epoch_began = state.cursor - state.cursor % samples_per_epoch.max(1);
    let skipped_in_epoch = ledger::skipped_between(entries, epoch_began, state.step);
    Position {
        step: state.step,
        cursor: state.cursor,
        evaluation_due: state.evaluation_due,
        evaluated_ms: state.evaluated_ms,
        last_error: state.last_error,
        best_error: state.best_error,
        exact: state.exact,
        arithmetic: state.arithmetic.clone(),
        grid: state.grid.clone(),
        ledger_tail: state.ledger_tail.clone(),
        ending: None,
        owner_batches: state.order.clone(),
        skipped_in_epoch,
        ..Position::start()
    }
}

/// First weights: a pure function of the seed, or those of `model.init`; what was done to make
/// these fit.
pub fn scratch(
    replica: &mut Replica,
    prepared: &Prepared,
    config: &Config,
) -> Result<Vec<String>, TrainError> {
    let layout = &prepared.layout;
    let Fitted { parameters, statistics, remarks, .. } = match config.model.found_init() {
        Some(path) => initial::load(&path, &prepared.graph, layout, config)?,
        None => Fitted {
            parameters: init::parameters(&prepared.graph, layout, config.run.seed),
            statistics: init::statistics(layout),
            remarks: Vec::new(),
            about: BTreeMap::new(),
        },
    };
    let shape = parts::shape(layout, config);
    // Velocities begin at zero, an average with the first weights and statistics;
    // nothing was received before.
    let zeros = vec![0.0; parameters.len()];
    let average = [&parameters[..], &statistics].concat();
    let values = shape.parts().iter().map(|part| match part.name {
        parts::PARAMETERS | parts::W_OLD => &parameters[..],
        parts::AVERAGE => &average[..],
        parts::STATISTICS => &statistics[..],
        _ => &zeros[..],
    });
    let state = SlotView::new(shape, (0, 0), &values.collect::<Vec<_>>(), &[]);
    replica.begin_with(state, Position::start());
    Ok(remarks)
}
