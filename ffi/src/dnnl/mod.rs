//! oneDNN 3.x, CPU, C API, over GNU OpenMP. `sys` is the header, `result` its codes; the types
//! here own what they name and check every size before oneDNN sees a pointer.

mod codes;
pub mod create;
pub mod memory;
pub mod primitive;
pub mod result;
pub mod sys;

use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::loaded::file_of;

pub use create::Described;
pub use memory::MemoryDesc;
pub use primitive::{Context, Data, Primitive, PrimitiveDesc};
pub use result::{Error, Status};

/// (major, minor, patch) of the library that is loaded.
pub fn version() -> (i32, i32, i32) {
    // SAFETY: the call returns a pointer to a static structure.
    let version = unsafe { &*sys::dnnl_version() };
    (version.major, version.minor, version.patch)
}

/// The file that it was loaded from: whatever the loader found first, not always what the program
/// was linked with.
pub fn file() -> Option<PathBuf> {
    file_of(sys::dnnl_version as *const () as usize)
}

/// Whether it prefers shorter vectors than it could use (`ONEDNN_CPU_ISA_HINTS=PREFER_YMM`).
pub fn prefers_ymm() -> bool {
    const PREFER_YMM: i32 = 1;
    // SAFETY: takes nothing, returns a number.
    unsafe { sys::dnnl_get_cpu_isa_hints() == PREFER_YMM }
}

/// The instruction set that oneDNN uses here, for example `avx512_core_amx`: part of a run's bits.
pub fn isa() -> String {
    // SAFETY: the calls take and return plain values and a static string.
    let text = unsafe { sys::dnnl_cpu_isa2str(sys::dnnl_get_effective_cpu_isa()) };
    if text.is_null() {
        return "unknown".into();
    }
    // SAFETY: not null, so a static, terminated string.
    let text = unsafe { std::ffi::CStr::from_ptr(text) }.to_string_lossy().into_owned();
    text.trim_start_matches("cpu_isa_").to_string()
}

/// Size of the OpenMP team of the calling thread (GNU OpenMP keeps it per host thread).
pub fn set_threads(n: usize) {
    let threads = i32::try_from(n.clamp(1, 4096)).unwrap_or(1);
    // SAFETY: they set thread-locals of libgomp.
    unsafe {
        // Whatever the environment says: a smaller team has other bits.
        sys::omp_set_dynamic(0);
        sys::omp_set_max_active_levels(sys::omp_get_max_active_levels().max(1));
        sys::omp_set_num_threads(threads);
    }
}

/// How many threads a team of the calling thread has, counted in one: primitives are made for as
/// many as are asked for, and with fewer leave work undone.
pub fn team_size() -> usize {
    unsafe extern "C" fn count(found: *mut c_void) {
        // SAFETY: it reads the team's size.
        let threads = unsafe { sys::omp_get_num_threads() };
        // SAFETY: the count of the call below, which waits for the whole team.
        let found = unsafe { &*found.cast::<AtomicI32>() };
        found.store(threads, Ordering::Relaxed);
    }
    let mut found = AtomicI32::new(0);
    // SAFETY: `count` takes what it is given, and is over when the call is.
    unsafe { sys::GOMP_parallel(count, (&raw mut found).cast(), 0, 0) };
    usize::try_from(found.into_inner()).unwrap_or(0)
}

/// The most threads that a team has (`OMP_THREAD_LIMIT`): larger ones are made smaller without a
/// word.
pub fn thread_limit() -> usize {
    // SAFETY: it reads a setting of libgomp.
    usize::try_from(unsafe { sys::omp_get_thread_limit() }).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_team_has_the_threads_that_were_asked_for() {
        for threads in [1, 3, 2] {
            super::set_threads(threads);
            assert_eq!(super::team_size(), threads);
        }
    }

    #[test]
    fn the_library_is_version_three_and_names_its_instruction_set() {
        assert_eq!(super::version().0, 3);
        assert!(!super::isa().is_empty() && !super::prefers_ymm());
        let file = super::file().expect("it was loaded");
        assert!(file.to_string_lossy().contains("libdnnl"), "{file:?}");
    }
}
