//! Micro-batches to gradients: worker threads, and the sums that they add to.

pub mod accumulate;
pub mod board;
pub mod bucket_sum;
pub mod committed;
pub mod free_run;
pub mod gradient_sum;
pub mod gradients;
pub mod moments;
pub mod outage;
pub mod pause;
pub mod pool;
pub mod totals;
pub mod worker;
