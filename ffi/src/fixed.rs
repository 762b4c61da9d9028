//! Kernels of sums that do not depend on their grouping: f32 values rounded to whole multiples of
//! a power of two and added as 32-bit integers, which is exact in any order. Every path gives the
//! same bits; where AVX2 is there, its own conversion rounds.

/// So many parts may be added to one sum: what they say of their size stays below 2^63.
pub const SUMMANDS_MAX: u32 = 2048;

/// Bits of an f32 without its sign.
const MAGNITUDE: u32 = 0x7fff_ffff;

/// `sum = round(scale * value)` (ties to even), element by element; `scale` is a power of two.
/// Returns the bits of the largest magnitude among the values: an infinite or undefined one is at
/// least `f32::INFINITY.to_bits()`. Where `scale * value` is 2^31 or more the element holds
/// anything: compare what is returned.
///
/// # Panics
/// When the slices differ in length.
pub fn store(sum: &mut [i32], values: &[f32], scale: f32) -> u32 {
    accumulate::<true>(sum, values, scale)
}

/// `sum += round(scale * value)`, wrapping; otherwise as [`store`].
///
/// # Panics
/// When the slices differ in length.
pub fn add(sum: &mut [i32], values: &[f32], scale: f32) -> u32 {
    accumulate::<false>(sum, values, scale)
}

/// `out = sum * unit`: rounded to f32, then multiplied by a power of two, which is exact.
///
/// # Panics
/// When the slices differ in length.
pub fn load(sum: &[i32], out: &mut [f32], unit: f32) {
    assert_eq!(sum.len(), out.len(), "a value for every sum");
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 is there.
        unsafe { x86::load_avx2(sum, out, unit) };
        return;
    }
    load_any(sum, out, unit);
}

fn accumulate<const FIRST: bool>(sum: &mut [i32], values: &[f32], scale: f32) -> u32 {
    assert_eq!(sum.len(), values.len(), "a sum for every value");
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: AVX2 is there.
        return unsafe { x86::accumulate_avx2::<FIRST>(sum, values, scale) };
    }
    accumulate_any::<FIRST>(sum, values, scale)
}

fn accumulate_any<const FIRST: bool>(sum: &mut [i32], values: &[f32], scale: f32) -> u32 {
    let mut largest = 0;
    for (sum, &value) in sum.iter_mut().zip(values) {
        largest = largest.max(value.to_bits() & MAGNITUDE);
        let units = (value * scale).round_ties_even() as i32;
        *sum = if FIRST { units } else { sum.wrapping_add(units) };
    }
    largest
}

#[inline(always)]
fn load_any(sum: &[i32], out: &mut [f32], unit: f32) {
    for (&sum, out) in sum.iter().zip(out) {
        *out = sum as f32 * unit;
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256i, _mm256_add_epi32, _mm256_and_si256, _mm256_castps_si256, _mm256_cvtps_epi32,
        _mm256_loadu_ps, _mm256_loadu_si256, _mm256_max_epi32, _mm256_mul_ps, _mm256_set1_epi32,
        _mm256_set1_ps, _mm256_setzero_si256, _mm256_storeu_si256,
    };

    /// Numbers of a vector.
    const LANES: usize = 8;

    /// # Safety
    /// AVX2 is there. The slices are equally long.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn accumulate_avx2<const FIRST: bool>(
        sum: &mut [i32],
        values: &[f32],
        scale: f32,
    ) -> u32 {
        let (scales, mask) =
            (_mm256_set1_ps(scale), _mm256_set1_epi32(super::MAGNITUDE.cast_signed()));
        let mut largest = _mm256_setzero_si256();
        let (mut sums, mut parts) = (sum.chunks_exact_mut(LANES), values.chunks_exact(LANES));
        for (sum, part) in sums.by_ref().zip(parts.by_ref()) {
            let at = sum.as_mut_ptr().cast::<__m256i>();
            // SAFETY: both chunks have eight elements; no load or store asks for alignment.
            unsafe {
                let part = _mm256_loadu_ps(part.as_ptr());
                // As signed numbers: the sign bit is off.
                let magnitude = _mm256_and_si256(_mm256_castps_si256(part), mask);
                largest = _mm256_max_epi32(largest, magnitude);
                // Rounds to nearest, ties to even: nobody changes the rounding mode.
                let units = _mm256_cvtps_epi32(_mm256_mul_ps(part, scales));
                let sum = match FIRST {
                    true => units,
                    false => _mm256_add_epi32(_mm256_loadu_si256(at.cast_const()), units),
                };
                _mm256_storeu_si256(at, sum);
            }
        }
        let mut lanes = [0_u32; LANES];
        // SAFETY: eight words.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), largest) };
        let rest = (sums.into_remainder(), parts.remainder());
        let rest = super::accumulate_any::<FIRST>(rest.0, rest.1, scale);
        lanes.into_iter().fold(rest, u32::max)
    }

    /// # Safety
    /// AVX2 is there.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn load_avx2(sum: &[i32], out: &mut [f32], unit: f32) {
        super::load_any(sum, out, unit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Deterministic values of many magnitudes below 1, denormals, zeros and ties included.
    fn values(len: usize) -> Vec<f32> {
        (0..len as u32)
            .map(|i| {
                let bits = (i + 1).wrapping_mul(2_654_435_761);
                let fraction = (bits >> 8) as f32 / (1_u32 << 24) as f32 - 0.5;
                match bits % 29 {
                    0 => 0.0,
                    1 => f32::from_bits(bits % 1000),
                    2 => ((bits % 9) as f32 - 4.5) * 2f32.powi(-29),
                    exponent => fraction * 2f32.powi(3 - exponent as i32),
                }
            })
            .collect()
    }

    #[test]
    fn every_path_rounds_to_nearest_for_every_length() {
        let scale = 2f32.powi(29);
        for len in 0..80 {
            let values = values(len);
            let exact = |&v: &f32| (f64::from(v) * f64::from(scale)).round_ties_even() as i32;
            let expected: Vec<i32> = values.iter().map(exact).collect();
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
        let mut sums = vec![0, 1, -1, i32::MAX, i32::MIN, 1 << 24, (1 << 24) + 1, -(1 << 20) - 1];
        let mut word = 1_u32;
        sums.extend((0..1000).map(|i| {
            word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            word.cast_signed() >> (i % 30)
        }));
        let unit = 2f32.powi(-27);
        let mut out = vec![0.0; sums.len()];
        load(&sums, &mut out, unit);
        for (sum, out) in sums.iter().zip(&out) {
            let exact = f64::from(*sum) * f64::from(unit);
            assert_eq!(out.to_bits(), (exact as f32).to_bits(), "{sum}");
        }
    }

    #[test]
    fn what_is_not_a_number_is_larger_than_all_numbers() {
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -f32::NAN] {
            for at in [17, 32] {
                let mut values = vec![1.0; 33];
                values[at] = value;
                let largest = store(&mut [0; 33], &values, 1.0);
                assert!(largest >= f32::INFINITY.to_bits(), "{value} at {at}");
            }
        }
    }
}
