//! The CUDA driver API (`cuda.h`), `libcuda.so.1`. Needs CUDA 12.4's driver or a newer one.
#![allow(missing_docs, non_camel_case_types, non_snake_case)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::opaque::opaque;

/// A status; never an enum, since newer drivers have newer ones.
pub type status = c_int;
pub type device = c_int;
/// An address in the device's memory.
pub type address = u64;

/// Where managed memory is to be; `id` counts for a device alone.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct location {
    pub kind: c_int,
    pub id: c_int,
}

pub const LOCATION_DEVICE: c_int = 1;
pub const LOCATION_HOST: c_int = 2;
pub const ADVISE_READ_MOSTLY: c_int = 1;
pub const ADVISE_PREFERRED_LOCATION: c_int = 3;
pub const ADVISE_ACCESSED_BY: c_int = 5;

opaque!(context, stream, event, module, function);

pub const ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: c_int = 75;
pub const ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: c_int = 76;

pub const STREAM_NON_BLOCKING: c_uint = 1;
pub const EVENT_DEFAULT: c_uint = 0;
pub const EVENT_BLOCKING_SYNC: c_uint = 1;
pub const EVENT_DISABLE_TIMING: c_uint = 2;
pub const HOST_REGISTER_PORTABLE: c_uint = 1;
pub const MEM_ATTACH_GLOBAL: c_uint = 1;

super::table! {
    /// The driver's functions.
    Driver {
        cuInit(c_uint) -> status;
        cuDriverGetVersion(*mut c_int) -> status;
        cuGetErrorName(status, *mut *const c_char) -> status;
        cuGetErrorString(status, *mut *const c_char) -> status;

        cuDeviceGetCount(*mut c_int) -> status;
        cuDeviceGet(*mut device, c_int) -> status;
        cuDeviceGetName(*mut c_char, c_int, device) -> status;
        cuDeviceGetUuid_v2(*mut [u8; 16], device) -> status;
        cuDeviceGetAttribute(*mut c_int, c_int, device) -> status;
        cuDeviceTotalMem_v2(*mut usize, device) -> status;
        cuDevicePrimaryCtxRetain(*mut *mut context, device) -> status;
        cuDevicePrimaryCtxRelease_v2(device) -> status;
        cuCtxSetCurrent(*mut context) -> status;
        cuCtxSynchronize() -> status;

        cuMemAlloc_v2(*mut address, usize) -> status;
        cuMemAllocManaged(*mut address, usize, c_uint) -> status;
        cuMemAdvise_v2(address, usize, c_int, location) -> status;
        cuMemPrefetchAsync_v2(address, usize, location, c_uint, *mut stream) -> status;
        cuMemFree_v2(address) -> status;
        cuMemGetInfo_v2(*mut usize, *mut usize) -> status;
        cuMemHostRegister_v2(*mut c_void, usize, c_uint) -> status;
        cuMemHostUnregister(*mut c_void) -> status;
        cuMemcpyHtoDAsync_v2(address, *const c_void, usize, *mut stream) -> status;
        cuMemcpyDtoHAsync_v2(*mut c_void, address, usize, *mut stream) -> status;
        cuMemsetD8Async(address, u8, usize, *mut stream) -> status;

        cuStreamCreate(*mut *mut stream, c_uint) -> status;
        cuStreamDestroy_v2(*mut stream) -> status;
        cuStreamSynchronize(*mut stream) -> status;
        cuStreamWaitEvent(*mut stream, *mut event, c_uint) -> status;
        cuEventCreate(*mut *mut event, c_uint) -> status;
        cuEventDestroy_v2(*mut event) -> status;
        cuEventRecord(*mut event, *mut stream) -> status;
        cuEventSynchronize(*mut event) -> status;
        cuEventElapsedTime(*mut f32, *mut event, *mut event) -> status;

        cuModuleLoadData(*mut *mut module, *const c_void) -> status;
        cuModuleGetFunction(*mut *mut function, *mut module, *const c_char) -> status;
        cuFuncGetParamInfo(*mut function, usize, *mut usize, *mut usize) -> status;
        cuLaunchKernel(*mut function, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint,
            *mut stream, *mut *mut c_void, *mut *mut c_void) -> status;
    }
}
