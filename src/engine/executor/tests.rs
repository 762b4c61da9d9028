//! The same bits from the same inputs, and what a micro-batch hands out.

use std::collections::BTreeMap;

use kintsugi_ffi::arena::Arena;

use super::{Executor, PROGRAMS_MAX};
use crate::config::seed::Stream;
use crate::config::{Device, MemoryMode, Precision};
use crate::engine::compute::Compute;
use crate::engine::cpu::bf16::computed_here;
use crate::engine::cpu::machine::Machine;
use crate::engine::memory::limits::Limits;
use crate::engine::memory_plan;
use crate::engine::plan::operation::Direction;
use crate::engine::plan::steps::{Action, Draft, Step};
use crate::engine::plan::tensor::ElementType;
use crate::engine::source::Flat;
use crate::engine::subject::Subject;
use crate::engine::targets::Outcome;
use crate::model::Graph;
use crate::model::TensorKind;
use crate::model::spec::GraphBuilder;
use crate::model::spec::elements;
use crate::model::window::{Conv, Pair};
use crate::model::{LayerKind, Layout, TensorSpec, catalogue, init, layout};

mod weights;

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

fn of(subject: Subject, threads: usize) -> Executor<Machine> {
    Executor::new(Machine::new(subject, threads).expect("a machine"))
}

/// The same, which is seen to read what is no number.
fn soiled(mut executor: Executor<Machine>) -> Executor<Machine> {
    executor.machine.subject.soiled = true;
    executor
}

impl Case {
    fn executor(&self, threads: usize) -> Executor<Machine> {
        self.executor_of(ElementType::F32, threads)
    }

    fn executor_of(&self, element: ElementType, threads: usize) -> Executor<Machine> {
        self.within(element, threads, &Limits::none())
    }

    fn within(&self, element: ElementType, threads: usize, limits: &Limits) -> Executor<Machine> {
        of(Subject::new(&self.graph, element, &[], limits), threads)
    }

    fn weights(&self) -> Flat<'_> {
        Flat { parameters: &self.parameters, statistics: &self.statistics }
    }

    /// Bits of the gradients, by where their tensors lie.
    fn gradients(&self, executor: &mut Executor<Machine>) -> BTreeMap<usize, Vec<u32>> {
        let mut gradients = BTreeMap::new();
        let mut statistics = vec![0.0; self.layout.statistics];
        let ready = &mut |at: usize, g: &[f32]| {
            gradients.insert(at, g.iter().map(|x| x.to_bits()).collect());
        };
        let (targets, weights) = ((&self.labels).into(), &self.weights());
        executor
            .train(&self.images, targets, [1, 2, 3], weights, &mut statistics, ready)
            .expect("a micro-batch");
        gradients
    }

    /// Everything a micro-batch gives, as bits.
    fn bits(&self, executor: &mut Executor<Machine>, samples: usize) -> Vec<u64> {
        self.bits_of(executor, samples, &self.parameters)
    }

    /// The same of another state.
    fn bits_of(
        &self,
        executor: &mut Executor<Machine>,
        samples: usize,
        parameters: &[f32],
    ) -> Vec<u64> {
        let mut bits = Vec::new();
        let mut statistics = vec![0.0; self.layout.statistics];
        let images = &self.images[..samples * elements(self.graph.input)];
        let ready = &mut |at: usize, g: &[f32]| {
            bits.push(at as u64);
            bits.extend(g.iter().map(|x| u64::from(x.to_bits())));
        };
        let labels = &self.labels[..samples];
        let weights = &Flat { parameters, ..self.weights() };
        let outcome = executor
            .train(images, labels.into(), [1, 2, 3], weights, &mut statistics, ready)
            .expect("a micro-batch");
        bits.push(outcome.loss_sum.to_bits());
        bits.push(outcome.errors);
        bits.extend(statistics.iter().map(|x| u64::from(x.to_bits())));
        bits
    }
}

#[test]
fn the_same_inputs_give_the_same_bits_whatever_ran_before_and_where() {
    let two_threads = computed_here().map(|element| (element, 2));
    for (element, threads) in two_threads.chain([(ElementType::F32, 1)]) {
        for (name, side, width) in [("cnn11", 24, 0.25), ("resnet20", 32, 1.0)] {
            let case = case(name, side, 6, width);
            let open = || case.executor_of(element, threads);
            let first = case.bits(&mut open(), 5);
            // After other batch sizes, evaluation, more programs than are kept, and a reload.
            let mut busy = open();
            for samples in 1..=6 {
                case.bits(&mut busy, samples);
                let images = &case.images[..samples * elements(case.graph.input)];
                let labels = &case.labels[..samples];
                busy.infer(images, labels, &case.weights(), None).expect("a micro-batch");
            }
            assert!(busy.programs.len() <= PROGRAMS_MAX);
            assert!(case.bits(&mut busy, 5) == first, "{name}: history changed the bits");
            busy.renew();
            assert!(case.bits(&mut busy, 5) == first, "{name}: a reload changed the bits");
            busy.renew();
            busy.load(5, &case.weights()).expect("parameters fit");
            assert!(case.bits(&mut busy, 5) == first, "{name}: reading at once did");
            // Two threads at once, images at an odd address.
            std::thread::scope(|scope| {
                let run = |_| scope.spawn(|| case.bits(&mut open(), 5));
                let runs: Vec<_> = (0..2).map(run).collect();
                for run in runs {
                    assert!(run.join().expect("no panic") == first, "{name}: a thread did");
                }
            });
            let mut shifted = Vec::with_capacity(case.images.len() + 1);
            shifted.push(0.0);
            shifted.extend_from_slice(&case.images);
            let mut executor = open();
            let samples = 5 * elements(case.graph.input);
            let (labels, weights) = (&case.labels[..5], &case.weights());
            let a = executor.infer(&case.images[..samples], labels, weights, None);
            let b = executor.infer(&shifted[1..=samples], labels, weights, None);
            assert_eq!(a, b);
        }
    }
}

#[test]
fn matrices_are_read_in_the_state_unless_it_was_read_at_once() {
    let case = case("mlp", 8, 3, 0.5);
    let matrices: usize = case.layout.tensors.iter().filter(|t| t.shape.len() > 1).map(bytes).sum();
    let mut executor = case.executor(1);
    let first = case.bits(&mut executor, 3);
    let lent = executor.machine.weights.bytes();
    // A state that changes after all was read, as free-running workers may see.
    executor.load(3, &case.weights()).expect("parameters fit");
    // Buffers are whole cache lines.
    let copied = executor.machine.weights.bytes() - lent;
    assert!(copied.abs_diff(matrices) < 64 * 8, "{copied} {matrices}");
    let parameters = vec![0.5; case.parameters.len()];
    let (moved, labels) = (Flat { parameters: &parameters, ..case.weights() }, &case.labels);
    let kept = executor.infer(&case.images, labels, &case.weights(), None);
    assert_eq!(executor.infer(&case.images, labels, &moved, None), kept);
    assert!(case.bits(&mut executor, 3) == first);
    executor.renew();
    assert_ne!(executor.infer(&case.images, labels, &moved, None), kept);
}

fn bytes(tensor: &TensorSpec) -> usize {
    size_of::<f32>() * tensor.elements()
}

#[test]
fn every_trained_tensor_is_ready_once_in_reverse_node_order() {
    let case = case("resnet20", 32, 2, 1.0);
    let mut seen = Vec::new();
    let mut statistics = vec![0.0; case.layout.statistics];
    let ready = &mut |at: usize, part: &[f32]| seen.push((at, part.len()));
    let mut executor = case.executor(1);
    executor
        .train(&case.images, (&case.labels).into(), [0; 3], &case.weights(), &mut statistics, ready)
        .expect("a micro-batch");
    let node = |offset: usize| {
        let mut tensors = case.layout.tensors.iter();
        let own =
            |t: &&crate::model::TensorSpec| t.kind != TensorKind::Statistic && t.offset == offset;
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
    assert_eq!(executor.infer(&[], &[], &case.weights(), None), Ok(Outcome::default()));
}

#[test]
fn bad_input_is_refused_and_says_why() {
    let case = case("mlp", 8, 2, 0.1);
    let (mut executor, weights) = (case.executor(1), &case.weights());
    let parameters = &case.parameters[..case.parameters.len() - 1];
    let short = &Flat { parameters, ..*weights };
    let error =
        executor.infer(&case.images, &case.labels, short, None).expect_err("one is lacking");
    assert!(error.to_string().contains("parameters"), "{error}");
    let error = executor.infer(&case.images, &[1, 10], weights, None).expect_err("a wrong label");
    assert!(error.to_string().contains("label 10 of sample 1"), "{error}");
    assert!(executor.infer(&case.images[1..], &case.labels, weights, None).is_err());
    executor.infer(&case.images, &case.labels, weights, None).expect("the others are fine");
}

#[test]
fn a_few_steps_of_descent_learn_the_micro_batch() {
    for element in computed_here() {
        let losses = descend(&case("cnn11", 24, 8, 0.1), element);
        assert!(losses[0] > 1.5 && losses[29] < 0.2, "{element:?}: {losses:?}");
    }
}

/// Losses of 30 steps.
fn descend(case: &Case, element: ElementType) -> Vec<f64> {
    let mut parameters = case.parameters.clone();
    let mut executor = case.executor_of(element, 1);
    let mut statistics = vec![0.0; case.layout.statistics];
    let mut losses = Vec::new();
    for step in 0..30 {
        executor.renew();
        let now = parameters.clone();
        let weights = &Flat { parameters: &now, ..case.weights() };
        let mut ready = |at: usize, gradients: &[f32]| {
            for (p, g) in parameters[at..].iter_mut().zip(gradients) {
                *p -= 0.05 / 8.0 * g;
            }
        };
        let (images, labels, key) = (&case.images, &case.labels, [step, 0, 0]);
        let outcome = executor
            .train(images, labels.into(), key, weights, &mut statistics, &mut ready)
            .expect("a micro-batch");
        losses.push(outcome.loss_sum / 8.0);
    }
    losses
}

#[test]
fn bf16_needs_about_half_the_memory_of_f32() {
    if computed_here().count() == 1 {
        return;
    }
    let case = case("resnet20", 32, 8, 1.0);
    let arena = |element| {
        let mut executor = case.executor_of(element, 1);
        executor.prepare(8).expect("compiled");
        executor.machine.arena.bytes() as f64
    };
    let share = arena(ElementType::Bf16) / arena(ElementType::F32);
    assert!((0.4..0.7).contains(&share), "{share}");
}

/// Puts in whatever of these steps gives a step what it reads.
fn replay(step: &Step, again: &[Step], into: &mut Vec<Step>) {
    for giver in again.iter().filter(|giver| step.reads.contains(&giver.writes[0])) {
        replay(giver, again, into);
        into.push(giver.clone());
    }
}

#[test]
fn what_is_computed_again_instead_of_kept_gives_the_same_bits() {
    let case = case("cnn11", 24, 4, 0.25);
    let kept = case.bits(&mut case.executor(1), 4);
    let mut executor = case.executor(1);
    let held = executor.program(4, Direction::Training).expect("compiled");
    let draft = executor.programs[held].program.program.plan.draft.clone();
    let forward = draft.forward_steps();
    // Masks, and products with them: the latter with the kernel that is there.
    let is_dropout = |step: &&Step| match case.graph.nodes.get(step.node) {
        Some(node) => matches!(node.kind, LayerKind::Dropout { .. }),
        None => false,
    };
    let dropped: Vec<Step> = draft.steps[..forward].iter().filter(is_dropout).cloned().collect();
    assert!(dropped.len() > 1, "the model has dropout");
    let mut again = Draft { steps: draft.steps[..forward].to_vec(), ..draft.clone() };
    for step in &draft.steps[forward..] {
        replay(step, &dropped, &mut again.steps);
        again.steps.push(step.clone());
    }
    for step in &dropped {
        assert!(again.values()[step.writes[0]].intervals.len() > 1);
        assert!(!again.saved().contains(&step.writes[0]));
    }
    assert!(again.saved_bytes() < draft.saved_bytes());
    let again = again.place();
    executor.machine.arena = Arena::zeroed(again.arena_bytes).into();
    executor.programs[held].program.again = vec![false; again.actions.len()];
    executor.programs[held].program.program.plan = again;
    assert!(case.bits(&mut executor, 4) == kept);
}

#[test]
fn frozen_tensors_have_no_gradients_and_the_others_have_the_same_bits() {
    for (name, prefixes) in [
        // A norm whose scale or shift is trained uses the batch's statistics as before.
        ("resnet20", &["conv1", "layer2.0.conv", "layer3.1.bn1.weight"][..]),
        ("resnet20", &["conv1", "bn1.bias", "layer1.0.conv", "layer2.2.bn2.bias"]),
        ("cnn11", &["conv1"]),
    ] {
        let case = case(name, 32, 4, 1.0);
        let is_frozen = |tensor: &TensorSpec| prefixes.iter().any(|p| tensor.name.starts_with(p));
        let frozen: Vec<bool> = case.layout.tensors.iter().map(is_frozen).collect();
        assert!(frozen.contains(&true), "{name} has {prefixes:?}");
        let whole = case.gradients(&mut case.executor(1));
        let mut part = case.gradients(&mut of(
            Subject::new(&case.graph, ElementType::F32, &frozen, &Limits::none()),
            1,
        ));
        for tensor in case.layout.tensors.iter().filter(|tensor| is_frozen(tensor)) {
            assert!(!part.contains_key(&tensor.offset) || tensor.kind == TensorKind::Statistic);
        }
        part.retain(|offset, gradient| whole.get(offset) != Some(gradient));
        assert!(part.is_empty(), "{name}, {prefixes:?}: {:?} differ", part.keys());
    }
}

#[test]
fn a_depthwise_gradient_is_computed_in_the_orders_of_the_forward_pass() {
    let depthwise = Conv { groups: 32, stride: Pair::both(2), ..Conv::new(32, 3) };
    let mut builder = GraphBuilder::new("depthwise", [3, 24, 24], 10);
    builder.then("first", LayerKind::Conv(Conv::new(32, 1)));
    builder.then("depthwise", LayerKind::Conv(depthwise));
    builder.then("pool", LayerKind::GlobalAvgPool);
    builder.then("flatten", LayerKind::Flatten);
    builder.then("fc", LayerKind::Linear { features: 10, bias: true });
    let graph = builder.finish().expect("a valid model");
    for element in computed_here() {
        let mut executor = of(Subject::new(&graph, element, &[], &Limits::none()), 1);
        let held = executor.program(8, Direction::Training).expect("compiled");
        let plan = &executor.programs[held].program.program.plan.draft;
        let own = |step: &&Step| graph.nodes.get(step.node).is_some_and(|n| n.name == "depthwise");
        let runs = |step: &&Step| matches!(step.action, Action::Run { .. });
        let steps = plan.steps[plan.forward_steps()..].iter().filter(own).filter(runs);
        // Of the weights' gradient, of its order, and of the gradient that goes on.
        assert_eq!(steps.count(), 3, "{element:?}");
    }
}

#[test]
fn activations_share_memory() {
    let case = case("resnet20", 32, 8, 1.0);
    let mut executor = case.executor(1);
    case.bits(&mut executor, 8);
    let results: usize = case.graph.nodes.iter().map(|node| 4 * 8 * elements(node.shape)).sum();
    assert!(executor.machine.arena.bytes() < results, "less than one forward pass's results");
    let held = executor.program(8, Direction::Training).expect("compiled");
    let saved = executor.programs[held].program.program.plan.draft.saved_bytes() as u64;
    assert!(saved <= executor.machine.arena.bytes() as u64 && saved > 0);
}

#[test]
fn a_footprint_is_what_a_prepared_engine_holds() {
    for (name, element) in ["resnet20", "mlp"]
        .into_iter()
        .flat_map(|name| computed_here().map(move |element| (name, element)))
    {
        let case = case(name, 32, 6, 1.0);
        let all = [Precision::F32, Precision::Bf16];
        let precision = all.into_iter().find(|precision| precision.element() == element);
        let device = Device { precision: precision.expect("a name"), ..Device::default() };
        let planned = memory_plan(&case.graph, &device, 6, 1, &Limits::none());
        let planned = planned.expect("planned").footprint();
        let mut executor = case.executor_of(element, 1);
        executor.prepare(6).expect("planned");
        // Buffers are whole cache lines.
        let held = (executor.machine.arena.bytes() + executor.machine.weights.bytes()) as u64;
        let wanted = planned.activations_bytes + planned.weights_bytes;
        assert!((wanted..wanted + 64 * 256).contains(&held), "{name}: {held} {planned:?}");
    }
}

/// Everything stays as it is in core, bit for bit, whatever leaves the near tier.
#[test]
fn every_mode_of_memory_gives_the_bits_of_the_run_in_core() {
    for element in computed_here() {
        for (name, side, width) in [("resnet20", 32, 1.0), ("mobilenet_v2", 32, 1.0)] {
            // Copies of weights count, and are most of the second model's.
            let planned: &[usize] = if name == "resnet20" { &[90, 60] } else { &[90] };
            let case = case(name, side, 5, width);
            let mut in_core = case.executor_of(element, 1);
            let expected = case.bits(&mut in_core, 5);
            let bytes = in_core.machine.arena.bytes() + in_core.machine.weights.bytes();
            for (mut limits, what) in limits_of(bytes, planned) {
                if limits.mode == MemoryMode::Unified {
                    let executor = case.within(element, 1, &limits);
                    limits.budget_bytes = executor.machine.smallest_budget(5).ok();
                }
                let mut executor = soiled(case.within(element, 1, &limits));
                for pass in 0..2 {
                    assert!(case.bits(&mut executor, 5) == expected, "{name} {what} {pass}");
                }
                let held = executor.machine.arena.bytes() + executor.machine.weights.bytes();
                // Where a pager divides what is touched at once, all may be: then nothing leaves.
                let may_stay = limits.mode == MemoryMode::Unified && name == "mobilenet_v2";
                assert!(held < bytes + usize::from(may_stay), "{name} {what}: {held} of {bytes}");
            }
        }
    }
}

/// Section 2.4 of Negishi et al.
#[test]
fn a_layer_larger_than_the_budget_is_refused_by_name_and_trained_under_unified_memory() {
    let element = ElementType::F32;
    let case = case("resnet20", 32, 40, 1.0);
    let expected = case.bits(&mut case.executor_of(element, 1), 40);
    let swap = Limits { mode: MemoryMode::SwapSync, ..Limits::none() };
    let executor = case.within(element, 1, &swap);
    let weights = executor.machine.memory_plan(40).expect("no budget").weights_bytes as usize;
    let least = executor.machine.smallest_budget(40).expect("planned");
    // Less than the largest layer needs by itself.
    let budget = weights + (least - weights) / 2;
    let budget_bytes = Some(budget);
    let refused = |mode| {
        let limits = Limits { mode, budget_bytes, ..swap.clone() };
        let refused = case.within(element, 1, &limits).prepare(40);
        refused.expect_err("too small").to_string()
    };
    let said = refused(MemoryMode::SwapSync);
    assert!(
        said.contains("memory.mode = \"swap_sync\" (") && said.contains(" at layer1"),
        "{said}"
    );
    assert!(refused(MemoryMode::Planned).contains("memory.mode = \"planned\" ("));
    let limits = Limits { mode: MemoryMode::Unified, budget_bytes, ..swap };
    let mut executor = soiled(case.within(element, 1, &limits));
    for pass in 0..2 {
        assert!(case.bits(&mut executor, 40) == expected, "{pass}");
    }
    let plan = executor.machine.memory_plan(40).expect("it fits");
    assert!(plan.near_bytes()[1] as usize <= budget);
    assert!(plan.far_bytes > 0);
}

/// All modes, planned ones with budgets of so many per cent of what it takes in core.
fn limits_of(in_core_bytes: usize, planned: &[usize]) -> Vec<(Limits, String)> {
    use crate::config::{Granularity, MemoryDesign};
    use crate::engine::memory::unified::Paging;
    let of = |mode, budget_bytes, granularity, window| {
        let limits = Limits { mode, budget_bytes, granularity, window, ..Limits::none() };
        (limits, format!("{mode:?} {budget_bytes:?} {granularity:?} {window}"))
    };
    let layer = Granularity::Layer;
    let mut all = vec![of(MemoryMode::Recompute, None, layer, 1)];
    for granularity in [layer, Granularity::Coarse] {
        all.push(of(MemoryMode::SwapSync, None, granularity, 1));
        all.push(of(MemoryMode::Swap, None, granularity, 1));
    }
    all.push(of(MemoryMode::Swap, None, layer, 3));
    for part in planned {
        let budget = Some(in_core_bytes * part / 100);
        all.push(of(MemoryMode::Planned, budget, layer, 1));
    }
    // Within the least that will do.
    let (limits, what) = of(MemoryMode::Unified, None, layer, 1);
    for design in [MemoryDesign::Full, MemoryDesign::DivisionWithDiscard] {
        let paging = Paging { design, ..limits.paging };
        all.push((Limits { paging, ..limits.clone() }, format!("{what} {design:?}")));
    }
    all
}
