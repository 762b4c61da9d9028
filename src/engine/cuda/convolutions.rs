//! Convolutions by cuDNN: one that is settled as a graph of a single operation, and the plan that
//! it gets there. Nothing is timed: the first proposal that fits is taken, so that ranks with equal
//! cards and libraries agree. Bias and ReLU are left to the caller, as is what cuDNN has no plan
//! for.

mod choice;
mod described;
mod plans;
mod target;

pub use choice::{Chosen, Planned, WORKSPACE_BYTES_MAX};
pub use described::{Convolution, DST, SRC, WEIGHTS};
pub use plans::Plans;
pub use target::Target;
