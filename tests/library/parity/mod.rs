//! The catalogue against torchvision: names, shapes and parameters of all tensors always; the same
//! log-probabilities from the same weights, and the same losses over 50 steps of descent, where
//! `KINTSUGI_TORCHVISION_PYTHON` names a python that has it (else skipped). `make parity` has one.

use std::path::{Path, PathBuf};
use std::process::Command;

use kintsugi::config::Device;
use kintsugi::config::seed::Stream;
use kintsugi::engine::{self, Compute, Flat};
use kintsugi::model::{Graph, LayerKind, Layout, TensorKind, TensorSpec, catalogue, layout};
use sha2::{Digest, Sha256};

/// Name, parameters, tensors, and a hash of all names and shapes: what `models.py names` printed
/// with torchvision 0.29.
const MODELS: [(&str, usize, usize, &str); 15] = [
    ("alexnet", 61_100_840, 16, "2d83d4fede09ef7f0e67c45f37bb81029bf80c28b603c47e10d6034867aa939f"),
    ("vgg11", 132_863_336, 22, "e14039349bc69074380666fbfef87a407e524b84cea68de4afde7b4bed7760de"),
    (
        "vgg11_bn",
        132_868_840,
        54,
        "eb573b2e905c2b51784f4c39e4c347d8fd5d2d588efb2f73fa126b8865b4ebdd",
    ),
    ("vgg16", 138_357_544, 32, "32c9f6d73e86d14dabe7f2cfa56af94ba807366dbb7baa4781fc190526a9cf2a"),
    (
        "vgg16_bn",
        138_365_992,
        84,
        "059a9c80fc508d1a34b229d1373470b5443be9eeb81d75b87ffe0aea4b6ca391",
    ),
    (
        "squeezenet1_1",
        1_235_496,
        52,
        "ba491685afed31791d1c78362ef65a833c2ad4df1e83796e09d109076bb7b4ab",
    ),
    (
        "resnet18",
        11_689_512,
        102,
        "8574a6641fbca1ee7b08b0d9403a8b53874fa093daffad1d346e7a5173e14cb9",
    ),
    (
        "resnet34",
        21_797_672,
        182,
        "d28e2b05152fe8cb94ec76c0a635cab192299073c60ca3b9f23308bb7bb86b07",
    ),
    (
        "resnet50",
        25_557_032,
        267,
        "b45d26910a415c4397e24f424ab1520ec96efc4ecdf466dc4caf2c81d8c46695",
    ),
    (
        "resnet101",
        44_549_160,
        522,
        "d885ed34fd3bb2b328b05add153ac762785d5f356d9689466bb06cf2770559c0",
    ),
    (
        "resnet152",
        60_192_808,
        777,
        "78a52c81b5e422e3b90e0a073fc27763c10c140c4469183bd88a39ba1063fa5e",
    ),
    (
        "resnext50_32x4d",
        25_028_904,
        267,
        "3906be986db687a774082d8cccf2133eaf490f6028a00b280a36de6a3242cda3",
    ),
    (
        "densenet121",
        7_978_856,
        606,
        "2c41ffdd0a0cfceaf77e855b8c8f95f21d3273e6df1c0bbd35cf1f0b47f45125",
    ),
    (
        "mobilenet_v2",
        3_504_872,
        262,
        "30e4fe9b6e54fa4f1ef4800fd98eb1d93021986f9a590b7701bf294019866572",
    ),
    (
        "googlenet",
        13_004_888,
        305,
        "87635ccc141ed5455039b28757dcd1e6b8f149ae30721a56c3ac6a2dadcbeeb3",
    ),
];

/// Learning rates at which losses are compared, and the height and width of images in pixels. With
/// larger rates torchvision is as far from itself when its first weights are off by 1e-7: on
/// pictures of noise, in batches of 8, batch normalisation multiplies every difference. On smaller
/// images googlenet's last norms see few pixels.
const DESCENDED: [(&str, f32, usize); MODELS.len()] = [
    ("alexnet", 3e-2, 64),
    ("vgg11", 3e-4, 64),
    ("vgg11_bn", 3e-5, 64),
    ("vgg16", 2e-3, 64),
    ("vgg16_bn", 3e-6, 64),
    ("squeezenet1_1", 3e-4, 64),
    ("resnet18", 1e-4, 64),
    ("resnet34", 1e-4, 64),
    ("resnet50", 3e-5, 64),
    ("resnet101", 3e-6, 64),
    ("resnet152", 1e-6, 64),
    ("resnext50_32x4d", 1e-5, 64),
    ("densenet121", 1e-5, 64),
    ("mobilenet_v2", 1e-5, 64),
    ("googlenet", 3e-7, 128),
];
const STEPS: usize = 50;
const CLASSES: usize = 10;
/// The images of forward passes.
const FORWARD: Shape = Shape { batches: 1, batch: 4, side: 224 };
/// Descent's, whose size is in `DESCENDED`.
const BATCHES: usize = 5;
const BATCH: usize = 8;
const MOMENTUM: f32 = 0.9;
/// Of the largest log-probability, and of losses.
const FORWARD_TOLERANCE: f64 = 1e-4;
const LOSS_TOLERANCE: f64 = 1e-3;
/// What descent changes a loss by, at least: else there is little to compare.
const LEAST_MOVED: f64 = 10.0 * LOSS_TOLERANCE;

#[derive(Clone, Copy)]
struct Shape {
    batches: usize,
    batch: usize,
    side: usize,
}

/// `NAME SIZExSIZE`, as models.py writes it.
fn line(tensor: &TensorSpec) -> String {
    let sizes: Vec<String> = tensor.shape.iter().map(usize::to_string).collect();
    format!("{} {}", tensor.name, sizes.join("x"))
}

fn graph(name: &str, side: usize, classes: usize) -> Graph {
    catalogue::build(name, [3, side, side], classes, 1.0).unwrap()
}

#[test]
fn the_catalogue_has_torchvisions_tensors_and_parameters() {
    for (name, parameters, tensors, digest) in MODELS {
        let layout = layout::of(&graph(name, 224, 1000));
        assert_eq!((layout.parameters, layout.tensors.len()), (parameters, tensors), "{name}");
        let mut lines: Vec<String> =
            layout.tensors.iter().map(|tensor| line(tensor) + "\n").collect();
        lines.sort_unstable();
        let hash = Sha256::digest(lines.concat());
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hash, digest, "{name}: a tensor has another name or shape");
    }
}

/// One model on both sides.
struct Pair {
    graph: Graph,
    layout: Layout,
    folder: tempfile::TempDir,
    images: Vec<f32>,
    parameters: Vec<f32>,
    statistics: Vec<f32>,
}

fn numbers(path: &Path) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn wide_numbers(path: &Path) -> Vec<f64> {
    let bytes = std::fs::read(path).unwrap();
    bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
}

impl Pair {
    /// torchvision's model computes, and leaves its first weights.
    fn new(python: &Path, name: &str, shape: Shape, (steps, learning_rate): (usize, f32)) -> Self {
        let Shape { batches, batch, side } = shape;
        let mut graph = graph(name, side, CLASSES);
        for node in &mut graph.nodes {
            if let LayerKind::Dropout { rate } = &mut node.kind {
                *rate = 0.0;
            }
        }
        let layout = layout::of(&graph);
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: Vec<u8>| {
            std::fs::write(folder.path().join(name), bytes).unwrap();
        };
        let mut stream = Stream::new(&[23]);
        let pixels = batches * batch * 3 * side * side;
        let images: Vec<f32> = (0..pixels).map(|_| stream.normal() as f32).collect();
        write("images", images.iter().flat_map(|x| x.to_le_bytes()).collect());
        write("shape", format!("{batches} {batch} {side} {CLASSES}").into_bytes());
        let list: Vec<String> =
            layout.tensors.iter().map(|t| format!("{:?} {}\n", t.kind, line(t))).collect();
        write("list", list.concat().into_bytes());
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/library/parity/models.py");
        let mut command = Command::new(python);
        command.arg(script).args(["run", name]).arg(folder.path());
        command.args([steps.to_string(), learning_rate.to_string()]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        let weights = numbers(&folder.path().join("weights"));
        let mut pair = Self {
            parameters: vec![f32::NAN; layout.parameters],
            statistics: vec![f32::NAN; layout.statistics],
            graph,
            layout,
            folder,
            images,
        };
        pair.take(&weights);
        pair
    }

    fn take(&mut self, weights: &[f32]) {
        let mut at = 0;
        for tensor in &self.layout.tensors {
            let part = &weights[at..at + tensor.elements()];
            at += part.len();
            match tensor.kind {
                TensorKind::Statistic => self.statistics[tensor.range()].copy_from_slice(part),
                _ => self.parameters[tensor.range()].copy_from_slice(part),
            }
        }
        assert_eq!(at, weights.len());
    }

    fn engine(&self) -> Box<dyn Compute> {
        engine::open(&Device::default(), &self.graph, 1).unwrap()
    }

    fn theirs(&self, file: &str) -> Vec<f64> {
        wide_numbers(&self.folder.path().join(file))
    }

    /// The largest differences of log-probabilities from torchvision's in f64, as shares of the
    /// largest of them: ours, and torchvision's in f32.
    fn forward_differences(&self) -> [f64; 2] {
        let mut engine = self.engine();
        let weights = &Flat { parameters: &self.parameters, statistics: &self.statistics };
        let pixels: usize = self.graph.input.iter().product();
        let exact = self.theirs("forward");
        let mut ours = Vec::new();
        for image in self.images.chunks(pixels) {
            for class in 0..CLASSES as u32 {
                // With one sample the loss is its label's log-probability.
                ours.push(-engine.infer(image, &[class], weights, None).unwrap().loss_sum);
            }
        }
        assert_eq!(ours.len(), exact.len());
        let largest = exact.iter().fold(0.0f64, |a, b| a.max(b.abs()));
        let worst = |given: &[f64]| {
            let pairs = given.iter().zip(&exact);
            pairs.fold(0.0f64, |worst, (a, b)| worst.max((a - b).abs())) / largest
        };
        [worst(&ours), worst(&self.theirs("narrow"))]
    }

    /// Losses of as many steps as torchvision took.
    fn descend(mut self, shape: Shape, learning_rate: f32) -> Vec<(f64, f64)> {
        let theirs = self.theirs("losses");
        let mut engine = self.engine();
        let pixels = shape.batch * self.graph.input.iter().product::<usize>();
        let mut velocity = vec![0.0f32; self.parameters.len()];
        let mut losses = Vec::new();
        for (step, theirs) in theirs.into_iter().enumerate() {
            let at = step % shape.batches;
            let labels: Vec<u32> =
                (at * shape.batch..(at + 1) * shape.batch).map(|x| (x % CLASSES) as u32).collect();
            let mut gradients = vec![0.0f32; self.parameters.len()];
            let mut batch_statistics = vec![0.0; self.statistics.len()];
            let mut ready = |offset: usize, part: &[f32]| {
                gradients[offset..offset + part.len()].copy_from_slice(part);
            };
            let images = &self.images[at * pixels..(at + 1) * pixels];
            let weights = &Flat { parameters: &self.parameters, statistics: &self.statistics };
            engine.renew();
            let outcome = engine
                .train(images, (&labels).into(), [0; 3], weights, &mut batch_statistics, &mut ready)
                .unwrap();
            let moving = self.parameters.iter_mut().zip(&mut velocity).zip(&gradients);
            for ((weight, velocity), gradient) in moving {
                *velocity = MOMENTUM * *velocity + gradient / shape.batch as f32;
                *weight -= learning_rate * *velocity;
            }
            losses.push((outcome.loss_sum / shape.batch as f64, theirs));
        }
        losses
    }
}

fn python() -> Option<PathBuf> {
    let python = std::env::var_os("KINTSUGI_TORCHVISION_PYTHON").map(PathBuf::from);
    if python.is_none() {
        println!("skipped: torchvision's models (set KINTSUGI_TORCHVISION_PYTHON)");
    }
    python
}

#[test]
fn forward_passes_are_torchvisions() {
    let Some(python) = python() else { return };
    for (name, ..) in MODELS {
        let [ours, theirs] = Pair::new(&python, name, FORWARD, (0, 0.0)).forward_differences();
        println!(
            "{name}: log-probabilities {ours:.1e} of the largest from torchvision's in f64, its \
             own in f32 {theirs:.1e}"
        );
        assert!(ours <= FORWARD_TOLERANCE, "{name}: {ours}");
    }
}

#[test]
fn fifty_steps_of_descent_are_torchvisions() {
    let Some(python) = python() else { return };
    let mut wrong = Vec::new();
    for (name, rate, side) in DESCENDED {
        let shape = Shape { batches: BATCHES, batch: BATCH, side };
        let losses = Pair::new(&python, name, shape, (STEPS, rate)).descend(shape, rate);
        assert_eq!(losses.len(), STEPS);
        let difference =
            |(ours, theirs): &(f64, f64)| (ours - theirs).abs() / theirs.abs().max(1.0);
        let worst = losses.iter().map(difference).fold(0.0, f64::max);
        let (first, last) = (losses[0], losses[STEPS - 1]);
        println!(
            "{name}: losses from {:.4} to {:.4}, torchvision's {:.4} to {:.4}; at most \
             {worst:.1e} apart",
            first.0, last.0, first.1, last.1
        );
        // The first batch, when it comes for the last time.
        let moved = (losses[0].1 - losses[STEPS - BATCHES].1).abs();
        if worst > LOSS_TOLERANCE || moved < LEAST_MOVED {
            wrong.push(format!("{name}: {worst:.1e} apart, moved by {moved:.1e}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}
