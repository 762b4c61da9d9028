//! From summed gradients to the next weights: optimizers and schedules, as pure functions.

pub mod freeze;
pub mod optimizer;
mod rules;
pub mod schedule;

#[cfg(test)]
mod torch_tests;
