//! Log-probabilities of logits, as losses and answers are made of: in f64, rounded once. By
//! `+ - * /` only, so that no library's kernel shows (oneDNN's is off by up to 4e-6, and gives
//! probabilities above 1).

use crate::config::exact::logarithm;

/// Below it a power adds nothing to a sum of at least 1.
const LEAST: f64 = -100.0;
/// 1 / k!, from the last term of the series to the first: within 1e-11 over half of ln(2).
const SERIES: [f64; 10] = [
    1.0 / 362_880.0,
    1.0 / 40_320.0,
    1.0 / 5_040.0,
    1.0 / 720.0,
    1.0 / 120.0,
    1.0 / 24.0,
    1.0 / 6.0,
    0.5,
    1.0,
    1.0,
];

/// e to a power of at most 0.
fn power(x: f64) -> f64 {
    /// Added and taken away again it rounds to whole numbers.
    const WHOLE: f64 = 6_755_399_441_055_744.0;
    const BIAS: i64 = 1023;
    const MANTISSA_BITS: u32 = 52;
    let x = if x < LEAST { LEAST } else { x };
    let twos = (x * std::f64::consts::LOG2_E + WHOLE) - WHOLE;
    let left = x - twos * std::f64::consts::LN_2;
    let series = SERIES.iter().fold(0.0, |sum, factor| sum * left + factor);
    series * f64::from_bits(((twos as i64 + BIAS) as u64) << MANTISSA_BITS)
}

/// Appends the natural logarithm of each class's probability, of rows of so many classes. A row
/// that holds what is no number, or is infinite, is none.
pub fn log_probabilities(logits: &[f32], classes: usize, into: &mut Vec<f32>) {
    for row in logits.chunks_exact(classes) {
        let peak = row.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
        if !peak.is_finite() || row.iter().any(|x| x.is_nan()) {
            into.extend(row.iter().map(|_| f32::NAN));
            continue;
        }
        let peak = f64::from(peak);
        let sum: f64 = row.iter().map(|&x| power(f64::from(x) - peak)).sum();
        let whole = logarithm(sum);
        into.extend(row.iter().map(|&x| ((f64::from(x) - peak) - whole) as f32));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::seed::Stream;

    fn of(logits: &[f32], classes: usize) -> Vec<f32> {
        let mut all = Vec::new();
        log_probabilities(logits, classes, &mut all);
        all
    }

    /// Half a unit in the last place of f32, of a number or of 1: better than torch's 2e-7.
    #[test]
    fn logarithms_are_the_exact_ones_rounded() {
        let mut stream = Stream::new(&[31]);
        for (classes, spread) in [(2, 1.0), (10, 4.0), (1000, 4.0), (1000, 40.0), (3, 1e4)] {
            let logits: Vec<f32> =
                (0..4 * classes).map(|_| (spread * stream.normal()) as f32).collect();
            for (given, row) in of(&logits, classes).chunks(classes).zip(logits.chunks(classes)) {
                let peak = row.iter().fold(f64::NEG_INFINITY, |a, &b| a.max(f64::from(b)));
                let sum: f64 = row.iter().map(|&x| (f64::from(x) - peak).exp()).sum();
                for (given, &x) in given.iter().zip(row) {
                    let exact = f64::from(x) - peak - sum.ln();
                    let off = (f64::from(*given) - exact).abs();
                    assert!(off <= 6e-8 * exact.abs().max(1e-3), "{x}: {given}, exactly {exact}");
                    assert!(*given <= 0.0);
                }
            }
        }
    }

    #[test]
    fn a_certain_class_has_no_loss_and_what_is_no_number_stays_so() {
        assert_eq!(of(&[50.0, -50.0], 2), [0.0, -100.0]);
        assert_eq!(of(&[1e30, -1e30], 2), [0.0, -2e30]);
        assert!(of(&[7.0], 1)[0].is_sign_positive());
        for wrong in [[f32::NAN, 1.0], [f32::INFINITY, 1.0], [1.0, f32::NAN]] {
            assert!(of(&wrong, 2).iter().all(|x| x.is_nan()));
        }
    }
}
