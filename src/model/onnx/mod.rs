//! Models as ONNX files: what `torch.onnx.export` writes becomes a graph of our layers with its
//! weights (`import`), and a trained graph becomes a file that ONNX Runtime runs (`export`).
//!
//! `wire` is protobuf's encoding, `proto` the messages of onnx.proto that a model is made of, by
//! reference to the file's bytes. `walk` goes through the nodes in file order: `chains` computes
//! what is known before there is an image (shapes, axes), `windows`, `dense` and `elementwise` make
//! layers of the rest, `reshaping` sees which changes of shape mean nothing here. `names` gives
//! layers torch's names, `stored` fetches weights.
//!
//! No crate decodes these messages here. A generated decoder makes an owned tree of what it reads,
//! in which an empty node of two bytes takes hundreds; the five rules of the encoding, by
//! reference, take the file's size and the bounds named in `proto`.

pub mod dense;
pub mod error;
pub mod export;
pub mod import;
pub mod proto;
pub mod stored;
pub mod wire;

mod chains;
mod elementwise;
mod names;
mod reshaping;
mod state;
mod taken;
mod value;
mod walk;
mod windows;
