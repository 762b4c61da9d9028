//! Where a synchronous step's sums over all ranks are received.

use std::ops::Range;

use crate::cluster::comm::Elements;
use crate::model::Layout;
use crate::train::compute::bucket_sum::Complete;
use crate::train::compute::fixed_point::{self, Unit};
use crate::train::compute::gradients::{FixedSums, Gradients};

/// See the module.
pub struct Received {
    /// One for every parameter.
    integers: Vec<i32>,
    /// Two words a statistic.
    wide: Vec<i64>,
    statistics: Vec<f32>,
}

impl Received {
    /// For the sums of a model.
    pub fn of(layout: &Layout) -> Self {
        let Layout { parameters, statistics, .. } = *layout;
        Self {
            integers: vec![0; parameters],
            wide: vec![0; 2 * statistics],
            statistics: vec![0.0; statistics],
        }
    }

    /// A bucket that lies at `range` of `parameters | statistics`, and where all ranks' sum of it
    /// goes.
    pub fn elements<'a>(&'a mut self, send: Complete<'a>, range: Range<usize>) -> Elements<'a> {
        match send {
            Complete::Fixed(send) => Elements::I32(send, &mut self.integers[range]),
            Complete::Wide(send) => Elements::I64(send, &mut self.wide),
        }
    }

    /// All ranks' gradients and batch statistics. `blocks`: `GradientSum::blocks`.
    pub fn sums<'a>(
        &'a mut self,
        blocks: &'a [(Range<usize>, Unit)],
    ) -> (Gradients<'a>, &'a [f32]) {
        fixed_point::load_statistics(&self.wide, &mut self.statistics);
        (Gradients::Fixed(FixedSums { sum: &self.integers, blocks }), &self.statistics)
    }
}
