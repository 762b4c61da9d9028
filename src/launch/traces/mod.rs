//! What an attempt leaves on a machine, and who removes it: its name, its folders, its processes.

pub mod folders;
pub mod janitor;
pub mod job_name;
