//! Every layer, and whole small graphs, against the derivatives of a forward pass in f64.

use crate::cuda;
use crate::reference::{Forward, Mode, Precision, forward, one_hot};
use kintsugi::config::seed::Stream;
use kintsugi::config::{Device, DeviceKind};
use kintsugi::engine::{self, Compute, Flat, Targets};
use kintsugi::model::file::from_toml;
use kintsugi::model::{Graph, Layout, Shape, TensorKind, TensorSpec, catalogue, init, layout};

mod depthwise;
mod norms;
mod whole;

/// Of the largest gradient of the tensor: f32 sums against exact ones.
const TOLERANCE: f64 = 3e-4;
pub const DROPOUT_KEY: [u64; 3] = [11, 12, 13];

/// A micro-batch of a model.
pub struct Case {
    pub graph: Graph,
    pub layout: Layout,
    pub parameters: Vec<f32>,
    pub statistics: Vec<f32>,
    pub images: Vec<f32>,
    pub labels: Vec<u32>,
    /// Other labels, what each keeps of its own, and what all classes share.
    pub soft: Option<(Vec<u32>, f32, f32)>,
    /// Tensors, by their number, that are not trained; empty: all are.
    pub frozen: Vec<bool>,
}

impl Case {
    /// How it is trained; `statistics`: its own.
    pub fn training<'a>(&'a self, statistics: &'a [f64]) -> Mode<'a> {
        Mode::Training { dropout_key: DROPOUT_KEY, frozen: &self.frozen, statistics }
    }

    fn is_frozen(&self, tensor: usize) -> bool {
        self.frozen.get(tensor).is_some_and(|&frozen| frozen)
    }

    /// Tensors that have a gradient.
    pub fn trained(&self) -> impl Iterator<Item = &TensorSpec> {
        let numbered = self.layout.tensors.iter().enumerate();
        let trained =
            numbered.filter(|(at, t)| t.kind != TensorKind::Statistic && !self.is_frozen(*at));
        trained.map(|(_, tensor)| tensor)
    }

    /// Statistics of norms that are frozen.
    fn kept_statistics(&self) -> usize {
        let numbered = self.layout.tensors.iter().enumerate();
        let kept =
            numbered.filter(|(at, t)| t.kind == TensorKind::Statistic && self.is_frozen(*at));
        kept.map(|(_, tensor)| tensor.elements()).sum()
    }

    fn targets(&self) -> Targets<'_> {
        let plain = Targets::from(&self.labels);
        match &self.soft {
            None => plain,
            Some((partners, share, smoothing)) => {
                Targets { partners: Some((partners, *share)), smoothing: *smoothing, ..plain }
            }
        }
    }

    /// The probabilities that are wanted.
    fn wanted(&self) -> Vec<f64> {
        let classes = self.graph.classes;
        let own = one_hot(&self.labels, classes);
        let Some((partners, share, smoothing)) = &self.soft else { return own };
        let (share, smoothing) = (f64::from(*share), f64::from(*smoothing));
        let mixed = own.iter().zip(one_hot(partners, classes));
        let mixed = mixed.map(|(own, other)| share * own + (1.0 - share) * other);
        mixed.map(|p| (1.0 - smoothing) * p + smoothing / classes as f64).collect()
    }
}

/// With drawn weights, statistics, images and labels.
pub fn case(graph: Graph, batch: usize, seed: u64) -> Case {
    let layout = layout::of(&graph);
    let mut stream = Stream::new(&[seed, 77]);
    let mut parameters = init::parameters(&graph, &layout, seed);
    // Scales, shifts and biases away from 1 and 0, which would hide mistakes.
    for tensor in layout.tensors.iter().filter(|tensor| tensor.kind == TensorKind::Bias) {
        for value in &mut parameters[tensor.range()] {
            *value += 0.3 * stream.normal() as f32;
        }
    }
    let statistics =
        init::statistics(&layout).into_iter().map(|x| x + 0.3 * stream.unit() as f32).collect();
    let pixels = batch * graph.input.iter().product::<usize>();
    let images = (0..pixels).map(|_| stream.normal() as f32).collect();
    let labels = (0..batch).map(|_| stream.below(graph.classes as u64) as u32).collect();
    let (soft, frozen) = (None, Vec::new());
    Case { graph, layout, parameters, statistics, images, labels, soft, frozen }
}

pub fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&x| f64::from(x)).collect()
}

fn open(case: &Case, kind: DeviceKind) -> Box<dyn Compute> {
    let device = &Device { kind, ..Device::default() };
    engine::open_frozen(device, &case.graph, &case.frozen, 1).expect("an engine")
}

/// Loss, gradients and statistics of an engine.
pub fn trained(case: &Case, mut engine: Box<dyn Compute>) -> (f64, Vec<f32>, Vec<f32>) {
    let weights = &Flat { parameters: &case.parameters, statistics: &case.statistics };
    let mut gradients = vec![f32::NAN; case.layout.parameters];
    let mut statistics = vec![f32::NAN; case.layout.statistics];
    let ready = &mut |offset: usize, part: &[f32]| {
        gradients[offset..offset + part.len()].copy_from_slice(part);
    };
    let outcome = engine
        .train(&case.images, case.targets(), DROPOUT_KEY, weights, &mut statistics, ready)
        .expect("a micro-batch");
    assert_eq!(outcome.samples, case.labels.len() as u64);
    (outcome.loss_sum, gradients, statistics)
}

fn check(case: &Case) {
    cuda::kinds().into_iter().for_each(|kind| check_on(case, kind));
}

/// On a device of this kind.
fn check_on(case: &Case, kind: DeviceKind) {
    let kept = wide(&case.statistics);
    let exact = exactly(case, &case.training(&kept), Precision::Exact);
    let (engine_loss, gradients, statistics) = trained(case, open(case, kind));
    assert!(
        (engine_loss - exact.loss).abs() <= 1e-5 * exact.loss.abs().max(1.0),
        "loss {engine_loss}, exactly {}",
        exact.loss
    );
    let known = statistics.iter().zip(&exact.statistics).enumerate();
    for (at, (&given, &wanted)) in known.filter(|(_, (given, _))| !given.is_nan()) {
        let error = (f64::from(given) - wanted).abs();
        assert!(error <= 1e-5 * wanted.abs().max(1.0), "statistic {at}: {given}, {wanted}");
    }
    let unwritten = statistics.iter().filter(|given| given.is_nan()).count();
    assert_eq!(unwritten, case.kept_statistics(), "of norms that keep theirs");
    for tensor in case.trained() {
        let range = tensor.range();
        let largest = gradients[range.clone()].iter().fold(0f32, |a, b| a.max(b.abs()));
        let allowed = TOLERANCE * f64::from(largest) + 2e-6;
        let pairs = gradients[range.clone()].iter().zip(&exact.gradients[range]);
        for (at, (&given, wanted)) in pairs.enumerate() {
            let (given, wanted) = (f64::from(given), wanted.value);
            assert!(
                (given - wanted).abs() <= allowed,
                "{} of {} on {kind:?}, element {at}: {given}, exactly {wanted}, allowed {allowed}",
                tensor.name,
                case.graph.name
            );
        }
    }
    check_inference(case, kind);
    crate::bf16::check((case, kind), engine_loss, &gradients, &statistics);
}

/// What the reference gives of a case.
pub fn exactly(case: &Case, mode: &Mode<'_>, precision: Precision) -> Forward {
    let model = (&case.graph, &case.layout);
    let wanted = match mode {
        Mode::Training { .. } => case.wanted(),
        Mode::Inference { .. } => one_hot(&case.labels, case.graph.classes),
    };
    let (parameters, images) = (wide(&case.parameters), wide(&case.images));
    forward(model, &parameters, &images, &wanted, mode, precision)
}

fn check_inference(case: &Case, kind: DeviceKind) {
    let statistics = wide(&case.statistics);
    let mode = Mode::Inference { statistics: &statistics };
    let exact = exactly(case, &mode, Precision::Exact);
    let mut engine = open(case, kind);
    let weights = &Flat { parameters: &case.parameters, statistics: &case.statistics };
    let outcome = engine.infer(&case.images, &case.labels, weights, None).expect("a micro-batch");
    let error = (outcome.loss_sum - exact.loss).abs();
    assert!(error <= 1e-5 * exact.loss.abs().max(1.0), "{} {}", outcome.loss_sum, exact.loss);
    let wrong = |(row, &label): (&[f64], &u32)| {
        row.iter().enumerate().any(|(class, &x)| class != label as usize && x > row[label as usize])
    };
    let errors =
        exact.logits.chunks(case.graph.classes).zip(&case.labels).filter(|&(r, l)| wrong((r, l)));
    assert_eq!(outcome.errors, errors.count() as u64);
    let pixels = case.graph.input.iter().product();
    let samples = case.images.chunks(pixels).zip(exact.logits.chunks(case.graph.classes));
    for (image, logits) in samples {
        let sum: f64 = logits.iter().map(|x| x.exp()).sum();
        for (class, x) in logits.iter().enumerate() {
            // With one sample the loss is its label's log-probability.
            let outcome = engine.infer(image, &[class as u32], weights, None).expect("a sample");
            assert!(((-outcome.loss_sum).exp() - x.exp() / sum).abs() < 1e-5);
        }
    }
}

const CLASSES: usize = 5;

/// The layers in `middle` between a convolution (so that gradients flow on) and a linear layer.
fn around(middle: &str, input: Shape, seed: u64) {
    let text = format!(
        r#"
        name = "around"
        [[layer]]
        name = "before"
        kind = "conv"
        channels = 6
        kernel = 3
        padding = 1
        {middle}
        [[layer]]
        kind = "flatten"
        [[layer]]
        name = "after"
        kind = "linear"
        features = "classes"
        "#
    );
    let graph = from_toml(&text, input, CLASSES).unwrap_or_else(|error| panic!("{error}"));
    check(&case(graph, 3, seed));
}

#[test]
fn convolutions_of_every_geometry_agree() {
    for (seed, (kernel, stride, padding, bias)) in [
        (3, 1, 1, true),
        (3, 2, 1, false),
        (1, 2, 0, true),
        (5, 1, 0, true),
        (7, 4, 3, false),
        (2, 2, 0, true),
    ]
    .into_iter()
    .enumerate()
    {
        let middle = format!(
            "[[layer]]\nkind = \"conv\"\nchannels = 7\nkernel = {kernel}\nstride = {stride}\n\
             padding = {padding}\nbias = {bias}"
        );
        around(&middle, [3, 9, 8], seed as u64);
    }
}

#[test]
fn grouped_dilated_and_rectangular_convolutions_agree() {
    for (seed, keys) in [
        "channels = 6\nkernel = 3\npadding = 1\ngroups = 6",
        "channels = 12\nkernel = 3\nstride = 2\npadding = 1\ngroups = 6\nbias = false",
        "channels = 4\nkernel = 3\ngroups = 2",
        "channels = 9\nkernel = 1\ngroups = 3",
        "channels = 5\nkernel = 3\npadding = 2\ndilation = 2",
        "channels = 5\nkernel = [1, 5]\npadding = [0, 2]\nstride = [2, 1]",
        "channels = 5\nkernel = 3\nstride = 2\npadding = [0, 0, 1, 1]",
        "channels = 16\nkernel = [4, 3]\npadding = [2, 0, 1, 2]",
        "channels = 6\nkernel = 2\npadding = [0, 1, 1, 0]\ngroups = 6",
        "channels = 6\nkernel = [3, 2]\ndilation = [2, 3]\npadding = [1, 0]\ngroups = 3",
    ]
    .into_iter()
    .enumerate()
    {
        around(&format!("[[layer]]\nkind = \"conv\"\n{keys}"), [3, 9, 8], seed as u64);
    }
    // Blocked: 32 channels in 32 groups and in 2, each with a ReLU within.
    for groups in [32, 2] {
        let middle = format!(
            "[[layer]]\nkind = \"conv\"\nchannels = 32\nkernel = 3\npadding = 1\n\
             [[layer]]\nkind = \"conv\"\nchannels = 32\nkernel = 3\npadding = 1\n\
             groups = {groups}\n[[layer]]\nkind = \"relu\""
        );
        around(&middle, [3, 6, 6], groups + 40);
    }
}

#[test]
fn wide_convolutions_agree() {
    let middle = "[[layer]]\nkind = \"conv\"\nchannels = 32\nkernel = 3\npadding = 1\n\
                  [[layer]]\nkind = \"relu\"\n[[layer]]\nkind = \"conv\"\nchannels = 32\n\
                  kernel = 3\nstride = 2\npadding = 1";
    around(middle, [3, 8, 8], 3);
}

#[test]
fn relu_agrees_fused_in_place_and_shared() {
    around("[[layer]]\nkind = \"relu\"", [3, 6, 6], 1);
    // After pooling it cannot be fused.
    let pooled = "[[layer]]\nkind = \"avg_pool\"\nkernel = 2\nstride = 2\n\
                  [[layer]]\nkind = \"relu\"";
    around(pooled, [3, 6, 6], 2);
    // Its input is read twice: it must not be overwritten.
    let shared = "[[layer]]\nname = \"r\"\nkind = \"relu\"\n\
                  [[layer]]\nkind = \"add\"\ninputs = [\"before\", \"r\"]";
    around(shared, [3, 6, 6], 3);
}

#[test]
fn pools_of_every_geometry_agree() {
    for kind in ["max_pool", "avg_pool"] {
        for (kernel, stride, padding) in [(2, 2, 0), (3, 2, 1), (3, 1, 1), (2, 3, 0)] {
            let middle = format!(
                "[[layer]]\nkind = \"{kind}\"\nkernel = {kernel}\nstride = {stride}\n\
                 padding = {padding}"
            );
            around(&middle, [3, 7, 9], 4);
        }
    }
    around("[[layer]]\nkind = \"global_avg_pool\"", [3, 7, 9], 5);
}

#[test]
fn pools_that_reach_over_the_end_or_count_no_padding_agree() {
    for keys in [
        "kind = \"max_pool\"\nkernel = 3\nstride = 2\nceil_mode = true",
        "kind = \"max_pool\"\nkernel = 2\nstride = 3\npadding = 1\nceil_mode = true",
        "kind = \"max_pool\"\nkernel = [3, 2]\nstride = [1, 2]\npadding = [1, 0]",
        "kind = \"avg_pool\"\nkernel = 3\nstride = 2\nceil_mode = true",
        "kind = \"avg_pool\"\nkernel = 3\nstride = 2\npadding = 1\ncount_include_pad = false",
        "kind = \"avg_pool\"\nkernel = 4\nstride = 3\npadding = 1\nceil_mode = true\n\
         count_include_pad = false",
        "kind = \"avg_pool\"\nkernel = [1, 3]\nstride = 1\npadding = [0, 1]",
        "kind = \"max_pool\"\nkernel = 3\nstride = 2\npadding = [0, 0, 1, 1]",
        "kind = \"max_pool\"\nkernel = 3\nstride = 2\npadding = [1, 0, 0, 1]\nceil_mode = true",
        "kind = \"avg_pool\"\nkernel = 2\nstride = 1\npadding = [0, 1, 1, 0]",
        "kind = \"avg_pool\"\nkernel = 3\nstride = 2\npadding = [0, 1, 1, 0]\n\
         count_include_pad = false",
    ] {
        around(&format!("[[layer]]\n{keys}"), [3, 8, 10], 6);
    }
}

#[test]
fn adaptive_pools_agree_for_sizes_that_divide_and_others() {
    for size in ["3", "[4, 2]", "1", "[8, 6]", "5", "9"] {
        let middle = format!("[[layer]]\nkind = \"adaptive_avg_pool\"\nsize = {size}");
        around(&middle, [3, 8, 6], 7);
    }
    // The image itself, and channels that lie in blocks.
    let text = "[[layer]]\nkind = \"adaptive_avg_pool\"\nsize = 5\n[[layer]]\nkind = \"conv\"\n\
                channels = 16\nkernel = 1\n[[layer]]\nkind = \"adaptive_avg_pool\"\nsize = 3\n\
                [[layer]]\nkind = \"flatten\"\n[[layer]]\nkind = \"linear\"\n\
                features = \"classes\"";
    let graph = from_toml(text, [3, 7, 7], CLASSES).expect("the file is right");
    check(&case(graph, 3, 8));
}

#[test]
fn functions_of_elements_agree_alone_and_shared() {
    for kind in ["relu6", "sigmoid", "silu", "hard_sigmoid", "hard_swish"] {
        // Times 4, so that bends are on both sides.
        let wide = "[[layer]]\nname = \"twice\"\nkind = \"add\"\n\
                    inputs = [\"before\", \"before\"]\n\
                    [[layer]]\nname = \"w\"\nkind = \"add\"\ninputs = [\"twice\", \"twice\"]\n";
        around(&format!("{wide}[[layer]]\nkind = \"{kind}\""), [3, 6, 6], 1);
        let shared = format!(
            "{wide}[[layer]]\nname = \"f\"\nkind = \"{kind}\"\n\
             [[layer]]\nkind = \"add\"\ninputs = [\"f\", \"w\"]"
        );
        around(&shared, [3, 6, 6], 2);
    }
}

#[test]
fn softmax_agrees_at_every_place_and_over_features() {
    for channels in [6, 16, 20] {
        let spatial = format!(
            "[[layer]]\nkind = \"conv\"\nchannels = {channels}\nkernel = 1\n\
             [[layer]]\nkind = \"softmax\""
        );
        around(&spatial, [3, 5, 4], 1);
    }
    let flat = "[[layer]]\nkind = \"flatten\"\n[[layer]]\nkind = \"linear\"\nfeatures = 9\n\
                [[layer]]\nkind = \"softmax\"";
    around(flat, [3, 4, 4], 2);
}

#[test]
fn shuffled_channels_agree_for_few_and_many_groups() {
    for (channels, groups) in [(6, 2), (6, 3), (32, 2), (32, 16), (4, 1), (4, 4)] {
        let middle = format!(
            "[[layer]]\nkind = \"conv\"\nchannels = {channels}\nkernel = 3\npadding = 1\n\
             [[layer]]\nkind = \"channel_shuffle\"\ngroups = {groups}\n\
             [[layer]]\nkind = \"conv\"\nchannels = {channels}\nkernel = 1\n\
             groups = {groups}"
        );
        around(&middle, [3, 5, 4], 1);
    }
    let flat = "[[layer]]\nkind = \"flatten\"\n[[layer]]\nkind = \"linear\"\nfeatures = 8\n\
                [[layer]]\nkind = \"channel_shuffle\"\ngroups = 2";
    around(flat, [3, 4, 4], 2);
}

#[test]
fn products_agree_per_element_and_per_channel() {
    let gate = |channels: usize, more: &str| {
        format!(
            "[[layer]]\nname = \"trunk\"\nkind = \"conv\"\nchannels = {channels}\nkernel = 1\n\
             [[layer]]\nname = \"squeeze\"\nkind = \"global_avg_pool\"\n{more}\
             [[layer]]\nname = \"gate\"\nkind = \"sigmoid\"\n\
             [[layer]]\nkind = \"multiply\"\ninputs = [\"trunk\", \"gate\"]"
        )
    };
    for channels in [6, 16, 20] {
        around(&gate(channels, ""), [3, 5, 6], 1);
        let excite = format!("[[layer]]\nkind = \"conv\"\nchannels = {channels}\nkernel = 1\n");
        around(&gate(channels, &excite), [3, 5, 6], 2);
        let excite = format!(
            "[[layer]]\nkind = \"flatten\"\n[[layer]]\nkind = \"linear\"\nfeatures = {channels}\n"
        );
        around(&gate(channels, &excite), [3, 5, 6], 3);
    }
    let each = "[[layer]]\nname = \"s\"\nkind = \"sigmoid\"\n\
                [[layer]]\nkind = \"multiply\"\ninputs = [\"s\", \"before\"]";
    around(each, [3, 5, 5], 4);
    let square = "[[layer]]\nkind = \"multiply\"\ninputs = [\"before\", \"before\"]";
    around(square, [3, 5, 5], 5);
}

#[test]
fn dropout_agrees_in_any_place() {
    around("[[layer]]\nkind = \"dropout\"\nrate = 0.4", [3, 5, 5], 1);
    let middle = "[[layer]]\nkind = \"flatten\"\n[[layer]]\nkind = \"dropout\"\nrate = 0.5\n\
                  [[layer]]\nkind = \"linear\"\nfeatures = 12\n[[layer]]\nkind = \"relu\"\n\
                  [[layer]]\nkind = \"dropout\"\nrate = 0.25";
    around(middle, [3, 5, 5], 2);
}

#[test]
fn local_response_normalisation_agrees() {
    for size in [3, 5] {
        let middle =
            format!("[[layer]]\nkind = \"lrn\"\nsize = {size}\nalpha = 0.2\nbeta = 0.75\nk = 2.0");
        around(&middle, [3, 5, 5], 1);
    }
}

#[test]
fn adding_agrees_for_two_three_and_the_same() {
    let branches = "[[layer]]\nname = \"a\"\nkind = \"conv\"\nchannels = 6\nkernel = 1\n\
                    [[layer]]\nname = \"b\"\nkind = \"batch_norm\"\ninputs = [\"before\"]\n";
    let sum = |inputs: &str| format!("{branches}[[layer]]\nkind = \"add\"\ninputs = [{inputs}]\n");
    around(&sum("\"a\", \"b\""), [3, 5, 5], 1);
    around(&sum("\"b\", \"before\", \"a\""), [3, 5, 5], 2);
    around(&format!("{}[[layer]]\nkind = \"relu\"", sum("\"a\", \"b\"")), [3, 5, 5], 3);
    let twice = "[[layer]]\nkind = \"add\"\ninputs = [\"before\", \"before\"]\n\
                 [[layer]]\nkind = \"relu\"";
    around(twice, [3, 5, 5], 4);
}

#[test]
fn concatenation_agrees_for_odd_and_blocked_widths() {
    for (a, b) in [(5, 3), (16, 16), (16, 4)] {
        let middle = format!(
            "[[layer]]\nname = \"a\"\nkind = \"conv\"\nchannels = {a}\nkernel = 3\npadding = 1\n\
             [[layer]]\nname = \"b\"\nkind = \"conv\"\nchannels = {b}\nkernel = 1\n\
             inputs = [\"before\"]\n\
             [[layer]]\nkind = \"concat\"\ninputs = [\"a\", \"before\", \"b\"]\n\
             [[layer]]\nkind = \"conv\"\nchannels = 4\nkernel = 3"
        );
        around(&middle, [3, 5, 5], 1);
    }
    let flat = "[[layer]]\nname = \"f\"\nkind = \"flatten\"\n\
                [[layer]]\nname = \"l\"\nkind = \"linear\"\nfeatures = 9\n\
                [[layer]]\nkind = \"concat\"\ninputs = [\"l\", \"f\"]";
    around(flat, [3, 4, 4], 2);
}

#[test]
fn a_classifier_without_linear_layers_agrees() {
    let text = r#"
        [[layer]]
        kind = "conv"
        channels = 5
        kernel = 3
        [[layer]]
        kind = "global_avg_pool"
    "#;
    let graph = from_toml(text, [3, 6, 6], CLASSES).expect("the file is right");
    check(&case(graph, 4, 1));
}

#[test]
fn classifiers_within_a_model_agree() {
    let side = |name: &str, weight: &str| {
        format!(
            "[[layer]]\nname = \"{name}.flat\"\nkind = \"flatten\"\ninputs = [\"before\"]\n\
             [[layer]]\nname = \"{name}.norm\"\nkind = \"batch_norm\"\n\
             [[layer]]\nname = \"{name}\"\nkind = \"linear\"\nfeatures = \"classes\"\n\
             loss_weight = {weight}\n"
        )
    };
    let back = "[[layer]]\nkind = \"relu\"\ninputs = [\"before\"]\n";
    around(&format!("{}{back}", side("a", "0.3")), [3, 5, 5], 1);
    around(&format!("{}{}{back}", side("a", "0.3"), side("b", "2.0")), [3, 5, 5], 2);
}
