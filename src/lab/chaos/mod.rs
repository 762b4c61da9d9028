//! `kintsugi chaos`: kills random ranks of a running run at random moments, from outside, by a
//! seed. Unlike planned faults it asks nobody: a victim dies wherever it happens to be.
//!
//! `schedule` when and whom (pure) · `victim` is this process really a rank of this run? ·
//! `storm` the loop.

pub mod schedule;
pub mod storm;
pub mod victim;

pub use storm::{Outcome, Storm, rage};
