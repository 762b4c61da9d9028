//! The support table of cuDNN: the plan of every convolution of every model, in every precision,
//! for a card that is not there. Hundreds of plans: `make test-cuda-plans`.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use kintsugi::config::Precision;
use kintsugi::engine::cuda::backend::{Cuda, Settled};
use kintsugi::engine::cuda::convolutions::{
    Chosen, Convolution, Planned, Target, WORKSPACE_BYTES_MAX,
};
use kintsugi::engine::cuda::layout::{channels_last, filter};
use kintsugi::engine::plan::builder::Request;
use kintsugi::engine::plan::compile::compile;
use kintsugi::engine::plan::operation::{
    Backend, Choice, Direction, Operation, ProductPass, Refusal, Window,
};
use kintsugi::engine::plan::tensor::ElementType;
use kintsugi::model::{Graph, catalogue, layout};
use kintsugi_ffi::cuda::{Cudnn, Found, Places};
use kintsugi_ffi::operation::Activation;
use xxhash_rust::xxh3::Xxh3Default;

use crate::sweep;

/// A card that nobody needs to have: made of an H100's public properties.
const DEVICE: &str = include_str!("../../../ffi/tests/cuda/h100.json");
/// A small share, and one that fills a large card.
const BATCHES: [usize; 2] = [32, 256];
const CLASSES: usize = 1000;
const PRECISIONS: [Precision; 3] = [Precision::F32, Precision::Tf32, Precision::Bf16];
const PASSES: [&str; 3] = ["forward", "backward data", "backward weights"];

/// Hands on what is asked, and keeps the convolutions of what is chosen.
#[derive(Default)]
struct Recorder {
    cuda: Cuda<'static>,
    convolutions: Vec<Settled>,
}

impl Backend for Recorder {
    fn choose(&mut self, operation: &Operation<'_>) -> Result<Choice, Refusal> {
        let choice = self.cuda.choose(operation)?;
        let (chosen, _) = self.cuda.operation(choice.kernel);
        if matches!(chosen, Settled::Conv { .. } | Settled::Linear { .. }) {
            self.convolutions.push(chosen.clone());
        }
        Ok(choice)
    }
}

/// The convolutions of one micro-batch.
fn convolutions(model: &str, batch: usize, element: ElementType) -> Vec<Settled> {
    // Those are for small pictures.
    let side = if ["resnet20", "resnet56"].contains(&model) { 32 } else { 224 };
    let graph = catalogue::build(model, [3, side, side], CLASSES, 1.0).unwrap();
    of_graph(&graph, batch, element)
}

fn of_graph(graph: &Graph, batch: usize, element: ElementType) -> Vec<Settled> {
    let layout = layout::of(graph);
    let (direction, frozen) = (Direction::Training, &[][..]);
    let request = Request { graph, layout: &layout, batch, direction, element, frozen };
    let mut recorder = Recorder::default();
    compile(request, &mut recorder).unwrap();
    recorder.convolutions
}

/// Which of `PASSES`.
fn pass(convolution: &Settled) -> usize {
    match convolution {
        Settled::Conv { pass, .. } | Settled::Linear { pass, .. } => match pass {
            ProductPass::Forward { .. } => 0,
            ProductPass::BackwardData(_) => 1,
            ProductPass::BackwardWeights(_) => 2,
        },
        _ => panic!("no product"),
    }
}

/// What one precision came to at one batch size.
struct Table {
    precision: Precision,
    batch: usize,
    /// By what it is: its plan's workspace, or why there is none.
    known: BTreeMap<String, Result<usize, String>>,
    /// By what it is: the models that have it.
    without: BTreeMap<String, Vec<&'static str>>,
    /// By engine: of how many convolutions it is the choice.
    engines: BTreeMap<i64, usize>,
    /// Of all plans in order: processes and machines can be compared by it.
    digest: Xxh3Default,
    /// In all, and again from what was kept.
    took: [Duration; 2],
}

impl Table {
    fn new(precision: Precision, batch: usize) -> Self {
        let (known, without, engines) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (digest, took) = (Xxh3Default::new(), [Duration::ZERO; 2]);
        Self { precision, batch, known, without, engines, digest, took }
    }

    /// The plan of a convolution, made when it is first seen.
    fn plan(&mut self, target: &Target<'_>, convolution: &Convolution) -> bool {
        let name = convolution.to_string();
        if let Some(known) = self.known.get(&name) {
            return known.is_ok();
        }
        let start = Instant::now();
        let chosen = convolution.choose(target).unwrap_or_else(|error| panic!("{name}: {error}"));
        self.took[0] += start.elapsed();
        let answer = match chosen {
            Chosen::Plan(planned) => Ok(self.kept(target, convolution, &planned)),
            Chosen::Own(Refusal(why)) => Err(why),
        };
        let is_planned = answer.is_ok();
        self.known.insert(name, answer);
        is_planned
    }

    /// What was kept makes the same plan, and no other convolution's. Bytes of its workspace.
    fn kept(&mut self, target: &Target<'_>, of: &Convolution, planned: &Planned) -> usize {
        let start = Instant::now();
        let again = of.from_json(target, &planned.json);
        self.took[1] += start.elapsed();
        let again = again.unwrap_or_else(|error| panic!("{of}: {error}"));
        assert_eq!((&again.json, again.engine), (&planned.json, planned.engine), "{of}");
        let bytes = planned.plan.workspace_bytes();
        assert_eq!(again.plan.workspace_bytes(), bytes, "{of}");
        assert!(bytes <= WORKSPACE_BYTES_MAX, "{of}: {bytes}");
        self.digest.update(planned.json.as_bytes());
        *self.engines.entry(planned.engine).or_default() += 1;
        bytes
    }

    /// One line for a model: of how many convolutions there is a plan, by pass.
    fn model(&mut self, target: &Target<'_>, model: &'static str) {
        let mut counts = [[0; 2]; PASSES.len()];
        for settled in convolutions(model, self.batch, self.precision.element()) {
            let convolution = Convolution::new(&settled, self.precision).unwrap();
            let [planned, all] = &mut counts[pass(&settled)];
            *all += 1;
            match self.plan(target, &convolution) {
                true => *planned += 1,
                false => {
                    let models = self.without.entry(convolution.to_string()).or_default();
                    models.extend((models.last() != Some(&model)).then_some(model));
                }
            }
        }
        let counts = counts.map(|[planned, all]| format!("{planned:4} of {all:3}"));
        println!("  {model:16} {}", counts.join("  "));
    }

    fn tell(&self) {
        let planned = self.known.iter().filter_map(|(name, of)| Some((*of.as_ref().ok()?, name)));
        let mut planned: Vec<_> = planned.collect();
        planned.sort_unstable();
        let [chosen, kept] = self.took.map(|time| time.as_secs_f64());
        println!(
            "  {} different ones, {} with a plan; {chosen:.1} s to choose, {kept:.1} s from what \
             was kept; by engine: {:?}; digest {:016x}",
            self.known.len(),
            planned.len(),
            self.engines,
            self.digest.digest(),
        );
        if let Some((bytes, name)) = planned.last() {
            println!("  largest workspace: {} MiB, {name}", bytes.div_ceil(1 << 20));
        }
        for (name, models) in &self.without {
            let why = self.known[name].as_ref().unwrap_err();
            println!("  none: {name} ({}): {why}", models.join(", "));
        }
    }
}

fn cudnn() -> Option<Cudnn> {
    // Who looks for the one that computes here must not find this one.
    super::kinds();
    match Found::look(&Places::usual(None)).cudnn {
        Ok((_, cudnn)) => Some(cudnn),
        Err(missing) => {
            super::skipped("plans of every convolution", &missing);
            None
        }
    }
}

#[test]
fn every_convolution_of_the_catalogue_in_every_precision() {
    let Some(cudnn) = cudnn() else { return };
    let target = Target::described(&cudnn, DEVICE).unwrap();
    println!("cuDNN {}", cudnn.version());
    for (precision, batch) in PRECISIONS.into_iter().flat_map(|of| BATCHES.map(|n| (of, n))) {
        let mut table = Table::new(precision, batch);
        println!("{precision:?}, batch {batch}: {}", PASSES.join(", "));
        for entry in catalogue::MODELS {
            table.model(&target, entry.name);
        }
        table.tell();
        let resnet = table.without.values().flatten().any(|model| model.starts_with("resnet"));
        assert!(!resnet, "a convolution of a residual network has no plan");
    }
}

/// What no model of the catalogue has: an uneven padding, a dilation, groups that do not fill
/// lanes; and sizes that do not fit together.
fn odd(element: ElementType, pass: ProductPass<usize>) -> [Settled; 4] {
    let settled = |[c, k]: [usize; 2], weights: &[usize], window: Window| {
        let src = channels_last(&[8, c, 28, 28], element);
        let dst = channels_last(&[8, k, 28, 28], element);
        let (weights, bias) = (filter(weights, element), None);
        Settled::Conv { src, weights, bias, dst, window, pass }
    };
    let window = Window { padding: [1; 2], padding_end: [1; 2], ..Window::whole([3, 3]) };
    let uneven = Window { padding: [0, 2], padding_end: [2, 0], ..window };
    let wide = Window { padding: [2; 2], padding_end: [2; 2], dilation: [2; 2], ..window };
    [
        settled([16, 32], &[32, 16, 3, 3], uneven),
        settled([16, 32], &[32, 16, 3, 3], wide),
        settled([9, 6], &[3, 2, 3, 3, 3], window),
        settled([16, 32], &[32, 16, 3, 3], Window::whole([3, 3])),
    ]
}

#[test]
fn a_convolution_without_a_plan_is_left_to_the_own_kernel() {
    let Some(cudnn) = cudnn() else { return };
    let target = Target::described(&cudnn, DEVICE).unwrap();
    let activation = Activation::None;
    let passes = [
        ProductPass::Forward { direction: Direction::Training, activation },
        ProductPass::BackwardData(0),
        ProductPass::BackwardWeights(0),
    ];
    for (precision, pass) in PRECISIONS.into_iter().flat_map(|of| passes.map(|pass| (of, pass))) {
        let [uneven, wide, grouped, wrong] = odd(precision.element(), pass)
            .map(|settled| Convolution::new(&settled, precision).unwrap());
        for convolution in [uneven, wide, grouped] {
            match convolution.choose(&target).unwrap() {
                Chosen::Plan(planned) => {
                    let again = convolution.from_json(&target, &planned.json).unwrap();
                    assert_eq!(again.json, planned.json, "{convolution}");
                    assert!(wrong.from_json(&target, &planned.json).is_err(), "{convolution}");
                }
                Chosen::Own(Refusal(why)) => println!("none: {convolution}: {why}"),
            }
        }
        match wrong.choose(&target).unwrap() {
            Chosen::Plan(planned) => panic!("{wrong}: {}", planned.json),
            Chosen::Own(Refusal(why)) => assert!(why.contains("CUDNN_STATUS_"), "{why}"),
        }
    }
}

/// The plans of a drawn shape's convolutions, all of which must be makable again from what is kept.
fn plan_drawn(target: &Target<'_>, seed: u64) -> usize {
    let (_, text, case) = sweep::drawn(seed);
    let mut planned = 0;
    for precision in PRECISIONS {
        for settled in of_graph(&case.graph, case.labels.len(), precision.element()) {
            let convolution = Convolution::new(&settled, precision).unwrap();
            let again = |plan: &Planned| convolution.from_json(target, &plan.json);
            let both = convolution.choose(target).and_then(|chosen| match chosen {
                Chosen::Plan(plan) => again(&plan).map(|again| Some((plan.json, again.json))),
                Chosen::Own(_) => Ok(None),
            });
            match both {
                Ok(Some((json, again))) => assert_eq!(again, json, "shape {seed}: {convolution}"),
                Ok(None) => continue,
                Err(error) => panic!("shape {seed}: {convolution}: {error}\n{text}"),
            }
            planned += 1;
        }
    }
    planned
}

/// The shapes of `sweep`, by several threads: what ends the process here would end a card's.
#[test]
fn plans_of_drawn_shapes_are_made_by_several_threads_at_once() {
    const THREADS: usize = 4;
    let Some(cudnn) = cudnn() else { return };
    let planned: usize = std::thread::scope(|scope| {
        let threads = std::array::from_fn::<_, THREADS, _>(|thread| {
            let (cudnn, seeds) = (&cudnn, (0..sweep::SHAPES).skip(thread).step_by(THREADS));
            scope.spawn(move || {
                let target = Target::described(cudnn, DEVICE).unwrap();
                seeds.map(|seed| plan_drawn(&target, seed)).sum::<usize>()
            })
        });
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    println!("{planned} plans of {} drawn shapes", sweep::SHAPES);
    assert!(planned > 0);
}
