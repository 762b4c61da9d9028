//! Where a rank's training samples come from: the node's cache, its copies, the shared store.

pub mod cache;
mod node_memory;
pub mod supply;
pub mod tiered;
