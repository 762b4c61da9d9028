//! Streaming (non-temporal) stores for the update of resident state, and for copies: a step reads
//! one slot and writes the other without first fetching the lines it overwrites (measured: 21 ms
//! against 30 ms for 24 M parameters; 7.3 GB/s against 4.6 where 1 MiB is copied). A rule is
//! written once, over numbers that are one or eight at a time; both give the same bits, since every
//! operation that a number has is rounded by itself (IEEE 754, square roots and quotients too), and
//! none are fused. So ranks on different processors stay equal.

use std::ops::{Add, Div, Mul, Range, Sub};
use std::sync::atomic::{Ordering, fence as ordinary_fence};

/// What drives a rule, one for every element.
#[derive(Debug, Clone, Copy)]
pub enum Source<'a> {
    /// Numbers.
    Numbers(&'a [f32]),
    /// Whole multiples of a power of two, which stands behind them; `fixed::load` gives the same
    /// numbers.
    Multiples(&'a [i32], f32),
}

impl<'a> Source<'a> {
    /// Those of a range of its elements.
    ///
    /// # Panics
    /// When the range is not within them.
    #[must_use]
    pub fn slice(self, range: Range<usize>) -> Source<'a> {
        match self {
            Self::Numbers(numbers) => Source::Numbers(&numbers[range]),
            Self::Multiples(multiples, unit) => Source::Multiples(&multiples[range], unit),
        }
    }

    fn len(self) -> usize {
        match self {
            Self::Numbers(numbers) => numbers.len(),
            Self::Multiples(multiples, _) => multiples.len(),
        }
    }
}

/// A number, or several that lie beside each other.
pub trait Number:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// The same everywhere.
    fn of(value: f32) -> Self;

    /// Square root.
    fn root(self) -> Self;
}

impl Number for f32 {
    #[inline(always)]
    fn of(value: f32) -> Self {
        value
    }

    #[inline(always)]
    fn root(self) -> Self {
        self.sqrt()
    }
}

/// What makes `O` outputs of what drives it and `I` parts of the state, element by element.
pub trait Rule<const I: usize, const O: usize> {
    /// One element. `#[inline(always)]`, that it is compiled for wide registers.
    fn element<N: Number>(&self, source: N, state: [N; I]) -> [N; O];

    /// What the absolute values of each output must be less than, to be sound.
    fn limits(&self) -> [f32; O] {
        [f32::INFINITY; O]
    }
}

/// Follows a rule for all elements, with streaming stores where the outputs are aligned alike.
/// Ends with `fence`. False when some output is not a number, or not below its limit.
///
/// # Panics
/// When the slices differ in length.
pub fn apply<const I: usize, const O: usize, R: Rule<I, O>>(
    rule: &R,
    source: Source<'_>,
    state: [&[f32]; I],
    mut written: [&mut [f32]; O],
) -> bool {
    let len = source.len();
    assert!(
        state.iter().all(|part| part.len() == len) && written.iter().all(|part| part.len() == len),
        "what a rule reads and writes has one length"
    );
    let body = body(&written);
    let head = plainly(rule, 0..body.start, source, &state, &mut written);
    let middle = widely(rule, body.clone(), source, &state, &mut written);
    let tail = plainly(rule, body.end..len, source, &state, &mut written);
    fence();
    head && middle && tail
}

/// Copies bytes, with streaming stores where there are wide registers: what is copied between two
/// large memories is not read again soon, and neither is what it overwrites. Ends with `fence`.
///
/// # Panics
/// When the slices differ in length.
pub fn copy(from: &[u8], to: &mut [u8]) {
    assert_eq!(from.len(), to.len(), "what is copied has one length");
    let streamed = streamed(to);
    let Range { start, end } = streamed;
    to[..start].copy_from_slice(&from[..start]);
    copy_widely(&from[streamed.clone()], &mut to[streamed]);
    to[end..].copy_from_slice(&from[end..]);
    fence();
}

/// The bytes of `to` that whole aligned blocks cover; none where the processor has no wide
/// registers.
fn streamed(to: &[u8]) -> Range<usize> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx") {
        let start = to.as_ptr().align_offset(x86::BYTES).min(to.len());
        return start..start + (to.len() - start) / x86::BLOCK_BYTES * x86::BLOCK_BYTES;
    }
    0..0
}

#[cfg(target_arch = "x86_64")]
fn copy_widely(from: &[u8], to: &mut [u8]) {
    if !to.is_empty() {
        // SAFETY: what is not empty is whole blocks that begin aligned, and there is AVX (see
        // `streamed`); both have one length.
        unsafe { x86::copy(from, to) };
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn copy_widely(from: &[u8], to: &mut [u8]) {
    to.copy_from_slice(from);
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

/// One element at a time, ordinary stores.
fn plainly<const I: usize, const O: usize, R: Rule<I, O>>(
    rule: &R,
    range: Range<usize>,
    source: Source<'_>,
    state: &[&[f32]; I],
    written: &mut [&mut [f32]; O],
) -> bool {
    let (limits, mut sound) = (rule.limits(), true);
    for at in range {
        let source = match source {
            Source::Numbers(numbers) => numbers[at],
            Source::Multiples(multiples, unit) => multiples[at] as f32 * unit,
        };
        let made = rule.element(source, std::array::from_fn(|part| state[part][at]));
        for ((output, made), limit) in written.iter_mut().zip(made).zip(limits) {
            output[at] = made;
            sound &= made.abs() < limit;
        }
    }
    sound
}

/// The elements that whole aligned vectors cover; none where the outputs are aligned differently
/// or the processor has none.
fn body<const O: usize>(written: &[&mut [f32]; O]) -> Range<usize> {
    let len = written.first().map_or(0, |output| output.len());
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx") {
        let mut starts = written.iter().map(|output| output.as_ptr().align_offset(x86::BYTES));
        let start = starts.next().unwrap_or(len);
        if start < len && starts.all(|other| other == start) {
            return start..start + (len - start) / x86::LANES * x86::LANES;
        }
    }
    len..len
}

#[cfg(target_arch = "x86_64")]
fn widely<const I: usize, const O: usize, R: Rule<I, O>>(
    rule: &R,
    body: Range<usize>,
    source: Source<'_>,
    state: &[&[f32]; I],
    written: &mut [&mut [f32]; O],
) -> bool {
    // SAFETY: a body that is not empty lies within the slices, whose lengths are equal, is whole
    // vectors long, starts where every output is aligned, and there is AVX (see `body`).
    body.is_empty() || unsafe { x86::widely(rule, body, source, state, written) }
}

#[cfg(not(target_arch = "x86_64"))]
fn widely<const I: usize, const O: usize, R: Rule<I, O>>(
    rule: &R,
    body: Range<usize>,
    source: Source<'_>,
    state: &[&[f32]; I],
    written: &mut [&mut [f32]; O],
) -> bool {
    plainly(rule, body, source, state, written)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m256, __m256i, _CMP_NLT_UQ, _mm256_add_ps, _mm256_andnot_ps, _mm256_cmp_ps,
        _mm256_cvtepi32_ps, _mm256_div_ps, _mm256_loadu_ps, _mm256_loadu_si256, _mm256_movemask_ps,
        _mm256_mul_ps, _mm256_or_ps, _mm256_set1_ps, _mm256_sqrt_ps, _mm256_stream_ps,
        _mm256_stream_si256, _mm256_sub_ps,
    };
    use std::ops::{Add, Div, Mul, Range, Sub};

    use super::{Number, Rule, Source};

    pub(super) const LANES: usize = 8;
    pub(super) const BYTES: usize = 32;
    /// Two lines of memory.
    pub(super) const BLOCK_BYTES: usize = 4 * BYTES;

    /// Eight numbers. Made only where there is AVX: within `widely`.
    #[derive(Clone, Copy)]
    pub(super) struct Eight(__m256);

    macro_rules! operation {
        ($name:ident, $method:ident, $intrinsic:ident) => {
            impl $name for Eight {
                type Output = Self;
                #[inline(always)]
                fn $method(self, other: Self) -> Self {
                    // SAFETY: whoever has eight numbers has AVX.
                    Self(unsafe { $intrinsic(self.0, other.0) })
                }
            }
        };
    }
    operation!(Add, add, _mm256_add_ps);
    operation!(Sub, sub, _mm256_sub_ps);
    operation!(Mul, mul, _mm256_mul_ps);
    operation!(Div, div, _mm256_div_ps);

    impl Number for Eight {
        #[inline(always)]
        fn of(value: f32) -> Self {
            // SAFETY: only rules that are given eight numbers call it, so there is AVX.
            Self(unsafe { _mm256_set1_ps(value) })
        }

        #[inline(always)]
        fn root(self) -> Self {
            // SAFETY: whoever has eight numbers has AVX.
            Self(unsafe { _mm256_sqrt_ps(self.0) })
        }
    }

    /// # Safety
    /// AVX is there; both are of one length, a multiple of a block, and `to` begins 32-byte
    /// aligned.
    #[target_feature(enable = "avx")]
    pub(super) unsafe fn copy(from: &[u8], to: &mut [u8]) {
        for (from, to) in from.chunks_exact(BLOCK_BYTES).zip(to.chunks_exact_mut(BLOCK_BYTES)) {
            let (from, to) = (from.as_ptr().cast::<__m256i>(), to.as_mut_ptr().cast::<__m256i>());
            // SAFETY: a block has four vectors; no load asks for alignment.
            let vectors = [0, 1, 2, 3].map(|at| unsafe { _mm256_loadu_si256(from.add(at)) });
            for (at, vector) in vectors.into_iter().enumerate() {
                // SAFETY: as above, and aligned (caller's promise).
                unsafe { _mm256_stream_si256(to.add(at), vector) };
            }
        }
    }

    /// # Safety
    /// AVX is there; `body` is within all slices, a multiple of eight long, and starts 32-byte
    /// aligned in every output.
    #[target_feature(enable = "avx")]
    pub(super) unsafe fn widely<const I: usize, const O: usize, R: Rule<I, O>>(
        rule: &R,
        body: Range<usize>,
        source: Source<'_>,
        state: &[&[f32]; I],
        written: &mut [&mut [f32]; O],
    ) -> bool {
        match source {
            Source::Numbers(numbers) => {
                // SAFETY: at + 8 is within every slice (caller's promise).
                let load = |at: usize| Eight(unsafe { _mm256_loadu_ps(numbers.as_ptr().add(at)) });
                // SAFETY: the caller's promise.
                unsafe { driven(rule, body, load, state, written) }
            }
            Source::Multiples(multiples, unit) => {
                let unit = Eight::of(unit);
                // SAFETY: as above; no load asks for alignment.
                let load = |at: usize| unsafe {
                    let words = _mm256_loadu_si256(multiples.as_ptr().add(at).cast::<__m256i>());
                    Eight(_mm256_cvtepi32_ps(words)) * unit
                };
                // SAFETY: the caller's promise.
                unsafe { driven(rule, body, load, state, written) }
            }
        }
    }

    /// # Safety
    /// As of `widely`; `load` may be called within `body`.
    #[target_feature(enable = "avx")]
    unsafe fn driven<const I: usize, const O: usize, R: Rule<I, O>>(
        rule: &R,
        body: Range<usize>,
        load: impl Fn(usize) -> Eight,
        state: &[&[f32]; I],
        written: &mut [&mut [f32]; O],
    ) -> bool {
        let (zero, sign) = (Eight::of(0.0), Eight::of(-0.0));
        let limits = rule.limits().map(Eight::of);
        // Every bit of an element that was not below its limit, of NaN too.
        let mut unsound = zero;
        for at in body.step_by(LANES) {
            let mut parts = [zero; I];
            for (part, from) in parts.iter_mut().zip(state) {
                // SAFETY: at + 8 is within every slice (caller's promise).
                *part = Eight(unsafe { _mm256_loadu_ps(from.as_ptr().add(at)) });
            }
            let made = rule.element(load(at), parts);
            for ((made, output), limit) in made.into_iter().zip(written.iter_mut()).zip(limits) {
                // SAFETY: as above, and aligned (caller's promise).
                unsafe { _mm256_stream_ps(output.as_mut_ptr().add(at), made.0) };
                let size = _mm256_andnot_ps(sign.0, made.0);
                let beyond = _mm256_cmp_ps::<_CMP_NLT_UQ>(size, limit.0);
                unsound = Eight(_mm256_or_ps(unsound.0, beyond));
            }
        }
        _mm256_movemask_ps(unsound.0) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every operation once.
    struct Some;

    impl Rule<2, 2> for Some {
        #[inline(always)]
        fn element<N: Number>(&self, a: N, [b, c]: [N; 2]) -> [N; 2] {
            [(a * b + c) / N::of(0.7), (b * b).root() - a]
        }
    }

    /// A first output that is sound below 8.
    struct Small;

    impl Rule<1, 2> for Small {
        #[inline(always)]
        fn element<N: Number>(&self, a: N, [b]: [N; 1]) -> [N; 2] {
            [a, b]
        }

        fn limits(&self) -> [f32; 2] {
            [8.0, f32::INFINITY]
        }
    }

    fn values(len: usize, salt: u32) -> Vec<f32> {
        let bits = |i: u32| (i + salt * 40_503).wrapping_mul(2_654_435_761);
        let value = |i: u32| {
            let exponent = (bits(i) % 40) as i32 - 30;
            ((bits(i) >> 8) as f32 / (1u32 << 24) as f32 - 0.5) * 2f32.powi(exponent)
        };
        (0..len as u32).map(value).collect()
    }

    #[test]
    fn every_length_and_alignment_gives_the_bits_of_the_textbook_loop() {
        for (len, skip) in (0..70).flat_map(|len| (0..17).map(move |skip| (len, skip))) {
            let [a, b, c] = [1, 2, 3].map(|salt| values(len, salt));
            // Aligned alike, and apart.
            for apart in [0, 3] {
                let (mut x, mut y) = (vec![9.0; len + 40], vec![9.0; len + 40]);
                let (in_x, in_y) = (skip..skip + len, skip + apart..skip + apart + len);
                let written = [&mut x[in_x.clone()], &mut y[in_y.clone()]];
                assert!(apply(&Some, Source::Numbers(&a), [&b, &c], written));
                for i in 0..len {
                    let expected = ((a[i] * b[i] + c[i]) / 0.7, (b[i] * b[i]).sqrt() - a[i]);
                    let got = (x[in_x.start + i], y[in_y.start + i]);
                    let bits = |(x, y): (f32, f32)| (x.to_bits(), y.to_bits());
                    assert_eq!(bits(got), bits(expected), "{len} {skip} {apart} {i}");
                }
                let outside = |values: &[f32], inner: Range<usize>| {
                    let mut rest = (0..len + 40).filter(|i| !inner.contains(i));
                    rest.all(|i| values[i] == 9.0)
                };
                assert!(outside(&x, in_x) && outside(&y, in_y));
            }
        }
    }

    #[test]
    fn an_output_that_is_no_number_is_noticed_wherever_it_is() {
        for at in 0..40 {
            for wrong in [f32::NAN, f32::INFINITY, f32::MAX] {
                let (a, mut b, c) = ([1.0; 40], [1.0; 40], [1.0; 40]);
                b[at] = wrong;
                let (mut x, mut y) = ([0.0; 40], [0.0; 40]);
                let written = [&mut x[..], &mut y[..]];
                assert!(!apply(&Some, Source::Numbers(&a), [&b, &c], written), "{wrong} at {at}");
            }
        }
    }

    #[test]
    fn an_output_beyond_its_own_limit_is_noticed_wherever_it_is() {
        for at in 0..40 {
            for (a, b, sound) in [(-7.9, 1e30, true), (8.0, 0.0, false), (-9.0, 0.0, false)] {
                let (mut first, mut second) = ([1.0; 40], [1.0; 40]);
                (first[at], second[at]) = (a, b);
                let (mut x, mut y) = ([0.0; 40], [0.0; 40]);
                let written = [&mut x[..], &mut y[..]];
                let said = apply(&Small, Source::Numbers(&first), [&second], written);
                assert_eq!(said, sound, "{a} and {b} at {at}");
            }
        }
    }

    #[test]
    fn multiples_are_read_as_the_numbers_that_they_are() {
        let unit = 2f32.powi(-27);
        for len in 0..50 {
            let [b, c] = [2, 3].map(|salt| values(len, salt));
            let word = |i: u32| i.wrapping_mul(2_654_435_761).cast_signed() >> (i % 29);
            let multiples: Vec<i32> = (1..=len as u32).map(word).collect();
            let mut numbers = vec![0.0; len];
            crate::fixed::load(&multiples, &mut numbers, unit);
            let made = |source: Source<'_>| {
                let (mut x, mut y) = (vec![9.0; len], vec![9.0; len]);
                assert!(apply(&Some, source, [&b, &c], [&mut x, &mut y]));
                [x, y].map(|part| part.into_iter().map(f32::to_bits).collect::<Vec<_>>())
            };
            let expected = made(Source::Numbers(&numbers));
            assert_eq!(made(Source::Multiples(&multiples, unit)), expected, "{len}");
        }
    }

    #[test]
    fn bytes_are_copied_whatever_their_number_and_alignment() {
        let from: Vec<u8> = (0..900).map(|at| (at % 251) as u8).collect();
        for (len, skip) in (0..400).flat_map(|len| (0..40).map(move |skip| (len, skip))) {
            let (start, mut to) = (skip * 7 % 33, vec![255; 500]);
            copy(&from[skip..skip + len], &mut to[start..start + len]);
            assert_eq!(to[start..start + len], from[skip..skip + len], "{len} {skip}");
            let outside = to[..start].iter().chain(&to[start + len..]);
            assert!(outside.into_iter().all(|byte| *byte == 255), "{len} {skip}");
        }
    }

    #[test]
    fn this_processor_streams() {
        if cfg!(target_arch = "x86_64") {
            let mut out = vec![0.0f32; 1000];
            assert!(body(&[&mut out]).len() >= 984);
            assert!(streamed(&[0; 4096]).len() >= 4096 - 128 - 32);
        }
    }

    #[test]
    #[should_panic(expected = "one length")]
    fn slices_of_different_lengths_are_refused() {
        let source = Source::Numbers(&[0.0; 4]);
        apply(&Some, source, [&[0.0; 4], &[0.0; 3]], [&mut [0.0; 4], &mut [0.0; 4]]);
    }
}
