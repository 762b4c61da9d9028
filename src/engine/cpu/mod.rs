//! The CPU through oneDNN.

pub mod executor;
pub mod team;
