//! From summed gradients to the next weights: optimizers and schedules, as pure functions.

pub mod optimizer;
pub mod schedule;
