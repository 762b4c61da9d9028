//! Kernels of sums that do not depend on their grouping: f32 values rounded to whole multiples of
//! a power of two and added as 64-bit integers, which is exact in any order. Every path gives the
//! same bits; the loops are written so that the compiler makes vectors of them on any processor,
//! and wider ones where AVX2 is there.

/// Values must lie below `2^RANGE_BITS` multiples: then the rounding below is exact.
pub const RANGE_BITS: u32 = 51;

/// So many of them may be added to one sum: it cannot wrap.
pub const SUMMANDS_MAX: u32 = 1 << (62 - RANGE_BITS);

/// 1.5 * 2^52: adding it leaves the nearest whole number (ties to even) in the low bits of the
/// sum, for numbers below 2^51 (the textbook conversion; there is no vector instruction for it
/// before AVX-512).
const MAGIC: f64 = 6_755_399_441_055_744.0;

/// Bits of an f32 without its sign.
const MAGNITUDE: u32 = 0x7fff_ffff;

/// `sum = round(scale * value)`, element by element; `scale` is a power of two. Returns the bits
/// of the largest magnitude among the values: an infinite or undefined one is at least
/// `f32::INFINITY.to_bits()`. Where `scale * value` is `2^RANGE_BITS` or more the element holds
/// anything: compare what is returned.
///
/// # Panics
/// When the slices differ in length.
pub fn store(sum: &mut [i64], values: &[f32], scale: f64) -> u32 {
    accumulate::<true>(sum, values, scale)
}

/// `sum += round(scale * value)`, wrapping; otherwise as [`store`].
///
/// # Panics
/// When the slices differ in length.
pub fn add(sum: &mut [i64], values: &[f32], scale: f64) -> u32 {
    accumulate::<false>(sum, values, scale)
}

/// `out = sum * unit`: rounded to f64, multiplied (exactly, by a power of two), rounded to f32.
///
/// # Panics
/// When the slices differ in length.
pub fn load(sum: &[i64], out: &mut [f32], unit: f64) {
    assert_eq!(sum.len(), out.len(), "a value for every sum");
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 is there.
        unsafe { x86::load_avx2(sum, out, unit) };
        return;
    }
    load_any(sum, out, unit);
}

fn accumulate<const FIRST: bool>(sum: &mut [i64], values: &[f32], scale: f64) -> u32 {
    assert_eq!(sum.len(), values.len(), "a sum for every value");
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 is there.
        return unsafe { x86::accumulate_avx2::<FIRST>(sum, values, scale) };
    }
    accumulate_any::<FIRST>(sum, values, scale)
}

#[inline(always)]
fn accumulate_any<const FIRST: bool>(sum: &mut [i64], values: &[f32], scale: f64) -> u32 {
    let mut largest = 0_i32;
    for (sum, &value) in sum.iter_mut().zip(values) {
        // As signed numbers, which every vector unit compares: the sign bit is off.
        largest = largest.max((value.to_bits() & MAGNITUDE).cast_signed());
        let shifted = f64::from(value) * scale + MAGIC;
        let units = shifted.to_bits().wrapping_sub(MAGIC.to_bits()).cast_signed();
        *sum = if FIRST { units } else { sum.wrapping_add(units) };
    }
    largest.cast_unsigned()
}

#[inline(always)]
fn load_any(sum: &[i64], out: &mut [f32], unit: f64) {
    for (&sum, out) in sum.iter().zip(out) {
        *out = (to_f64(sum) * unit) as f32;
    }
}

/// `sum as f64`, by halves: each is exact, their sum is rounded once.
#[inline(always)]
fn to_f64(sum: i64) -> f64 {
    /// Exponents that put 32 bits at the low end of a number: 2^52, and 2^84 for the upper half.
    const LOW: u64 = 0x4330_0000_0000_0000;
    const HIGH: u64 = 0x4530_0000_0000_0000;
    /// 2^84 + 2^63: the exponent's own value, and the bias that makes the upper half unsigned.
    const BIAS: u64 = 0x4530_0000_8000_0000;
    let bits = sum.cast_unsigned();
    let high = f64::from_bits(((bits >> 32) ^ 0x8000_0000) | HIGH) - f64::from_bits(BIAS);
    let low = f64::from_bits((bits & 0xffff_ffff) | LOW) - f64::from_bits(LOW);
    high + low
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    /// # Safety
    /// AVX2 is there.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn accumulate_avx2<const FIRST: bool>(
        sum: &mut [i64],
        values: &[f32],
        scale: f64,
    ) -> u32 {
        super::accumulate_any::<FIRST>(sum, values, scale)
    }

    /// # Safety
    /// AVX2 is there.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn load_avx2(sum: &[i64], out: &mut [f32], unit: f64) {
        super::load_any(sum, out, unit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Deterministic values of many magnitudes below 2^11, denormals, zeros and ties included.
    fn values(len: usize) -> Vec<f32> {
        (0..len as u32)
            .map(|i| {
                let bits = (i + 1).wrapping_mul(2_654_435_761);
                let fraction = (bits >> 8) as f32 / (1_u32 << 24) as f32 - 0.5;
                match bits % 29 {
                    0 => 0.0,
                    1 => f32::from_bits(bits % 1000),
                    2 => (f64::from(bits % 9) + 0.5) as f32 * 2f32.powi(-40),
                    exponent => fraction * 2f32.powi(exponent as i32 - 17),
                }
            })
            .collect()
    }

    #[test]
    fn every_path_rounds_to_nearest_for_every_length() {
        let scale = 2f64.powi(40);
        for len in 0..80 {
            let values = values(len);
            let expected: Vec<i64> =
                values.iter().map(|&v| (f64::from(v) * scale).round_ties_even() as i64).collect();
            let mut sum = vec![7; len];
            let largest = store(&mut sum, &values, scale);
            assert_eq!(sum, expected, "{len}");
            let plain = values.iter().fold(0.0_f32, |max, v| max.max(v.abs()));
            assert_eq!(f32::from_bits(largest), plain, "{len}");
            assert_eq!(add(&mut sum, &values, scale), largest);
            assert!(sum.iter().zip(&expected).all(|(sum, once)| *sum == 2 * once), "{len}");
            let mut any = vec![0; len];
            assert_eq!(accumulate_any::<true>(&mut any, &values, scale), largest);
            assert_eq!(any, expected);
        }
    }

    #[test]
    fn sums_are_read_as_the_processor_converts_them() {
        let mut sums = vec![0, 1, -1, i64::MAX, i64::MIN, 1 << 53, (1 << 53) + 1, -(1 << 40) - 1];
        let mut word = 1_u64;
        sums.extend((0..1000).map(|i| {
            word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            word.cast_signed() >> (i % 60)
        }));
        let unit = 2f64.powi(-40);
        let mut out = vec![0.0; sums.len()];
        load(&sums, &mut out, unit);
        for (sum, out) in sums.iter().zip(&out) {
            assert_eq!(to_f64(*sum), *sum as f64, "{sum}");
            assert_eq!(out.to_bits(), ((*sum as f64 * unit) as f32).to_bits(), "{sum}");
        }
    }

    #[test]
    fn what_is_not_a_number_is_larger_than_all_numbers() {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
            let mut values = vec![1.0; 33];
            values[17] = value;
            let largest = store(&mut [0; 33], &values, 1.0);
            assert!(largest >= f32::INFINITY.to_bits(), "{value}");
        }
    }
}
