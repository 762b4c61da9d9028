//! The number format of sums: whole multiples of a power of two in 32-bit integers.
//! Each owner's values are rounded once, to the same multiples whoever computed them; adding
//! integers is exact, so the sum does not depend on which rank summed what, nor in which order.
//!
//! Every block of a tensor has its own multiple, its unit. It follows from the block's values in
//! the last committed step, so the units are part of the position. Values that grew beyond what
//! fits are noticed by all ranks alike: they agree on units that hold them and compute the step
//! again.

use std::num::ParseIntError;

use kintsugi_ffi::fixed::{self, SUMMANDS_MAX};
use serde::{Deserialize, Serialize};

/// Elements of a block at most; blocks tile each tensor from its start.
pub const BLOCK: usize = 1 << 14;

/// By so many powers of two a block's values may grow from one step to the next. More of it costs
/// precision: with this and four owners the sum's error, in the norm, is that of plain f32 sums.
const HEADROOM_BITS: i32 = 3;
/// By so many its unit falls at most from one step to the next: one quiet step among loud ones
/// does not make the next loud one too large.
const FALL_BITS: i32 = 1;
/// What a block begins with: values whose sum of magnitudes is below 2048 fit.
const FIRST: Unit = Unit(-20);
/// A block that reaches less than so many units the first time that it reaches anything has the
/// step computed again, on finer ones: what a run, or a tensor that was still, begins with says
/// nothing of its values.
const FIRST_REACH_MIN: u64 = 1 << 24;
/// The largest reach that a sum of 32 bits holds.
const REACH_HELD: u64 = i32::MAX as u64;
/// What a part is said to reach at most. Steps on ever larger units end: each try is at least
/// twelve bits nearer, and numbers have 277.
const REACH_MAX: u64 = 1 << 40;
/// What a part reaches that holds something infinite or undefined: more than all others together.
const NOT_A_NUMBER: u64 = REACH_MAX * 2 * SUMMANDS_MAX as u64;

/// A power of two by its exponent: what a block's values are multiples of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unit(i32);

impl Unit {
    /// Their reciprocals are normal numbers, too.
    const SMALLEST: Self = Self(-120);
    const LARGEST: Self = Self(120);

    /// As a number.
    pub fn value(self) -> f32 {
        2f32.powi(self.0)
    }

    /// Two to this power.
    #[cfg(test)]
    pub fn of(exponent: i32) -> Self {
        Self(exponent)
    }

    /// `sum = values` in multiples; gives what they reach.
    pub fn store(self, sum: &mut [i32], values: &[f32]) -> u64 {
        self.reach(fixed::store(sum, values, Self(-self.0).value()))
    }

    /// `sum += values` in multiples; gives what they reach.
    pub fn add(self, sum: &mut [i32], values: &[f32]) -> u64 {
        self.reach(fixed::add(sum, values, Self(-self.0).value()))
    }

    /// What a sum of multiples is as numbers.
    pub fn load(self, sum: &[i32], values: &mut [f32]) {
        fixed::load(sum, values, self.value());
    }

    /// Multiples, rounded up, of a magnitude that has these bits. Added over the parts of a sum it
    /// bounds every partial sum.
    fn reach(self, largest: u32) -> u64 {
        if largest >= f32::INFINITY.to_bits() {
            return NOT_A_NUMBER;
        }
        let units = f64::from(f32::from_bits(largest)) * 2f64.powi(-self.0);
        units.ceil().min(REACH_MAX as f64) as u64
    }

    /// The smallest unit on which what reached so many of this one fits with headroom.
    fn fitting(self, reach: u64) -> Self {
        if reach == 0 {
            return self;
        }
        let bits = (u64::BITS - reach.leading_zeros()) as i32;
        Self(self.0 + bits + HEADROOM_BITS - 31).clamp(Self::SMALLEST, Self::LARGEST)
    }

    /// The unit of the step that follows one in which so many were reached.
    fn following(self, reach: u64) -> Self {
        self.fitting(reach).max(Self(self.0 - FALL_BITS))
    }
}

/// What is known of a block's unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// It has not reached anything yet.
    Nothing,
    /// It reached something for the first time, and this may still be too coarse.
    Trying(Unit),
    /// It follows the block's values.
    Following(Unit),
}

impl Found {
    fn unit(self) -> Unit {
        match self {
            Self::Nothing => FIRST,
            Self::Trying(unit) | Self::Following(unit) => unit,
        }
    }

    /// Whether the sum of a block that reached so much is right.
    fn holds(self, reach: u64) -> bool {
        let follows = matches!(self, Self::Following(_));
        let coarse = || reach < FIRST_REACH_MIN && self.unit().fitting(reach) < self.unit();
        reach <= REACH_HELD && (follows || reach == 0 || !coarse())
    }

    /// On which the step is computed again.
    fn again(self, reach: u64) -> Self {
        match self {
            Self::Following(unit) if reach > REACH_HELD => Self::Following(unit.fitting(reach)),
            Self::Following(unit) => Self::Following(unit),
            _ if reach == 0 => Self::Nothing,
            first => Self::Trying(first.unit().fitting(reach)),
        }
    }

    /// Of the step behind one that holds.
    fn next(self, reach: u64) -> Self {
        match self {
            Self::Following(unit) => Self::Following(unit.following(reach)),
            _ if reach == 0 => Self::Nothing,
            first => Self::Following(first.unit().fitting(reach)),
        }
    }
}

/// The units of all blocks, in the order of their elements; none before the first step.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Grid(Vec<Found>);

impl Grid {
    fn found(&self, block: usize) -> Found {
        self.0.get(block).copied().unwrap_or(Found::Nothing)
    }

    /// A block's unit.
    pub fn unit(&self, block: usize) -> Unit {
        self.found(block).unit()
    }

    /// Whether no step has been committed with it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a block's values grew beyond what its unit, which followed them, holds.
    pub fn is_outgrown(&self, reaches: &[u64]) -> bool {
        let outgrown = |(block, &reach): (usize, &u64)| {
            matches!(self.found(block), Found::Following(_)) && reach > REACH_HELD
        };
        reaches.iter().enumerate().any(outgrown)
    }

    fn map(&self, reaches: &[u64], next: impl Fn(Found, u64) -> Found) -> Self {
        let blocks = reaches.iter().enumerate();
        Self(blocks.map(|(block, &reach)| next(self.found(block), reach)).collect())
    }
}

/// What exponents are written relative to, so that two hexadecimal digits hold each.
const BIAS: i32 = 128;
/// What a block that reached nothing yet is written as.
const NOTHING: i32 = -BIAS;

impl From<Grid> for String {
    fn from(grid: Grid) -> Self {
        let digit = |value: i32| char::from_digit(value as u32, 16).expect("four bits");
        let digits = |found: &Found| {
            let exponent = if *found == Found::Nothing { NOTHING } else { found.unit().0 };
            let biased = exponent + BIAS;
            [digit(biased >> 4), digit(biased & 15)]
        };
        grid.0.iter().flat_map(digits).collect()
    }
}

impl TryFrom<String> for Grid {
    type Error = ParseIntError;

    fn try_from(text: String) -> Result<Self, ParseIntError> {
        let unit = |digits: &[u8]| {
            let exponent = i32::from_str_radix(&String::from_utf8_lossy(digits), 16)? - BIAS;
            Ok(match exponent {
                NOTHING => Found::Nothing,
                _ => Found::Following(Unit(exponent).clamp(Unit::SMALLEST, Unit::LARGEST)),
            })
        };
        text.as_bytes().chunks(2).map(unit).collect::<Result<_, _>>().map(Self)
    }
}

/// What becomes of a step that was summed on a grid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GridChoice {
    /// The sums are right; the next step is summed on this grid.
    Holds(Grid),
    /// They are not: to be computed again on this grid.
    Again(Grid),
    /// Infinite or undefined gradients, which no sum holds.
    NotANumber,
}

/// What becomes of a step that was summed on `grid`: `reaches` are every block's, summed over all
/// owners; `statistics` of the batch statistics (`moments::add_up`).
pub fn verdict(grid: &Grid, reaches: &[u64], statistics: u64) -> GridChoice {
    if statistics > 0 || reaches.iter().any(|&reach| reach >= NOT_A_NUMBER) {
        return GridChoice::NotANumber;
    }
    let hold = reaches.iter().enumerate().all(|(block, &reach)| grid.found(block).holds(reach));
    match hold {
        true => GridChoice::Holds(grid.map(reaches, Found::next)),
        false => GridChoice::Again(grid.map(reaches, Found::again)),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::seed::Stream;

    /// On which 19 owners of values below 1 fit.
    const UNIT: Unit = Unit(-26);

    /// Values of one owner.
    fn owner() -> impl Strategy<Value = Vec<f32>> {
        let value = (-1.0f32..1.0, 0i32..60).prop_map(|(x, down)| x * 2f32.powi(-down));
        proptest::collection::vec(value, 7)
    }

    /// Owners, and to which of three ranks each one goes, in which order.
    fn dealt() -> impl Strategy<Value = (Vec<Vec<f32>>, Vec<usize>, Vec<usize>)> {
        proptest::collection::vec(owner(), 1..20).prop_flat_map(|owners| {
            let n = owners.len();
            let order = Just((0..n).collect::<Vec<usize>>()).prop_shuffle();
            (Just(owners), proptest::collection::vec(0..3usize, n), order)
        })
    }

    fn summed(owners: &[Vec<f32>], ranks: &[usize], order: &[usize]) -> (Vec<u32>, u64) {
        let mut of_rank = [const { None::<Vec<i32>> }; 3];
        let mut reach = 0;
        for &owner in order {
            reach += match &mut of_rank[ranks[owner]] {
                Some(sum) => UNIT.add(sum, &owners[owner]),
                none => UNIT.store(none.insert(vec![0; 7]), &owners[owner]),
            };
        }
        let mut all = vec![0_i32; 7];
        for sum in of_rank.iter().flatten() {
            all.iter_mut().zip(sum).for_each(|(all, part)| *all += *part);
        }
        let mut values = vec![0.0; 7];
        UNIT.load(&all, &mut values);
        (values.iter().map(|value| value.to_bits()).collect(), reach)
    }

    proptest! {
        #[test]
        fn the_sum_has_the_same_bits_for_any_grouping_and_order((owners, ranks, order) in dealt()) {
            let alone: Vec<usize> = (0..owners.len()).collect();
            let expected = summed(&owners, &vec![0; owners.len()], &alone);
            prop_assert_eq!(&summed(&owners, &ranks, &order), &expected);
            for (at, bits) in expected.0.iter().enumerate() {
                let exact: f64 = owners.iter().map(|owner| f64::from(owner[at])).sum();
                let off = (f64::from(f32::from_bits(*bits)) - exact).abs();
                let bound = owners.len() as f64 * 2f64.powi(-27) + exact.abs() * 2f64.powi(-23);
                prop_assert!(off <= bound, "{off} from {exact}");
            }
        }
    }

    fn reach_of(unit: Unit, values: &[f32]) -> u64 {
        values.iter().map(|&value| unit.store(&mut [0], &[value])).sum()
    }

    #[test]
    fn a_sum_whose_reach_is_held_does_not_wrap() {
        for exponent in [-120, -30, 0, 96] {
            let unit = Unit(exponent);
            let owners = [0.9f32, 0.499, 0.3, 0.3].map(|x| x * 2f32.powi(30 + exponent));
            let mut sum = [0];
            let reach: u64 = owners.iter().map(|&value| unit.add(&mut sum, &[value])).sum();
            assert!(reach <= REACH_HELD && i64::from(sum[0]) <= reach as i64, "{reach}");
            assert!(i64::from(sum[0]) >= reach as i64 - 4, "each is rounded up once");
            assert!(reach_of(unit, &[2f32.powi(31 + exponent)]) > REACH_HELD);
        }
    }

    #[test]
    fn a_unit_follows_the_largest_values_at_once_and_quiet_ones_slowly() {
        let unit = Unit(-20);
        let grown = |bits: u32| unit.following(1 << bits).0 - unit.0;
        assert_eq!([grown(27), grown(28), grown(30)], [0, 1, 3]);
        assert_eq!([grown(26), grown(10)], [-1, -1]);
        assert_eq!(unit.following(0), unit, "zeros say nothing");
        for bits in 1..40 {
            let fitting = unit.fitting(1 << bits);
            let reach = (1u64 << bits) as f64 * 2f64.powi(unit.0 - fitting.0);
            let spare = REACH_HELD as f64 / reach;
            assert!((7.9..=16.1).contains(&spare), "{bits}: {spare}");
        }
    }

    #[test]
    fn a_step_is_repeated_on_units_that_hold_it() {
        let of = |units: [i32; 2]| Grid(units.map(|unit| Found::Following(Unit(unit))).to_vec());
        let grid = of([-30, -20]);
        let reaches = |grid: &Grid, values: &[Vec<f32>]| -> Vec<u64> {
            values.iter().enumerate().map(|(at, v)| reach_of(grid.unit(at), v)).collect()
        };
        let fits = [vec![0.5, -0.7], vec![100.0]];
        let GridChoice::Holds(next) = verdict(&grid, &reaches(&grid, &fits), 0) else { panic!() };
        assert_eq!(next, of([-27, -21]));
        let grown = [vec![0.5, -0.7], vec![3e5, 1.0]];
        assert!(grid.is_outgrown(&reaches(&grid, &grown)));
        let begun = Grid::default();
        assert!(!begun.is_outgrown(&reaches(&begun, &grown)) && !grid.is_outgrown(&[0, 1]));
        let GridChoice::Again(next) = verdict(&grid, &reaches(&grid, &grown), 0) else { panic!() };
        assert_eq!(next, of([-30, -9]), "what holds is not touched");
        let again = verdict(&next, &reaches(&next, &grown), 0);
        assert_eq!(again, GridChoice::Holds(of([-27, -9])));
        for hopeless in [f32::INFINITY, f32::NAN] {
            let values = [vec![hopeless], vec![1.0]];
            assert_eq!(verdict(&grid, &reaches(&grid, &values), 0), GridChoice::NotANumber);
        }
        assert_eq!(verdict(&grid, &[1, 1], 1), GridChoice::NotANumber);
    }

    #[test]
    fn a_block_that_was_still_begins_as_finely_as_all_others() {
        let tried = |grid: &Grid, values: [f32; 2]| -> (Grid, usize) {
            let mut grid = grid.clone();
            for tries in 1.. {
                let reaches = [0, 1].map(|block| reach_of(grid.unit(block), &[values[block]]));
                match verdict(&grid, &reaches, 0) {
                    GridChoice::Holds(next) => return (next, tries),
                    GridChoice::Again(next) => grid = next,
                    GridChoice::NotANumber => panic!("finite"),
                }
            }
            unreachable!("it returns")
        };
        let (still, _) = tried(&Grid::default(), [1.0, 0.0]);
        assert_eq!(still.0, [Found::Following(Unit(-27)), Found::Nothing]);
        let (still, tries) = tried(&still, [1.0, 0.0]);
        assert_eq!((still.found(1), tries), (Found::Nothing, 1), "zeros say nothing");
        // As with a head of zeros: what lies before it has no gradient in the first step.
        let (moving, tries) = tried(&still, [1.0, 1e-7]);
        assert_eq!((moving.unit(1), tries), (Unit(-51), 3));
        // From then on it follows as all do.
        let (slower, tries) = tried(&moving, [1.0, 1e-9]);
        assert_eq!((slower.unit(1), tries), (Unit(-52), 1));
    }

    #[test]
    fn any_number_is_held_after_so_many_tries() {
        for value in [f32::MAX, 1e30, 3000.0, 1.0, 1e-6, 2e-11] {
            let mut grid = Grid::default();
            let mut tries = 1;
            while let GridChoice::Again(next) =
                verdict(&grid, &[reach_of(grid.unit(0), &[value])], 0)
            {
                (grid, tries) = (next, tries + 1);
                assert!(tries < 14, "{value}");
            }
            let mut read = [0.0];
            let mut sum = [0];
            grid.unit(0).store(&mut sum, &[value]);
            grid.unit(0).load(&sum, &mut read);
            assert!((read[0] - value).abs() <= value * 2f32.powi(-24), "{value}: {}", read[0]);
        }
    }

    /// Euclidean distance from the exact sums.
    fn off(sums: &[f32], exact: &[f64]) -> f64 {
        let squares = sums.iter().zip(exact).map(|(sum, exact)| (f64::from(*sum) - exact).powi(2));
        squares.sum::<f64>().sqrt()
    }

    /// How far the sums of so many owners are off: in multiples of how far plain f32 sums are, and
    /// as a part of the sums.
    fn off_beside_plain(owners: usize) -> (f64, f64) {
        let mut stream = Stream::new(&[1]);
        // Nearly normal, of four draws between -1 and 1 each.
        let mut draw = || (0..4).map(|_| stream.unit() as f32 * 2.0 - 1.0).sum::<f32>();
        let owners: Vec<Vec<f32>> =
            (0..owners).map(|_| (0..1 << 14).map(|_| draw()).collect()).collect();
        let (mut plain, mut exact) = (vec![0.0f32; 1 << 14], vec![0.0f64; 1 << 14]);
        for owner in &owners {
            plain.iter_mut().zip(owner).for_each(|(sum, value)| *sum += value);
            exact.iter_mut().zip(owner).for_each(|(sum, value)| *sum += f64::from(*value));
        }
        let mut sum = vec![0; 1 << 14];
        let summed = |unit: Unit, sum: &mut [i32]| -> u64 {
            sum.fill(0);
            owners.iter().map(|owner| unit.add(sum, owner)).sum()
        };
        let unit = FIRST.fitting(summed(FIRST, &mut sum));
        assert!(summed(unit, &mut sum) < REACH_HELD / 4);
        let mut values = vec![0.0; 1 << 14];
        unit.load(&sum, &mut values);
        let error = off(&values, &exact);
        (error / off(&plain, &exact), error / off(&vec![0.0; exact.len()], &exact))
    }

    #[test]
    fn four_owners_sums_are_as_near_as_plain_ones_and_those_of_many_are_not() {
        let of = |owners: usize| {
            let (times, part) = off_beside_plain(owners);
            format!("{owners}: {times:.2}, {part:.0e}")
        };
        let expected = ["4: 0.66, 3e-8", "16: 0.87, 7e-8", "64: 1.66, 2e-7", "512: 4.60, 2e-6"];
        assert_eq!([4, 16, 64, 512].map(of), expected);
    }

    #[test]
    fn a_grid_is_written_and_read_as_text() {
        let units = [Unit::SMALLEST, Unit(-27), Unit(0), Unit::LARGEST];
        let mut grid = Grid(units.map(Found::Following).to_vec());
        grid.0.insert(2, Found::Nothing);
        let text = serde_json::to_string(&grid).unwrap();
        assert_eq!(text, r#""08650080f8""#);
        assert_eq!(serde_json::from_str::<Grid>(&text).unwrap(), grid);
        for damaged in ["\"0g\"", "\"\u{e9}\""] {
            assert!(serde_json::from_str::<Grid>(damaged).is_err(), "{damaged}");
        }
    }
}
