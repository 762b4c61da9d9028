//! Runs a graph: owns activation memory, frees by declared lifetimes.
