//! Experiments: arms x seeds under one schedule of failures, each run with the same wall time, one
//! after another through `kintsugi launch`; then `results.json` and `report.html`.

pub mod place;
pub mod plan;
pub mod results;
pub mod room;
pub mod runner;
