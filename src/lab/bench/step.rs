//! A training step of one worker without a world: forward and backward, each layer's weights taken
//! into the engine's layout when computing reaches it, sums as a rank makes them, and the update,
//! by as many threads as compute: behind backward or, where a card computes, beside it. To a card
//! the pictures of the next step are sent meanwhile, too. PyTorch's step of the same model
//! (`benches/step.py`) takes turns with it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::judge::{Judge, ratios, take_turns};
use super::runs::Runs;
use super::{Case, Report};
use crate::cluster::comm::Elements;
use crate::cluster::resident::Slots;
use crate::config::{Config, Device, DeviceKind, Precision};
use crate::engine::memory::limits::Limits;
use crate::engine::{self, Compute, Seat};
use crate::model::parts::{self, PARAMETERS, STATISTICS};
use crate::model::{Graph, Layout, catalogue, init, layout};
use crate::observe::panics::vital;
use crate::train::compute::accumulate::{Accumulator, MicroBatch};
use crate::train::compute::board::{Board, Work};
use crate::train::compute::committed::Committed;
use crate::train::compute::gradient_sum::GradientSum;
use crate::train::compute::moments::Moments;
use crate::train::exchange::beside::{Beside, Learns};
use crate::train::fixed_point::{self, Grid, GridChoice};
use crate::train::update::optimizer::Optimizer;

/// Of what a step is.
#[derive(Debug, Clone, clap::Args)]
pub struct Shape {
    /// A catalogue model, or the path of a *.toml model file
    #[arg(long, default_value = "resnet18")]
    pub model: String,
    /// Width and height of the images, in pixels
    #[arg(long, default_value_t = 224)]
    pub image_size: u32,
    /// Samples of a step
    #[arg(long, default_value_t = 16, value_parser = crate::lab::crowd::crowd)]
    pub batch: usize,
    /// Computing threads
    #[arg(long, default_value_t = 1, value_parser = crate::lab::crowd::crowd)]
    pub threads: usize,
}

/// What to measure.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    #[command(flatten)]
    #[allow(missing_docs)]
    pub shape: Shape,
    /// `device.kind`; of "cuda" PyTorch's step is taken on the card too
    #[arg(long, default_value = "cpu")]
    pub device: DeviceKind,
    /// On a card: what every convolution takes, not only its kind
    #[arg(long)]
    pub by_call: bool,
    /// `device.precision`
    #[arg(long, default_value = "f32")]
    pub precision: Precision,
    /// A python with torch and torchvision; without it we are measured alone
    #[arg(long)]
    pub python: Option<PathBuf>,
    /// What it runs
    #[arg(long, default_value = "benches/step.py")]
    pub script: PathBuf,
    /// Steps of each
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u32).range(1..))]
    pub turns: u32,
}

const CLASSES: usize = 1000;
const CHANNELS: usize = 3;
/// Largest edge of an image.
const IMAGE_SIZE_MAX: u32 = 4096;
const LEARNING_RATE: f64 = 0.01;
const OURS: &str = "step";
/// What `benches/step.py` measures.
const JUDGES: [&str; 2] = ["eager", "compiled"];

/// Lets all take turns.
///
/// # Errors
/// What kept it from running, for a person.
pub fn run(options: &Options, runs: &Runs) -> Result<Report, String> {
    if options.by_call && options.device != DeviceKind::Cuda {
        return Err("--by-call: only a card's calls are timed; add --device cuda".into());
    }
    let shape = &options.shape;
    let mut ours = Ours::open(shape, &device(options), &Limits::none())?;
    let judge = match &options.python {
        Some(python) => {
            let (device, precision) = (options.device.name(), options.precision.name());
            let words = [device, &shape.model, precision].map(OsStr::new);
            let numbers = [shape.image_size as usize, shape.batch, shape.threads];
            let numbers = numbers.map(|number| number.to_string());
            let arguments: Vec<&OsStr> =
                words.into_iter().chain(numbers.iter().map(OsStr::new)).collect();
            Some(Judge::start(python, &options.script, &arguments)?)
        }
        None => None,
    };
    let mut phases: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let samples = take_turns(runs, options.turns, 1.0, judge, &JUDGES, |turn| {
        let parts = ours.step()?;
        for (name, seconds) in parts.iter().filter(|_| turn > 0) {
            phases.entry((*name).into()).or_default().push(1e3 * seconds);
        }
        Ok(vec![(OURS, parts.iter().map(|part| part.1).sum())])
    })?;
    let none = BTreeMap::new();
    let each = |(&name, times): (&&str, &Vec<f64>)| {
        let mut case = Case::of(name, times, if name == OURS { &phases } else { &none });
        case.state_bytes = (name == OURS).then_some(ours.state_bytes);
        case
    };
    let mut cases: Vec<Case> = samples.iter().map(each).collect();
    if options.device == DeviceKind::Cuda {
        // Its memory first: the calls are timed by another worker.
        drop(ours);
        cases.extend(calls(options)?);
    }
    Ok(Report::of("step", cases, ratios(&samples, OURS)))
}

/// What calls on the card take in one micro-batch, by kind; every product by itself if that is
/// asked for. Then what they take while weights are sent.
fn calls(options: &Options) -> Result<[Case; 2], String> {
    let Shape { batch, threads, .. } = options.shape;
    let graph = options.shape.built()?;
    let took = engine::times(&device(options), &graph, batch, threads);
    let [there, sent] = took.map_err(|error| error.to_string())?;
    let [all, with_waits] =
        [&there, &sent].map(|took| took.values().map(|took| took.milliseconds).sum::<f64>());
    let mut phases: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for (name, took) in there {
        let kind = if options.by_call { &name[..] } else { name.split(':').next().unwrap_or("") };
        let sum = phases.entry(kind.into()).or_insert_with(|| vec![0.0]);
        sum[0] += took.milliseconds;
    }
    let sent = Case::of("weights sent", &[with_waits], &BTreeMap::new());
    Ok([Case::of("calls", &[all], &phases), sent])
}

impl Shape {
    /// The model.
    ///
    /// # Errors
    /// There is none of that name, or the pictures are too small or too large for it.
    pub fn built(&self) -> Result<Graph, String> {
        if !(1..=IMAGE_SIZE_MAX).contains(&self.image_size) {
            return Err(format!("--image-size: write a number from 1 to {IMAGE_SIZE_MAX}"));
        }
        let side = self.image_size as usize;
        catalogue::build(&self.model, [CHANNELS, side, side], CLASSES, 1.0)
            .map_err(|error| error.to_string())
    }
}

fn device(options: &Options) -> Device {
    Device { kind: options.device, precision: options.precision, ..Device::default() }
}

/// A worker with all that a step of it needs.
pub struct Ours {
    /// What computes.
    pub engine: Box<dyn Compute>,
    /// What the last step's forward pass took.
    pub forward: Duration,
    slots: Arc<RwLock<Slots>>,
    accumulator: Accumulator,
    sum: GradientSum,
    /// On which the next step is summed.
    grid: Grid,
    update: Beside,
    hands: Hands,
    /// Of this step and the next, by turns.
    images: [Arc<Vec<f32>>; 2],
    labels: Vec<u32>,
    moments: Vec<f64>,
    steps: u64,
    state_bytes: u64,
}

/// Threads that move weights, and where they find what is to be moved.
struct Hands {
    board: Arc<Board>,
    threads: Vec<JoinHandle<()>>,
    /// Another device computes: they have nothing else to do meanwhile.
    are_free: bool,
}

impl Ours {
    /// Of random weights.
    ///
    /// # Errors
    /// There is no such model, or no such device.
    pub fn open(shape: &Shape, device: &Device, limits: &Limits) -> Result<Self, String> {
        let (side, threads) = (shape.image_size as usize, shape.threads);
        let graph = shape.built()?;
        let layout = layout::of(&graph);
        let engine = engine::open_within(device, &graph, &[], Seat::only(threads), limits)
            .map_err(|error| error.to_string())?;
        let parameters = init::parameters(&graph, &layout, 1);
        let config = Config::default();
        // Values as of a normalised picture.
        let values = shape.batch * CHANNELS * side * side;
        let images = || {
            let value = |at: usize| ((at % 251) as f32 - 125.0) / 100.0;
            Arc::new((0..values).map(value).collect::<Vec<f32>>())
        };
        let slots = Arc::new(RwLock::new(started(&layout, &parameters)));
        let optimizer = Optimizer::new(&config.optimizer, &layout, &[]);
        let (sum, moments) =
            (GradientSum::new(&layout, config.train.bucket.0), Moments::of(&graph, &layout, &[]));
        let (of_weights, of_norms) = (layout.parameters, layout.statistics);
        let update =
            Beside::new(optimizer, moments.clone(), &sum, of_weights, of_norms, Arc::clone(&slots));
        Ok(Self {
            engine,
            forward: Duration::ZERO,
            slots,
            accumulator: Accumulator::new(moments),
            sum,
            grid: Grid::default(),
            update,
            hands: Hands::new(threads, engine::is_card(device))?,
            images: [images(), images()],
            labels: (0..shape.batch).map(|at| (at * 37 % CLASSES) as u32).collect(),
            moments: vec![0.0; of_norms],
            steps: 0,
            state_bytes: 4 * (of_weights * 2 + of_norms) as u64,
        })
    }

    /// Seconds of its parts.
    ///
    /// # Errors
    /// What the engine says.
    pub fn step(&mut self) -> Result<[(&'static str, f64); 2], String> {
        let begun = Instant::now();
        self.sum.set_grid(&self.grid);
        self.sum.begin(1);
        self.sum.count(self.labels.len() as u64, 0);
        self.update.begin(&self.sum, &self.grid, LEARNING_RATE);
        let passed = self.pass(begun);
        if passed.is_err() {
            self.update.end(&self.hands.board);
        }
        let (forward, computed) = passed?;
        self.forward = forward;
        let (reaches, statistics) = self.sum.reaches();
        let learns = match fixed_point::verdict(&self.grid, &reaches, statistics) {
            GridChoice::Holds(following) => {
                self.grid = following;
                Learns::IfSound
            }
            // The next step has it. Training would compute this one again.
            GridChoice::Again(grid) => {
                self.grid = grid;
                Learns::Nothing
            }
            GridChoice::NotANumber => Learns::Nothing,
        };
        self.update.finish(&self.hands.board, learns);
        self.update.end(&self.hands.board);
        self.steps += 1;
        self.slots.write().unwrap_or_else(PoisonError::into_inner).commit(self.steps, 0, &[]);
        let parts = [("forward_backward", computed - begun), ("update", computed.elapsed())];
        Ok(parts.map(|(name, time)| (name, time.as_secs_f64())))
    }

    /// Forward and backward, and of the update what is made beside them: what forward took, and
    /// when backward had ended.
    fn pass(&mut self, begun: Instant) -> Result<(Duration, Instant), String> {
        let [images, next] = [0, 1].map(|ahead| &self.images[((self.steps + ahead) % 2) as usize]);
        let samples =
            MicroBatch { images, targets: (&self.labels).into(), key: [1, 2, self.steps] };
        self.engine.renew();
        self.engine.foresee(next);
        let (sum, hands, failed) = (&self.sum, &self.hands, &AtomicBool::new(false));
        let Self { engine, accumulator, moments, update, slots, .. } = self;
        let mut forward = None;
        let mut compute = || {
            let weights = &Committed::now(slots);
            let ready = &mut |offset: usize, part: &[f32]| {
                forward.get_or_insert_with(|| begun.elapsed());
                sum.add(offset, part);
            };
            let outcome = accumulator.train(&mut **engine, samples, 1, weights, moments, ready);
            failed.store(outcome.is_err(), Ordering::Relaxed);
            sum.add_statistics(moments);
            outcome.map(|_| Instant::now()).map_err(|error| error.to_string())
        };
        let mut exchange = || exchange(sum, update, &hands.board, failed);
        let computed = match hands.are_free {
            true => std::thread::scope(|scope| {
                let beside = scope.spawn(exchange);
                // Whoever waits for its sums would wait for ever.
                let computed = vital(&mut compute);
                beside.join().map_err(|_| "the exchange has ended".to_owned())?;
                computed
            }),
            false => compute().inspect(|_| exchange()),
        }?;
        Ok((forward.unwrap_or_default(), computed))
    }
}

/// Takes each bucket when it is complete, and has its weights moved. Of a pass that failed, none.
fn exchange(sum: &GradientSum, update: &mut Beside, board: &Board, failed: &AtomicBool) {
    let gives_up = || failed.load(Ordering::Relaxed).then_some(());
    for bucket in 0..sum.buckets() {
        if sum.await_complete(bucket, gives_up).is_err() {
            return;
        }
        let alone = |elements: Elements<'_>| match elements {
            Elements::I32(own, all) => all.copy_from_slice(own),
            Elements::I64(own, all) => all.copy_from_slice(own),
            Elements::F32(own, all) => all.copy_from_slice(own),
            Elements::U64(own, all) => all.copy_from_slice(own),
        };
        sum.with_complete(bucket, |own| update.received().take_in(bucket, own, alone));
        update.arrived(bucket, board);
    }
}

impl Hands {
    fn new(threads: usize, are_free: bool) -> Result<Self, String> {
        let mut hands = Self { board: Arc::default(), threads: Vec::new(), are_free };
        for number in 1..threads {
            let board = Arc::clone(&hands.board);
            let work = move || vital(|| board.serve());
            let thread = std::thread::Builder::new().name(format!("hand-{number}"));
            hands.threads.push(thread.spawn(work).map_err(|error| error.to_string())?);
        }
        Ok(hands)
    }
}

impl Drop for Hands {
    fn drop(&mut self) {
        self.board.begin(Work::Stop);
        for thread in self.threads.drain(..) {
            // Nobody is left who would want to know of a panic.
            let _ = thread.join();
        }
    }
}

fn started(layout: &Layout, parameters: &[f32]) -> Slots {
    let mut slots = Slots::new(parts::shape(layout, &Config::default()));
    let (_, mut first) = slots.begin();
    first.part(PARAMETERS).copy_from_slice(parameters);
    first.part(STATISTICS).copy_from_slice(&init::statistics(layout));
    slots.commit(0, 0, &[]);
    slots
}
