//! Forward and backward on a device. Activation memory belongs to the executor.

pub mod device;
pub mod executor;
pub mod layer;
