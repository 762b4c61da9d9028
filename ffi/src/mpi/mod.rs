//! MPI with ULFM over the shim (`ulfm-shim/`): `sys` is its header 1:1, `result` turns error
//! classes into [`MpiError`], `safe` owns communicators. rsmpi starts MPI and names datatypes and
//! operations; nothing that moves data goes through it, since it drops return codes.

mod result;
mod safe;
mod sys;
mod wait;

pub use result::{MpiError, Workarounds};
pub use safe::{
    Comm, Element, error_text, finalize, initialise, library_version, mpicc, parent, spawn,
    waits_for_launcher, workarounds,
};
pub use wait::{keep_core, progress, share_core};
