//! A launch over several nodes of a SLURM allocation: mpirun's death notices say neither which node
//! died nor that one fell silent, so `launch` keeps a small *agent* on every other node.
//!
//! `allocation` which nodes there are · `placement` which of them an attempt runs on (pure) ·
//! `message` what launch and agents say to each other · `agent` a node's side · `orphan` what it
//! does when launch's machine died · `connections` and `fleet` launch's side · `record` when a lost
//! node is asked again (pure) · `cluster_nodes` what the supervisor needs · `scale` more or fewer
//! at the user's wish · `spreading` when ranks go back to nodes that are back (pure) · `srun` what
//! starts an agent or a daemon there · `step` a program that srun started too often.

pub mod agent;
pub mod allocation;
pub mod cluster_nodes;
pub mod fleet;
pub mod message;
pub mod orphan;
pub mod placement;
mod record;
pub mod scale;
pub mod spreading;
pub mod srun;
pub mod step;
pub mod connections;

pub use allocation::Allocation;
pub use cluster_nodes::ClusterNodes;
pub use placement::Placement;

/// Spares per node where the configuration names no number: promotion of a process
/// that waits is dependable over several nodes, and starting one is not.
pub const SPARES_DEFAULT: u32 = 3;

#[cfg(test)]
mod tests;
