//! Runs a graph: owns activation memory and programs, one per batch size and direction.

use kintsugi_ffi::dnnl::{Buffer, Data};

use super::backend::check_element;
use super::program::Program;
use super::team::Team;
use super::translation::span;
use super::weights::Weights;
use crate::engine::compute::{Compute, Outcome};
use crate::engine::error::EngineError;
use crate::engine::plan::builder::Request;
use crate::engine::plan::layers::dropout::fill_mask;
use crate::engine::plan::operation::Direction;
use crate::engine::plan::steps::Action;
use crate::engine::plan::tensor::{ElementType, Place};
use crate::model::spec::elements;
use crate::model::{Graph, Layout, TensorKind, layout};

/// Programs kept at once: a full and a ragged micro-batch, in training and evaluation, twice over.
const PROGRAMS_MAX: usize = 8;

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
    element: ElementType,
    team: Team,
    arena: Buffer,
    weights: Weights,
    programs: Vec<Held>,
    clock: u64,
}

/// What a run of a program reads and writes besides its own values.
struct Batch<'a> {
    images: &'a [f32],
    labels: &'a [u32],
    dropout_key: [u64; 3],
    statistics: &'a mut [f32],
    ready: &'a mut dyn FnMut(usize, &[f32]),
    outcome: Outcome,
}

impl Executor {
    /// An executor for the calling thread, with a team of `threads` OpenMP threads (a constant of
    /// the run: it decides the last bits). `layout` must be the graph's own.
    pub fn new(
        graph: &Graph,
        layout: &Layout,
        element: ElementType,
        threads: usize,
    ) -> Result<Self, EngineError> {
        check_element(element).map_err(|refusal| EngineError::Device(refusal.0))?;
        if layout::of(graph) != *layout {
            return Err(EngineError::Layout("use model::layout::of on the same graph".into()));
        }
        let team = Team::new(threads)?;
        let weights = Weights::new(&team.context, layout);
        Ok(Self {
            graph: graph.clone(),
            layout: layout.clone(),
            element,
            team,
            arena: Buffer::zeroed(0),
            weights,
            programs: Vec::new(),
            clock: 0,
        })
    }

    #[cfg(test)]
    /// Bytes that live from the forward into the backward pass of a micro-batch of `batch`.
    pub fn saved_bytes(&mut self, batch: usize) -> Result<u64, EngineError> {
        let held = self.program(batch.max(1), Direction::Training)?;
        Ok(self.programs[held].program.plan.saved_bytes() as u64)
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
        self.team.enter();
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
        let (graph, layout, element) = (&self.graph, &self.layout, self.element);
        let request = Request { graph, layout, batch, direction, element };
        let program = Program::new(&self.team.context, request)?;
        let mut weights = Vec::with_capacity(program.weights.len());
        for wanted in &program.weights {
            weights.push(self.weights.acquire(wanted)?);
        }
        let arena_bytes = program.plan.placement.bytes;
        if self.arena.bytes() < arena_bytes {
            // The old one goes first: nothing in it is needed between micro-batches.
            self.arena = Buffer::zeroed(0);
            self.arena = Buffer::zeroed(arena_bytes);
        }
        self.programs.push(Held { batch, direction, program, weights, used: self.clock });
        Ok(self.programs.len() - 1)
    }

    fn run(&mut self, held: usize, mut batch: Batch<'_>) -> Result<Outcome, EngineError> {
        let Held { program, weights, .. } = &mut self.programs[held];
        let Program { plan, primitives, .. } = program;
        for (at, step) in plan.steps.iter().enumerate() {
            let place = |value: usize| span(plan.span(value, at));
            match &step.action {
                Action::Run { kernel, arguments } => {
                    let data = |(_, place_of): &(_, Place)| match *place_of {
                        Place::Value(value) => Data::Arena(place(value)),
                        Place::Weight(index) => Data::Read(self.weights.data(weights[index])),
                        Place::Image => Data::Read(batch.images),
                    };
                    let mut data: Vec<Data<'_>> = arguments.iter().map(data).collect();
                    let primitive = primitives[*kernel].as_mut();
                    let primitive = primitive.expect("every kernel that runs was compiled");
                    primitive.execute(&mut self.arena, &mut data)?;
                }
                Action::Mask { value, elements, rate, node } => {
                    let mask = &mut self.arena.slice_mut(place(*value))[..*elements];
                    fill_mask(mask, *rate, batch.dropout_key, *node);
                }
                Action::Loss { log_probabilities, seed } => {
                    let logarithms = self.arena.slice(place(*log_probabilities));
                    batch.outcome = score(logarithms, batch.labels, self.graph.classes);
                    if let Some(seed) = *seed {
                        let seed = self.arena.slice_mut(place(seed));
                        seed.fill(0.0);
                        let rows = seed.chunks_exact_mut(self.graph.classes);
                        for (row, &label) in rows.zip(batch.labels) {
                            row[label as usize] = -1.0;
                        }
                    }
                }
                Action::Emit { value, offset, elements } => {
                    (batch.ready)(*offset, &self.arena.slice(place(*value))[..*elements]);
                }
                Action::Statistics { mean, variance, at, channels, factor } => {
                    let source = &self.arena.slice(place(*mean))[..*channels];
                    batch.statistics[at[0]..at[0] + *channels].copy_from_slice(source);
                    let source = &self.arena.slice(place(*variance))[..*channels];
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

impl Compute for Executor {
    /// Weights change into the layouts of the compiled programs here, not per micro-batch.
    fn load(&mut self, parameters: &[f32], statistics: &[f32]) -> Result<(), EngineError> {
        same("parameters", parameters.len(), self.layout.parameters)?;
        same("running statistics", statistics.len(), self.layout.statistics)?;
        self.team.enter();
        self.weights.load(parameters, statistics)
    }

    /// Compiles what `train` needs.
    fn prepare(&mut self, samples: usize) -> Result<(), EngineError> {
        self.program(samples, Direction::Training).map(drop)
    }

    fn train(
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
        let outcome = Outcome::default();
        self.run(held, Batch { images, labels, dropout_key, statistics, ready, outcome })
    }

    fn evaluate(&mut self, images: &[f32], labels: &[u32]) -> Result<Outcome, EngineError> {
        self.check(images, labels)?;
        if labels.is_empty() {
            return Ok(Outcome::default());
        }
        let held = self.program(labels.len(), Direction::Inference)?;
        self.run(held, inference(images, labels, &mut |_, _| {}))
    }

    fn memory_bytes(&self) -> u64 {
        (self.arena.bytes() + self.weights.bytes()) as u64
    }
}

fn same(what: &'static str, given: usize, wanted: usize) -> Result<(), EngineError> {
    if given == wanted { Ok(()) } else { Err(EngineError::Length { what, given, wanted }) }
}

fn inference<'a>(
    images: &'a [f32],
    labels: &'a [u32],
    ready: &'a mut dyn FnMut(usize, &[f32]),
) -> Batch<'a> {
    let outcome = Outcome::default();
    Batch { images, labels, dropout_key: [0; 3], statistics: &mut [], ready, outcome }
}

/// Sums loss and errors over rows of log-probabilities.
fn score(logarithms: &[f32], labels: &[u32], classes: usize) -> Outcome {
    let mut outcome = Outcome::default();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::seed::Stream;
    use crate::engine::plan::steps::{Plan, Step};
    use crate::model::{catalogue, init};

    struct Case {
        graph: Graph,
        layout: Layout,
        parameters: Vec<f32>,
        statistics: Vec<f32>,
        images: Vec<f32>,
        labels: Vec<u32>,
    }

    fn case(name: &str, side: usize, batch: usize, width: f64) -> Case {
        let graph = catalogue::build(name, [3, side, side], 10, width).expect("known");
        let layout = layout::of(&graph);
        let mut stream = Stream::new(&[5]);
        let images = (0..batch * elements(graph.input)).map(|_| stream.normal() as f32).collect();
        let labels = (0..batch).map(|_| stream.below(10) as u32).collect();
        let parameters = init::parameters(&graph, &layout, 1);
        let statistics = init::statistics(&layout);
        Case { graph, layout, parameters, statistics, images, labels }
    }

    impl Case {
        fn executor(&self, threads: usize) -> Executor {
            let mut executor = Executor::new(&self.graph, &self.layout, ElementType::F32, threads)
                .expect("an executor");
            executor.load(&self.parameters, &self.statistics).expect("parameters fit");
            executor
        }

        /// Everything a micro-batch gives, as bits.
        fn bits(&self, executor: &mut Executor, samples: usize) -> Vec<u64> {
            let mut bits = Vec::new();
            let mut statistics = vec![0.0; self.layout.statistics];
            let images = &self.images[..samples * elements(self.graph.input)];
            let outcome = executor
                .train(images, &self.labels[..samples], [1, 2, 3], &mut statistics, &mut |at, g| {
                    bits.push(at as u64);
                    bits.extend(g.iter().map(|x| u64::from(x.to_bits())));
                })
                .expect("a micro-batch");
            bits.push(outcome.loss_sum.to_bits());
            bits.push(outcome.errors);
            bits.extend(statistics.iter().map(|x| u64::from(x.to_bits())));
            bits
        }
    }

    #[test]
    fn the_same_inputs_give_the_same_bits_whatever_ran_before_and_where() {
        for threads in [1, 2] {
            for (name, side, width) in [("cnn11", 24, 0.25), ("resnet20", 32, 1.0)] {
                let case = case(name, side, 6, width);
                let first = case.bits(&mut case.executor(threads), 5);
                // After other batch sizes, evaluation, more programs than are kept, and a reload.
                let mut busy = case.executor(threads);
                for samples in 1..=6 {
                    case.bits(&mut busy, samples);
                    let images = &case.images[..samples * elements(case.graph.input)];
                    busy.evaluate(images, &case.labels[..samples]).expect("a micro-batch");
                }
                assert!(busy.programs.len() <= PROGRAMS_MAX);
                assert!(case.bits(&mut busy, 5) == first, "{name}: history changed the bits");
                busy.load(&case.parameters, &case.statistics).expect("parameters fit");
                assert!(case.bits(&mut busy, 5) == first, "{name}: a reload changed the bits");
                // Two threads at once, images at an odd address.
                std::thread::scope(|scope| {
                    let run = |_| scope.spawn(|| case.bits(&mut case.executor(threads), 5));
                    let runs: Vec<_> = (0..2).map(run).collect();
                    for run in runs {
                        assert!(run.join().expect("no panic") == first, "{name}: a thread did");
                    }
                });
                let mut shifted = Vec::with_capacity(case.images.len() + 1);
                shifted.push(0.0);
                shifted.extend_from_slice(&case.images);
                let mut executor = case.executor(threads);
                let samples = 5 * elements(case.graph.input);
                let a = executor.evaluate(&case.images[..samples], &case.labels[..5]);
                let b = executor.evaluate(&shifted[1..=samples], &case.labels[..5]);
                assert_eq!(a, b);
            }
        }
    }

    #[test]
    fn every_trained_tensor_is_ready_once_in_reverse_node_order() {
        let case = case("resnet20", 32, 2, 1.0);
        let mut seen = Vec::new();
        let mut statistics = vec![0.0; case.layout.statistics];
        let ready = &mut |at: usize, part: &[f32]| seen.push((at, part.len()));
        let mut executor = case.executor(1);
        executor
            .train(&case.images, &case.labels, [0; 3], &mut statistics, ready)
            .expect("a micro-batch");
        let node = |offset: usize| {
            let mut tensors = case.layout.tensors.iter();
            let own = |t: &&crate::model::TensorSpec| {
                t.kind != TensorKind::Statistic && t.offset == offset
            };
            tensors.find(own).map(|tensor| tensor.node)
        };
        assert!(seen.windows(2).all(|pair| node(pair[0].0) >= node(pair[1].0)));
        let mut sorted = seen.clone();
        sorted.sort_unstable();
        let mut end = 0;
        for (offset, length) in sorted {
            assert_eq!(offset, end);
            end += length;
        }
        assert_eq!(end, case.layout.parameters);
    }

    #[test]
    fn an_empty_micro_batch_gives_zeros() {
        let case = case("resnet20", 32, 0, 1.0);
        let bits = case.bits(&mut case.executor(1), 0);
        let offsets = case.layout.tensors.iter().filter(|t| t.kind != TensorKind::Statistic);
        let sum: u64 = offsets.map(|tensor| tensor.offset as u64).sum();
        assert_eq!(bits.iter().sum::<u64>(), sum, "offsets, and nothing but zeros");
        let mut executor = case.executor(1);
        assert_eq!(executor.evaluate(&[], &[]), Ok(Outcome::default()));
    }

    #[test]
    fn bad_input_is_refused_and_says_why() {
        let case = case("mlp", 8, 2, 0.1);
        let mut executor =
            Executor::new(&case.graph, &case.layout, ElementType::F32, 1).expect("an executor");
        assert_eq!(executor.evaluate(&case.images, &case.labels), Err(EngineError::NotLoaded));
        assert!(executor.load(&case.parameters[1..], &case.statistics).is_err());
        executor.load(&case.parameters, &case.statistics).expect("parameters fit");
        let error = executor.evaluate(&case.images, &[1, 10]).expect_err("a wrong label");
        assert!(error.to_string().contains("label 10 of sample 1"), "{error}");
        assert!(executor.evaluate(&case.images[1..], &case.labels).is_err());
    }

    #[test]
    fn a_few_steps_of_descent_learn_the_micro_batch() {
        let case = case("cnn11", 24, 8, 0.1);
        let mut parameters = case.parameters.clone();
        let mut executor = case.executor(1);
        let mut statistics = vec![0.0; case.layout.statistics];
        let mut losses = Vec::new();
        for step in 0..30 {
            executor.load(&parameters, &case.statistics).expect("parameters fit");
            let mut ready = |at: usize, gradients: &[f32]| {
                for (p, g) in parameters[at..].iter_mut().zip(gradients) {
                    *p -= 0.05 / 8.0 * g;
                }
            };
            let outcome = executor
                .train(&case.images, &case.labels, [step, 0, 0], &mut statistics, &mut ready)
                .expect("a micro-batch");
            losses.push(outcome.loss_sum / 8.0);
        }
        let (first, last) = (losses[0], losses[29]);
        assert!(first > 1.5 && last < 0.2, "{losses:?}");
    }

    #[test]
    fn a_mask_that_is_drawn_again_instead_of_kept_gives_the_same_bits() {
        let case = case("cnn11", 24, 4, 0.25);
        let kept = case.bits(&mut case.executor(1), 4);
        let mut executor = case.executor(1);
        let held = executor.program(4, Direction::Training).expect("compiled");
        let plan = executor.programs[held].program.plan.clone();
        let is_mask = |step: &&Step| matches!(step.action, Action::Mask { .. });
        let masks: Vec<Step> = plan.steps.iter().filter(is_mask).cloned().collect();
        assert!(!masks.is_empty(), "the model has dropout");
        let mut steps = plan.steps[..plan.forward_steps].to_vec();
        for step in &plan.steps[plan.forward_steps..] {
            let drawn_again = masks.iter().filter(|mask| step.reads.contains(&mask.writes[0]));
            steps.extend(drawn_again.cloned());
            steps.push(step.clone());
        }
        let bytes: Vec<usize> = plan.values.iter().map(|value| value.bytes).collect();
        let (forward_steps, weights) = (plan.forward_steps, plan.weights.clone());
        let again = Plan::new(steps, forward_steps, &bytes, &[], weights);
        for mask in &masks {
            assert_eq!(again.values[mask.writes[0]].intervals.len(), 2);
            assert!(!again.saved().contains(&mask.writes[0]));
        }
        assert!(again.saved_bytes() < plan.saved_bytes());
        executor.arena = Buffer::zeroed(again.placement.bytes);
        executor.programs[held].program.plan = again;
        assert!(case.bits(&mut executor, 4) == kept);
    }

    #[test]
    fn activations_share_memory() {
        let case = case("resnet20", 32, 8, 1.0);
        let mut executor = case.executor(1);
        case.bits(&mut executor, 8);
        let results: usize = case.graph.nodes.iter().map(|node| 4 * 8 * elements(node.shape)).sum();
        assert!(executor.arena.bytes() < results, "less than one forward pass's results");
        let saved = executor.saved_bytes(8).expect("compiled");
        assert!(saved <= executor.arena.bytes() as u64 && saved > 0);
    }
}
