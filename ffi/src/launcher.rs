//! What is loaded into mpirun before its own libraries (`ulfm-shim/launcher`).

/// A shared library: the file that `LD_PRELOAD` is to name.
pub const CLOSED_DESCRIPTORS: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/libclosed_descriptors.so"));
