//! Experiments: arms x seeds, each run made by `kintsugi launch`, one at a time or several; then
//! `results.json` and `report.html`. Arms are written one by one, or follow from a sweep; runs end
//! when the configuration says so, or have the same wall time, perhaps under one schedule of
//! failures.

pub mod check;
pub mod file;
pub mod forecast;
pub mod jobs;
pub mod place;
pub mod plan;
pub mod results;
pub mod room;
pub mod runner;
mod sweep;
