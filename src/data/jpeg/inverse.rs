//! The inverse cosine transform of a block, with the integers of the Independent JPEG Group's
//! accurate method (Loeffler, Ligtenberg and Moschytz 1989, 12 multiplications and 32 additions a
//! line): the same grey levels as libjpeg's, bit for bit. Smaller transforms give the means of
//! two or four neighbours of a line, which take fewer coefficients and products.

/// Bits behind the point of the factors.
const FACTOR_BITS: u32 = 13;
/// Bits that are kept between the two passes.
const KEPT_BITS: u32 = 2;

/// One line: eight coefficients to eight sums, `FACTOR_BITS` too large.
#[inline(always)]
fn line(c: [i32; 8]) -> [i32; 8] {
    let times = |a: i32, factor: i32| a.wrapping_mul(factor);
    let sum = |a: i32, b: i32| a.wrapping_add(b);
    let less = |a: i32, b: i32| a.wrapping_sub(b);
    // The even half.
    let turned = times(sum(c[2], c[6]), 4433);
    let even_2 = sum(turned, times(c[6], -15137));
    let even_3 = sum(turned, times(c[2], 6270));
    let even_0 = sum(c[0], c[4]) << FACTOR_BITS;
    let even_1 = less(c[0], c[4]) << FACTOR_BITS;
    let outer =
        [sum(even_0, even_3), sum(even_1, even_2), less(even_1, even_2), less(even_0, even_3)];
    // The odd half.
    let z5 = times(sum(sum(c[7], c[3]), sum(c[5], c[1])), 9633);
    let z1 = times(sum(c[7], c[1]), -7373);
    let z2 = times(sum(c[5], c[3]), -20995);
    let z3 = sum(times(sum(c[7], c[3]), -16069), z5);
    let z4 = sum(times(sum(c[5], c[1]), -3196), z5);
    let odd = [
        sum(times(c[1], 12299), sum(z1, z4)),
        sum(times(c[3], 25172), sum(z2, z3)),
        sum(times(c[5], 16819), sum(z2, z4)),
        sum(times(c[7], 2446), sum(z1, z3)),
    ];
    [
        sum(outer[0], odd[0]),
        sum(outer[1], odd[1]),
        sum(outer[2], odd[2]),
        sum(outer[3], odd[3]),
        less(outer[3], odd[3]),
        less(outer[2], odd[2]),
        less(outer[1], odd[1]),
        less(outer[0], odd[0]),
    ]
}

/// All columns of `block`, rounded by `shift` bits.
#[inline(always)]
fn columns(block: &[i32; 64], shift: u32) -> [i32; 64] {
    let mut out = [0; 64];
    let half = 1 << (shift - 1);
    for x in 0..8 {
        let sums = line(std::array::from_fn(|y| block[8 * y + x]));
        for y in 0..8 {
            out[8 * y + x] = sums[y].wrapping_add(half) >> shift;
        }
    }
    out
}

#[inline(always)]
fn turned(block: &[i32; 64]) -> [i32; 64] {
    let mut out = [0; 64];
    for y in 0..8 {
        for x in 0..8 {
            out[8 * y + x] = block[8 * x + y];
        }
    }
    out
}

/// Grey levels of a dequantised block, into `plane` from `start` on, `stride` levels a row.
#[inline(always)]
pub(super) fn levels(block: &[i32; 64], plane: &mut [u8], start: usize, stride: usize) {
    let half = turned(&columns(block, FACTOR_BITS - KEPT_BITS));
    let whole = turned(&columns(&half, FACTOR_BITS + KEPT_BITS + 3));
    for (y, row) in whole.as_chunks::<8>().0.iter().enumerate() {
        let from = start + y * stride;
        if let Some(out) = plane.get_mut(from..from + 8) {
            for (out, level) in out.iter_mut().zip(row) {
                *out = (level + 128).clamp(0, 255) as u8;
            }
        }
    }
}

/// The same, `side` levels a line, for a block that has its constant part only.
#[inline(always)]
pub(super) fn even(constant: i32, side: usize, plane: &mut [u8], start: usize, stride: usize) {
    let level = ((constant.wrapping_add(4) >> 3) + 128).clamp(0, 255) as u8;
    for y in 0..side {
        let from = start + y * stride;
        if let Some(out) = plane.get_mut(from..from + side) {
            out.fill(level);
        }
    }
}

/// The sum of coefficients times factors.
#[inline(always)]
fn product<const N: usize>(coefficients: [i32; N], factors: [i32; N]) -> i32 {
    (0..N).fold(0, |sum: i32, at| sum.wrapping_add(coefficients[at].wrapping_mul(factors[at])))
}

/// One line: eight coefficients to the means of two neighbours each, `FACTOR_BITS + 1` too large.
#[inline(always)]
fn means_of_two(c: [i32; 8]) -> [i32; 4] {
    let constant = c[0] << (FACTOR_BITS + 1);
    let even = product([c[2], c[6]], [15137, -6270]);
    let (outer, inner) = (constant.wrapping_add(even), constant.wrapping_sub(even));
    let odd = [c[1], c[3], c[5], c[7]];
    let first = product(odd, [20995, 7373, -4926, -4176]);
    let second = product(odd, [8697, -17799, 11893, -1730]);
    [
        outer.wrapping_add(first),
        inner.wrapping_add(second),
        inner.wrapping_sub(second),
        outer.wrapping_sub(first),
    ]
}

/// One line: eight coefficients to the means of four neighbours each, `FACTOR_BITS + 2` too large.
#[inline(always)]
fn means_of_four(c: [i32; 8]) -> [i32; 2] {
    let constant = c[0] << (FACTOR_BITS + 2);
    let odd = product([c[1], c[3], c[5], c[7]], [29692, -10426, 6967, -5906]);
    [constant.wrapping_add(odd), constant.wrapping_sub(odd)]
}

/// Four levels a line of a dequantised block, each the mean of two by two.
#[inline(always)]
pub(super) fn half(block: &[i32; 64], plane: &mut [u8], start: usize, stride: usize) {
    means(block, means_of_two, 1, &mut plane[start..], stride);
}

/// Two levels a line, each the mean of four by four.
#[inline(always)]
pub(super) fn quarter(block: &[i32; 64], plane: &mut [u8], start: usize, stride: usize) {
    means(block, means_of_four, 2, &mut plane[start..], stride);
}

/// `line`: eight coefficients to `N` sums, `FACTOR_BITS + more` too large.
#[inline(always)]
fn means<const N: usize>(
    block: &[i32; 64],
    line: impl Fn([i32; 8]) -> [i32; N],
    more: u32,
    out: &mut [u8],
    stride: usize,
) {
    let rounded = |sum: i32, shift: u32| sum.wrapping_add(1 << (shift - 1)) >> shift;
    let mut columns = [[0; 8]; N];
    for x in 0..8 {
        let sums = line(std::array::from_fn(|y| block[8 * y + x]));
        for (row, sum) in columns.iter_mut().zip(sums) {
            row[x] = rounded(sum, FACTOR_BITS - KEPT_BITS + more);
        }
    }
    for (row, out) in columns.into_iter().zip(out.chunks_mut(stride)) {
        for (out, sum) in out.iter_mut().zip(line(row)) {
            let level = rounded(sum, FACTOR_BITS + KEPT_BITS + 3 + more);
            *out = (level + 128).clamp(0, 255) as u8;
        }
    }
}
