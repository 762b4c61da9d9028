//! What one step makes of one run of elements, rule by rule, and what a rule must know of a whole
//! tensor before. Each is a pure function of numbers: one operation at a time, never fused, sums in
//! an order that depends on the length alone, so that all ranks get the same bits. What is made of
//! elements is written past the caches (`stream::apply`).

use kintsugi_ffi::stream::{Number, Rule};

use std::ops::Range;

use crate::model::layout::LARGEST_WEIGHT;
use crate::train::compute::gradients::Gradients;

/// The scalars of a step that every rule takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// Learning rate of these elements.
    pub learning_rate: f32,
    /// Weight decay of these elements.
    pub weight_decay: f32,
    /// Multiplies the summed gradient: one over the real count of samples, less where clipped.
    pub scale: f32,
}

impl Step {
    /// Of one sample, with the decay.
    #[inline(always)]
    fn gradient<N: Number>(&self, w: N, g: N) -> N {
        N::of(self.scale) * g + N::of(self.weight_decay) * w
    }
}

/// SGD with momentum in torch's form: `v' = momentum * v + g`, `w' = w - rate * v'`, where g
/// includes the decay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sgd {
    /// Scalars.
    pub step: Step,
    /// Factor of the velocity.
    pub momentum: f32,
}

impl Rule<2, 2> for Sgd {
    #[inline(always)]
    fn element<N: Number>(&self, g: N, [w, v]: [N; 2]) -> [N; 2] {
        let velocity = N::of(self.momentum) * v + self.step.gradient(w, g);
        [w - N::of(self.step.learning_rate) * velocity, velocity]
    }

    fn limits(&self) -> [f32; 2] {
        [LARGEST_WEIGHT, f32::INFINITY]
    }
}

/// SGD with Nesterov's momentum (Sutskever et al. 2013, equations 3 and 4, in torch's form):
/// `v' = momentum * v + g`, `w' = w - rate * (g + momentum * v')`, where g includes the decay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Nesterov {
    /// Scalars.
    pub step: Step,
    /// Factor of the velocity.
    pub momentum: f32,
}

impl Rule<2, 2> for Nesterov {
    #[inline(always)]
    fn element<N: Number>(&self, g: N, [w, v]: [N; 2]) -> [N; 2] {
        let (gradient, momentum) = (self.step.gradient(w, g), N::of(self.momentum));
        let velocity = momentum * v + gradient;
        [w - N::of(self.step.learning_rate) * (gradient + momentum * velocity), velocity]
    }

    fn limits(&self) -> [f32; 2] {
        [LARGEST_WEIGHT, f32::INFINITY]
    }
}

/// LARS (You, Gitman and Ginsburg 2017, Algorithm 1): the rate is part of the velocity:
/// `v' = momentum * v + rate * (g + decay * w)`, `w' = w - v'`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lars {
    /// Scalars; the learning rate is the global one times the tensor's own (`trust_ratio`).
    pub step: Step,
    /// Factor of the velocity.
    pub momentum: f32,
}

impl Rule<2, 2> for Lars {
    #[inline(always)]
    fn element<N: Number>(&self, g: N, [w, v]: [N; 2]) -> [N; 2] {
        let step = &self.step;
        let velocity = N::of(self.momentum) * v + N::of(step.learning_rate) * step.gradient(w, g);
        [w - velocity, velocity]
    }

    fn limits(&self) -> [f32; 2] {
        [LARGEST_WEIGHT, f32::INFINITY]
    }
}

/// LARS' own rate of a tensor (Algorithm 1): `trust * |w| / (|g| + decay * |w|)`, of both sums of
/// squares. 1 where weights or gradients are all zero: nothing is known of their scale.
pub fn trust_ratio(step: Step, trust: f64, w: f64, g: f64) -> f32 {
    let (weights, gradients) = (w.sqrt(), g.sqrt() * f64::from(step.scale));
    match weights > 0.0 && gradients > 0.0 {
        true => (trust * weights / (gradients + f64::from(step.weight_decay) * weights)) as f32,
        false => 1.0,
    }
}

/// The sum of squares of a run of summed gradients.
pub fn squares(gradients: &Gradients<'_>, range: Range<usize>) -> f64 {
    let mut squares = Squares::default();
    gradients.numbers(range, |numbers| squares.add(numbers));
    squares.total()
}

/// AdamW's own scalars of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamScalars {
    /// What the running means keep.
    pub betas: [f32; 2],
    /// What they gain.
    pub gains: [f32; 2],
    /// What makes up for their beginning at zero: of the mean `1 / (1 - beta^t)`, of the mean
    /// square the root of it.
    pub corrections: [f32; 2],
    /// Added to the root of the mean square.
    pub epsilon: f32,
}

impl AdamScalars {
    /// Of update number `t`, the first being 1.
    pub fn new(betas: [f64; 2], epsilon: f64, t: u64) -> Self {
        let correction = betas.map(|beta| 1.0 / (1.0 - power(beta, t)));
        Self {
            betas: betas.map(|beta| beta as f32),
            gains: betas.map(|beta| (1.0 - beta) as f32),
            corrections: [correction[0] as f32, correction[1].sqrt() as f32],
            epsilon: epsilon as f32,
        }
    }
}

/// A whole power by multiplications alone, which IEEE 754 fixes.
fn power(base: f64, exponent: u64) -> f64 {
    let (mut square, mut rest, mut product) = (base, exponent, 1.0);
    while rest > 0 {
        if rest & 1 == 1 {
            product *= square;
        }
        square *= square;
        rest >>= 1;
    }
    product
}

/// AdamW (Loshchilov and Hutter 2019, Algorithm 2): `m' = b1 * m + (1 - b1) * g`,
/// `q' = b2 * q + (1 - b2) * g * g`, `w' = w - rate * (m^ / (sqrt(q^) + epsilon) + decay * w)`,
/// with m^ and q^ corrected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
    /// Scalars.
    pub step: Step,
    /// Those of its own.
    pub adam: AdamScalars,
}

impl Rule<3, 3> for AdamW {
    #[inline(always)]
    fn element<N: Number>(&self, g: N, [w, m, q]: [N; 3]) -> [N; 3] {
        let Self { step, adam } = self;
        let AdamScalars { betas, gains, corrections, epsilon } = adam;
        let ([b1, b2], [a1, a2], [c1, c2]) =
            (betas.map(N::of), gains.map(N::of), corrections.map(N::of));
        let gradient = N::of(step.scale) * g;
        let mean = b1 * m + a1 * gradient;
        let square = b2 * q + a2 * (gradient * gradient);
        let by = c1 * mean / (c2 * square.root() + N::of(*epsilon));
        // What decay leaves of a weight.
        let kept = N::of(1.0 - step.learning_rate * step.weight_decay);
        [kept * w - N::of(step.learning_rate) * by, mean, square]
    }

    fn limits(&self) -> [f32; 3] {
        [LARGEST_WEIGHT, f32::INFINITY, f32::INFINITY]
    }
}

/// The running average of weights (Polyak and Juditsky 1992, with exponential weights; torch's
/// `get_ema_multi_avg_fn`): `a' = a + gain * (w' - a)`. What is frozen stays to the bit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Average {
    /// What the average gains of what it follows.
    pub gain: f32,
}

impl Rule<1, 1> for Average {
    #[inline(always)]
    fn element<N: Number>(&self, w: N, [a]: [N; 1]) -> [N; 1] {
        [a + N::of(self.gain) * (w - a)]
    }
}

/// What a mean gradient of this norm is multiplied by, so that its norm is `clip_norm` at most
/// (Pascanu, Mikolov and Bengio 2013, Algorithm 1; torch's `clip_grad_norm_`, its 1e-6 included).
pub fn clip_factor(norm: f64, clip_norm: f64) -> f64 {
    let factor = clip_norm / (norm + 1e-6);
    // A norm that is no number clips nothing: the update itself finds what is wrong.
    if factor < 1.0 { factor } else { 1.0 }
}

/// Partial sums that processors can add side by side.
const LANES: usize = 8;

/// A sum of squares, in an order that depends on the number of elements alone.
#[derive(Debug, Default)]
pub struct Squares([f64; LANES]);

impl Squares {
    /// Adds these elements. All calls but the last bring a multiple of 8.
    pub fn add(&mut self, values: &[f32]) {
        let chunks = values.chunks_exact(LANES);
        let rest = chunks.remainder();
        for chunk in chunks.chain([rest]) {
            for (lane, &value) in self.0.iter_mut().zip(chunk) {
                *lane += f64::from(value) * f64::from(value);
            }
        }
    }

    /// The sum of all that was added.
    pub fn total(&self) -> f64 {
        self.0.iter().sum()
    }

    /// Of one run of elements.
    pub fn of(values: &[f32]) -> f64 {
        let mut squares = Self::default();
        squares.add(values);
        squares.total()
    }
}

#[cfg(test)]
mod tests {
    use kintsugi_ffi::stream::{Source, apply};

    use super::*;

    #[test]
    fn whole_powers_are_products() {
        assert_eq!(power(0.5, 10), 2f64.powi(-10));
        assert_eq!((power(0.9, 0), power(0.9, 1)), (1.0, 0.9));
        assert!((power(0.999, 1000) - 0.999f64.powf(1000.0)).abs() < 1e-12);
    }

    #[test]
    fn sums_of_squares_hold_every_element_once() {
        for len in 0..40 {
            let values: Vec<f32> = (0..len).map(|i| i as f32).collect();
            let expected = (0..len as u32).map(|i| f64::from(i * i)).sum::<f64>();
            assert_eq!(Squares::of(&values), expected, "{len}");
            let (left, right) = values.split_at(len / 2 / 8 * 8);
            let mut parts = Squares::default();
            parts.add(left);
            parts.add(right);
            assert_eq!(parts.total(), expected, "{len}");
        }
    }

    #[test]
    fn short_gradients_are_not_clipped_and_long_ones_to_the_norm() {
        assert_eq!(clip_factor(0.5, 1.0), 1.0);
        assert_eq!(clip_factor(f64::NAN, 1.0), 1.0);
        assert!((clip_factor(4.0, 1.0) * 4.0 - 1.0).abs() < 1e-6);
    }

    #[test]
    fn every_rule_notices_what_is_no_number_and_what_is_no_weight() {
        let step = Step { learning_rate: 0.1, weight_decay: 0.0, scale: 1.0 };
        for (g, of_sgd, of_adamw) in [
            (1.0, true, true),
            (1e12, true, true),
            // The weight is beyond the largest; with adamw it moves by the rate.
            (1e14, false, true),
            // No square.
            (1e30, false, false),
            (f32::NAN, false, false),
            (f32::INFINITY, false, false),
        ] {
            let (w, g, v) = ([1.0; 9], [0.0, 0.0, 0.0, 0.0, 0.0, g, 0.0, 0.0, 0.0], [0.0; 9]);
            let source = Source::Numbers(&g);
            let (mut a, mut b, mut c) = ([0.0; 9], [0.0; 9], [0.0; 9]);
            let momentum = 0.9;
            let mut out = [&mut a[..], &mut b[..]];
            let [x, y] = &mut out;
            assert_eq!(apply(&Sgd { step, momentum }, source, [&w, &v], [x, y]), of_sgd);
            assert_eq!(apply(&Nesterov { step, momentum }, source, [&w, &v], [x, y]), of_sgd);
            assert_eq!(apply(&Lars { step, momentum }, source, [&w, &v], [x, y]), of_sgd);
            let adam = AdamScalars::new([0.9, 0.999], 1e-8, 1);
            let out = [x, y, &mut c[..]];
            assert_eq!(apply(&AdamW { step, adam }, source, [&w, &v, &v], out), of_adamw);
        }
    }
}
