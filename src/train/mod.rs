//! The loop: worker threads, gradient exchange, update, checkpoints; `trainer` wires it all.

pub mod checkpoint;
