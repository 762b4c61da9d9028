//! Kintsugi: a fault-tolerant MPI data-parallel trainer. This file is the map.
//!
//! Rooms, each importing only those before it (`tests/tidy.rs` holds the table):
//! `config` what was typed -> what it means · `observe` events, ledger, progress, report ·
//! `cluster` communicators, recovery, faults, launch · `model` pure description ·
//! `data` sources, order, loader · `engine` forward and backward · `train` the loop that wires
//! them · `lab` experiments and benches · `cli` one file per subcommand.

pub mod config;
pub mod observe;
pub mod cluster;
pub mod model;
pub mod data;
pub mod engine;
pub mod train;
pub mod lab;
pub mod cli;
