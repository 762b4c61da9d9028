//! Pictures that are made: sets to learn from without a download, and pictures to measure with.

pub mod photograph;
pub mod picture;
pub mod shape;
pub mod synth;
