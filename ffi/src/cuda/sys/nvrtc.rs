//! NVRTC, the compiler for kernels (`nvrtc.h`), `libnvrtc.so.13` or `.12`.
#![allow(missing_docs, non_camel_case_types, non_snake_case)]

use std::ffi::{c_char, c_int};

pub type status = c_int;

/// Opaque: only pointers to it exist.
#[repr(C)]
pub struct program {
    _private: [u8; 0],
}

super::table! {
    /// NVRTC's functions.
    Nvrtc {
        nvrtcVersion(*mut c_int, *mut c_int) -> status;
        nvrtcGetErrorString(status) -> *const c_char;
        nvrtcCreateProgram(*mut *mut program, *const c_char, *const c_char, c_int,
            *const *const c_char, *const *const c_char) -> status;
        nvrtcCompileProgram(*mut program, c_int, *const *const c_char) -> status;
        nvrtcGetCUBINSize(*mut program, *mut usize) -> status;
        nvrtcGetCUBIN(*mut program, *mut c_char) -> status;
        nvrtcGetProgramLogSize(*mut program, *mut usize) -> status;
        nvrtcGetProgramLog(*mut program, *mut c_char) -> status;
        nvrtcDestroyProgram(*mut *mut program) -> status;
    }
}
