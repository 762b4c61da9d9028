//! A card that is none: our fake driver, whose kernels are the program's own, compiled for the
//! host. Every engine of this process that asks for `device.kind = "cuda"` gets it, a real card or
//! not.

mod beyond;
pub mod fake;
mod plans;

use std::io::Write;
use std::sync::{Arc, OnceLock};

use kintsugi::config::seed::Stream;
use kintsugi::config::{Device, DeviceKind};
use kintsugi::engine::cuda::kernels;
use kintsugi::engine::plan::tensor::ElementType;
use kintsugi::engine::{self, Flat};
use kintsugi::model::file::from_toml;
use kintsugi::model::{Graph, catalogue, init, layout};
use kintsugi_ffi::cuda::library::Library;
use kintsugi_ffi::cuda::{Found, Nvrtc, Places};

/// Set, everything stays as it was found: the machine's own card computes.
const REAL: &str = "KINTSUGI_REAL_CUDA";

/// The kinds of device that every case is computed on.
pub fn kinds() -> [DeviceKind; 2] {
    static LOADED: OnceLock<()> = OnceLock::new();
    LOADED.get_or_init(|| {
        if std::env::var_os(REAL).is_some() {
            return;
        }
        // By these names whoever looks for one finds it from here on. A real compiler stays: two
        // of them in one process would call each other's functions.
        let load = |file| Library::open(&fake::folder().join(file)).expect("it loads");
        load("libcuda.so.1");
        load("libcudnn.so.9");
        if Found::nvrtc(&Places::usual(None)).is_err() {
            load("libnvrtc.so.13");
        }
    });
    [DeviceKind::Cpu, DeviceKind::Cuda]
}

/// The real compiler, if it is here: `.deps/cuda`, a folder that is named, or a python's.
fn compiler() -> Option<Nvrtc> {
    let missing = match Found::nvrtc(&Places::usual(None)) {
        Ok((_, nvrtc)) if nvrtc.place() != fake::folder().join("libnvrtc.so.13") => {
            return Some(nvrtc);
        }
        Ok(_) => "no libnvrtc.so.13".into(),
        Err(missing) => missing.to_string(),
    };
    skipped("machine code of the engine's kernels", &missing);
    None
}

/// Where a real card computes: past the capture of tests' output.
pub fn said(what: &str) {
    if std::env::var_os(REAL).is_some() {
        let _ = std::io::stderr().write_all(format!("{what}\n").as_bytes());
    }
}

/// Past the capture of tests' output, since such a test passes.
fn skipped(what: &str, missing: &dyn std::fmt::Display) {
    let _ = std::io::stderr().write_all(format!("skipped: {what} ({missing})\n").as_bytes());
}

#[test]
fn every_kernel_becomes_machine_code_without_spills() {
    let Some(nvrtc) = compiler() else { return };
    // Older ones do not know the newest kind of card.
    let known = if nvrtc.version() < (12, 8) { 2 } else { 3 };
    for architecture in ["sm_80", "sm_90", "sm_100"].into_iter().take(known) {
        for element in [ElementType::F32, ElementType::Bf16] {
            let options = ["--ptxas-options=-v"];
            let cubin = kernels::compile(&nvrtc, element, architecture, &options);
            let log = cubin.unwrap_or_else(|error| panic!("{architecture}: {error}")).log;
            let compiled = log.matches("Compiling entry function").count();
            let clean = log.matches("0 bytes spill stores, 0 bytes spill loads").count();
            assert!(compiled > 25 && clean == compiled, "{architecture}: {log}");
            assert!(!log.contains("warning"), "{architecture}: {log}");
        }
    }
}

/// Plain gradient descent for so many steps on drawn pictures: the loss of each step.
fn losses(kind: DeviceKind, graph: &Graph, steps: usize) -> Vec<f64> {
    let layout = layout::of(graph);
    let device = Device { kind, ..Device::default() };
    let mut engine = engine::open(&device, graph, 1).expect("an engine");
    let (mut parameters, mut statistics) =
        (init::parameters(graph, &layout, 5), init::statistics(&layout));
    let mut stream = Stream::new(&[5]);
    let pixels = SAMPLES * graph.input.iter().product::<usize>();
    let images: Vec<f32> = (0..pixels).map(|_| stream.normal() as f32).collect();
    let labels: Vec<u32> = (0..SAMPLES).map(|_| stream.below(CLASSES as u64) as u32).collect();
    let step = |step: usize| {
        let mut gradients = vec![0.0; parameters.len()];
        let ready = &mut |offset: usize, part: &[f32]| {
            gradients[offset..offset + part.len()].copy_from_slice(part);
        };
        let weights = &Flat { parameters: &parameters, statistics: &statistics };
        let key = [7, step as u64, 0];
        let mut moments = vec![0.0; statistics.len()];
        engine.renew();
        let outcome = engine.train(&images, (&labels).into(), key, weights, &mut moments, ready);
        let loss = outcome.expect("a micro-batch").loss_sum / SAMPLES as f64;
        let updated = parameters.iter_mut().zip(&gradients);
        updated.for_each(|(own, gradient)| *own -= RATE * gradient / SAMPLES as f32);
        statistics.copy_from_slice(&moments);
        loss
    };
    (0..steps).map(step).collect()
}

const SAMPLES: usize = 4;
const CLASSES: usize = 10;
const RATE: f32 = 2e-4;

/// f32 sums in other orders: the first losses differ by rounding, which training then magnifies.
/// Two models have norms over few values here, where that is chaos within three steps: of these the
/// first loss only.
#[test]
fn losses_on_a_card_follow_those_of_the_processor() {
    kinds();
    for (name, size, steps) in [
        ("mlp", 8, 20),
        ("cnn11", 16, 20),
        ("resnet20", 16, 20),
        ("squeezenet1_1", 32, 20),
        ("resnet18", 16, 1),
        ("mobilenet_v2", 64, 1),
    ] {
        let width = if ["mlp", "cnn11"].contains(&name) { 0.25 } else { 1.0 };
        let graph = catalogue::build(name, [3, size, size], CLASSES, width);
        let graph = graph.unwrap_or_else(|error| panic!("{name}: {error}"));
        let (own, other) =
            (losses(DeviceKind::Cuda, &graph, steps), losses(DeviceKind::Cpu, &graph, steps));
        let apart = |at: usize| (own[at] - other[at]).abs() / other[at].abs().max(1.0);
        assert!(apart(0) <= 1e-5, "{name}: {own:?}, {other:?}");
        assert!((0..steps).all(|at| apart(at) <= 1e-3), "{name}: {own:?}, {other:?}");
        assert!(steps == 1 || own[steps - 1] < own[0], "{name} does not learn: {own:?}");
    }
}

/// Of one micro-batch of drawn pictures.
fn gradients(kind: DeviceKind, graph: &Graph, samples: usize) -> Vec<f32> {
    let layout = layout::of(graph);
    let device = Device { kind, ..Device::default() };
    let mut engine = engine::open(&device, graph, 1).expect("an engine");
    let parameters = init::parameters(graph, &layout, 5);
    let mut statistics = init::statistics(&layout);
    let mut stream = Stream::new(&[6]);
    let pixels = samples * graph.input.iter().product::<usize>();
    let images: Vec<f32> = (0..pixels).map(|_| stream.normal() as f32).collect();
    let labels: Vec<u32> = (0..samples).map(|_| stream.below(CLASSES as u64) as u32).collect();
    let mut gradients = vec![f32::NAN; parameters.len()];
    let ready = &mut |offset: usize, part: &[f32]| {
        gradients[offset..offset + part.len()].copy_from_slice(part);
    };
    let running = statistics.clone();
    let weights = &Flat { parameters: &parameters, statistics: &running };
    let trained = engine.train(&images, (&labels).into(), [1; 3], weights, &mut statistics, ready);
    trained.expect("a micro-batch");
    gradients
}

/// From some thousands of pixels on the sums have two stages, of as many parts as divide them: 192,
/// 256, 206 and 34 here.
#[test]
fn a_bias_of_many_pixels_has_the_gradient_of_the_processor() {
    kinds();
    for (size, channels) in [([33, 64], 5), ([32, 132], 16), ([41, 103], 3), ([263, 17], 8)] {
        let text = format!(
            "[[layer]]\nkind = \"conv\"\nchannels = {channels}\nkernel = 3\npadding = 1\n\
             bias = true\n\
             [[layer]]\nkind = \"relu\"\n[[layer]]\nkind = \"global_avg_pool\"\n\
             [[layer]]\nkind = \"flatten\"\n\
             [[layer]]\nkind = \"linear\"\nfeatures = \"classes\"\n"
        );
        let graph = from_toml(&text, [3, size[0], size[1]], CLASSES).expect("a model");
        let (own, other) =
            (gradients(DeviceKind::Cuda, &graph, 2), gradients(DeviceKind::Cpu, &graph, 2));
        let length = |values: &mut dyn Iterator<Item = f32>| {
            values.map(|x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt()
        };
        for tensor in &layout::of(&graph).tensors {
            let [own, other] = [&own, &other].map(|all| &all[tensor.range()]);
            let apart = length(&mut own.iter().zip(other).map(|(a, b)| a - b));
            let whole = length(&mut other.iter().copied());
            assert!(apart <= 1e-4 * whole, "{} of {size:?}: {apart} of {whole}", tensor.name);
        }
    }
}

/// Pictures that are sent ahead are those that are computed with, and no others are: neither where
/// another micro-batch comes than was told, nor where it lies in memory of the same size.
#[test]
fn pictures_that_were_sent_ahead_are_the_ones_that_are_computed() {
    kinds();
    let graph = catalogue::build("resnet20", [3, 8, 8], CLASSES, 1.0).expect("a model");
    let layout = layout::of(&graph);
    let device = Device { kind: DeviceKind::Cuda, ..Device::default() };
    let parameters = init::parameters(&graph, &layout, 5);
    let statistics = init::statistics(&layout);
    let mut stream = Stream::new(&[8]);
    let mut pictures = |samples: usize| {
        let values = samples * graph.input.iter().product::<usize>();
        Arc::new((0..values).map(|_| stream.normal() as f32).collect::<Vec<f32>>())
    };
    let batches = [pictures(4), pictures(4), pictures(2), pictures(6), pictures(4)];
    let mut engine = engine::open(&device, &graph, 2).expect("an engine");
    // Before each, which one is told to come after it.
    let mut run = |told: [Option<usize>; 5]| {
        let compute = |(images, told): (&Arc<Vec<f32>>, Option<usize>)| {
            if let Some(told) = told {
                engine.foresee(&batches[told]);
            }
            let samples = images.len() / graph.input.iter().product::<usize>();
            let labels = vec![1; samples];
            let mut gradients = vec![0.0; parameters.len()];
            let ready = &mut |offset: usize, part: &[f32]| {
                gradients[offset..offset + part.len()].copy_from_slice(part);
            };
            let weights = &Flat { parameters: &parameters, statistics: &statistics };
            let moments = &mut statistics.clone();
            let outcome = engine.train(images, (&labels).into(), [1; 3], weights, moments, ready);
            (outcome.expect("a micro-batch").loss_sum, gradients)
        };
        batches.iter().zip(told).map(compute).collect::<Vec<_>>()
    };
    let plain = run([None; 5]);
    assert_eq!(run([Some(1), Some(2), Some(3), Some(4), Some(0)]), plain);
    assert_eq!(run([Some(1), Some(4), Some(0), None, Some(2)]), plain);
    assert_eq!(run([Some(0); 5]), plain);
}
