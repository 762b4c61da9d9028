//! What this machine gives a run: limits, networks, and what it does with shared memory.

pub mod ceilings;
pub mod logout;
pub mod network;
