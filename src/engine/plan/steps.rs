//! What is planned: values, and the steps that read and write them. A draft may still be rewritten
//! (steps put in, values given contents anew); a plan knows where everything lies.

use std::rc::Rc;

use super::adaptive::{Adaptive, Pass};
use super::lifetime::{Touches, Value, intervals};
use super::operation::{Kernel, Role};
use super::placement::{Overwrite, Placement, Span, place};
use super::taps::Taps;
use super::tensor::{Desc, Place};

/// What a step does. A value is a number in a draft, and where it lies in a plan.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Action<V = usize> {
    /// Runs a kernel on these arguments.
    Run { kernel: Kernel, arguments: Vec<(Role, Place<V>)> },
    /// Fills a dropout mask: 0 with probability `rate`, else 1 / (1 - rate).
    Mask { value: V, elements: usize, rate: f32, node: usize },
    /// Means over windows of each plane, or the gradient that they hand back.
    Average { windows: Adaptive, pass: Pass, from: Place<V>, to: V },
    /// Reads logits; sums loss and errors; with `seed`, writes the gradient with respect to
    /// log-probabilities. The last one ends the forward pass.
    Loss { logits: Place<V>, seed: Option<V>, of: Classifier },
    /// Hands a finished gradient out; `taps`: those of a convolution that see data, where not all
    /// do: the others' is 0.
    Emit { value: V, offset: usize, elements: usize, taps: Option<Taps> },
    /// Hands a batch's mean and (biased) variance out.
    Statistics { mean: V, variance: V, at: [usize; 2], channels: usize },
    /// Begins to copy a value to the far tier, or back from there, beside the steps that follow.
    BeginCopy { way: Way, value: V, far_offset: usize },
    /// Waits until that is done.
    EndCopy { way: Way, value: V, far_offset: usize },
    /// Gives a value the numbers of the plan's weight `weight`, as that must lie.
    Load { weight: usize, value: V, when: When },
    /// Does nothing: what was loaded for the passes to come keeps its place up to here.
    Hold { value: V },
}

/// When a weight is loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// Each time.
    Always,
    /// Unless its place still has the numbers of the state at hand.
    Stale,
}

/// Between the tiers of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Way {
    /// From the near one to the far one.
    Out,
    /// Back.
    In,
}

impl Action {
    /// Values that it gives out of the plan.
    pub fn given(&self) -> Vec<usize> {
        match self {
            Self::Loss { logits, .. } => logits.value().into_iter().collect(),
            Self::Emit { value, .. } => vec![*value],
            Self::Statistics { mean, variance, .. } => vec![*mean, *variance],
            Self::Run { .. }
            | Self::Mask { .. }
            | Self::Average { .. }
            | Self::BeginCopy { .. }
            | Self::EndCopy { .. }
            | Self::Load { .. }
            | Self::Hold { .. } => Vec::new(),
        }
    }

    /// The same with every value where it lies.
    fn placed(&self, lies: impl Fn(usize) -> Span) -> Action<Span> {
        match self.clone() {
            Self::Run { kernel, arguments } => {
                let place = |(role, at): (Role, Place)| (role, at.map(&lies));
                Action::Run { kernel, arguments: arguments.into_iter().map(place).collect() }
            }
            Self::Mask { value, elements, rate, node } => {
                Action::Mask { value: lies(value), elements, rate, node }
            }
            Self::Average { windows, pass, from, to } => {
                Action::Average { windows, pass, from: from.map(&lies), to: lies(to) }
            }
            Self::Loss { logits, seed, of } => {
                Action::Loss { logits: logits.map(&lies), seed: seed.map(&lies), of }
            }
            Self::Emit { value, offset, elements, taps } => {
                Action::Emit { value: lies(value), offset, elements, taps }
            }
            Self::Statistics { mean, variance, at, channels } => {
                Action::Statistics { mean: lies(mean), variance: lies(variance), at, channels }
            }
            Self::BeginCopy { way, value, far_offset } => {
                Action::BeginCopy { way, value: lies(value), far_offset }
            }
            Self::EndCopy { way, value, far_offset } => {
                Action::EndCopy { way, value: lies(value), far_offset }
            }
            Self::Load { weight, value, when } => Action::Load { weight, value: lies(value), when },
            Self::Hold { value } => Action::Hold { value: lies(value) },
        }
    }
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
    /// What it may write in the place of something that it reads, if nothing reads that later.
    pub overwrites: Vec<Overwrite>,
}

/// A parameter or statistic that a plan reads, in the order that it wants, in the words of who
/// reads it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightUse<D = Desc> {
    /// Index into the layout's tensors.
    pub tensor: usize,
    /// How it must lie.
    pub desc: Rc<D>,
}

/// When what a plan gives out is taken from its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// In the step that gives it.
    AtOnce,
    /// Beside the steps that follow: it keeps its place to the end.
    Later,
}

/// A graph planned for one batch size and direction, before anything has a place.
#[derive(Debug, Clone, PartialEq)]
pub struct Draft {
    /// In order.
    pub steps: Vec<Step>,
    /// Bytes of each value that they compute.
    pub bytes: Vec<usize>,
    /// What they read besides.
    pub weights: Vec<WeightUse>,
    /// When others take what they give out.
    pub taken: Taken,
    /// Which values lie in the far tier all the time, where steps use them; empty: none.
    pub remote: Vec<bool>,
}

impl Draft {
    /// Whether steps use a value where it lies in the far tier.
    pub fn is_remote(&self, value: usize) -> bool {
        self.remote.get(value).is_some_and(|&is_remote| is_remote)
    }

    /// Bytes that cross the link when a step uses what is remote: of writes, and of reads.
    pub fn crossing_bytes(&self, step: usize) -> [u64; 2] {
        if self.remote.is_empty() {
            return [0; 2];
        }
        let Step { reads, writes, .. } = &self.steps[step];
        [writes, reads].map(|values| {
            let remote = values.iter().filter(|&&value| self.is_remote(value));
            remote.map(|&value| self.bytes[value] as u64).sum()
        })
    }

    /// The first steps, which are the forward pass: up to the last loss.
    pub fn forward_steps(&self) -> usize {
        let is_loss = |step: &Step| matches!(step.action, Action::Loss { .. });
        self.steps.iter().rposition(is_loss).map_or(0, |last| last + 1)
    }

    /// While each value lives.
    pub fn values(&self) -> Vec<Value> {
        let mut values = self.touched();
        if self.taken == Taken::Later {
            let end = self.steps.len().saturating_sub(1);
            for (at, step) in self.steps.iter().enumerate() {
                for value in step.action.given() {
                    let now = life_at(&values[value], at);
                    values[value].intervals[now].last = end;
                }
            }
        }
        values
    }

    /// While steps touch each value.
    fn touched(&self) -> Vec<Value> {
        let touches = self.steps.iter();
        let touches = touches.map(|step| Touches { reads: &step.reads, writes: &step.writes });
        let lives = intervals(touches, self.bytes.len());
        let value = |(&bytes, intervals)| Value { bytes, intervals };
        self.bytes.iter().zip(lives).map(value).collect()
    }

    /// Values that steps of the forward and of the backward pass touch, in one life.
    pub fn saved(&self) -> Vec<usize> {
        let (forward, values) = (self.forward_steps(), self.touched());
        let crosses = |value: &Value| {
            value.intervals.iter().any(|life| life.first < forward && life.last >= forward)
        };
        (0..values.len()).filter(|&value| crosses(&values[value])).collect()
    }

    /// Bytes of these.
    pub fn saved_bytes(&self) -> usize {
        self.saved().into_iter().map(|value| self.bytes[value]).sum()
    }

    /// Finds a place for each value while it lives.
    pub fn place(self) -> Plan {
        let values = self.values();
        let steps = self.steps.iter().enumerate();
        let overwrites = steps
            .clone()
            .flat_map(|(at, step)| step.overwrites.iter().map(move |&overwrite| (at, overwrite)));
        let place = |values: &[Value]| place(values, overwrites.clone());
        let (near, remote) = match self.remote.contains(&true) {
            false => (place(&values), Placement::default()),
            true => (
                place(&living(&values, |value| !self.is_remote(value))),
                // It has an arena of its own, behind the other.
                place(&living(&values, |value| self.is_remote(value))),
            ),
        };
        let lies = |value: usize, at: usize| {
            let now = life_at(&values[value], at);
            match self.is_remote(value) {
                false => near.spans[value][now],
                true => {
                    let Span { offset, bytes } = remote.spans[value][now];
                    Span { offset: near.bytes + offset, bytes }
                }
            }
        };
        let actions = steps.map(|(at, step)| step.action.placed(|value| lies(value, at))).collect();
        Plan { actions, arena_bytes: near.bytes, remote_bytes: remote.bytes, draft: self }
    }
}

/// Which of its lives a value has in a step that touches it: the last that has begun, whatever
/// still waits for those before it.
fn life_at(value: &Value, at: usize) -> usize {
    let now = value.intervals.iter().rposition(|life| life.first <= at);
    now.expect("a step touches only values that live")
}

/// The same values, of which only these live.
fn living(values: &[Value], lives: impl Fn(usize) -> bool) -> Vec<Value> {
    let own = |(value, of): (usize, &Value)| match lives(value) {
        true => of.clone(),
        false => Value { intervals: Vec::new(), ..of.clone() },
    };
    values.iter().enumerate().map(own).collect()
}

/// What can be run.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// What it was made of.
    pub draft: Draft,
    /// What its steps do, every value where it lies then.
    pub actions: Vec<Action<Span>>,
    /// Bytes of the arena in which they lie.
    pub arena_bytes: usize,
    /// Bytes behind it, of the far tier: of what steps use there.
    pub remote_bytes: usize,
}
