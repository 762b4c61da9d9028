//! An NVIDIA card through CUDA. Pure: `layout` says how tensors lie on it, `norm_blocks` and
//! `depthwise_blocks` how batch norms and depthwise convolutions are shared out, `backend` gives
//! plans its kernels, `launches` is one match over the vocabulary of operations that writes
//! `call`s, `script` is a plan as calls and copies, `joined` makes one call of two. Then: `kernels`
//! is the source that is compiled for the card at hand, `card` the process's own, `room` what is
//! free there, `convolutions` cuDNN's plans for products with weights, `bound` a call with its
//! kernel, `copies` the weights on it, `pictures` what is sent ahead, `landings` where outputs
//! arrive, `memory` all of it, `moving` what leaves it for the host's, `streams` the order of work,
//! `machine` runs a script, `arranging` makes one fit, `clock` and `times` say what calls take.

mod arranging;
pub mod backend;
pub mod bound;
pub mod call;
pub mod card;
pub mod clock;
pub mod convolutions;
pub mod copies;
pub mod depthwise_blocks;
pub mod joined;
pub mod kernels;
pub mod landings;
pub mod launches;
pub mod layout;
pub mod machine;
mod memory;
mod moving;
pub mod norm_blocks;
pub mod pictures;
pub mod room;
pub mod script;
pub mod streams;
pub mod times;
