//! What needs no ranks: the library from outside, simulated worlds, commands that look at files.
//! One binary, since each links the whole library; its tests run side by side.

#![allow(clippy::unwrap_used, reason = "a test stops at its first surprise")]

mod bf16;
mod check;
mod checkpoint;
mod cli;
mod config;
mod cuda;
mod data;
mod experiments;
mod far;
mod fixture;
mod fleet;
mod footprint;
mod forms;
mod gradients;
mod hiccups;
mod memory_experiment;
mod memory_plan;
mod moved;
mod norms;
mod numbers;
mod observe;
mod onnx;
mod parity;
mod program;
mod reference;
mod refused;
mod report;
mod runs;
mod second_user;
mod simulated_cluster;
#[path = "../processes/stranger.rs"]
mod stranger;
mod sweep;
mod tape;
mod told;
mod torchvision;
mod trained;
#[path = "../processes/tree.rs"]
mod tree;
mod unified_memory;
mod unsaved;
mod world_of_one;
