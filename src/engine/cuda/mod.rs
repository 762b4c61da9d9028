//! An NVIDIA card through CUDA. Pure: `layout` says how tensors lie on it, `backend` gives plans
//! its kernels, `launches` is one match over the vocabulary of operations that writes `call`s,
//! `script` is a plan as calls and copies. Then: `kernels` is the source that is compiled for the
//! card at hand, `card` the process's own, `room` what is free there, `bound` a call with its
//! kernel, `copies` the weights on it, `executor` runs scripts. `convolutions` finds cuDNN's plan
//! for a convolution; no script runs one yet.

pub mod backend;
pub mod bound;
pub mod call;
pub mod card;
pub mod convolutions;
pub mod copies;
pub mod executor;
pub mod kernels;
pub mod launches;
pub mod layout;
pub mod room;
pub mod script;
