//! How an attempt ended: what it left, what mpirun said, and what follows from it.

pub mod files;
pub mod quote;
pub mod verdict;
