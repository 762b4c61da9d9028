//! Which processors the ranks of a machine run on. Every rank decides it for itself from the same
//! facts, so nobody has to be told, on whichever node it is.
//!
//! `machine` what the allocation gives (the mask, the quota, nodes of memory) · `places` who gets
//! which of it (pure) · `claim` how a process takes a place, and how the next one gets it.

pub mod claim;
pub mod machine;
pub mod places;
