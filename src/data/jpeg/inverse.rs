//! The inverse cosine transform of a block, with the integers of the Independent JPEG Group's
//! accurate method (Loeffler, Ligtenberg and Moschytz 1989, 12 multiplications and 32 additions a
//! line): the same grey levels as libjpeg's, bit for bit.

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

/// The same for a block that has its constant part only.
#[inline(always)]
pub(super) fn even(constant: i32, plane: &mut [u8], start: usize, stride: usize) {
    let level = ((constant.wrapping_add(4) >> 3) + 128).clamp(0, 255) as u8;
    for y in 0..8 {
        let from = start + y * stride;
        if let Some(out) = plane.get_mut(from..from + 8) {
            out.fill(level);
        }
    }
}
