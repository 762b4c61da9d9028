//! Streaming (non-temporal) stores for the update of resident state: the step reads one slot and
//! writes the other without first fetching the lines it overwrites (measured: 21 ms against 30 ms
//! for 24 M parameters). Every path computes the same bits: one multiplication and one addition at
//! a time, never fused, so that ranks on different processors stay equal.

mod rule;

use std::sync::atomic::{Ordering, fence as ordinary_fence};

pub use rule::{Number, Rule, apply};

/// The scalars of one step of SGD with momentum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SgdStep {
    /// Learning rate.
    pub learning_rate: f32,
    /// Momentum factor.
    pub momentum: f32,
    /// L2 penalty, added to the gradient.
    pub weight_decay: f32,
    /// Multiplies the summed gradient: one over the real count of samples.
    pub scale: f32,
}

impl SgdStep {
    /// One element: the new weight and the new momentum. The definition that every path follows.
    #[inline(always)]
    fn element(self, w: f32, v: f32, g: f32) -> (f32, f32) {
        let gradient = self.scale * g + self.weight_decay * w;
        let velocity = self.momentum * v + gradient;
        (w - self.learning_rate * velocity, velocity)
    }
}

/// What a step reads as its gradients, summed over samples.
#[derive(Debug, Clone, Copy)]
pub enum Summed<'a> {
    /// As they are.
    Numbers(&'a [f32]),
    /// Whole multiples of a power of two, which stands behind them; `fixed::load` gives the same
    /// numbers.
    Multiples(&'a [i32], f32),
}

impl Summed<'_> {
    fn len(self) -> usize {
        match self {
            Self::Numbers(sums) => sums.len(),
            Self::Multiples(sums, _) => sums.len(),
        }
    }
}

/// How the update is computed; all ways give the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// One element at a time, ordinary stores.
    Scalar,
    /// Four elements, streaming stores.
    Sse2,
    /// Eight elements, streaming stores.
    Avx,
}

impl Path {
    /// The widest that this processor has.
    pub fn detect() -> Self {
        [Self::Avx, Self::Sse2].into_iter().find(|path| path.available()).unwrap_or(Self::Scalar)
    }

    /// Whether this processor has it.
    pub fn available(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Sse2 => std::arch::is_x86_feature_detected!("sse2"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx => std::arch::is_x86_feature_detected!("avx"),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Sse2 | Self::Avx => false,
        }
    }

    #[cfg(target_arch = "x86_64")]
    fn align_bytes(self) -> usize {
        match self {
            Self::Scalar => 4,
            Self::Sse2 => 16,
            Self::Avx => 32,
        }
    }
}

/// SGD with momentum in PyTorch's form: `v' = momentum * v + (scale * g + weight_decay * w)`,
/// `w' = w - learning_rate * v'`. Ends with `fence`. False when some `w'` or `v'` is not a finite
/// number.
///
/// # Panics
/// When the slices differ in length.
pub fn sgd(
    step: SgdStep,
    w: &[f32],
    v: &[f32],
    g: Summed<'_>,
    w_out: &mut [f32],
    v_out: &mut [f32],
) -> bool {
    sgd_by(Path::detect(), step, w, v, g, w_out, v_out)
}

/// `sgd` by a given path (for tests and measurements).
///
/// # Panics
/// When the slices differ in length or this processor does not have the path.
pub fn sgd_by(
    path: Path,
    step: SgdStep,
    w: &[f32],
    v: &[f32],
    g: Summed<'_>,
    w_out: &mut [f32],
    v_out: &mut [f32],
) -> bool {
    let len = w.len();
    assert!(
        [v.len(), g.len(), w_out.len(), v_out.len()].iter().all(|&other| other == len),
        "weights, momentum and gradients of one step have one length"
    );
    assert!(path.available(), "{path:?} is not on this processor");
    let body = body(path, w_out, v_out);
    let mut sound = true;
    for (range, path) in
        [(0..body.start, Path::Scalar), (body.clone(), path), (body.end..len, Path::Scalar)]
    {
        let state = (w, v);
        let out = (&mut *w_out, &mut *v_out);
        sound &= match (path, g) {
            #[cfg(target_arch = "x86_64")]
            // SAFETY: the path is available; `body` lies within the slices, whose lengths are
            // equal; it starts at an address aligned for the stores in both outputs.
            (Path::Avx, g) => unsafe { x86::sgd_avx(step, range, state, g, out) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            (Path::Sse2, g) => unsafe { x86::sgd_sse2(step, range, state, g, out) },
            (_, Summed::Numbers(g)) => sgd_scalar(step, range, state, |i| g[i], out),
            (_, Summed::Multiples(g, unit)) => {
                sgd_scalar(step, range, state, |i| g[i] as f32 * unit, out)
            }
        };
    }
    fence();
    sound
}

/// Makes streaming stores of this thread visible before any store that follows: call it in every
/// thread that wrote, before the commit word is stored.
pub fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SFENCE is part of SSE, which every x86-64 processor has; it touches no memory.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
    ordinary_fence(Ordering::Release);
}

/// The elements that whole aligned vectors cover: streaming stores need aligned addresses. Empty
/// when the two outputs are aligned differently.
#[cfg(target_arch = "x86_64")]
fn body(path: Path, w_out: &[f32], v_out: &[f32]) -> std::ops::Range<usize> {
    let (align, len) = (path.align_bytes(), w_out.len());
    let start = w_out.as_ptr().align_offset(align);
    if start != v_out.as_ptr().align_offset(align) || start >= len {
        return len..len;
    }
    let lanes = align / size_of::<f32>();
    start..start + (len - start) / lanes * lanes
}

#[cfg(not(target_arch = "x86_64"))]
fn body(_: Path, w_out: &[f32], _: &[f32]) -> std::ops::Range<usize> {
    0..w_out.len()
}

fn sgd_scalar(
    step: SgdStep,
    range: std::ops::Range<usize>,
    (w, v): (&[f32], &[f32]),
    g: impl Fn(usize) -> f32,
    (w_out, v_out): (&mut [f32], &mut [f32]),
) -> bool {
    let inputs = w[range.clone()].iter().zip(&v[range.clone()]).zip(range.clone());
    let outputs = w_out[range.clone()].iter_mut().zip(&mut v_out[range]);
    // Times zero a finite number adds nothing; others leave NaN, which stays. A weight is finite
    // only where its momentum is, whatever the learning rate.
    let mut nothing = 0.0;
    for (((&w, &v), i), (w_out, v_out)) in inputs.zip(outputs) {
        (*w_out, *v_out) = step.element(w, v, g(i));
        nothing += *w_out * 0.0;
    }
    !nothing.is_nan()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{SgdStep, Summed};
    use std::arch::x86_64::{
        __m128, __m128i, __m256, __m256i, _mm_add_ps, _mm_cvtepi32_ps, _mm_loadu_ps,
        _mm_loadu_si128, _mm_mul_ps, _mm_set1_ps, _mm_storeu_ps, _mm_stream_ps, _mm_sub_ps,
        _mm256_add_ps, _mm256_cvtepi32_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_mul_ps,
        _mm256_set1_ps, _mm256_storeu_ps, _mm256_stream_ps, _mm256_sub_ps,
    };
    use std::ops::Range;

    /// # Safety
    /// AVX is there; `range` is within all slices, a multiple of 8 long, and starts 32-byte
    /// aligned in both outputs.
    #[target_feature(enable = "avx")]
    pub(super) unsafe fn sgd_avx(
        step: SgdStep,
        range: Range<usize>,
        state: (&[f32], &[f32]),
        g: Summed<'_>,
        out: (&mut [f32], &mut [f32]),
    ) -> bool {
        match g {
            Summed::Numbers(g) => {
                // SAFETY: the caller's promise.
                let load = |i: usize| unsafe { _mm256_loadu_ps(g.as_ptr().add(i)) };
                // SAFETY: the caller's promise.
                unsafe { sgd_avx_of(step, range, state, load, out) }
            }
            Summed::Multiples(g, unit) => {
                let unit = _mm256_set1_ps(unit);
                // SAFETY: the caller's promise.
                let load = |i: usize| unsafe {
                    let sums = _mm256_loadu_si256(g.as_ptr().add(i).cast::<__m256i>());
                    _mm256_mul_ps(_mm256_cvtepi32_ps(sums), unit)
                };
                // SAFETY: the caller's promise.
                unsafe { sgd_avx_of(step, range, state, load, out) }
            }
        }
    }

    /// # Safety
    /// As of `sgd_avx`; `load` may be called within `range`.
    #[target_feature(enable = "avx")]
    unsafe fn sgd_avx_of(
        step: SgdStep,
        range: Range<usize>,
        (w, v): (&[f32], &[f32]),
        load: impl Fn(usize) -> __m256,
        (w_out, v_out): (&mut [f32], &mut [f32]),
    ) -> bool {
        let rate = _mm256_set1_ps(step.learning_rate);
        let momentum = _mm256_set1_ps(step.momentum);
        let decay = _mm256_set1_ps(step.weight_decay);
        let scale = _mm256_set1_ps(step.scale);
        let zero = _mm256_set1_ps(0.0);
        let mut nothing = zero;
        for i in range.step_by(8) {
            // SAFETY: i + 8 is within every slice, and the stores are aligned (caller's promise).
            unsafe {
                let weight = _mm256_loadu_ps(w.as_ptr().add(i));
                let scaled = _mm256_mul_ps(scale, load(i));
                let gradient = _mm256_add_ps(scaled, _mm256_mul_ps(decay, weight));
                let kept = _mm256_mul_ps(momentum, _mm256_loadu_ps(v.as_ptr().add(i)));
                let velocity = _mm256_add_ps(kept, gradient);
                let moved = _mm256_sub_ps(weight, _mm256_mul_ps(rate, velocity));
                _mm256_stream_ps(w_out.as_mut_ptr().add(i), moved);
                _mm256_stream_ps(v_out.as_mut_ptr().add(i), velocity);
                nothing = _mm256_add_ps(nothing, _mm256_mul_ps(moved, zero));
            }
        }
        let mut lanes = [0.0f32; 8];
        // SAFETY: the lanes are as many as the vector has.
        unsafe { _mm256_storeu_ps(lanes.as_mut_ptr(), nothing) };
        lanes.iter().all(|lane| !lane.is_nan())
    }

    /// # Safety
    /// `range` is within all slices, a multiple of 4 long, and starts 16-byte aligned in both
    /// outputs.
    #[target_feature(enable = "sse2")]
    pub(super) unsafe fn sgd_sse2(
        step: SgdStep,
        range: Range<usize>,
        state: (&[f32], &[f32]),
        g: Summed<'_>,
        out: (&mut [f32], &mut [f32]),
    ) -> bool {
        match g {
            Summed::Numbers(g) => {
                // SAFETY: the caller's promise.
                let load = |i: usize| unsafe { _mm_loadu_ps(g.as_ptr().add(i)) };
                // SAFETY: the caller's promise.
                unsafe { sgd_sse2_of(step, range, state, load, out) }
            }
            Summed::Multiples(g, unit) => {
                let unit = _mm_set1_ps(unit);
                // SAFETY: the caller's promise.
                let load = |i: usize| unsafe {
                    let sums = _mm_loadu_si128(g.as_ptr().add(i).cast::<__m128i>());
                    _mm_mul_ps(_mm_cvtepi32_ps(sums), unit)
                };
                // SAFETY: the caller's promise.
                unsafe { sgd_sse2_of(step, range, state, load, out) }
            }
        }
    }

    /// # Safety
    /// As of `sgd_sse2`; `load` may be called within `range`.
    #[target_feature(enable = "sse2")]
    unsafe fn sgd_sse2_of(
        step: SgdStep,
        range: Range<usize>,
        (w, v): (&[f32], &[f32]),
        load: impl Fn(usize) -> __m128,
        (w_out, v_out): (&mut [f32], &mut [f32]),
    ) -> bool {
        let rate = _mm_set1_ps(step.learning_rate);
        let momentum = _mm_set1_ps(step.momentum);
        let decay = _mm_set1_ps(step.weight_decay);
        let scale = _mm_set1_ps(step.scale);
        let zero = _mm_set1_ps(0.0);
        let mut nothing = zero;
        for i in range.step_by(4) {
            // SAFETY: i + 4 is within every slice, and the stores are aligned (caller's promise).
            unsafe {
                let weight = _mm_loadu_ps(w.as_ptr().add(i));
                let scaled = _mm_mul_ps(scale, load(i));
                let gradient = _mm_add_ps(scaled, _mm_mul_ps(decay, weight));
                let kept = _mm_mul_ps(momentum, _mm_loadu_ps(v.as_ptr().add(i)));
                let velocity = _mm_add_ps(kept, gradient);
                let moved = _mm_sub_ps(weight, _mm_mul_ps(rate, velocity));
                _mm_stream_ps(w_out.as_mut_ptr().add(i), moved);
                _mm_stream_ps(v_out.as_mut_ptr().add(i), velocity);
                nothing = _mm_add_ps(nothing, _mm_mul_ps(moved, zero));
            }
        }
        let mut lanes = [0.0f32; 4];
        // SAFETY: the lanes are as many as the vector has.
        unsafe { _mm_storeu_ps(lanes.as_mut_ptr(), nothing) };
        lanes.iter().all(|lane| !lane.is_nan())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Deterministic values over many magnitudes, denormals and zeros included.
    fn values(len: usize, salt: u32) -> Vec<f32> {
        (0..len as u32)
            .map(|i| {
                let bits = (i + 1).wrapping_mul(2_654_435_761).wrapping_add(salt * 40_503);
                let exponent = bits % 40;
                let fraction = (bits >> 8) as f32 / (1u32 << 24) as f32 - 0.5;
                if bits.is_multiple_of(31) {
                    0.0
                } else {
                    fraction * 2f32.powi(exponent as i32 - 30)
                }
            })
            .chain([f32::from_bits(1), -0.0])
            .take(len)
            .collect()
    }

    const STEP: SgdStep =
        SgdStep { learning_rate: 0.05, momentum: 0.9, weight_decay: 1e-4, scale: 1.0 / 96.0 };

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    /// Runs one path on slices that begin `w_skip` and `v_skip` elements into their buffers.
    fn run(path: Path, len: usize, w_skip: usize, v_skip: usize) -> (Vec<u32>, Vec<u32>) {
        let (w, v, g) = (values(len, 1), values(len, 2), values(len, 3));
        let (mut w_out, mut v_out) = (vec![9.0; len + 32], vec![9.0; len + 32]);
        let (w_range, v_range) = (w_skip..w_skip + len, v_skip..v_skip + len);
        let g = Summed::Numbers(&g);
        sgd_by(path, STEP, &w, &v, g, &mut w_out[w_range.clone()], &mut v_out[v_range.clone()]);
        let outside = |i: usize, range: &std::ops::Range<usize>| !range.contains(&i);
        assert!((0..len + 32).filter(|&i| outside(i, &w_range)).all(|i| w_out[i] == 9.0));
        assert!((0..len + 32).filter(|&i| outside(i, &v_range)).all(|i| v_out[i] == 9.0));
        (bits(&w_out[w_range]), bits(&v_out[v_range]))
    }

    /// The textbook loop, written apart from `SgdStep::element`.
    fn reference(len: usize) -> (Vec<u32>, Vec<u32>) {
        let (w, v, g) = (values(len, 1), values(len, 2), values(len, 3));
        let (mut w_out, mut v_out) = (Vec::new(), Vec::new());
        for i in 0..len {
            let d = g[i] * STEP.scale + w[i] * STEP.weight_decay;
            let velocity = v[i] * STEP.momentum + d;
            v_out.push(velocity.to_bits());
            w_out.push((w[i] - velocity * STEP.learning_rate).to_bits());
        }
        (w_out, v_out)
    }

    #[test]
    fn every_path_gives_the_bits_of_the_textbook_loop_for_every_length_and_alignment() {
        for path in [Path::Scalar, Path::Sse2, Path::Avx].into_iter().filter(|p| p.available()) {
            for len in 0..100 {
                let expected = reference(len);
                for skip in 0..17 {
                    assert_eq!(run(path, len, skip, skip), expected, "{path:?} {len} {skip}");
                }
                assert_eq!(run(path, len, 1, 2), expected, "{path:?} {len}, aligned apart");
            }
        }
    }

    #[test]
    fn every_path_reads_multiples_as_the_numbers_that_they_are() {
        let unit = 2f32.powi(-27);
        for path in [Path::Scalar, Path::Sse2, Path::Avx].into_iter().filter(|p| p.available()) {
            for len in 0..50 {
                let (w, v) = (values(len, 1), values(len, 2));
                let word = |i: u32| i.wrapping_mul(2_654_435_761).cast_signed() >> (i % 29);
                let sums: Vec<i32> = (1..=len as u32).map(word).collect();
                let mut numbers = vec![0.0; len];
                crate::fixed::load(&sums, &mut numbers, unit);
                let of = |g: Summed<'_>| {
                    let (mut w_out, mut v_out) = (vec![9.0; len], vec![9.0; len]);
                    assert!(sgd_by(path, STEP, &w, &v, g, &mut w_out, &mut v_out));
                    (bits(&w_out), bits(&v_out))
                };
                let expected = of(Summed::Numbers(&numbers));
                assert_eq!(of(Summed::Multiples(&sums, unit)), expected, "{path:?} {len}");
            }
        }
    }

    #[test]
    fn every_path_notices_a_weight_or_momentum_that_is_no_number() {
        let still = SgdStep { learning_rate: 0.0, momentum: 1.0, weight_decay: 0.0, scale: 1.0 };
        let far = SgdStep { learning_rate: 8.0, ..still };
        // Momentum overflows although nothing moves; a weight does although momentum is finite.
        let cases = [(still, f32::MAX, f32::MAX, false), (far, 0.0, f32::MAX / 4.0, false)];
        let cases = cases.into_iter().chain([(far, 0.0, f32::NAN, false), (far, 0.0, 1.0, true)]);
        for (step, v, g, finite) in cases {
            for path in [Path::Scalar, Path::Sse2, Path::Avx].into_iter().filter(|p| p.available())
            {
                for at in 0..32 {
                    let (w, mut momentum, mut gradient) = ([1.0; 32], [0.0; 32], [0.0; 32]);
                    (momentum[at], gradient[at]) = (v, g);
                    let (mut w_out, mut v_out) = ([0.0; 32], [0.0; 32]);
                    let sums = Summed::Numbers(&gradient);
                    let told = sgd_by(path, step, &w, &momentum, sums, &mut w_out, &mut v_out);
                    assert_eq!(told, finite, "{path:?} {step:?} {v} {g} at {at}");
                    assert_eq!(told, w_out.iter().chain(&v_out).all(|value| value.is_finite()));
                }
            }
        }
    }

    #[test]
    fn this_processor_streams() {
        if cfg!(target_arch = "x86_64") {
            assert_ne!(Path::detect(), Path::Scalar);
            let out = vec![0.0f32; 1000];
            assert!(body(Path::detect(), &out, &out).len() >= 984);
        }
    }

    #[test]
    #[should_panic(expected = "one length")]
    fn slices_of_different_lengths_are_refused() {
        let g = Summed::Numbers(&[0.0; 3]);
        sgd(STEP, &[0.0; 4], &[0.0; 4], g, &mut [0.0; 4], &mut [0.0; 4]);
    }
}
