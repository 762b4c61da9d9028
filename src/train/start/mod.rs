//! How a rank starts: from its arguments to the loop.

pub mod agreement;
pub mod announce;
pub mod assemble;
mod effect;
mod few;
mod initial;
pub mod network;
pub mod patience;
mod place;
pub mod prepare;
pub mod spare;
pub mod run;
pub mod surroundings;
