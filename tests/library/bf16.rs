//! bf16 beside f32: every case of the gradient tests is computed in both.

use crate::gradients::{Case, trained};
use kintsugi::config::{Device, DeviceKind, Precision};
use kintsugi::engine::{self, Compute, Flat};
use kintsugi::model::catalogue;

/// Of the loss. A bf16 number has 8 bits; errors of many average out.
const LOSS_TOLERANCE: f64 = 0.01;
/// Of the length of a tensor's gradient. ReLUs near 0 and close winners of a pool turn over, and a
/// batch norm over few samples magnifies that: 0.30 at most was seen, within eleven layers.
const GRADIENT_TOLERANCE: f64 = 0.35;
/// Of the length of all gradients: those that cancel to nearly nothing have no precision of
/// their own (a bias before a batch norm).
const CANCELLED: f64 = 0.01;
/// Of a mean or variance, and absolute where it is below 1: 0.011 at most was seen.
const STATISTIC_TOLERANCE: f64 = 0.03;

fn open((case, kind): (&Case, DeviceKind), precision: Precision) -> Box<dyn Compute> {
    let device = Device { kind, precision, ..Device::default() };
    engine::open_frozen(&device, &case.graph, &case.frozen, 1).expect("an engine")
}

/// Whether a device of this kind computes in bf16 here. Where it does not, what would be compared
/// is left out, and the refusal is said.
pub fn is_computed(kind: DeviceKind) -> bool {
    let graph = catalogue::build("mlp", [1, 2, 2], 2, 0.1).expect("in the catalogue");
    let device = Device { kind, precision: Precision::Bf16, ..Device::default() };
    let opened = engine::open(&device, &graph, 1).map(drop);
    opened.inspect_err(|refusal| eprintln!("left out: {refusal}")).is_ok()
}

fn length(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|x| x * x).sum::<f64>().sqrt()
}

/// Compares bf16 with what f32 gave for this case.
pub fn check((case, kind): (&Case, DeviceKind), loss: f64, gradients: &[f32], statistics: &[f32]) {
    if !is_computed(kind) {
        return;
    }
    let opened = open((case, kind), Precision::Bf16);
    let (own_loss, own_gradients, own_statistics) = trained(case, opened);
    let name = &case.graph.name;
    assert!(own_gradients != gradients, "{name} was not computed in bf16");
    close(name, own_loss, loss);
    let whole = length(gradients.iter().filter(|x| !x.is_nan()).map(|&x| f64::from(x)));
    for tensor in case.trained() {
        let (given, wanted) = (&own_gradients[tensor.range()], &gradients[tensor.range()]);
        let apart = length(given.iter().zip(wanted).map(|(&a, &b)| f64::from(a) - f64::from(b)));
        let own = length(wanted.iter().map(|&x| f64::from(x)));
        let allowed = GRADIENT_TOLERANCE * own + CANCELLED * whole;
        assert!(apart <= allowed, "{} of {name}: {apart} of {own}", tensor.name);
    }
    let known = own_statistics.iter().zip(statistics).enumerate();
    for (at, (&given, &wanted)) in known.filter(|(_, (_, wanted))| !wanted.is_nan()) {
        let allowed = STATISTIC_TOLERANCE * f64::from(wanted.abs().max(1.0));
        let apart = f64::from(given - wanted).abs();
        assert!(apart <= allowed, "statistic {at} of {name}: {given}, in f32 {wanted}");
    }
    let weights = &Flat { parameters: &case.parameters, statistics: &case.statistics };
    let evaluated = |precision| {
        let outcome =
            open((case, kind), precision).infer(&case.images, &case.labels, weights, None);
        outcome.expect("a micro-batch").loss_sum
    };
    close(name, evaluated(Precision::Bf16), evaluated(Precision::F32));
}

fn close(name: &str, given: f64, wanted: f64) {
    let error = (given - wanted).abs();
    assert!(error <= LOSS_TOLERANCE * wanted.abs(), "{name}: loss {given}, in f32 {wanted}");
}
