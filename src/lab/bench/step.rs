//! A training step of one worker without a world: forward and backward, each layer's weights taken
//! into the engine's layout when computing reaches it, and then the update, by as many threads as
//! compute. To a card the pictures of the next step are sent meanwhile. PyTorch's step of the same
//! model (`benches/step.py`) takes turns with it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::judge::{Judge, ratios, take_turns};
use super::runs::Runs;
use super::{Case, Report};
use crate::cluster::resident::Slots;
use crate::config::{Config, Device};
use crate::engine::memory::limits::Limits;
use crate::engine::{self, Compute, EngineError, Flat, Seat};
use crate::model::parts::{self, PARAMETERS, STATISTICS, is_over_parameters};
use crate::model::{Graph, Layout, catalogue, init, layout};
use crate::train::compute::gradients::Gradients;
use crate::train::compute::moments::{Moments, Seen};
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
    #[arg(long, default_value = CPU, value_parser = [CPU, "cuda"])]
    pub device: String,
    /// On a card: what every convolution takes, not only its kind
    #[arg(long)]
    pub by_call: bool,
    /// `device.precision`
    #[arg(long, default_value = "f32")]
    pub precision: String,
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

const CPU: &str = "cpu";
const CLASSES: usize = 1000;
const CHANNELS: usize = 3;
/// Largest edge of an image.
const IMAGE_SIZE_MAX: u32 = 4096;
const LEARNING_RATE: f64 = 0.01;
const OURS: &str = "step";
/// Elements that a thread updates at a time, as in training.
const PIECE: usize = 1 << 18;
/// What `benches/step.py` measures.
const JUDGES: [&str; 2] = ["eager", "compiled"];

/// Lets all take turns.
///
/// # Errors
/// What kept it from running, for a person.
pub fn run(options: &Options, runs: &Runs) -> Result<Report, String> {
    if options.by_call && options.device == CPU {
        return Err("--by-call: only a card's calls are timed; add --device cuda".into());
    }
    let shape = &options.shape;
    let mut ours = Ours::open(shape, &device(options), &Limits::none())?;
    let judge = match &options.python {
        Some(python) => {
            let words = [&options.device, &shape.model, &options.precision].map(OsStr::new);
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
    if options.device != CPU {
        // Its memory first: the calls are timed by another worker.
        drop(ours);
        cases.push(calls(options)?);
    }
    Ok(Report::of("step", cases, ratios(&samples, OURS)))
}

/// What calls on the card take in one micro-batch, by kind; every product by itself if that is
/// asked for.
fn calls(options: &Options) -> Result<Case, String> {
    let Shape { batch, threads, .. } = options.shape;
    let graph = options.shape.built()?;
    let took = engine::times(&device(options), &graph, batch, threads);
    let mut phases: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let mut all = 0.0;
    for (name, took) in took.map_err(|error| error.to_string())? {
        let kind = if options.by_call { &name[..] } else { name.split(':').next().unwrap_or("") };
        let sum = phases.entry(kind.into()).or_insert_with(|| vec![0.0]);
        sum[0] += took.milliseconds;
        all += took.milliseconds;
    }
    Ok(Case::of("calls", &[all], &phases))
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
    let (kind, precision) = (options.device.clone(), options.precision.clone());
    Device { kind, precision, ..Device::default() }
}

/// A worker with all that a step of it needs.
pub struct Ours {
    /// What computes.
    pub engine: Box<dyn Compute>,
    /// What the last step's forward pass took.
    pub forward: Duration,
    slots: Slots,
    optimizer: Optimizer,
    moments: Moments,
    /// Of this step and the next, by turns.
    images: [Arc<Vec<f32>>; 2],
    labels: Vec<u32>,
    gradients: Vec<f32>,
    statistics: Vec<f32>,
    threads: usize,
    steps: u64,
    state_bytes: u64,
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
        let settings = Config::default().optimizer;
        // Values as of a normalised picture.
        let values = shape.batch * CHANNELS * side * side;
        let images = || {
            let value = |at: usize| ((at % 251) as f32 - 125.0) / 100.0;
            Arc::new((0..values).map(value).collect::<Vec<f32>>())
        };
        Ok(Self {
            engine,
            forward: Duration::ZERO,
            slots: started(&layout, &parameters),
            optimizer: Optimizer::new(&settings, &layout, &[]),
            moments: Moments::of(&graph, &layout, &[]),
            images: [images(), images()],
            labels: (0..shape.batch).map(|at| (at * 37 % CLASSES) as u32).collect(),
            gradients: vec![0.0; layout.parameters],
            statistics: vec![0.0; layout.statistics],
            threads,
            steps: 0,
            state_bytes: 4 * (layout.parameters * 2 + layout.statistics) as u64,
        })
    }

    /// Seconds of its parts.
    ///
    /// # Errors
    /// What the engine says.
    pub fn step(&mut self) -> Result<[(&'static str, f64); 2], String> {
        let Self { engine, slots, gradients, statistics, images, labels, .. } = self;
        let (begun, count) = (Instant::now(), labels.len());
        let committed = slots.committed();
        let weights = &Flat {
            parameters: committed.part(PARAMETERS),
            statistics: committed.part(STATISTICS),
        };
        engine.renew();
        let [images, next] = [0, 1].map(|ahead| &images[((self.steps + ahead) % 2) as usize]);
        engine.foresee(next);
        let mut forward = None;
        let ready = &mut |offset: usize, part: &[f32]| {
            forward.get_or_insert_with(|| begun.elapsed());
            gradients[offset..offset + part.len()].copy_from_slice(part);
        };
        let key = [1, 2, self.steps];
        engine
            .train(images, (&*labels).into(), key, weights, statistics, ready)
            .map_err(|error| error.to_string())?;
        let computed = Instant::now();
        self.forward = forward.unwrap_or_default();
        let spoken = |error: EngineError| error.to_string();
        self.moments.about_running(statistics, count, weights).map_err(spoken)?;
        // A micro-batch gives the mean; the update takes sums over samples.
        statistics.iter_mut().for_each(|mean| *mean *= count as f32);
        self.update(Seen { samples: count as u64, alone: 0 });
        self.steps += 1;
        self.slots.commit(self.steps, 0, &[]);
        let parts = [("forward_backward", computed - begun), ("update", computed.elapsed())];
        Ok(parts.map(|(name, time)| (name, time.as_secs_f64())))
    }

    /// Writes the next state, piece by piece.
    fn update(&self, seen: Seen) {
        let Self { slots, optimizer, gradients, statistics, moments, .. } = self;
        let (current, gradients) = (slots.committed(), Gradients::numbers_of_all(gradients));
        let parameters = current.part(PARAMETERS).len();
        let ranges: Vec<_> = (0..parameters)
            .step_by(PIECE)
            .map(|start| start..(start + PIECE).min(parameters))
            .collect();
        let next = slots.lend().cut(&ranges, is_over_parameters);
        let scales = optimizer.scales(self.steps + 1, LEARNING_RATE, seen.samples, &gradients);
        let taken = AtomicUsize::new(0);
        let write = || {
            loop {
                let number = taken.fetch_add(1, Ordering::Relaxed);
                let Some(range) = ranges.get(number) else { return };
                let mut piece = next.piece(number);
                let (range, piece) = (range.clone(), &mut piece.slot());
                optimizer.advance(&scales, range, &gradients, &current, piece);
            }
        };
        std::thread::scope(|scope| {
            (1..self.threads).for_each(|_| drop(scope.spawn(write)));
            write();
        });
        let mut body = next.join();
        optimizer.follow(&current, &mut body.slot(), statistics, moments, seen);
        slots.take_back(body);
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
