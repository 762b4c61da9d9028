//! What a rank is started with.

use std::path::PathBuf;

use crate::config::Config;

/// What a rank is started with.
#[derive(Debug, Clone)]
pub struct TrainArguments {
    /// Checked.
    pub config: Config,
    /// The run directory.
    pub run_dir: PathBuf,
    /// Of a replacement: what the leader of the survivors told it.
    pub join: Option<String>,
    /// Under `launch`: this start of mpirun.
    pub attempt: Option<u32>,
    /// Under `launch`: unix time at which the run's seconds were zero.
    pub origin: Option<f64>,
    /// Whether a supervisor draws progress and keeps the logs.
    pub launched: bool,
    /// Whether the network between the world's nodes is measured before the first step.
    pub measure_network: bool,
    /// Whether a guardian watches the rank, as it should.
    pub guarded: bool,
}

/// Who works beside the communicating thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Staff {
    /// Threads.
    Threads,
    /// Nobody: in simulation the communicating thread does it all.
    Inline,
}
