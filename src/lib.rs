//! Kintsugi: a fault-tolerant MPI data-parallel trainer. This file is the map.
//!
//! Rooms, each importing only those before it (`tests/tidy.rs` holds the table):
//! `config` what was typed -> what it means · `observe` events, ledger, progress ·
//! `run_folder` what all programs share of a run's folder · `cluster` communicators, recovery,
//! faults · `model` pure description · `data` sources, order, loader · `engine` forward and
//! backward · `needs` what a run needs of memory, disk and files · `train` one rank's loop that
//! wires them · `launch` the supervisor beside it: neither imports the other · `lab` reports,
//! experiments and benches · `cli` one file per subcommand.

pub mod config;
pub mod observe;
pub mod run_folder;
pub mod cluster;
pub mod model;
pub mod data;
pub mod engine;
pub mod needs;
pub mod train;
pub mod launch;
pub mod lab;
pub mod cli;
