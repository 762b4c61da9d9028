//! Runs a graph: owns activation memory and programs, one per batch size and direction.

use kintsugi_ffi::dnnl::{Buffer, Data, Direction};

use super::EngineError;
use super::compile::compile;
use super::device::cpu::Cpu;
use super::layer::dropout::fill_mask;
use super::program::{Place, Program, Step};
use super::weights::Weights;
use crate::model::spec::elements;
use crate::model::{Graph, Layout, TensorKind, layout};

/// Programs kept at once: a full and a ragged micro-batch, in training and evaluation, twice over.
const PROGRAMS_MAX: usize = 8;

/// Sums over a micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Outcome {
    /// Cross-entropy (natural logarithm), summed.
    pub loss_sum: f64,
    /// Samples whose most probable class is not their label (ties: the lowest class counts).
    pub errors: u64,
    /// Samples.
    pub samples: u64,
}

/// A program with the weight copies that it holds.
struct Held {
    batch: usize,
    direction: Direction,
    program: Program,
    weights: Vec<usize>,
    used: u64,
}

/// Computes micro-batches of one model on one worker thread.
///
/// For a fixed team size, instruction set and library the same inputs give the same bits, whatever
/// ran before, in whatever thread, beside whatever else.
pub struct Executor {
    graph: Graph,
    layout: Layout,
    cpu: Cpu,
    arena: Buffer,
    weights: Weights,
    programs: Vec<Held>,
    clock: u64,
}

/// What a run of a program reads and writes besides its own values.
struct Batch<'a> {
    images: &'a [f32],
    labels: Labels<'a>,
    dropout_key: [u64; 3],
    statistics: &'a mut [f32],
    ready: &'a mut dyn FnMut(usize, &[f32]),
    outcome: Outcome,
}

#[derive(Clone, Copy)]
enum Labels<'a> {
    Given(&'a [u32]),
    Unknown,
}

impl Executor {
    /// An executor for the calling thread, with a team of `threads` OpenMP threads (a constant of
    /// the run: it decides the last bits). `layout` must be the graph's own.
    pub fn new(graph: &Graph, layout: &Layout, threads: usize) -> Result<Executor, EngineError> {
        if layout::of(graph) != *layout {
            return Err(EngineError::Layout("use model::layout::of on the same graph".into()));
        }
        let cpu = Cpu::new(threads)?;
        let weights = Weights::new(&cpu.context, layout);
        Ok(Self {
            graph: graph.clone(),
            layout: layout.clone(),
            cpu,
            arena: Buffer::zeroed(0),
            weights,
            programs: Vec::new(),
            clock: 0,
        })
    }

    /// Once per step: parameters and running statistics, flat in `Layout` order. Weights change
    /// into the layouts of the compiled programs here, not per micro-batch.
    pub fn load(&mut self, parameters: &[f32], statistics: &[f32]) -> Result<(), EngineError> {
        same("parameters", parameters.len(), self.layout.parameters)?;
        same("running statistics", statistics.len(), self.layout.statistics)?;
        self.cpu.enter();
        self.weights.load(parameters, statistics)
    }

    /// Forward and backward over `images` `[n, c, h, w]`. `ready(offset, gradients)` is called
    /// during backward, tensor by tensor in reverse node order, once for every trained tensor:
    /// sums over samples, in `Layout` order. `statistics` receives this micro-batch's mean and
    /// unbiased variance. With n = 0 the outcome, all gradients and statistics are zeros.
    pub fn train(
        &mut self,
        images: &[f32],
        labels: &[u32],
        dropout_key: [u64; 3],
        statistics: &mut [f32],
        ready: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<Outcome, EngineError> {
        same("statistics", statistics.len(), self.layout.statistics)?;
        self.check(images, labels)?;
        if labels.is_empty() {
            self.train_nothing(statistics, ready);
            return Ok(Outcome::default());
        }
        let held = self.program(labels.len(), Direction::Training)?;
        let labels = Labels::Given(labels);
        let outcome = Outcome::default();
        self.run(held, Batch { images, labels, dropout_key, statistics, ready, outcome })
    }

    /// Loss and errors without dropout, with the running statistics.
    pub fn evaluate(&mut self, images: &[f32], labels: &[u32]) -> Result<Outcome, EngineError> {
        self.check(images, labels)?;
        if labels.is_empty() {
            return Ok(Outcome::default());
        }
        let held = self.program(labels.len(), Direction::Inference)?;
        self.run(held, inference(images, Labels::Given(labels), &mut |_, _| {}))
    }

    /// Class probabilities `[n, classes]`, without dropout, with the running statistics.
    pub fn predict(&mut self, images: &[f32]) -> Result<Vec<f32>, EngineError> {
        let sample = elements(self.graph.input);
        let batch = images.len() / sample;
        same("images", images.len(), batch * sample)?;
        if !self.weights.loaded() {
            return Err(EngineError::NotLoaded);
        }
        if batch == 0 {
            return Ok(Vec::new());
        }
        let held = self.program(batch, Direction::Inference)?;
        self.run(held, inference(images, Labels::Unknown, &mut |_, _| {}))?;
        let program = &self.programs[held].program;
        let logarithms = self.arena.slice(program.spans[program.log_probabilities]);
        Ok(logarithms[..batch * self.graph.classes].iter().map(|x| x.exp()).collect())
    }

    /// Bytes of activations and weight copies held.
    pub fn memory_bytes(&self) -> u64 {
        (self.arena.bytes() + self.weights.bytes()) as u64
    }

    /// Bytes that live from the forward into the backward pass of a micro-batch of `batch`.
    pub fn saved_bytes(&mut self, batch: usize) -> Result<u64, EngineError> {
        let held = self.program(batch.max(1), Direction::Training)?;
        Ok(self.programs[held].program.saved.iter().map(|&(_, bytes)| bytes as u64).sum())
    }

    fn check(&self, images: &[f32], labels: &[u32]) -> Result<(), EngineError> {
        same("images", images.len(), labels.len() * elements(self.graph.input))?;
        let classes = self.graph.classes;
        if let Some(sample) = labels.iter().position(|&label| label as usize >= classes) {
            return Err(EngineError::Label { sample, label: labels[sample], classes });
        }
        if self.weights.loaded() { Ok(()) } else { Err(EngineError::NotLoaded) }
    }

    /// What an empty micro-batch gives.
    fn train_nothing(&self, statistics: &mut [f32], ready: &mut dyn FnMut(usize, &[f32])) {
        statistics.fill(0.0);
        for tensor in self.layout.tensors.iter().rev() {
            if tensor.kind != TensorKind::Statistic {
                ready(tensor.offset, &vec![0.0; tensor.elements()]);
            }
        }
    }

    /// The program for this batch size, compiled if there is none; the longest unused one goes.
    fn program(&mut self, batch: usize, direction: Direction) -> Result<usize, EngineError> {
        self.cpu.enter();
        self.clock += 1;
        let wanted = |held: &Held| held.batch == batch && held.direction == direction;
        if let Some(at) = self.programs.iter().position(wanted) {
            self.programs[at].used = self.clock;
            return Ok(at);
        }
        if self.programs.len() >= PROGRAMS_MAX {
            let oldest = (0..self.programs.len()).min_by_key(|&at| self.programs[at].used);
            let gone = self.programs.swap_remove(oldest.unwrap_or(0));
            gone.weights.into_iter().for_each(|at| self.weights.release(at));
        }
        let program = compile(&self.cpu.context, &self.graph, &self.layout, batch, direction)?;
        let mut weights = Vec::with_capacity(program.weights.len());
        for wanted in &program.weights {
            weights.push(self.weights.acquire(wanted)?);
        }
        if self.arena.bytes() < program.arena_bytes {
            // The old one goes first: nothing in it is needed between micro-batches.
            self.arena = Buffer::zeroed(0);
            self.arena = Buffer::zeroed(program.arena_bytes);
        }
        self.programs.push(Held { batch, direction, program, weights, used: self.clock });
        Ok(self.programs.len() - 1)
    }

    fn run(&mut self, held: usize, mut batch: Batch<'_>) -> Result<Outcome, EngineError> {
        let Held { program, weights, .. } = &mut self.programs[held];
        let spans = &program.spans;
        for step in &mut program.steps {
            match step {
                Step::Run { primitive, places } => {
                    let mut args: Vec<Data<'_>> = places
                        .iter()
                        .map(|place| match *place {
                            Place::Value(value) => Data::Arena(spans[value]),
                            Place::Weight(index) => Data::Read(self.weights.data(weights[index])),
                            Place::Image => Data::Read(batch.images),
                        })
                        .collect();
                    primitive.execute(&mut self.arena, &mut args)?;
                }
                Step::Mask { value, elements, rate, node } => {
                    let mask = &mut self.arena.slice_mut(spans[*value])[..*elements];
                    fill_mask(mask, *rate, batch.dropout_key, *node);
                }
                Step::Loss { log_probabilities, seed } => {
                    let logarithms = self.arena.slice(spans[*log_probabilities]);
                    batch.outcome = score(logarithms, batch.labels, self.graph.classes);
                    if let (Some(seed), Labels::Given(labels)) = (*seed, batch.labels) {
                        let seed = self.arena.slice_mut(spans[seed]);
                        seed.fill(0.0);
                        for (row, &label) in seed.chunks_exact_mut(self.graph.classes).zip(labels) {
                            row[label as usize] = -1.0;
                        }
                    }
                }
                Step::Emit { value, offset, elements } => {
                    (batch.ready)(*offset, &self.arena.slice(spans[*value])[..*elements]);
                }
                Step::Statistics { mean, variance, at, channels, factor } => {
                    let source = &self.arena.slice(spans[*mean])[..*channels];
                    batch.statistics[at[0]..at[0] + *channels].copy_from_slice(source);
                    let source = &self.arena.slice(spans[*variance])[..*channels];
                    let target = &mut batch.statistics[at[1]..at[1] + *channels];
                    for (to, from) in target.iter_mut().zip(source) {
                        *to = from * *factor;
                    }
                }
            }
        }
        Ok(batch.outcome)
    }
}

fn same(what: &'static str, given: usize, wanted: usize) -> Result<(), EngineError> {
    if given == wanted { Ok(()) } else { Err(EngineError::Length { what, given, wanted }) }
}

fn inference<'a>(
    images: &'a [f32],
    labels: Labels<'a>,
    ready: &'a mut dyn FnMut(usize, &[f32]),
) -> Batch<'a> {
    let outcome = Outcome::default();
    Batch { images, labels, dropout_key: [0; 3], statistics: &mut [], ready, outcome }
}

/// Sums loss and errors over rows of log-probabilities.
fn score(logarithms: &[f32], labels: Labels<'_>, classes: usize) -> Outcome {
    let mut outcome = Outcome::default();
    let Labels::Given(labels) = labels else { return outcome };
    for (row, &label) in logarithms.chunks_exact(classes).zip(labels) {
        let own = row[label as usize];
        outcome.loss_sum -= f64::from(own);
        outcome.samples += 1;
        let better = |(class, &value): (usize, &f32)| {
            value > own || (value == own && class < label as usize)
        };
        // A NaN is no right answer either.
        if own.is_nan() || row.iter().enumerate().any(better) {
            outcome.errors += 1;
        }
    }
    outcome
}
