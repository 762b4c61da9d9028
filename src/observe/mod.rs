//! What a run says of itself: events (the one schema), the ledger of committed steps, progress,
//! TensorBoard's files, `metrics.csv`, the machine and the program's version; the console, `notice`
//! (what a person must act on), and what a panic does. Also the traits through which a run sees the
//! world: clock and storage, real or simulated.

pub mod account;
pub mod build;
pub mod clock;
pub mod console;
pub mod copies;
pub mod data_use;
pub mod event;
pub mod event_writer;
pub mod ledger;
pub mod log;
pub mod machine;
pub mod metrics;
pub mod notice;
pub mod panics;
pub mod pipeline;
pub mod progress;
pub mod protobuf;
pub mod refusal;
pub mod result;
pub mod spans;
pub mod standing;
pub mod storage;
pub mod tensorboard;
pub mod threads;
