//! What a rank holds of the run: tensors, position, and where they lie.

pub mod arithmetic;
pub mod beside;
pub mod digest;
pub mod slot_files;
pub mod incoming;
pub mod position;
pub mod proof;
pub mod rank;
pub mod replica;
