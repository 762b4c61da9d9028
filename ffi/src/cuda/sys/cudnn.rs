//! cuDNN 9's graph API (`cudnn_graph_v9.h`), `libcudnn.so.9`: a few calls, and numbers for what
//! they are about. Only numbers that convolutions need.
#![allow(missing_docs, non_camel_case_types, non_snake_case)]

use std::ffi::{c_char, c_int, c_void};

use super::driver;

pub type status = c_int;

/// Opaque: only pointers to it exist.
#[repr(C)]
pub struct handle {
    _private: [u8; 0],
}

pub type descriptor = *mut c_void;

super::table! {
    /// cuDNN's functions.
    Cudnn {
        cudnnGetVersion() -> usize;
        cudnnGetErrorString(status) -> *const c_char;
        cudnnGetLastErrorString(*mut c_char, usize) -> ();
        cudnnCreate(*mut *mut handle) -> status;
        cudnnDestroy(*mut handle) -> status;
        cudnnSetStream(*mut handle, *mut driver::stream) -> status;
        cudnnBackendCreateDescriptor(c_int, *mut descriptor) -> status;
        cudnnBackendDestroyDescriptor(descriptor) -> status;
        cudnnBackendSetAttribute(descriptor, c_int, c_int, i64, *const c_void) -> status;
        cudnnBackendGetAttribute(descriptor, c_int, c_int, i64, *mut i64, *mut c_void) -> status;
        cudnnBackendFinalize(descriptor) -> status;
        cudnnBackendExecute(*mut handle, descriptor, descriptor) -> status;
    }
}

/// `cudnnBackendDescriptorType_t`: what a descriptor describes.
pub mod kind {
    pub const CONVOLUTION: i32 = 1;
    pub const ENGINE: i32 = 2;
    pub const ENGINE_CONFIG: i32 = 3;
    pub const ENGINE_HEURISTIC: i32 = 4;
    pub const EXECUTION_PLAN: i32 = 5;
    pub const CONVOLUTION_FORWARD: i32 = 10;
    pub const CONVOLUTION_BACKWARD_FILTER: i32 = 11;
    pub const CONVOLUTION_BACKWARD_DATA: i32 = 12;
    pub const OPERATION_GRAPH: i32 = 15;
    pub const VARIANT_PACK: i32 = 16;
    pub const TENSOR: i32 = 17;
    pub const DEVICE_PROPERTIES: i32 = 38;
}

/// `cudnnBackendAttributeType_t`: what an attribute's values are.
pub mod of {
    pub const HANDLE: i32 = 0;
    pub const DATA_TYPE: i32 = 1;
    pub const INT64: i32 = 3;
    pub const FLOAT: i32 = 4;
    pub const VOID_PTR: i32 = 6;
    pub const CONVOLUTION_MODE: i32 = 7;
    pub const HEURISTIC_MODE: i32 = 8;
    pub const NUMERICAL_NOTE: i32 = 11;
    pub const DESCRIPTOR: i32 = 15;
    pub const BEHAVIOR_NOTE: i32 = 19;
    pub const CHAR: i32 = 24;
}

/// `cudnnBackendAttributeName_t`.
pub mod attribute {
    pub const CONVOLUTION_COMPUTE_TYPE: i32 = 100;
    pub const CONVOLUTION_MODE: i32 = 101;
    pub const CONVOLUTION_DILATIONS: i32 = 102;
    pub const CONVOLUTION_STRIDES: i32 = 103;
    pub const CONVOLUTION_POST_PADDINGS: i32 = 104;
    pub const CONVOLUTION_PRE_PADDINGS: i32 = 105;
    pub const CONVOLUTION_SPATIAL_DIMS: i32 = 106;

    pub const HEURISTIC_MODE: i32 = 200;
    pub const HEURISTIC_GRAPH: i32 = 201;
    pub const HEURISTIC_RESULTS: i32 = 202;
    pub const HEURISTIC_DEVICE: i32 = 204;

    pub const CONFIG_ENGINE: i32 = 300;

    pub const PLAN_HANDLE: i32 = 400;
    pub const PLAN_CONFIG: i32 = 401;
    pub const PLAN_WORKSPACE_BYTES: i32 = 402;
    pub const PLAN_JSON: i32 = 405;
    pub const PLAN_DEVICE: i32 = 407;

    pub const FORWARD_ALPHA: i32 = 700;
    pub const FORWARD_BETA: i32 = 701;
    pub const FORWARD_CONVOLUTION: i32 = 702;
    pub const FORWARD_W: i32 = 703;
    pub const FORWARD_X: i32 = 704;
    pub const FORWARD_Y: i32 = 705;
    pub const DATA_ALPHA: i32 = 706;
    pub const DATA_BETA: i32 = 707;
    pub const DATA_CONVOLUTION: i32 = 708;
    pub const DATA_W: i32 = 709;
    pub const DATA_DX: i32 = 710;
    pub const DATA_DY: i32 = 711;
    pub const FILTER_ALPHA: i32 = 712;
    pub const FILTER_BETA: i32 = 713;
    pub const FILTER_CONVOLUTION: i32 = 714;
    pub const FILTER_DW: i32 = 715;
    pub const FILTER_X: i32 = 716;
    pub const FILTER_DY: i32 = 717;

    pub const GRAPH_HANDLE: i32 = 800;
    pub const GRAPH_OPERATIONS: i32 = 801;

    pub const TENSOR_ALIGNMENT: i32 = 900;
    pub const TENSOR_DATA_TYPE: i32 = 901;
    pub const TENSOR_DIMENSIONS: i32 = 902;
    pub const TENSOR_STRIDES: i32 = 903;
    pub const TENSOR_ID: i32 = 906;

    pub const PACK_IDS: i32 = 1000;
    pub const PACK_POINTERS: i32 = 1001;
    pub const PACK_WORKSPACE: i32 = 1003;

    pub const ENGINE_NUMERICAL_NOTES: i32 = 1303;
    pub const ENGINE_BEHAVIOR_NOTES: i32 = 1305;

    pub const DEVICE_JSON: i32 = 2702;
}

/// Values of attributes.
pub mod value {
    /// `cudnnDataType_t`.
    pub const F32: i32 = 0;
    pub const BF16: i32 = 9;
    /// `cudnnConvolutionMode_t`.
    pub const CROSS_CORRELATION: i32 = 1;
    /// `cudnnBackendHeurMode_t`.
    pub const HEURISTIC_FALLBACK: i32 = 2;
    pub const HEURISTIC_A: i32 = 3;
    /// `cudnnBackendNumericalNote_t`.
    pub const NOTE_TENSOR_CORE: i32 = 0;
    pub const NOTE_DOWN_CONVERT_INPUTS: i32 = 1;
    pub const NOTE_REDUCED_PRECISION_REDUCTION: i32 = 2;
    pub const NOTE_NONDETERMINISTIC: i32 = 4;
    /// `cudnnBackendBehaviorNote_t`.
    pub const NOTE_RUNTIME_COMPILATION: i32 = 0;
}
