//! The number format of reproducible sums: whole multiples of a power of two in 64-bit
//! integers. Each owner's values are rounded once, to the same multiples whoever computed them;
//! adding integers is exact, so the sum does not depend on which rank summed what, nor in which
//! order.
//!
//! The multiple comes from the step's own gradients and from nothing else: every step begins on the
//! finest grid, and when an owner's value lies outside its range, all ranks agree on the finest
//! grid that holds every value and compute the step again. So the format has no state that a
//! newcomer, a checkpoint or another number of ranks would have to share.

use kintsugi_ffi::fixed::{self, RANGE_BITS};

/// Fractional bits of the grids, finest first. The finest holds gradients below 2048 to 9e-13, the
/// last anything below 6e17.
const FRACTION_BITS: [i32; 5] = [40, 30, 20, 10, -8];

/// Fractional bits of the two words of a batch statistic: the first holds values below 2^31, the
/// second what the first leaves, to 2^-60. There are few of them, and their size says nothing
/// about that of gradients.
const STATISTIC_BITS: [i32; 2] = [20, 60];

/// Which grid a step is summed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Grid(usize);

impl Grid {
    /// Number of grids.
    pub const COUNT: usize = FRACTION_BITS.len();

    fn scale(self) -> f64 {
        2f64.powi(FRACTION_BITS[self.0])
    }

    /// Bits of the smallest magnitude that it does not hold.
    fn limit(self) -> u32 {
        2f32.powi(RANGE_BITS as i32 - FRACTION_BITS[self.0]).to_bits()
    }

    /// The finest grid that holds a magnitude (its bits); `None` when none does, as of infinities.
    pub fn holding(largest: u32) -> Option<Self> {
        (0..Self::COUNT).map(Self).find(|grid| largest < grid.limit())
    }
}

/// What the ranks tell each other about the values they added: of each grid, how many parts need
/// it, and last, how many no grid holds. Counts sum, so this travels with the step's other counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Needs([u64; Grid::COUNT + 1]);

impl Needs {
    /// Number of words.
    pub const WORDS: usize = Grid::COUNT + 1;

    /// Adds a part whose largest magnitude has these bits.
    pub fn add(&mut self, largest: u32) {
        let index = Grid::holding(largest).map_or(Grid::COUNT, |grid| grid.0);
        self.0[index] += 1;
    }

    /// For the exchange.
    pub fn words(&self) -> &[u64] {
        &self.0
    }

    /// What becomes of a step that was summed on `grid`, from everybody's summed words.
    pub fn verdict(words: &[u64], grid: Grid) -> GridChoice {
        match words.iter().rposition(|&parts| parts > 0) {
            Some(Grid::COUNT) => GridChoice::NotANumber,
            Some(needed) if needed > grid.0 => GridChoice::Again(Grid(needed)),
            _ => GridChoice::Holds,
        }
    }
}

/// See [`Needs::verdict`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GridChoice {
    /// The sums are right.
    Holds,
    /// They are not: to be computed again on this grid, the finest that holds every value.
    Again(Grid),
    /// Infinite or undefined gradients, which no sum holds.
    NotANumber,
}

/// `sum = values` in multiples; gives the bits of the largest magnitude.
pub fn store(grid: Grid, sum: &mut [i64], values: &[f32]) -> u32 {
    fixed::store(sum, values, grid.scale())
}

/// `sum += values` in multiples; gives the bits of the largest magnitude.
pub fn add(grid: Grid, sum: &mut [i64], values: &[f32]) -> u32 {
    fixed::add(sum, values, grid.scale())
}

/// What a sum of multiples is as numbers.
pub fn load(grid: Grid, sum: &[i64], values: &mut [f32]) {
    fixed::load(sum, values, 1.0 / grid.scale());
}

/// Adds `weight * value` to two-word sums (`sum` holds all first words, then all second ones).
/// Gives the bits of the largest magnitude, or of infinity where one does not fit.
pub fn add_statistics(sum: &mut [i64], values: &[f32], weight: f32) -> u32 {
    let (firsts, seconds) = sum.split_at_mut(values.len());
    let [coarse, fine] = STATISTIC_BITS.map(|bits| 2f64.powi(bits));
    let mut fits = true;
    for ((first, second), value) in firsts.iter_mut().zip(seconds).zip(values) {
        let value = f64::from(weight * value);
        let whole = (value * coarse).round_ties_even();
        fits &= whole.abs() < 2f64.powi(RANGE_BITS as i32);
        *first = first.wrapping_add(whole as i64);
        let rest = value - whole / coarse;
        *second = second.wrapping_add((rest * fine).round_ties_even() as i64);
    }
    if fits { 0 } else { f32::INFINITY.to_bits() }
}

/// What two-word sums are as numbers.
pub fn load_statistics(sum: &[i64], values: &mut [f32]) {
    let (firsts, seconds) = sum.split_at(values.len());
    let [coarse, fine] = STATISTIC_BITS.map(|bits| 2f64.powi(-bits));
    for ((first, second), value) in firsts.iter().zip(seconds).zip(values) {
        *value = (*first as f64 * coarse + *second as f64 * fine) as f32;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Values of one owner, of any magnitude that the finest grid holds.
    fn owner() -> impl Strategy<Value = Vec<f32>> {
        let value = (-2047.0f32..2047.0, 0i32..60).prop_map(|(x, down)| x * 2f32.powi(-down));
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

    fn summed(owners: &[Vec<f32>], ranks: &[usize], order: &[usize]) -> Vec<u32> {
        let mut of_rank = [const { None::<Vec<i64>> }; 3];
        for &owner in order {
            match &mut of_rank[ranks[owner]] {
                Some(sum) => {
                    add(Grid::default(), sum, &owners[owner]);
                }
                none => {
                    let sum = none.insert(vec![0; 7]);
                    store(Grid::default(), sum, &owners[owner]);
                }
            }
        }
        let mut all = vec![0_i64; 7];
        for sum in of_rank.iter().flatten() {
            all.iter_mut().zip(sum).for_each(|(all, part)| *all = all.wrapping_add(*part));
        }
        let mut values = vec![0.0; 7];
        load(Grid::default(), &all, &mut values);
        values.iter().map(|value| value.to_bits()).collect()
    }

    proptest! {
        #[test]
        fn the_sum_has_the_same_bits_for_any_grouping_and_order((owners, ranks, order) in dealt()) {
            let alone: Vec<usize> = (0..owners.len()).collect();
            let expected = summed(&owners, &vec![0; owners.len()], &alone);
            prop_assert_eq!(&summed(&owners, &ranks, &order), &expected);
            for (at, bits) in expected.iter().enumerate() {
                let exact: f64 = owners.iter().map(|owner| f64::from(owner[at])).sum();
                let off = (f64::from(f32::from_bits(*bits)) - exact).abs();
                let bound = owners.len() as f64 * 2f64.powi(-41) + exact.abs() * 2f64.powi(-23);
                prop_assert!(off <= bound, "{off} from {exact}");
            }
        }

        #[test]
        fn statistics_have_the_same_bits_for_any_grouping_and_order(
            values in proptest::collection::vec((-1e6f32..1e6, 0i32..40), 2..20),
            cut in 0usize..20,
        ) {
            let values: Vec<f32> = values.iter().map(|(x, d)| x * 2f32.powi(-d)).collect();
            let sum_of = |part: &mut dyn Iterator<Item = &f32>| {
                let mut sum = vec![0; 2];
                for value in part {
                    add_statistics(&mut sum, &[*value], 8.0);
                }
                sum
            };
            let whole = sum_of(&mut values.iter());
            let cut = cut.min(values.len());
            let (left, right) = values.split_at(cut);
            let mut parts = sum_of(&mut right.iter().rev());
            parts.iter_mut().zip(sum_of(&mut left.iter())).for_each(|(a, b)| *a += b);
            prop_assert_eq!(&whole, &parts);
            let mut read = [0.0];
            load_statistics(&whole, &mut read);
            let exact: f64 = values.iter().map(|value| 8.0 * f64::from(*value)).sum();
            prop_assert!((f64::from(read[0]) - exact).abs() <= exact.abs() * 1.2e-7 + 1e-16);
        }
    }

    #[test]
    fn the_largest_sum_of_the_most_owners_does_not_wrap() {
        for grid in (0..Grid::COUNT).map(Grid) {
            let largest = f32::from_bits(grid.limit() - 1);
            let mut one = [0];
            assert_eq!(Grid::holding(store(grid, &mut one, &[largest])), Some(grid));
            let all = i128::from(one[0]) * i128::from(fixed::SUMMANDS_MAX);
            assert!(all <= i128::from(i64::MAX), "{grid:?}: {all}");
            assert_eq!(one[0] as f64, f64::from(largest) * grid.scale());
        }
    }

    #[test]
    fn the_finest_grid_that_holds_all_values_is_agreed_on() {
        let words = |values: &[f32]| {
            let mut needs = Needs::default();
            values.iter().for_each(|value| needs.add(value.to_bits()));
            needs.words().to_vec()
        };
        let verdict = |values: &[f32]| Needs::verdict(&words(values), Grid::default());
        assert_eq!(verdict(&[0.0, 2047.9]), GridChoice::Holds);
        assert_eq!(verdict(&[1.0, 2048.0]), GridChoice::Again(Grid(1)));
        assert_eq!(verdict(&[3e6, 1e7, 5e3]), GridChoice::Again(Grid(2)));
        assert_eq!(verdict(&[1e17]), GridChoice::Again(Grid(4)));
        assert_eq!(Needs::verdict(&words(&[1e17]), Grid(4)), GridChoice::Holds);
        for hopeless in [1e18, f32::INFINITY, f32::NAN] {
            assert_eq!(verdict(&[1.0, hopeless]), GridChoice::NotANumber);
        }
    }
}
