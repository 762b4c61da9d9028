//! Variates that every process must draw alike: by `+ - * /` and square roots only, which IEEE 754
//! defines to the last bit, so that no C library can change a run.

use super::exact::{exponential, logarithm};
use super::seed::Stream;

/// Tries of a rejection method. The worst one here rejects with probability 0.21: 2^-143 for all.
const TRIES_MAX: usize = 64;

/// Two independent standard normal variates by Marsaglia's polar method, which needs a logarithm
/// and no angle.
pub fn normal_pair(stream: &mut Stream) -> (f64, f64) {
    for _ in 0..TRIES_MAX {
        let (u, v) = (2.0 * stream.unit() - 1.0, 2.0 * stream.unit() - 1.0);
        let square = u * u + v * v;
        if square > 0.0 && square < 1.0 {
            let scale = (-2.0 * logarithm(square) / square).sqrt();
            return (u * scale, v * scale);
        }
    }
    (0.0, 0.0)
}

/// A variate of the symmetric beta distribution, within 0..=1, for `alpha` above 0: a gamma variate
/// over the sum of two.
pub fn beta(stream: &mut Stream, alpha: f64) -> f64 {
    let (first, second) = (gamma_logarithm(stream, alpha), gamma_logarithm(stream, alpha));
    // Logarithms, since small shapes give variates that underflow.
    1.0 / (1.0 + exponential(second - first))
}

/// The logarithm of a gamma variate (Marsaglia and Tsang 2000, "A simple method for generating
/// gamma variables"; for shapes below 1 as their section 6 says).
fn gamma_logarithm(stream: &mut Stream, shape: f64) -> f64 {
    if shape < 1.0 {
        let larger = gamma_logarithm_from_one(stream, shape + 1.0);
        return larger + logarithm(1.0 - stream.unit()) / shape;
    }
    gamma_logarithm_from_one(stream, shape)
}

/// For shapes of at least 1, where a try is rejected with a probability below 0.05.
fn gamma_logarithm_from_one(stream: &mut Stream, shape: f64) -> f64 {
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    for _ in 0..TRIES_MAX {
        let x = normal_pair(stream).0;
        let root = 1.0 + c * x;
        if root <= 0.0 {
            continue;
        }
        let cube = root * root * root;
        let level = logarithm(1.0 - stream.unit());
        if level < 0.5 * x * x + d * (1.0 - cube + logarithm(cube)) {
            return logarithm(d) + logarithm(cube);
        }
    }
    logarithm(d)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean 1/2, variance 1 / (4 (2 alpha + 1)), fourth central moment 3 / (16 (2a + 1) (2a + 3)).
    #[test]
    fn beta_variates_have_the_distributions_moments() {
        const DRAWS: u32 = 40_000;
        for alpha in [0.02, 0.2, 0.4, 1.0, 3.0, 50.0] {
            let stream = &mut Stream::new(&[11, (100.0 * alpha) as u64]);
            let (mut sums, mut ends) = ([0.0; 3], [1.0f64, 0.0]);
            for _ in 0..DRAWS {
                let x = beta(stream, alpha);
                assert!((0.0..=1.0).contains(&x), "{x}");
                ends = [ends[0].min(x), ends[1].max(x)];
                let off = x - 0.5;
                sums = [sums[0] + off, sums[1] + off * off, sums[2] + off.powi(4)];
            }
            let [mean, variance, fourth] = sums.map(|sum| sum / f64::from(DRAWS));
            let twice = 2.0 * alpha;
            let wanted = 1.0 / (4.0 * (twice + 1.0));
            let wanted_fourth = 3.0 / (16.0 * (twice + 1.0) * (twice + 3.0));
            // Five standard errors of each mean over the draws.
            let slack = |square: f64| 5.0 * (square / f64::from(DRAWS)).sqrt();
            assert!(mean.abs() < slack(wanted), "{alpha}: mean {mean}");
            let spread = wanted_fourth - wanted * wanted;
            assert!((variance - wanted).abs() < slack(spread), "{alpha}: {variance}, {wanted}");
            assert!((fourth / wanted_fourth - 1.0).abs() < 0.05, "{alpha}: {fourth}");
            assert!(ends[0] < 0.5 && ends[1] > 0.5);
        }
    }

    #[test]
    fn the_first_variates_are_these_for_ever() {
        let stream = &mut Stream::new(&[12]);
        let bits = [0.2, 1.0, 7.5].map(|alpha| beta(stream, alpha).to_bits());
        assert_eq!(bits, GOLDEN, "a changed generator changes every run: {bits:#x?}");
    }
    const GOLDEN: [u64; 3] = [0x3fef_ffff_fd1b_d0c6, 0x3fe8_93e8_a0aa_f871, 0x3fd6_c664_ad5a_ba99];
}
