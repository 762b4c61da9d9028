//! Training beyond a card's memory: on the fake driver, whose far tier is memory of the host too.

use kintsugi::config::{Device, DeviceKind, Granularity, MemoryMode};
use kintsugi::engine::memory::limits::Limits;
use kintsugi::engine::{self, Compute, EngineError, Flat};
use kintsugi::model::file::from_toml;
use kintsugi::model::{Graph, catalogue, init, layout};

use super::{CLASSES, kinds};

const SAMPLES: usize = 4;

fn device() -> Device {
    Device { kind: DeviceKind::Cuda, ..Device::default() }
}

fn residual() -> Graph {
    catalogue::build("resnet20", [3, 16, 16], CLASSES, 1.0).expect("in the catalogue")
}

/// One with dropout, whose masks must be drawn again as they were, and pooling.
fn dropping() -> Graph {
    let conv = "[[layer]]\nkind = \"conv\"\nchannels = 24\nkernel = 3\npadding = 1\n\
                [[layer]]\nkind = \"relu\"\n[[layer]]\nkind = \"dropout\"\nrate = 0.3\n";
    let rest = "[[layer]]\nkind = \"max_pool\"\nkernel = 2\nstride = 2\n\
                [[layer]]\nkind = \"global_avg_pool\"\n[[layer]]\nkind = \"linear\"\n\
                features = \"classes\"\n";
    from_toml(&format!("{conv}{conv}{conv}{rest}"), [3, 16, 16], CLASSES).expect("a model")
}

/// Micro-batches: more than are compared with what was expected of them.
const PASSES: u64 = 5;

/// What so many micro-batches give, as bits: gradients, loss, statistics. Their masks differ.
fn bits(graph: &Graph, engine: &mut dyn Compute, passes: u64) -> Vec<u64> {
    let layout = layout::of(graph);
    let parameters = init::parameters(graph, &layout, 5);
    let running = init::statistics(&layout);
    let pixels = SAMPLES * graph.input.iter().product::<usize>();
    let images: Vec<f32> = (0..pixels).map(|at| ((at % 251) as f32 - 125.0) / 100.0).collect();
    let labels: Vec<u32> = (0..SAMPLES).map(|at| (at * 7 % CLASSES) as u32).collect();
    let mut bits = Vec::new();
    for pass in 0..passes {
        let weights = &Flat { parameters: &parameters, statistics: &running };
        let mut statistics = running.clone();
        let mut gradients = vec![0.0; parameters.len()];
        let ready = &mut |offset: usize, part: &[f32]| {
            gradients[offset..offset + part.len()].copy_from_slice(part);
        };
        let key = [1, 2, pass];
        let outcome = engine.train(&images, (&labels).into(), key, weights, &mut statistics, ready);
        bits.push(outcome.expect("a micro-batch").loss_sum.to_bits());
        let all = gradients.iter().chain(&statistics);
        bits.extend(all.map(|number| u64::from(number.to_bits())));
    }
    bits
}

fn engine(graph: &Graph, limits: &Limits) -> Result<Box<dyn Compute>, EngineError> {
    engine::open_soiled(&device(), graph, 1, limits)
}

/// The least that would do, as a refusal names it.
fn smallest(graph: &Graph, limits: &Limits) -> usize {
    let limits = Limits { budget_bytes: Some(1), ..limits.clone() };
    let refused = engine(graph, &limits).and_then(|mut engine| engine.prepare(SAMPLES));
    let told = refused.expect_err("a byte is too little").to_string();
    let (_, number) = told.split_once("samples takes ").expect("it names the least");
    number.split(' ').next().and_then(|number| number.parse().ok()).expect("a number of bytes")
}

fn limits(mode: MemoryMode) -> Limits {
    Limits { mode, ..Limits::none() }
}

/// Poison where a value has left proves that nothing reads it there.
#[test]
fn whatever_leaves_a_card_the_bits_are_those_of_the_run_in_core() {
    kinds();
    for graph in [residual(), dropping()] {
        let name = &graph.name;
        let of = |limits: &Limits, passes: u64| {
            bits(&graph, &mut *engine(&graph, limits).expect("an engine"), passes)
        };
        let expected = of(&Limits::none(), PASSES);
        let coarse = Limits { granularity: Granularity::Coarse, ..limits(MemoryMode::Swap) };
        let mut all = vec![(coarse, 1), (limits(MemoryMode::Unified), 1)];
        for mode in [MemoryMode::SwapSync, MemoryMode::Swap, MemoryMode::Recompute] {
            all.push((limits(mode), 2));
        }
        let least = smallest(&graph, &limits(MemoryMode::Planned));
        let in_core = smallest(&graph, &limits(MemoryMode::InCore));
        assert!(least < in_core, "{name}: {least} B of {in_core} B in core");
        for budget in [least, least + (in_core - least) / 3] {
            let limits = Limits { budget_bytes: Some(budget), ..limits(MemoryMode::Planned) };
            all.push((limits, PASSES));
        }
        for (limits, passes) in all {
            let what = format!("{name} {:?} {:?}", limits.mode, limits.budget_bytes);
            let own = of(&limits, passes);
            assert!(own == expected[..own.len()], "{what}");
        }
    }
}

#[test]
fn a_budget_below_the_least_is_refused_and_the_least_is_not() {
    kinds();
    let graph = residual();
    for mode in [MemoryMode::InCore, MemoryMode::Swap, MemoryMode::Recompute, MemoryMode::Planned] {
        let least = smallest(&graph, &limits(mode));
        let of = |bytes: usize| {
            let limits = Limits { budget_bytes: Some(bytes), ..limits(mode) };
            engine(&graph, &limits).and_then(|mut engine| engine.prepare(SAMPLES))
        };
        of(least).unwrap_or_else(|error| panic!("{mode:?}: {error}"));
        let told = of(least - 1).expect_err("a byte less").to_string();
        assert!(told.contains("device.memory_budget"), "{told}");
    }
}
