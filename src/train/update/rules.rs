//! What one step makes of one run of elements, rule by rule, and what a rule must know of a whole
//! tensor before. Each is a pure function of numbers: one operation at a time, never fused, sums in
//! an order that depends on the length alone, so that all ranks get the same bits. What is made of
//! elements is written past the caches (`stream::apply`).

use kintsugi_ffi::stream::{self, Number, Rule};

use std::ops::Range;

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

/// What a rule reads of its elements, all of one length: weights, summed gradients.
#[derive(Debug, Clone, Copy)]
pub struct Read<'a> {
    /// Weights.
    pub w: &'a [f32],
    /// Gradients, summed over samples.
    pub g: &'a [f32],
}

/// SGD with Nesterov's momentum (Sutskever et al. 2013, equations 3 and 4, in torch's form):
/// `v' = momentum * v + g`, `w' = w - rate * (g + momentum * v')`, where g includes the decay.
/// False when something is not a finite number.
pub fn nesterov(
    step: Step,
    momentum: f32,
    Read { w, g }: Read<'_>,
    v: &[f32],
    (w_out, v_out): (&mut [f32], &mut [f32]),
) -> bool {
    stream::apply(&Nesterov { step, momentum }, [w, g, v], [w_out, v_out])
}

struct Nesterov {
    step: Step,
    momentum: f32,
}

impl Rule<3, 2> for Nesterov {
    #[inline(always)]
    fn element<N: Number>(&self, [w, g, v]: [N; 3]) -> [N; 2] {
        let (gradient, momentum) = (self.step.gradient(w, g), N::of(self.momentum));
        let velocity = momentum * v + gradient;
        [w - N::of(self.step.learning_rate) * (gradient + momentum * velocity), velocity]
    }
}

/// LARS (You, Gitman and Ginsburg 2017, Algorithm 1): the rate, global times `local`, is part of
/// the velocity: `v' = momentum * v + rate * local * (g + decay * w)`, `w' = w - v'`. False when
/// something is not a finite number.
pub fn lars(
    step: Step,
    (momentum, local): (f32, f32),
    Read { w, g }: Read<'_>,
    v: &[f32],
    (w_out, v_out): (&mut [f32], &mut [f32]),
) -> bool {
    let rate = step.learning_rate * local;
    stream::apply(&Lars { step, momentum, rate }, [w, g, v], [w_out, v_out])
}

struct Lars {
    step: Step,
    momentum: f32,
    /// Global times local.
    rate: f32,
}

impl Rule<3, 2> for Lars {
    #[inline(always)]
    fn element<N: Number>(&self, [w, g, v]: [N; 3]) -> [N; 2] {
        let velocity = N::of(self.momentum) * v + N::of(self.rate) * self.step.gradient(w, g);
        [w - velocity, velocity]
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
pub fn squares(gradients: Gradients<'_>, range: &Range<usize>) -> f64 {
    let mut squares = Squares::default();
    gradients.numbers(range.clone(), |_, g| squares.add(g));
    squares.total()
}

/// AdamW's scalars of a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamW {
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

impl AdamW {
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
/// with m^ and q^ corrected. `moments` are m and q. False when something is not a finite number.
pub fn adamw(
    step: Step,
    adamw: AdamW,
    Read { w, g }: Read<'_>,
    [m, q]: [&[f32]; 2],
    w_out: &mut [f32],
    [m_out, q_out]: [&mut [f32]; 2],
) -> bool {
    let rule = AdamWElements { step, adamw, kept: 1.0 - step.learning_rate * step.weight_decay };
    stream::apply(&rule, [w, g, m, q], [w_out, m_out, q_out])
}

struct AdamWElements {
    step: Step,
    adamw: AdamW,
    /// What decay leaves of a weight.
    kept: f32,
}

impl Rule<4, 3> for AdamWElements {
    #[inline(always)]
    fn element<N: Number>(&self, [w, g, m, q]: [N; 4]) -> [N; 3] {
        let AdamW { betas, gains, corrections, epsilon } = self.adamw;
        let ([b1, b2], [a1, a2], [c1, c2]) =
            (betas.map(N::of), gains.map(N::of), corrections.map(N::of));
        let gradient = N::of(self.step.scale) * g;
        let mean = b1 * m + a1 * gradient;
        let square = b2 * q + a2 * (gradient * gradient);
        let by = c1 * mean / (c2 * square.root() + N::of(epsilon));
        [N::of(self.kept) * w - N::of(self.step.learning_rate) * by, mean, square]
    }
}

/// The running average of weights (Polyak and Juditsky 1992, with exponential weights; torch's
/// `get_ema_multi_avg_fn`): `a' = a + gain * (w' - a)`. What is frozen stays to the bit. False when
/// something is not a finite number.
pub fn average(gain: f32, w: &[f32], a: &[f32], a_out: &mut [f32]) -> bool {
    stream::apply(&Average(gain), [w, a], [a_out])
}

struct Average(f32);

impl Rule<2, 1> for Average {
    #[inline(always)]
    fn element<N: Number>(&self, [w, a]: [N; 2]) -> [N; 1] {
        [a + N::of(self.0) * (w - a)]
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
    fn every_rule_notices_what_is_no_number() {
        let step = Step { learning_rate: 0.1, weight_decay: 0.0, scale: 1.0 };
        for (g, sound) in [(1.0, true), (f32::NAN, false), (f32::INFINITY, false), (1e30, false)] {
            let (w, g, v) = ([1.0; 9], [0.0, 0.0, 0.0, 0.0, 0.0, g, 0.0, 0.0, 0.0], [0.0; 9]);
            let read = Read { w: &w, g: &g };
            let (mut a, mut b, mut c) = ([0.0; 9], [0.0; 9], [0.0; 9]);
            // 1e30 has a square that is none, which only adamw needs.
            let of_sgd = sound || g[5] == 1e30;
            assert_eq!(nesterov(step, 0.9, read, &v, (&mut a, &mut b)), of_sgd);
            assert_eq!(lars(step, (0.9, 1.0), read, &v, (&mut a, &mut b)), of_sgd);
            let scalars = AdamW::new([0.9, 0.999], 1e-8, 1);
            let moments = [&v[..], &v[..]];
            assert_eq!(adamw(step, scalars, read, moments, &mut a, [&mut b, &mut c]), sound);
        }
    }
}
