//! Rust over C: the ULFM shim (`mpi`), what mpirun loads (`launcher`), oneDNN (`dnnl`) with the
//! words in which it is asked, as any device is (`operation`), and the memory that it works in
//! (`arena`), NVIDIA's driver and libraries where there are some (`cuda`), the few kernel calls
//! (`os`, `affinity`, `descriptor`, `grants`, `cgroup`, `process`, `private`, `regular`, `watch`,
//! `pidfd`, `life`, `shared`, `mapping`, `spill`), the end of a process that cannot go on
//! (`ending`) or has no memory (`allocator`), streaming stores (`stream`), exact sums (`fixed`),
//! resizing of pictures (`resize`), buffers that threads fill in pieces (`pieces`) and code that is
//! compiled for wide registers too (`wide`). Each library has three levels: `sys` (1:1), `result`
//! (codes to enums), safe. All `unsafe` of the project lives here (and in the device backends).

pub mod affinity;
pub mod allocator;
pub mod arena;
pub mod bell;
pub mod cgroup;
pub mod cuda;
pub mod descriptor;
pub mod dnnl;
pub mod ending;
pub mod fixed;
pub mod grants;
pub mod launcher;
pub mod life;
pub mod loaded;
pub mod lock;
pub mod mapping;
pub mod mpi;
mod opaque;
pub mod operation;
pub mod os;
pub mod pidfd;
pub mod pieces;
pub mod private;
pub mod proc;
pub mod process;
pub mod regular;
pub mod resize;
pub mod shared;
pub mod spill;
pub mod stream;
pub mod watch;
pub mod wide;
