//! Functions on which a run's bits depend. Only `+ - * /` and powers of two are used, which IEEE
//! 754 defines to the last bit, so that no C library can change a run.

use std::f64::consts::{LN_2, LOG2_E, SQRT_2};

/// Bits of an f64 behind the point.
const MANTISSA_BITS: u32 = 52;
const BIAS: i64 = 1023;

/// Natural logarithm of a positive normal number, within 4e-16 of itself or of 1: by
/// `2 atanh((m - 1) / (m + 1))` over a mantissa within [sqrt(1/2), sqrt(2)); the series is exact to
/// 1e-16 after its terms below.
pub fn logarithm(x: f64) -> f64 {
    const TERMS: u32 = 11;
    let bits = x.to_bits();
    let mut exponent = ((bits >> MANTISSA_BITS) & 0x7ff) as i64 - BIAS;
    let fraction = bits & ((1 << MANTISSA_BITS) - 1);
    let mut mantissa = f64::from_bits(fraction | (BIAS as u64) << MANTISSA_BITS);
    if mantissa > SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let series = (0..TERMS).rev().fold(0.0, |sum, k| sum * square + 1.0 / f64::from(2 * k + 1));
    2.0 * s * series + exponent as f64 * LN_2
}

/// Largest that `exponential` takes, either way: beyond it is taken for it.
const EXPONENT_MAX: f64 = 700.0;

/// e to the power of `x`, within a factor of 1 ± 6e-16: a power of two times Taylor's series over
/// what is left, at most ln(2) / 2. NaN is taken for 0.
pub fn exponential(x: f64) -> f64 {
    const TERMS: u32 = 15;
    /// ln(2) in two parts, the first so short that small numbers times it are exact.
    const LN_2_PARTS: [f64; 2] = [0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10];
    let x = if x.is_nan() { 0.0 } else { x.clamp(-EXPONENT_MAX, EXPONENT_MAX) };
    let twos = (x * LOG2_E).round();
    let left = x - twos * LN_2_PARTS[0] - twos * LN_2_PARTS[1];
    let series = (1..TERMS).rev().fold(1.0, |sum, k| 1.0 + sum * left / f64::from(k));
    // Within -1010 and 1010, so the power is a normal number.
    series * f64::from_bits(((twos as i64 + BIAS) as u64) << MANTISSA_BITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::seed::Stream;

    #[test]
    fn the_logarithm_agrees_with_the_library() {
        let mut stream = Stream::new(&[9]);
        for _ in 0..10_000 {
            let x = stream.unit() + 1e-12;
            assert!((logarithm(x) - x.ln()).abs() <= 4e-16 * x.ln().abs().max(1.0), "{x}");
        }
        assert_eq!(logarithm(1.0), 0.0);
    }

    #[test]
    fn the_exponential_agrees_with_the_library() {
        let mut stream = Stream::new(&[10]);
        for reach in [0.3, 5.0, 700.0] {
            for _ in 0..10_000 {
                let x = (2.0 * stream.unit() - 1.0) * reach;
                let apart = (exponential(x) / x.exp() - 1.0).abs();
                assert!(apart <= 6e-16, "{apart} at {x}");
            }
        }
        assert_eq!([0.0, f64::NAN].map(exponential), [1.0, 1.0]);
        assert!(exponential(f64::INFINITY).is_finite() && exponential(f64::NEG_INFINITY) > 0.0);
    }

    #[test]
    fn these_bits_are_for_ever() {
        let found = [exponential(0.25), exponential(-1.5), logarithm(0.75), logarithm(4.0 / 3.0)];
        let found = found.map(f64::to_bits);
        assert_eq!(found, GOLDEN, "changed bits change every run with random crops: {found:x?}");
    }
    const GOLDEN: [u64; 4] = [
        0x3ff4_8b5e_3c3e_8186,
        0x3fcc_8f87_724b_5c1d,
        0xbfd2_6962_1134_db92,
        0x3fd2_6962_1134_db92,
    ];
}
