//! Numbers of sixteen bits, as files of weights hold them, as f32: exactly.

/// An f16 (IEEE 754 binary16: sign, 5 bits of exponent, 10 of fraction).
pub fn from_f16(bits: u16) -> f32 {
    let (exponent, fraction) = ((bits >> 10) & 0x1F, u32::from(bits & 0x3FF));
    let magnitude = match exponent {
        // Multiples of 2^-24; a product with a power of two is exact.
        0 => fraction as f32 * 2f32.powi(-24),
        0x1F => f32::from_bits(0x7F80_0000 | fraction << 13),
        _ => f32::from_bits((u32::from(exponent) + 112) << 23 | fraction << 13),
    };
    if bits & 0x8000 == 0 { magnitude } else { -magnitude }
}

/// A bf16: the upper half of an f32.
pub fn from_bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_exact() {
        for (bits, value) in [
            (0x3C00, 1.0),
            (0xC000, -2.0),
            (0x3555, 0.333_251_95),
            (0x7BFF, 65504.0),
            (0x0400, 6.103_515_6e-5),
            (0x0001, 5.960_464_5e-8),
            (0x83FF, -6.097_555e-5),
            (0x0000, 0.0),
        ] {
            assert_eq!(from_f16(bits), value, "{bits:#06x}");
        }
        assert_eq!(from_f16(0xFC00), f32::NEG_INFINITY);
        assert!(from_f16(0x7E00).is_nan());
        assert_eq!((from_bf16(0x3F80), from_bf16(0xC040)), (1.0, -3.0));
    }
}
