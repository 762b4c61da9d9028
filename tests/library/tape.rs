//! Numbers in f64 that know what they were made of, so that the derivatives of whatever is computed
//! with them come out of the formulas themselves, exactly.

use std::cell::RefCell;
use std::ops::{Add, AddAssign, Div, Mul, Sub};

/// One number; what is computed with it is written down.
#[derive(Debug, Clone, Copy)]
pub struct Number {
    pub value: f64,
    /// Where it stands on the tape; constants stand nowhere.
    at: u32,
}

const NOWHERE: u32 = u32::MAX;

#[derive(Default)]
struct Tape {
    /// Where each number's parts end.
    ends: Vec<u32>,
    /// Of what it was made, and the derivative.
    parts: Vec<(u32, f64)>,
    /// Numbers whose own derivative is rounded as they are.
    rounded: Vec<u32>,
}

thread_local! {
    static TAPE: RefCell<Tape> = RefCell::default();
}

/// Begins anew: numbers of before are good for nothing.
pub fn clear() {
    TAPE.with_borrow_mut(|tape| *tape = Tape::default());
}

/// The upper half of an f32, to the nearest, ties to even.
pub fn bf16(value: f64) -> f64 {
    let bits = (value as f32).to_bits();
    let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) & 0xffff_0000;
    f64::from(f32::from_bits(rounded))
}

fn made(value: f64, parts: &[(Number, f64)]) -> Number {
    TAPE.with_borrow_mut(|tape| {
        let known = parts.iter().filter(|(part, _)| part.at != NOWHERE);
        let before = tape.parts.len();
        tape.parts.extend(known.map(|(part, derivative)| (part.at, *derivative)));
        if tape.parts.len() == before {
            return Number { value, at: NOWHERE };
        }
        tape.ends.push(tape.parts.len() as u32);
        Number { value, at: tape.ends.len() as u32 - 1 }
    })
}

/// What a sum's derivatives are with respect to a number, and what they would be if nothing
/// cancelled: the scale of their rounding.
#[derive(Debug, Clone, Copy)]
pub struct Derivative {
    pub value: f64,
    pub scale: f64,
}

impl Number {
    /// Something that derivatives are asked of.
    pub fn variable(value: f64) -> Self {
        TAPE.with_borrow_mut(|tape| {
            tape.ends.push(tape.parts.len() as u32);
            Self { value, at: tape.ends.len() as u32 - 1 }
        })
    }

    /// Rounded; the derivative passes as it is.
    pub fn narrowed(self) -> Self {
        made(bf16(self.value), &[(self, 1.0)])
    }

    /// Rounded, and so is the derivative with respect to it.
    pub fn rounded(self) -> Self {
        let rounded = self.narrowed();
        if rounded.at != NOWHERE {
            TAPE.with_borrow_mut(|tape| tape.rounded.push(rounded.at));
        }
        rounded
    }

    /// `self + a b`, as one.
    pub fn plus_product(self, a: Self, b: Self) -> Self {
        made(self.value + a.value * b.value, &[(self, 1.0), (a, b.value), (b, a.value)])
    }

    fn through(self, value: f64, derivative: f64) -> Self {
        made(value, &[(self, derivative)])
    }

    pub fn exp(self) -> Self {
        let value = self.value.exp();
        self.through(value, value)
    }

    pub fn ln(self) -> Self {
        self.through(self.value.ln(), 1.0 / self.value)
    }

    pub fn powf(self, power: f64) -> Self {
        self.through(self.value.powf(power), power * self.value.powf(power - 1.0))
    }

    /// The derivative at an end is 0.
    pub fn clamp(self, low: f64, high: f64) -> Self {
        let inside = self.value > low && self.value < high;
        self.through(self.value.clamp(low, high), f64::from(u8::from(inside)))
    }

    /// Of two the same the first.
    pub fn max(self, other: Self) -> Self {
        if other.value > self.value { other } else { self }
    }
}

impl From<f64> for Number {
    fn from(value: f64) -> Self {
        Self { value, at: NOWHERE }
    }
}

impl Add for Number {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        made(self.value + other.value, &[(self, 1.0), (other, 1.0)])
    }
}

impl AddAssign for Number {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Number {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        made(self.value - other.value, &[(self, 1.0), (other, -1.0)])
    }
}

impl Mul for Number {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        made(self.value * other.value, &[(self, other.value), (other, self.value)])
    }
}

impl Div for Number {
    type Output = Self;
    fn div(self, other: Self) -> Self {
        let value = self.value / other.value;
        made(value, &[(self, 1.0 / other.value), (other, -value / other.value)])
    }
}

impl std::iter::Sum for Number {
    fn sum<I: Iterator<Item = Self>>(numbers: I) -> Self {
        numbers.fold(Self::from(0.0), |sum, number| sum + number)
    }
}

/// The derivatives of `result` with respect to `variables`.
pub fn derivatives(result: Number, variables: &[Number]) -> Vec<Derivative> {
    TAPE.with_borrow(|tape| {
        let none = Derivative { value: 0.0, scale: 0.0 };
        let mut all = vec![none; tape.ends.len()];
        if result.at != NOWHERE {
            all[result.at as usize] = Derivative { value: 1.0, scale: 1.0 };
        }
        let mut rounded = tape.rounded.as_slice();
        for at in (0..all.len()).rev() {
            if let Some((&last, before)) = rounded.split_last()
                && last as usize == at
            {
                all[at].value = bf16(all[at].value);
                rounded = before;
            }
            let own = all[at];
            let first = if at == 0 { 0 } else { tape.ends[at - 1] };
            for &(part, derivative) in &tape.parts[first as usize..tape.ends[at] as usize] {
                let part = &mut all[part as usize];
                part.value += own.value * derivative;
                part.scale += own.scale * derivative.abs();
            }
        }
        let of = |variable: &Number| match variable.at {
            NOWHERE => none,
            at => all[at as usize],
        };
        variables.iter().map(of).collect()
    })
}

/// Against central differences, of everything that is computed with numbers.
#[test]
fn derivatives_are_the_limits_of_differences() {
    let of = |[a, b, c]: [Number; 3]| {
        let sum = (a * b + c / a - b).exp() + a.powf(1.5) * c.clamp(-1.0, 4.0);
        (sum.plus_product(b, c) + a.max(b)).ln()
    };
    let at = [0.7, 1.1, 0.4];
    clear();
    let variables = at.map(Number::variable);
    let exact = derivatives(of(variables), &variables);
    for (index, exact) in exact.iter().enumerate() {
        let shifted = |by: f64| {
            let mut moved = at;
            moved[index] += by;
            of(moved.map(Number::from)).value
        };
        let difference = (shifted(1e-5) - shifted(-1e-5)) / 2e-5;
        assert!((exact.value - difference).abs() < 1e-8, "{index}: {exact:?}, {difference}");
        assert!(exact.scale >= exact.value.abs());
    }
}
