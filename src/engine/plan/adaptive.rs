//! Means over windows that cover a plane of any size and give a plane of a wanted size, as
//! PyTorch's `AdaptiveAvgPool2d` defines them: pure arithmetic on row-major planes.

use std::ops::Range;

/// Which way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pass {
    /// From elements to means.
    Forward,
    /// From the gradients of means to those of elements.
    Backward,
}

/// Planes and their sizes before and after, `[height, width]` in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Adaptive {
    /// How many planes.
    pub planes: usize,
    /// Before.
    pub from: [usize; 2],
    /// After.
    pub to: [usize; 2],
}

/// Window `at` of `windows` over `length` elements; none is empty.
fn window(length: usize, windows: usize, at: usize) -> Range<usize> {
    at * length / windows..((at + 1) * length).div_ceil(windows)
}

impl Adaptive {
    /// Computes all planes; both slices may be longer.
    pub fn run(&self, pass: Pass, read: &[f32], write: &mut [f32]) {
        let (large, small) = (self.from[0] * self.from[1], self.to[0] * self.to[1]);
        let (from, to) = match pass {
            Pass::Forward => (large, small),
            Pass::Backward => (small, large),
        };
        let planes = read.chunks_exact(from).zip(write.chunks_exact_mut(to)).take(self.planes);
        for (read, write) in planes {
            match pass {
                Pass::Forward => self.means(read, write),
                Pass::Backward => self.spread(read, write),
            }
        }
    }

    /// Calls `visit` with every mean's index and the rows and columns of its window.
    fn windows(&self, mut visit: impl FnMut(usize, Range<usize>, Range<usize>)) {
        for row in 0..self.to[0] {
            for column in 0..self.to[1] {
                let rows = window(self.from[0], self.to[0], row);
                visit(row * self.to[1] + column, rows, window(self.from[1], self.to[1], column));
            }
        }
    }

    fn means(&self, elements: &[f32], means: &mut [f32]) {
        let width = self.from[1];
        self.windows(|at, rows, columns| {
            let area = (rows.len() * columns.len()) as f32;
            let row = |row: usize| &elements[row * width..][columns.clone()];
            means[at] = rows.flat_map(row).sum::<f32>() / area;
        });
    }

    fn spread(&self, means: &[f32], elements: &mut [f32]) {
        let width = self.from[1];
        elements.fill(0.0);
        self.windows(|at, rows, columns| {
            let share = means[at] / (rows.len() * columns.len()) as f32;
            for row in rows {
                elements[row * width..][columns.clone()].iter_mut().for_each(|x| *x += share);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_cover_all_and_begin_and_end_as_pytorchs() {
        // torch.nn.AdaptiveAvgPool1d(3) over 0..5 gives 0.5, 2, 3.5.
        let bounds: Vec<_> = (0..3).map(|at| window(5, 3, at)).collect();
        assert_eq!(bounds, [0..2, 1..4, 3..5]);
        // More windows than elements: each has one.
        assert!((0..7).all(|at| window(1, 7, at) == (0..1)));
    }

    #[test]
    fn what_is_spread_sums_to_what_there_was() {
        let windows = Adaptive { planes: 2, from: [5, 4], to: [3, 3] };
        let gradients: Vec<f32> = (0..18).map(|x| x as f32).collect();
        let mut spread = vec![f32::NAN; 40];
        windows.run(Pass::Backward, &gradients, &mut spread);
        let sums = |values: &[f32], plane: usize| -> Vec<f32> {
            values.chunks(plane).map(|plane| plane.iter().sum()).collect()
        };
        for (given, wanted) in sums(&spread, 20).iter().zip(sums(&gradients, 9)) {
            assert!((given - wanted).abs() < 1e-4, "{given} {wanted}");
        }
    }
}
