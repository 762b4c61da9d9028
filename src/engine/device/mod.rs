//! Where arithmetic runs: `cpu` through oneDNN.

pub mod cpu;
