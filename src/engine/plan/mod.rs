//! The plan of a micro-batch, pure: steps over values, where and while each value lies in memory,
//! what the backward pass reads. It knows no device: a `Backend` says which kernel it has for an
//! operation and how that wants its tensors to lie.
//!
//! `layers` write steps through the `builder`; `compile` puts a whole graph together; `placement`
//! finds places for what `lifetime` found to live. `steps` is what comes out.

pub mod adaptive;
pub mod builder;
pub mod compile;
pub mod layer;
pub mod layers;
pub mod lifetime;
pub mod operation;
#[cfg(test)]
pub mod paper;
pub mod placement;
pub mod steps;
pub mod taps;
pub mod tensor;
