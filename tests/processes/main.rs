//! What starts ranks: real processes, real Open MPI, real signals. One binary, since each links the
//! whole library. Most tests run alone (`support::alone`): ranks share few cores.

#![allow(clippy::unwrap_used, reason = "a test stops at its first surprise")]

mod asynchronous;
mod bench;
mod best;
mod bf16;
mod binding;
mod cache;
mod changed;
mod chaos;
mod cuda;
mod data_set;
mod fake_ranks;
mod folders;
mod forms;
mod full_disk;
mod guard;
mod integrity;
mod job_script;
mod join;
mod launch;
mod matrix;
mod memory;
mod mixing;
mod moved;
mod optimizers;
mod prove;
mod readers;
mod regrow;
mod reproducible;
mod resident;
mod runs;
mod share;
mod shim;
mod soak;
mod spares;
mod staging;
mod stranger;
mod strangers;
mod support;
mod torn_down;
mod tree;
mod unheard;
mod weights;
