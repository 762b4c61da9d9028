//! What a simulated rank trains: a model of about a hundred weights with batch statistics, samples
//! that are a function of their number, and arithmetic that stands in for the engine's. It depends
//! on the weights, on every sample and on nothing else, so that whatever goes wrong shows in bits.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use xxhash_rust::xxh3::xxh3_64;

use crate::cluster::resident::Slots;
use crate::config::seed;
use crate::data::Image;
use crate::data::set::DataSet;
use crate::data::source::Source;
use crate::data::store::Location;
use crate::data::store::memory::MemoryStore;
use crate::engine::{Compute, EngineError, Outcome, Passing, Targets, Watch, WeightSource};
use crate::model::spec::GraphBuilder;
use crate::model::window::{Conv, Padding};
use crate::model::{self, Graph, LayerKind, TensorKind, layout};
use crate::observe::clock::Clock;

use super::plane::Layout;
use super::scenario::SIDE;

const CLASSES: usize = 3;
/// Simulated milliseconds of a micro-batch, from and range.
const MILLISECONDS: (u64, u64) = (3, 40);

/// Bytes of a sample.
const BYTES: u64 = (SIDE * SIDE) as u64;

/// Samples of one size.
struct Samples {
    number: u64,
    split: u64,
    layout: Layout,
    listing: Listing,
    classes: Vec<String>,
}

/// What a process finds where the set lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listing {
    /// The set that the run began with.
    Own,
    /// As many samples, in another order.
    Other,
}

/// What tells a set from others, however it lies in files.
pub fn fingerprint(number: u64, split: u64) -> u64 {
    seed::key(&[split, number])
}

/// The files of a set of `number` samples, which `split` separates from another such set.
pub fn files(number: u64, split: u64, layout: Layout) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files: BTreeMap<PathBuf, Vec<u8>> = BTreeMap::new();
    for id in 0..number {
        let mut draws = seed::Stream::new(&[split, id]);
        let bytes = (0..BYTES).map(|_| draws.below(256) as u8);
        files.entry(layout.place(id).0).or_default().extend(bytes);
    }
    files
}

/// A set in a store of its own.
pub fn samples(number: u64, split: u64, layout: Layout, listing: Listing) -> DataSet {
    let mut store = MemoryStore::default();
    files(number, split, layout).into_iter().for_each(|(file, bytes)| store.put(file, bytes));
    let classes = (0..CLASSES).map(|class| format!("class-{class}")).collect();
    let source = Arc::new(Samples { number, split, layout, listing, classes });
    DataSet { source, store: Arc::new(store) }
}

impl Source for Samples {
    fn len(&self) -> u64 {
        self.number
    }
    fn classes(&self) -> &[String] {
        &self.classes
    }
    fn channels(&self) -> u32 {
        1
    }
    fn label(&self, id: u64) -> u32 {
        (id % CLASSES as u64) as u32
    }
    fn location(&self, id: u64) -> Option<Location<'_>> {
        let id = match self.listing {
            Listing::Own => id,
            Listing::Other => (id + 1) % self.number,
        };
        let (file, at) = self.layout.place(id);
        Some(match self.layout {
            Layout::FileEach => Location::whole(file, BYTES),
            _ => Location::range(file, at * BYTES, BYTES),
        })
    }
    fn decode(&self, _: u64, bytes: &[u8]) -> Result<Image, String> {
        Ok(Image { height: SIDE, width: SIDE, channels: 1, pixels: bytes.to_vec() })
    }
    fn name(&self, id: u64) -> String {
        format!("simulated sample {id}")
    }
    fn fingerprint(&self) -> u64 {
        let own = fingerprint(self.number, self.split);
        match self.listing {
            Listing::Own => own,
            Listing::Other => seed::key(&[own]),
        }
    }
}

/// The model: one convolution, its normalisation, one linear layer.
pub fn graph() -> Graph {
    let mut builder = GraphBuilder::new("stand-in", [1, SIDE as usize, SIDE as usize], CLASSES);
    let conv = Conv { padding: Padding::every(1), bias: false, ..Conv::new(2, 3) };
    builder.then("conv", LayerKind::Conv(conv));
    builder.then("norm", LayerKind::BatchNorm { epsilon: 1e-5, momentum: 0.1 });
    builder.then("relu", LayerKind::Relu);
    builder.then("flatten", LayerKind::Flatten);
    builder.then("fc", LayerKind::Linear { features: CLASSES, bias: true });
    builder.finish().expect("the stand-in is a valid model")
}

/// A micro-batch that was computed: by whom, of which step, from which weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// Start of the world.
    pub attempt: u32,
    /// Simulated process.
    pub process: usize,
    /// Steps committed before it.
    pub step: u64,
    /// The step whose samples it has: the same one, where no owner runs ahead of others.
    pub batch: u64,
    /// Whose.
    pub owner: u64,
    /// Hash of weights and running statistics.
    pub weights: u64,
}

/// Everything that was computed in a run, in order.
pub type Sightings = Arc<Mutex<Vec<Seen>>>;

/// With which last bits a process computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instructions {
    /// As the run began.
    Usual,
    /// Otherwise.
    Other,
}

impl Instructions {
    /// As ranks tell each other.
    pub fn name(self) -> &'static str {
        match self {
            Self::Usual => "the usual instructions",
            Self::Other => "other instructions",
        }
    }

    fn slant(self) -> f32 {
        match self {
            Self::Usual => 0.02,
            Self::Other => 0.021,
        }
    }
}

/// The arithmetic.
pub struct StandIn {
    layout: model::Layout,
    parameters: Vec<f32>,
    /// Hash of what was read; 0 = nothing since the state changed.
    weights: u64,
    clock: Arc<dyn Clock>,
    sightings: Sightings,
    attempt: u32,
    process: usize,
    instructions: Instructions,
    watch: Watch,
    state: Committed,
}

/// The state of a simulated process, once it has one.
pub type Committed = Arc<OnceLock<Arc<RwLock<Slots>>>>;

impl StandIn {
    /// Of one simulated process; what it computes is noted in `sightings`.
    pub fn new(
        clock: Arc<dyn Clock>,
        sightings: Sightings,
        attempt: u32,
        process: usize,
        instructions: Instructions,
        state: Committed,
    ) -> Self {
        let (layout, parameters) = (layout::of(&graph()), Vec::new());
        let (weights, watch) = (0, Box::new(|_| {}));
        Self {
            layout,
            parameters,
            weights,
            clock,
            sightings,
            attempt,
            process,
            instructions,
            watch,
            state,
        }
    }

    fn committed_step(&self) -> u64 {
        let slots = self.state.get().map(|slots| slots.read());
        slots.map_or(0, |slots| slots.unwrap_or_else(PoisonError::into_inner).committed().step)
    }
}

impl Compute for StandIn {
    fn prepare(&mut self, _samples: usize) -> Result<(), EngineError> {
        Ok(())
    }

    fn renew(&mut self) {
        self.weights = 0;
    }

    fn load(&mut self, _samples: usize, weights: &dyn WeightSource) -> Result<(), EngineError> {
        if self.weights != 0 {
            return Ok(());
        }
        let mut statistics = vec![0.0; self.layout.statistics];
        self.parameters.resize(self.layout.parameters, 0.0);
        for tensor in &self.layout.tensors {
            let part = match tensor.kind {
                TensorKind::Statistic => &mut statistics,
                TensorKind::Weight | TensorKind::Bias => &mut self.parameters,
            };
            let part = &mut part[tensor.range()];
            weights.read(tensor, &mut |numbers| part.copy_from_slice(numbers))?;
        }
        let parts = [self.parameters.as_slice(), &statistics];
        self.weights = seed::key(&parts.map(|part| xxh3_64(bytemuck::cast_slice(part))));
        Ok(())
    }

    fn watch(&mut self, watch: Watch) {
        self.watch = watch;
    }

    /// One value leaves and comes back, another is computed again.
    fn train(
        &mut self,
        images: &[f32],
        targets: Targets<'_>,
        key: [u64; 3],
        weights: &dyn WeightSource,
        statistics: &mut [f32],
        ready: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<Outcome, EngineError> {
        let Targets { labels, partners, smoothing } = targets;
        self.load(labels.len(), weights)?;
        let (attempt, process, weights) = (self.attempt, self.process, self.weights);
        let (step, batch, owner) = (self.committed_step(), key[1], key[2]);
        let seen = Seen { attempt, process, step, batch, owner, weights };
        self.sightings.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
        let (least, range) = MILLISECONDS;
        let pause = least + seed::Stream::new(&[key[1], key[2]]).below(range);
        (self.watch)(Passing::SwapOut);
        self.clock.sleep(Duration::from_millis(pause));
        (self.watch)(Passing::SwapIn);
        let samples = labels.len() as f32;
        let mut signal: f32 =
            images.iter().enumerate().map(|(i, v)| v * ((i % 7) as f32 - 2.5)).sum();
        signal += partners.map_or(0.0, |(_, share)| share) + smoothing;
        for tensor in self.layout.tensors.iter().rev() {
            if tensor.kind == TensorKind::Statistic {
                continue;
            }
            let length: usize = tensor.shape.iter().product();
            let gradient = |i: usize| {
                let place = ((i * 37 + 11) % 17) as f32 / 17.0 - 0.5;
                samples * 0.1 * self.parameters[i] + self.instructions.slant() * signal * place
            };
            let gradients: Vec<f32> =
                (tensor.offset..tensor.offset + length).map(gradient).collect();
            ready(tensor.offset, &gradients);
            (self.watch)(Passing::Recompute);
        }
        for (index, statistic) in statistics.iter_mut().enumerate() {
            // Variances are never negative.
            *statistic = signal.abs() * (index + 1) as f32 / samples.max(1.0);
        }
        let loss_sum = f64::from(self.parameters.iter().map(|w| w * w).sum::<f32>());
        Ok(Outcome { loss_sum, errors: self.errors(labels), samples: labels.len() as u64 })
    }

    /// Every class is as probable as every other.
    fn infer(
        &mut self,
        _images: &[f32],
        labels: &[u32],
        weights: &dyn WeightSource,
        logarithms: Option<&mut Vec<f32>>,
    ) -> Result<Outcome, EngineError> {
        self.load(labels.len(), weights)?;
        if let Some(into) = logarithms {
            into.extend(std::iter::repeat_n(-(CLASSES as f32).ln(), labels.len() * CLASSES));
        }
        let loss_sum = labels.len() as f64;
        Ok(Outcome { loss_sum, errors: self.errors(labels), samples: labels.len() as u64 })
    }
}

impl StandIn {
    /// "Wrong answers": a function of the weights, so that an evaluation of others shows.
    fn errors(&self, labels: &[u32]) -> u64 {
        let wrong = |label: &&u32| seed::key(&[self.weights, u64::from(**label)]) & 1 == 1;
        labels.iter().filter(wrong).count() as u64
    }
}
