//! Where a synchronous step's sums over all ranks are received, in the format of the run.

use std::ops::Range;

use crate::cluster::comm::Elements;
use crate::model::Layout;
use crate::train::compute::bucket_sum::Complete;
use crate::train::compute::fixed_point::{self, Unit};
use crate::train::compute::gradient_sum::GradientSum;
use crate::train::compute::gradients::{FixedSums, Gradients};

/// See the module.
pub struct Received {
    parameters: usize,
    /// Plain sums: one for every parameter, else none.
    numbers: Vec<f32>,
    /// Reproducible sums: one for every parameter, else none.
    integers: Vec<i32>,
    statistics: Vec<f32>,
    /// Reproducible sums: two words a statistic, else none.
    wide: Vec<i64>,
}

impl Received {
    /// What a rank's own `sum` is added up into.
    pub fn of(sum: &GradientSum, layout: &Layout) -> Self {
        let (parameters, statistics) = (layout.parameters, layout.statistics);
        let (numbers, integers, wide) = match sum.is_reproducible() {
            true => (0, parameters, 2 * statistics),
            false => (parameters, 0, 0),
        };
        Self {
            parameters,
            numbers: vec![0.0; numbers],
            integers: vec![0; integers],
            statistics: vec![0.0; statistics],
            wide: vec![0; wide],
        }
    }

    /// A bucket that lies at `range` of `parameters | statistics`, and where all ranks' sum of it
    /// goes.
    pub fn elements<'a>(&'a mut self, send: Complete<'a>, range: Range<usize>) -> Elements<'a> {
        match send {
            Complete::Plain(send) if range.end <= self.parameters => {
                Elements::F32(send, &mut self.numbers[range])
            }
            Complete::Plain(send) => Elements::F32(send, &mut self.statistics),
            Complete::Fixed(send) => Elements::I32(send, &mut self.integers[range]),
            Complete::Wide(send) => Elements::I64(send, &mut self.wide),
        }
    }

    /// All ranks' gradients and batch statistics. `blocks`: of reproducible sums
    /// (`GradientSum::blocks`).
    pub fn sums<'a>(
        &'a mut self,
        blocks: &'a [(Range<usize>, Unit)],
    ) -> (Gradients<'a>, &'a [f32]) {
        if !self.wide.is_empty() {
            fixed_point::load_statistics(&self.wide, &mut self.statistics);
        }
        let gradients = match self.integers.is_empty() {
            true => Gradients::Plain(&self.numbers),
            false => Gradients::Fixed(FixedSums { sum: &self.integers, blocks }),
        };
        (gradients, &self.statistics)
    }
}
