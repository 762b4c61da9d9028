//! Drawn layers of many shapes, forward and backward, f32 and bf16, against the reference, which
//! rounds where the engine rounds. What nobody wrote is NaN, and so is what lies around the
//! pictures: a kernel that reads it shows, and so does a result that nobody writes.
//!
//! `KINTSUGI_SHAPES=5000` plays more than a test does, `KINTSUGI_SHAPE=SEED` one.

use std::collections::BTreeMap;

use crate::gradients::{Case, DROPOUT_KEY, case, exactly, wide};
use crate::reference::{Mode, Precision};
use crate::{bf16, cuda};
use kintsugi::config::seed::Stream;
use kintsugi::config::{self, Device, DeviceKind};
use kintsugi::engine::memory::limits::Limits;
use kintsugi::engine::{self, Compute, Flat};
use kintsugi::model::file::from_toml;
use kintsugi::model::{Graph, cost};

/// What a test plays.
pub const SHAPES: u64 = 500;
const CLASSES: usize = 3;
/// Multiplications of a sample beyond which a draw is dropped: time.
const FLOPS_MAX: u64 = 150_000;
const DRAWS_MAX: usize = 1000;
/// Numbers before and behind the pictures.
const AROUND: usize = 256;

/// What rounding may do to a number: of the sum of what it is made of, every part taken
/// positive, and of the largest such sum of its tensor. In bf16 a result on the edge falls to
/// either side, by 2^-8 of itself.
fn allowed(precision: Precision, scale: f64, largest: f64) -> f64 {
    match precision {
        Precision::Exact => 2f64.powi(-17) * scale + 2f64.powi(-20) * largest + 3e-7,
        Precision::Bf16 | Precision::Bf16Twice => {
            2f64.powi(-6) * scale + 2f64.powi(-8) * largest + 3e-7
        }
    }
}

struct Draw(Stream);

impl Draw {
    fn of<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.0.below(from.len() as u64) as usize]
    }

    fn within(&mut self, low: usize, high: usize) -> usize {
        low + self.0.below((high - low + 1) as u64) as usize
    }

    fn pair(&mut self, low: usize, high: usize) -> String {
        format!("[{}, {}]", self.within(low, high), self.within(low, high))
    }

    fn padding(&mut self, high: usize) -> String {
        let sides: Vec<String> = (0..4).map(|_| self.within(0, high).to_string()).collect();
        match self.within(0, 2) {
            0 => sides[0].clone(),
            1 => format!("[{}, {}]", sides[0], sides[1]),
            _ => format!("[{}]", sides.join(", ")),
        }
    }

    fn conv(&mut self, channels: usize) -> String {
        let dividing: Vec<usize> = (1..=channels).filter(|n| channels.is_multiple_of(*n)).collect();
        let groups = if self.within(0, 2) == 0 { self.of(&dividing) } else { 1 };
        let outputs: usize = self.of(&[1, 2, 3, 4, 7, 8, 16, 17, 32]);
        let outputs = groups * outputs.div_ceil(groups);
        format!(
            "kind = \"conv\"\nchannels = {outputs}\ngroups = {groups}\nkernel = {}\nstride = {}\n\
             dilation = {}\npadding = {}\nbias = {}\n",
            self.pair(1, 5),
            self.pair(1, 4),
            if self.within(0, 2) == 0 { self.pair(1, 3) } else { "1".into() },
            self.padding(3),
            self.of(&[true, false]),
        )
    }

    fn pool(&mut self) -> String {
        let kind = self.of(&["max_pool", "avg_pool", "adaptive_avg_pool", "global_avg_pool"]);
        match kind {
            "adaptive_avg_pool" => format!("kind = \"{kind}\"\nsize = {}\n", self.pair(1, 6)),
            "global_avg_pool" => format!("kind = \"{kind}\"\n"),
            _ => {
                let inside = match kind == "avg_pool" && self.of(&[true, false]) {
                    true => "count_include_pad = false\n",
                    false => "",
                };
                format!(
                    "kind = \"{kind}\"\nkernel = {}\nstride = {}\npadding = {}\nceil_mode = {}\n\
                     {inside}",
                    self.pair(1, 4),
                    self.pair(1, 3),
                    self.padding(2),
                    self.of(&[true, false]),
                )
            }
        }
    }

    /// The layer that is looked at, with its kind.
    fn layer(&mut self, channels: usize) -> (&'static str, String) {
        match self.within(0, 19) {
            0..=9 => ("conv", self.conv(channels)),
            10 | 11 => {
                let features = self.of(&[1, 2, 5, 16, 17, 40]);
                let flat = "kind = \"flatten\"\n[[layer]]\nkind = \"linear\"\n";
                let bias = self.of(&[true, false]);
                ("linear", format!("{flat}features = {features}\nbias = {bias}\n"))
            }
            12..=14 => ("pool", self.pool()),
            15 | 16 => {
                let epsilon = self.of(&["1e-5", "1e-3", "0.1"]);
                ("norm", format!("kind = \"batch_norm\"\nepsilon = {epsilon}\n"))
            }
            17 => {
                let size = self.of(&[1, 3, 5]);
                let lrn = "alpha = 0.2\nbeta = 0.75\nk = 2.0\n";
                ("lrn", format!("kind = \"lrn\"\nsize = {size}\n{lrn}"))
            }
            _ => {
                let functions =
                    ["relu", "relu6", "sigmoid", "silu", "hard_sigmoid", "hard_swish", "softmax"];
                ("pointwise", format!("kind = \"{}\"\n", self.of(&functions)))
            }
        }
    }

    /// A layer between a convolution, whose gradients tell of those that it hands down, and a
    /// linear one. As a model file, and the image's shape.
    fn model(&mut self) -> (&'static str, String, [usize; 3]) {
        let size = [self.within(1, 4), self.within(1, 9), self.within(1, 9)];
        let channels = self.of(&[1, 2, 3, 4, 8, 9, 15, 16, 17, 24, 32, 48]);
        let (kind, layer) = self.layer(channels);
        let after = self.of(&["", "[[layer]]\nkind = \"relu\"\n"]);
        let text = format!(
            "[[layer]]\nname = \"before\"\nkind = \"conv\"\nchannels = {channels}\nkernel = 1\n\
             [[layer]]\nname = \"looked_at\"\n{layer}{after}[[layer]]\nkind = \"flatten\"\n\
             [[layer]]\nname = \"after\"\nkind = \"linear\"\nfeatures = \"classes\"\n"
        );
        (kind, text, size)
    }
}

/// The model that a seed draws, and a micro-batch of it.
pub fn drawn(seed: u64) -> (&'static str, String, Case) {
    let mut draw = Draw(Stream::new(&[seed, 505]));
    for _ in 0..DRAWS_MAX {
        let (kind, text, size) = draw.model();
        let batch = draw.within(1, 4);
        let Ok(graph) = from_toml(&text, size, CLASSES) else { continue };
        if is_small(&graph) && has_spread(&graph, batch) {
            let text = format!("{batch} of {size:?}:\n{text}");
            return (kind, text, case(graph, batch, seed));
        }
    }
    panic!("seed {seed}: none of {DRAWS_MAX} draws fits");
}

fn is_small(graph: &Graph) -> bool {
    let costs = cost::of(graph, 4);
    costs.iter().map(|cost| cost.forward_flops).sum::<u64>() <= 2 * FLOPS_MAX
}

/// A norm over few values has a slope that magnifies every rounding.
fn has_spread(graph: &Graph, batch: usize) -> bool {
    let mut norms = graph.nodes.iter().filter(|node| node.kind.name() == "batch_norm");
    norms.all(|node| batch * node.shape[1] * node.shape[2] >= 16)
}

/// What a norm makes of roundings before it: values far from 0 that lie close together.
fn magnified(case: &Case, statistics: &[f64]) -> f64 {
    let of = |suffix: &'static str| {
        let own = case.layout.tensors.iter().filter(move |t| t.name.ends_with(suffix));
        own.flat_map(move |t| statistics[t.range()].to_vec())
    };
    let pairs = of("running_mean").zip(of("running_var"));
    let most = pairs.map(|(mean, variance)| mean.abs() / (variance + 1e-5).sqrt());
    most.fold(1.0, |a, ratio| a.max(ratio / 8.0))
}

/// How far something is from what it should be, in what rounding allows.
#[derive(Default)]
struct Found {
    worst: f64,
    what: String,
    magnified: f64,
}

impl Found {
    fn look(&mut self, what: &str, given: &[f64], wanted: &[f64], scale: &[f64], of: Precision) {
        let largest = scale.iter().fold(0.0, |a: f64, &b| a.max(b));
        for (at, ((given, wanted), scale)) in given.iter().zip(wanted).zip(scale).enumerate() {
            let may = self.magnified * allowed(of, *scale, largest);
            let off = (given - wanted).abs() / may;
            if off.is_nan() || off > self.worst {
                self.worst = if off.is_nan() { f64::INFINITY } else { off };
                self.what = format!("{what}, element {at}: {given}, wanted {wanted}");
            }
        }
    }
}

fn named(precision: Precision) -> config::Precision {
    match precision {
        Precision::Exact => config::Precision::F32,
        Precision::Bf16 | Precision::Bf16Twice => config::Precision::Bf16,
    }
}

/// A kind of device, and what it computes in.
type Way = (DeviceKind, Precision);

fn open(case: &Case, (kind, precision): Way) -> Box<dyn Compute> {
    let device = Device { kind, precision: named(precision), ..Device::default() };
    engine::open_soiled(&device, &case.graph, 1, &Limits::none()).expect("an engine")
}

fn check(case: &Case, way: Way) -> Found {
    let (_, precision) = way;
    let kept = wide(&case.statistics);
    let exact = exactly(case, &case.training(&kept), precision);
    let mut found = Found { magnified: magnified(case, &exact.statistics), ..Found::default() };
    let mut around = vec![f32::NAN; case.images.len() + 2 * AROUND];
    around[AROUND..][..case.images.len()].copy_from_slice(&case.images);
    let images = &around[AROUND..][..case.images.len()];
    let weights = &Flat { parameters: &case.parameters, statistics: &case.statistics };
    let (mut gradients, mut statistics) =
        (vec![f32::NAN; case.layout.parameters], vec![f32::NAN; case.layout.statistics]);
    let mut engine = open(case, way);
    // Twice: what the first time left behind is soiled too.
    for _ in 0..2 {
        gradients.fill(f32::NAN);
        let ready = &mut |offset: usize, part: &[f32]| {
            gradients[offset..offset + part.len()].copy_from_slice(part);
        };
        let labels = (&case.labels).into();
        let outcome = engine.train(images, labels, DROPOUT_KEY, weights, &mut statistics, ready);
        let loss = outcome.expect("a micro-batch").loss_sum;
        let largest = exact.logits.iter().fold(1.0, |a: f64, b| a.max(b.abs()));
        let scale = [exact.loss.abs() + largest * case.labels.len() as f64];
        found.look("loss", &[loss], &[exact.loss], &scale, precision);
    }
    for tensor in case.layout.tensors.iter() {
        let range = tensor.range();
        match tensor.kind {
            kintsugi::model::TensorKind::Statistic => {
                let wanted = &exact.statistics[range.clone()];
                let scale: Vec<f64> = wanted.iter().map(|x| x.abs().max(1.0)).collect();
                let given = wide(&statistics[range]);
                found.look(&tensor.name, &given, wanted, &scale, precision);
            }
            _ => {
                let own = &exact.gradients[range.clone()];
                let wanted: Vec<f64> = own.iter().map(|of| of.value).collect();
                let scale: Vec<f64> = own.iter().map(|of| of.scale).collect();
                found.look(&tensor.name, &wide(&gradients[range]), &wanted, &scale, precision);
            }
        }
    }
    let exact = exactly(case, &Mode::Inference { statistics: &kept }, precision);
    let mut given = Vec::new();
    let answered = engine.infer(images, &case.labels, weights, Some(&mut given));
    answered.expect("a micro-batch");
    let mut wanted = Vec::new();
    for row in exact.logits.chunks(CLASSES) {
        let whole = row.iter().map(|x| x.exp()).sum::<f64>().ln();
        wanted.extend(row.iter().map(|x| x - whole));
    }
    let largest = exact.logits.iter().fold(1.0, |a: f64, b| a.max(b.abs()));
    let scale = vec![4.0 * largest; wanted.len()];
    found.look("log-probabilities", &wide(&given), &wanted, &scale, precision);
    found
}

fn asked(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// By kind of layer, device and precision: how many, how far off the worst was, and its seed.
type Worst = BTreeMap<(&'static str, &'static str, &'static str), (usize, f64, u64)>;

/// Plays some seeds; what is wrong, in words.
fn play(seeds: impl Iterator<Item = u64>, ways: &[Way]) -> (Worst, Vec<String>) {
    let (mut worst, mut wrong) = (Worst::new(), Vec::new());
    for seed in seeds {
        let (kind, text, case) = drawn(seed);
        for &way in ways {
            let (device, name) = (way.0.name(), named(way.1).name());
            // A library that ends the process leaves no other word.
            let thread = std::thread::current().id();
            cuda::said(&format!("shape {seed} on {device} in {name}, {thread:?}"));
            let found = check(&case, way);
            let (count, most, by) = worst.entry((kind, device, name)).or_default();
            *count += 1;
            if found.worst > *most {
                (*most, *by) = (found.worst, seed);
            }
            if found.worst > 1.0 {
                let Found { worst, what, .. } = found;
                wrong.push(format!(
                    "KINTSUGI_SHAPE={seed} plays it again, on {device} in {name}: {worst:.2} of \
                     what rounding may do: {what}\n{text}"
                ));
            }
        }
    }
    (worst, wrong)
}

#[test]
fn drawn_shapes_compute_what_the_formulas_say() {
    let seeds = match asked("KINTSUGI_SHAPE") {
        Some(seed) => seed..seed + 1,
        None => 0..asked("KINTSUGI_SHAPES").unwrap_or(SHAPES),
    };
    let mut ways: Vec<Way> = Vec::new();
    for kind in cuda::kinds() {
        ways.push((kind, Precision::Exact));
        let bf16 = if kind == DeviceKind::Cuda { Precision::Bf16Twice } else { Precision::Bf16 };
        ways.extend(bf16::is_computed(kind).then_some((kind, bf16)));
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let parts: Vec<(Worst, Vec<String>)> = std::thread::scope(|scope| {
        let part = |thread: usize| seeds.clone().skip(thread).step_by(threads);
        let begin = |thread: usize| {
            let (own, ways) = (part(thread), &ways);
            scope.spawn(move || play(own, ways))
        };
        let running: Vec<_> = (0..threads).map(begin).collect();
        running.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let mut worst = Worst::new();
    for (key, (count, most, seed)) in parts.iter().flat_map(|(worst, _)| worst) {
        let all = worst.entry(*key).or_default();
        all.0 += count;
        if *most > all.1 {
            (all.1, all.2) = (*most, *seed);
        }
    }
    for ((kind, device, name), (count, most, seed)) in &worst {
        eprintln!(
            "{count} of {kind} on {device} in {name}: {most:.2} of what rounding may do \
             (seed {seed})"
        );
    }
    let wrong: Vec<&str> = parts.iter().flat_map(|(_, wrong)| wrong).map(String::as_str).collect();
    assert!(wrong.is_empty(), "{} are beyond rounding:\n{}", wrong.len(), wrong.join("\n"));
}
