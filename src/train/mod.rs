//! One rank's program, in rooms, each of which imports only those before it: what a run is to do,
//! how numbers are summed, its state, what computes, what updates, how gradients meet, what is
//! written, how the world is repaired; then the loop, and how a rank starts.

pub mod error;
pub mod plan;
pub mod fixed_point;
pub mod state;
pub mod compute;
pub mod update;
pub mod exchange;
pub mod checkpoint;
pub mod record;
pub mod vote;
pub mod repair;
pub mod agenda;
pub mod soundness;
pub mod evaluation;
pub mod trainer;
pub mod start;

pub use error::TrainError;
pub use plan::TrainArguments;
