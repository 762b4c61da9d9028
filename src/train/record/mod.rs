//! What is written about a run, and by whom.

pub mod casualties;
pub mod cause;
pub mod due;
pub mod journal;
pub mod keeper;
pub mod outcome;
pub mod owed;
pub mod pace;
pub mod reason;
pub mod struck;
