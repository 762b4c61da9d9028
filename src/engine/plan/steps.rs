//! A plan: values, and the steps that read and write them.

use std::rc::Rc;

use super::adaptive::{Adaptive, Pass};
use super::lifetime::{Interval, Touches, Value, intervals};
use super::operation::{Kernel, Role};
use super::placement::{Overwrite, Placement, Span, place};
use super::taps::Taps;
use super::tensor::{Desc, Place};

/// What a step does; values by index.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Action {
    /// Runs a kernel on these arguments.
    Run { kernel: Kernel, arguments: Vec<(Role, Place)> },
    /// Fills a dropout mask: 0 with probability `rate`, else 1 / (1 - rate).
    Mask { value: usize, elements: usize, rate: f32, node: usize },
    /// Means over windows of each plane, or the gradient that they hand back.
    Average { windows: Adaptive, pass: Pass, from: Place, to: usize },
    /// Reads logits; sums loss and errors; with `seed`, writes the gradient with respect to
    /// log-probabilities.
    Loss { logits: Place, seed: Option<usize>, of: Classifier },
    /// Hands a finished gradient out; `taps`: those of a convolution that see data, where not all
    /// do: the others' is 0.
    Emit { value: usize, offset: usize, elements: usize, taps: Option<Taps> },
    /// Hands a batch's mean and (biased) variance out.
    Statistics { mean: usize, variance: usize, at: [usize; 2], channels: usize },
}

/// Whose loss it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Classifier {
    /// The last node's: errors are its.
    Last,
    /// One within the model, with the weight of its loss; after the last node's.
    Auxiliary(f32),
}

impl Classifier {
    /// What its loss counts.
    pub fn weight(self) -> f32 {
        match self {
            Self::Last => 1.0,
            Self::Auxiliary(weight) => weight,
        }
    }
}

/// One step, with the values that it touches. One that it reads and writes it changes in place.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The node that it belongs to; one past the last is the loss.
    pub node: usize,
    /// What it does.
    pub action: Action,
    /// Values whose contents it needs.
    pub reads: Vec<usize>,
    /// Values that it gives contents.
    pub writes: Vec<usize>,
}

/// A parameter or statistic that a plan reads, in the order that it wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightUse {
    /// Index into the layout's tensors.
    pub tensor: usize,
    /// How it must lie.
    pub desc: Rc<Desc>,
}

/// A graph planned for one batch size and direction.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// In order.
    pub steps: Vec<Step>,
    /// The first steps, which are the forward pass.
    pub forward_steps: usize,
    /// What they compute.
    pub values: Vec<Value>,
    /// Where values lie in the arena.
    pub placement: Placement,
    /// What steps read besides.
    pub weights: Vec<WeightUse>,
}

impl Plan {
    /// Finds out while each value (of so many bytes) lives, and places all.
    pub fn new(
        steps: Vec<Step>,
        forward_steps: usize,
        bytes: &[usize],
        overwrites: &[Overwrite],
        weights: Vec<WeightUse>,
    ) -> Self {
        let touches = steps.iter().map(|step| Touches { reads: &step.reads, writes: &step.writes });
        let lives = intervals(touches, bytes.len());
        let value = |(&bytes, intervals)| Value { bytes, intervals };
        let values: Vec<Value> = bytes.iter().zip(lives).map(value).collect();
        let placement = place(&values, overwrites);
        Self { steps, forward_steps, values, placement, weights }
    }

    /// Where `value` lies in step `at`, which touches it.
    pub fn span(&self, value: usize, at: usize) -> Span {
        let spans = &self.placement.spans[value];
        match spans.as_slice() {
            [only] => *only,
            _ => {
                let lives = |i: &Interval| (i.first..=i.last).contains(&at);
                let interval = self.values[value].intervals.iter().position(lives);
                spans[interval.expect("a step touches only values that live")]
            }
        }
    }

    /// Values that live from the forward into the backward pass.
    pub fn saved(&self) -> Vec<usize> {
        let forward = self.forward_steps;
        let crosses = |i: &Interval| i.first < forward && i.last >= forward;
        let values = 0..self.values.len();
        values.filter(|&value| self.values[value].intervals.iter().any(crosses)).collect()
    }

    /// Bytes of these.
    pub fn saved_bytes(&self) -> usize {
        self.saved().into_iter().map(|value| self.values[value].bytes).sum()
    }
}
