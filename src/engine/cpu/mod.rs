//! The CPU through oneDNN: `backend` gives plans its kernels and layouts, `program` is a plan with
//! its primitives, `weights` holds parameters as programs want them, `executor` runs programs.

pub mod backend;
pub mod executor;
pub mod program;
pub mod team;
pub mod translation;
pub mod weights;
