//! How a world that lost ranks, or whose replicas differ, becomes whole again.

pub mod comparison;
pub mod integrity;
pub mod resize;
pub mod restart;
pub mod rollback;
pub mod size;
pub mod spares;
pub mod take_over;
pub mod world;
