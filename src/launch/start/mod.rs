//! From a configuration to a job: what is decided, refused and told before a run starts, its
//! folder, and whose it is.

pub mod beginning;
pub mod beside;
pub mod claim;
pub mod device;
pub mod former;
pub mod job;
pub mod opening;
pub mod run_dir;
