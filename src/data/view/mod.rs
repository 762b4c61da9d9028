//! What a model sees of a picture: pure functions of the picture and of the sample's own stream.

mod crop;
mod jitter;
pub mod mixing;
pub(in crate::data) mod prepare;
