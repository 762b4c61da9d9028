//! Ranks, their communicators and their repair.

pub mod comm;
pub mod wire;
pub mod world;
pub mod recovery;
pub mod faults;
pub mod guard;
pub mod processors;
pub mod resident;
