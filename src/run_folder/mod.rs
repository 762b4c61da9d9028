//! What the programs of a run share of its folder `RUN`: how it is named, its files, who may write
//! (`lock`), and the variables through which launch speaks to its ranks (`variables`). The
//! supervisor and the ranks both use it, and neither knows the other.

use std::path::Path;

pub mod heard;
pub mod lock;
pub mod variables;

/// Where `kintsugi scale` leaves the number of ranks it wants, as text; `RENEW` asks the ranks to
/// end at a step boundary.
pub const RANKS_REQUEST: &str = "scale";
/// See `RANKS_REQUEST`.
pub const RENEW: &str = "renew";
/// How the run, or its last attempt, ended.
pub const RESULT: &str = "result.json";
/// What a rank that cannot begin leaves: the kind of failure on the first line, then the reason.
pub const FAILURE: &str = "failure.txt";
/// The kind of failure that is the configuration's.
pub const CONFIGURATION: &str = "configuration";

/// Short, the same for every attempt in this folder, different for every other folder. `run_dir` is
/// absolute.
pub fn id(run_dir: &Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let path = run_dir.canonicalize().unwrap_or_else(|_| run_dir.to_path_buf());
    format!("{:08x}", xxhash_rust::xxh3::xxh3_64(path.as_os_str().as_bytes()) >> 32)
}
