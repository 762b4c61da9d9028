//! Whether a step whose sums are there counts, or is computed anew by all. Pure: all ranks have the
//! same sums, so all decide alike. A rank that comes meanwhile knows nothing of earlier tries; a
//! repair forgets them everywhere.

use crate::train::fixed_point::{self, Grid, GridChoice};

/// Tries of one step. Ever larger grids come to an end before; what is not finite and another thing
/// each time has none.
const TRIES_MAX: u32 = 32;

/// What a try's sums reached, over all owners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reached {
    /// Of every block (`GradientSum::reaches`).
    pub blocks: Vec<u64>,
    /// Micro-batches whose statistics do not fit.
    pub statistics: u64,
}

/// A step that is to be computed anew.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Anew {
    /// On which it is summed.
    pub grid: Grid,
    /// Why.
    pub why: Why,
    /// What tries reached that held something infinite or undefined. What a run without failures
    /// meets too is there again; what a processor or a card did once is not.
    not_finite: Vec<Reached>,
    /// Before this one.
    tries: u32,
}

/// Why a step is computed anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// What has its first values was summed too coarsely, or did not fit.
    First,
    /// Some value grew beyond what fits.
    Larger,
    /// Something was infinite or undefined.
    NotFinite,
}

/// What becomes of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Its sums are right; the next step is summed on this grid.
    Counts(Grid),
    /// They hold something infinite or undefined: it counts without an update.
    Zero(Steadiness),
    /// All compute it anew.
    Anew(Anew),
}

/// Whether a run without failures has the same there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steadiness {
    /// Two tries came to the same.
    Steady,
    /// No two did: nobody knows.
    Wavering,
}

/// What becomes of a step that was summed on `grid` and reached so much; `before`: why it was
/// computed anew, if it was.
pub fn next(before: Option<&Anew>, grid: &Grid, reached: Reached) -> Next {
    let mut seen = before.map_or(Vec::new(), |before| before.not_finite.clone());
    let tries = before.map_or(0, |before| before.tries) + 1;
    match fixed_point::verdict(grid, &reached.blocks, reached.statistics) {
        GridChoice::Holds(following) => Next::Counts(following),
        GridChoice::NotANumber if seen.contains(&reached) => Next::Zero(Steadiness::Steady),
        _ if tries >= TRIES_MAX => Next::Zero(Steadiness::Wavering),
        GridChoice::Again(next) => {
            let why = if grid.is_outgrown(&reached.blocks) { Why::Larger } else { Why::First };
            Next::Anew(Anew { grid: next, why, not_finite: seen, tries })
        }
        GridChoice::NotANumber => {
            seen.push(reached);
            let (grid, why, not_finite) = (grid.clone(), Why::NotFinite, seen);
            Next::Anew(Anew { grid, why, not_finite, tries })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOT_A_NUMBER: u64 = u64::MAX;

    /// What becomes of a step whose tries reach this, and after how many.
    fn tried(tries: impl IntoIterator<Item = [u64; 2]>) -> (Next, usize) {
        let (mut before, mut count): (Option<Anew>, _) = (None, 0);
        for blocks in tries {
            count += 1;
            let grid = before.as_ref().map_or_else(Grid::default, |anew| anew.grid.clone());
            let reached = Reached { blocks: blocks.to_vec(), statistics: 0 };
            match next(before.as_ref(), &grid, reached) {
                Next::Anew(anew) => before = Some(anew),
                ended => return (ended, count),
            }
        }
        panic!("computed anew without end")
    }

    #[test]
    fn what_is_not_finite_once_counts_and_what_stays_so_is_a_step_without_an_update() {
        let [good, bad, other] = [[1 << 26, 1 << 26], [NOT_A_NUMBER, 7], [8, NOT_A_NUMBER]];
        let (ended, tries) = tried([bad, good]);
        assert!(matches!(ended, Next::Counts(_)) && tries == 2);
        assert_eq!(tried([bad, bad]), (Next::Zero(Steadiness::Steady), 2));
        assert_eq!(tried([bad, other, bad]), (Next::Zero(Steadiness::Steady), 3));
        let each_time = (0..100).map(|number| [NOT_A_NUMBER, number]);
        assert_eq!(tried(each_time), (Next::Zero(Steadiness::Wavering), TRIES_MAX as usize));
    }

    #[test]
    fn a_larger_grid_between_two_looks_forgets_nothing() {
        let [larger, bad] = [[1 << 35, 1 << 20], [NOT_A_NUMBER, 7]];
        let (ended, tries) = tried([larger, bad, larger, bad]);
        assert_eq!((ended, tries), (Next::Zero(Steadiness::Steady), 4));
    }
}
