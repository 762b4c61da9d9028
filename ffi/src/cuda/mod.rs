//! CUDA: the driver, NVRTC and cuDNN, all loaded while the program runs. A machine without them is
//! the usual case and costs one look; no call here panics. `sys` is the headers, `result` a failed
//! call; the types here own what they name and check every size before a library sees a pointer.

pub mod context;
pub mod crew;
pub mod cudnn;
pub mod driver;
pub mod event;
pub mod found;
pub mod landing;
pub mod library;
pub mod managed;
pub mod memory;
pub mod module;
pub mod nvrtc;
pub mod result;
pub mod search;
pub mod stream;
pub mod sys;

pub use context::Context;
pub use crew::{Crew, Turn};
pub use cudnn::Cudnn;
pub use driver::{Device, Driver};
pub use event::{Event, Timing};
pub use found::Found;
pub use landing::Landing;
pub use library::Missing;
pub use managed::{Advice, Side};
pub use memory::{Buffer, Staging};
pub use module::{Argument, Function, Module, Shape};
pub use nvrtc::{Cubin, Nvrtc};
pub use result::Error;
pub use search::{Origin, Places};
pub use stream::Stream;
