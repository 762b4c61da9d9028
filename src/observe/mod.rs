//! What a run says of itself: events (the one schema), the ledger of committed steps, progress,
//! TensorBoard's files, and the report drawn from them. Also the two traits through which a run sees the world: the
//! clock and the storage, real or simulated.

pub mod clock;
pub mod event;
pub mod ledger;
pub mod log;
pub mod progress;
pub mod report;
pub mod result;
pub mod storage;
pub mod tensorboard;
