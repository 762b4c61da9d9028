//! The CPU through oneDNN: `backend` gives plans its kernels and layouts, `program` is a plan with
//! its primitives, `weights` holds parameters as programs want them, `operands` are a kernel's,
//! `host` computes what no kernel does, `machine` runs a program, `arranging` makes one fit the
//! near tier, `moving` copies what leaves it, `bf16` knows which processors have it, `arithmetic`
//! what decides the last bits here.

pub mod arithmetic;
mod arranging;
pub mod backend;
pub mod bf16;
pub mod host;
pub mod machine;
mod moving;
pub mod operands;
pub mod program;
pub mod team;
pub mod weights;
