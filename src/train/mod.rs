//! The loop: worker threads, gradient exchange, update, checkpoints; `trainer` wires it all.

pub mod checkpoint;
pub mod digest;
pub mod optimizer;
pub mod schedule;
