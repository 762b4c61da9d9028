//! Environment variables that launch sets and ranks read.

/// Over several nodes: that of launch, which decides between two halves of a world.
pub const HOME: &str = "KINTSUGI_HOME";

/// The node of launch in a world on several nodes; `None` elsewhere.
pub fn home() -> Option<String> {
    std::env::var(HOME).ok()
}

/// Set by a launch over several nodes: process numbers alone do not tell processes apart there.
pub const NODES: &str = "KINTSUGI_NODES";

/// Marks every process of an attempt, so that none can be overlooked when it ends.
pub const JOB: &str = "KINTSUGI_JOB";

/// Ranks of each machine, at most: each of them decides from it which processors are its own.
pub const RANKS_HERE: &str = "KINTSUGI_RANKS_HERE";

/// Where pictures are made of which nobody named a folder: below it, or below `data` of the folder
/// where launch was started.
pub const DATA: &str = "KINTSUGI_DATA_DIR";

/// Where Open MPI keeps the ranks' shared memory segments.
pub const SEGMENTS: &str = "OMPI_MCA_btl_sm_backing_directory";
